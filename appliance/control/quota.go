package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// SetQuota sets a row of a tenant that sees the pool. Below use is legal: what
// runs stays, nothing new fits.
func (c *Control) SetQuota(ctx context.Context, who appliance.Caller, in appliance.SetQuota) (out appliance.Quota, err error) {
	if in.ForTenantID == "" {
		in.ForTenantID = in.TenantID
	}
	err = c.write(ctx, who, appliance.QuotasManage, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		p, tr, err := c.forOwnPool(who, appliance.QuotasManage, in.TenantID, in.PoolID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if p.Archived {
			return appliance.Refuse(appliance.InvalidState, "poolId", "poolId: the pool is archived")
		}
		if _, ok := p.seenBy[in.ForTenantID]; !ok {
			return appliance.NoSuch("tenant").WithReason("forTenantId")
		}
		if err := tx.SetQuotaMax(in.ForTenantID, p.ID, in.Resource, in.Max); err != nil {
			return err
		}
		rows, err := c.refreshQuotas(tx, in.ForTenantID, p.ID)
		if err != nil {
			return err
		}
		for _, q := range rows {
			if q.Resource == in.Resource {
				out = q
			}
		}
		e := ofPool(c.event(tr, appliance.EventQuotaUpdated, p.OwnerTenantID, p.ID, c.now()), p)
		e.Reader = in.ForTenantID
		_, err = tx.Emit(e, out)
		return err
	})
	return out, err
}

// ListQuotas shows the tenant's own rows, and everyone's in pools it owns.
func (c *Control) ListQuotas(ctx context.Context, who appliance.Caller, in appliance.ListQuotas) (out appliance.List[appliance.Quota], err error) {
	if in.PoolID != "" {
		_, _, err = c.forPool(who, appliance.QuotasRead, in.TenantID, in.PoolID)
	} else {
		_, _, err = c.forTenant(who, appliance.QuotasRead, in.TenantID)
	}
	if err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.QuotasSeen(in.TenantID, in.PoolID, in.ForTenantID, in.Cursor, in.Size()+1)
		out = store.Page(rows, in.Size(), func(q appliance.Quota) string { return q.PoolID + "/" + q.TenantID + "/" + q.Resource })
		return err
	})
	return out, err
}
