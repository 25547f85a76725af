package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// OfferPool makes a pool visible to a tenant, with quota rows, or updates both.
func (c *Control) OfferPool(ctx context.Context, who appliance.Caller, in appliance.OfferPool) (out appliance.Offer, err error) {
	in.Normalise()
	err = c.write(ctx, who, appliance.PoolsShare, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		p, tr, err := c.forOwnPool(who, appliance.PoolsShare, in.TenantID, in.PoolID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if to, ok := c.mem.tenant(in.ToTenantID); !ok || to.State == appliance.TenantDeleted {
			return appliance.NoSuch("tenant").WithReason("toTenantId")
		}
		if err := c.offerable(p, in); err != nil {
			return err
		}
		out = appliance.Offer{
			PoolID: p.ID, TenantID: in.ToTenantID, IncludeDescendants: in.IncludeDescendants, Priority: in.Priority,
			OnBudgetExceeded: in.OnBudgetExceeded, CreatedAt: c.now(),
		}
		if before, ok := p.offers[in.ToTenantID]; ok {
			out.CreatedAt = before.CreatedAt
		}
		return c.putOffer(tx, tr, p, &out, in.Quota)
	})
	return out, err
}

// putOffer writes the offer, its quota rows, the authz row and the event in
// one transaction.
func (c *Control) putOffer(tx *store.Tx, tr trail, p *pool, o *appliance.Offer, quota appliance.QuotaMap) error {
	if err := tx.PutOffer(*o); err != nil {
		return err
	}
	for r, n := range quota {
		if err := tx.SetQuotaMax(o.TenantID, p.ID, r, n); err != nil {
			return err
		}
	}
	if err := tx.PutAuthz(p.Authz(o.TenantID)); err != nil {
		return err
	}
	var err error
	if o.Quotas, err = c.refreshQuotas(tx, o.TenantID, p.ID); err != nil {
		return err
	}
	if _, err := c.refreshPool(tx, p.ID); err != nil {
		return err
	}
	e := ofPool(c.event(tr, appliance.EventPoolOffered, p.OwnerTenantID, p.ID, c.now()), p)
	e.Reader = o.TenantID
	_, err = tx.Emit(e, o)
	return err
}

// offerable is the offering validator: INVALID_STATE where the pool's GPUs
// give no isolation, its nodes are a tenant's own, its policy allows one tenant
// alone, or it is archived.
func (c *Control) offerable(p *pool, in appliance.OfferPool) error {
	refuse := func(format string, args ...any) error {
		return appliance.Refuse(appliance.InvalidState, "toTenantId", format, args...)
	}
	if p.Archived {
		return refuse("the pool is archived and cannot be offered")
	}
	if p.policy.SingleTenant && in.IncludeDescendants {
		return appliance.Refuse(appliance.InvalidState, "includeDescendants", "a singleTenant pool cannot be offered with includeDescendants")
	}
	if in.ToTenantID == p.OwnerTenantID {
		return nil
	}
	if p.Sharing.SingleTenantOnly() {
		return refuse("a %s pool gives no isolation between workloads, so it can be offered only to its owner", p.Sharing)
	}
	if host, ok := c.mem.tenantOwnedNode(p.ID); ok {
		return refuse("the pool holds tenant-owned nodes (%s), so it can be offered only to its owner", host)
	}
	if !p.policy.SingleTenant {
		return nil
	}
	for tenant := range p.offers {
		if tenant != p.OwnerTenantID && tenant != in.ToTenantID {
			return refuse("a singleTenant pool can be offered to one tenant besides its owner, and %s has it; unoffer it first", tenant)
		}
	}
	return nil
}

// UnofferPool withdraws an offer. The tenant's quotas drop to what is in use,
// so what runs goes on and nothing new fits.
func (c *Control) UnofferPool(ctx context.Context, who appliance.Caller, in appliance.UnofferPool) (out appliance.Unoffered, err error) {
	err = c.write(ctx, who, appliance.PoolsShare, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		p, tr, err := c.forOwnPool(who, appliance.PoolsShare, in.TenantID, in.PoolID)
		if err != nil {
			return err
		}
		if in.ToTenantID == p.OwnerTenantID {
			return appliance.Refuse(appliance.InvalidState, "toTenantId", "toTenantId: a pool cannot be unoffered from its owner")
		}
		if !appliance.IsTenantID(in.ToTenantID) {
			return appliance.Invalid("toTenantId", "%q is not a tenant id", in.ToTenantID)
		}
		if out.Removed, err = c.withdraw(tx, p, in.ToTenantID); err != nil || !out.Removed {
			return err
		}
		if _, err := c.refreshPool(tx, p.ID); err != nil {
			return err
		}
		return c.emitUnoffered(tx, tr, p, in.ToTenantID, "")
	})
	return out, err
}

func (c *Control) emitUnoffered(tx *store.Tx, tr trail, p *pool, tenant, reason string) error {
	e := ofPool(c.event(tr, appliance.EventPoolUnoffered, p.OwnerTenantID, p.ID, c.now()), p)
	e.Reader = tenant
	data := map[string]any{"poolId": p.ID, "tenantId": tenant}
	if reason != "" {
		data["reason"] = reason
	}
	_, err := tx.Emit(e, data)
	return err
}

// withdraw removes an offer with its authz row and lowers the tenant's quotas
// to what is in use; it tells whether there was an offer. The caller refreshes
// the pool.
func (c *Control) withdraw(tx *store.Tx, p *pool, tenant string) (bool, error) {
	removed, err := tx.DropOffer(p.ID, tenant)
	if err != nil || !removed {
		return false, err
	}
	if err := tx.DropAuthz(tenant, p.ID); err != nil {
		return false, err
	}
	if err := c.flushQuotas(tx); err != nil {
		return false, err
	}
	if err := tx.LowerQuotasToUse(tenant, p.ID); err != nil {
		return false, err
	}
	_, err = c.refreshQuotas(tx, tenant, p.ID)
	return true, err
}

// ListOffers shows a pool's offers, with their quota rows, to its owner.
func (c *Control) ListOffers(ctx context.Context, who appliance.Caller, in appliance.PoolRef) (out appliance.List[appliance.Offer], err error) {
	if _, _, err := c.forOwnPool(who, appliance.PoolsShare, in.TenantID, in.PoolID); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		if out.Items, err = tx.OffersOf(in.PoolID); err != nil {
			return err
		}
		for i := range out.Items {
			if out.Items[i].Quotas, err = tx.QuotasOf(out.Items[i].TenantID, in.PoolID); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
