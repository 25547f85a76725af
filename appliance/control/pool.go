package control

import (
	"context"
	"slices"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// CreatePool makes an empty pool on a site of the tenant's own. With an
// idempotency key a retry answers the same pool; the same key with another
// site, class, sharing mode, agent or provider account is CONFLICT.
func (c *Control) CreatePool(ctx context.Context, who appliance.Caller, in appliance.CreatePool) (appliance.Pool, error) {
	in.Normalise()
	p := appliance.Pool{
		OwnerTenantID: in.TenantID, SiteID: in.SiteID, Class: in.Class, GPUModel: in.GPUModel, Sharing: in.Sharing,
		Agent: in.Agent, ProviderAccountID: in.ProviderAccountID, Policy: in.Policy, Name: in.Name, Version: 1, CreatedAt: c.now(),
	}
	if in.IdempotencyKey != "" {
		p.ID = appliance.DeriveID(appliance.PoolPrefix, in.TenantID, who.ID, in.IdempotencyKey)
	} else {
		p.ID = c.newID(appliance.PoolPrefix)
	}
	var out appliance.Pool
	err := c.write(ctx, who, appliance.PoolsCreate, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.PoolsCreate, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		site, err := c.ownSite(tx, in.TenantID, in.SiteID)
		if err != nil {
			return err
		}
		if _, err := plan.CheckPolicy(policyFacts(p, site.Kind), p.Policy); err != nil {
			return err
		}
		if there := c.mem.pool(p.ID); there != nil {
			if !in.SameAsked(there.Pool) {
				return appliance.Refuse(appliance.ConflictCode, "idempotencyKey",
					"idempotencyKey: %q made pool %s with another site, class, sharing mode, agent or provider account", in.IdempotencyKey, p.ID)
			}
			out, err = c.poolView(tx, there, in.TenantID)
			return err
		}
		out, err = c.insertPool(tx, tr, p, in.OwnerQuota)
		return err
	})
	return out, err
}

// insertPool writes a pool with its owner's quota rows, authz row and event.
func (c *Control) insertPool(tx *store.Tx, tr trail, p appliance.Pool, quota appliance.QuotaMap) (appliance.Pool, error) {
	if err := tx.InsertPool(p); err != nil {
		return p, err
	}
	stored, err := tx.Pool(p.ID)
	if err != nil {
		return p, err
	}
	if err := tx.PutAuthz(stored.Authz(p.OwnerTenantID)); err != nil {
		return p, err
	}
	for r, n := range quota {
		if err := tx.SetQuotaMax(p.OwnerTenantID, p.ID, r, n); err != nil {
			return p, err
		}
	}
	if _, err := c.refreshQuotas(tx, p.OwnerTenantID, p.ID); err != nil {
		return p, err
	}
	facts, err := c.refreshPool(tx, p.ID)
	if err != nil {
		return p, err
	}
	view, err := c.poolView(tx, facts, p.OwnerTenantID)
	if err != nil {
		return p, err
	}
	_, err = tx.Emit(toPool(ofPool(c.event(tr, appliance.EventPoolCreated, p.OwnerTenantID, p.ID, p.CreatedAt), facts)), poolEvent(facts.Pool))
	return view, err
}

// poolEvent is what the events of a pool say of it: its policy may hold what
// only the owner should read, so it is not among it.
func poolEvent(p appliance.Pool) map[string]any {
	return map[string]any{
		"id": p.ID, "name": p.Name, "siteId": p.SiteID, "class": p.Class, "gpuModel": p.GPUModel,
		"sharing": p.Sharing, "version": p.Version,
	}
}

// toPool addresses an event to whoever sees its pool.
func toPool(e store.Entry) store.Entry {
	e.ToPool = true
	return e
}

// poolView is a pool as a tenant sees it, with the tenant's own quota rows.
func (c *Control) poolView(tx *store.Tx, p *pool, tenant string) (appliance.Pool, error) {
	quotas, err := tx.QuotasOf(tenant, p.ID)
	return viewPool(p.Pool, tenant, quotas), err
}

func viewPool(p appliance.Pool, tenant string, quotas []appliance.Quota) appliance.Pool {
	p.Owned = p.OwnerTenantID == tenant
	p.Quotas = quotas
	p.Policy = plan.PolicyFor(p.Owned, p.Policy)
	return p
}

// ListPools shows the pools that the tenant owns or is offered, each with the
// tenant's own quota rows, in order of id. It is answered from memory.
func (c *Control) ListPools(_ context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Pool], err error) {
	if _, _, err := c.forTenant(who, appliance.PoolsRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	m := &c.mem
	ids := m.idsSeenBy(in.TenantID)
	from, found := slices.BinarySearch(ids, in.Cursor)
	if found {
		from++
	}
	ids = ids[from:]
	if size := in.Size(); len(ids) > size {
		ids = ids[:size]
		out.NextCursor = ids[size-1]
	}
	views, rows := m.poolViews(in.TenantID, ids)
	seen := c.IAM.DecideAll(iam.Question{Caller: who, Action: appliance.PoolsRead, Tenant: in.TenantID, At: c.Now()}, rows)
	out.Items = make([]appliance.Pool, 0, len(views))
	for i, v := range views {
		if seen[i] {
			out.Items = append(out.Items, v)
		}
	}
	return out, nil
}

// poolViews are pools as a tenant sees them, each with its authz row.
func (m *memory) poolViews(tenant string, ids []string) (views []appliance.Pool, rows []appliance.AuthzRow) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, id := range ids {
		p := m.pools[id]
		if p == nil {
			continue // its creation was rolled back since
		}
		if row, ok := p.seenBy[tenant]; ok {
			views, rows = append(views, viewPool(p.Pool, tenant, m.quotasOf(tenant, id))), append(rows, row)
		}
	}
	return views, rows
}

// GetPool shows one pool as the tenant sees it.
func (c *Control) GetPool(ctx context.Context, who appliance.Caller, in appliance.PoolRef) (out appliance.Pool, err error) {
	p, _, err := c.forPool(who, appliance.PoolsRead, in.TenantID, in.PoolID)
	if err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		out, err = c.poolView(tx, p, in.TenantID)
		return err
	})
	if err == nil && out.Owned {
		out.Rollout = c.viewRollout(p)
	}
	return out, err
}

// PoolCapacity shows what a pool has and what one node could take now.
func (c *Control) PoolCapacity(_ context.Context, who appliance.Caller, in appliance.PoolRef) (appliance.Capacity, error) {
	p, _, err := c.forPool(who, appliance.CapacityRead, in.TenantID, in.PoolID)
	if err != nil {
		return appliance.Capacity{}, err
	}
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	return c.mem.index.Capacity(in.PoolID, perGPU(p)), nil
}

// UpdatePool replaces a pool's policy as a whole, its GPU model, or both.
func (c *Control) UpdatePool(ctx context.Context, who appliance.Caller, in appliance.UpdatePool) (out appliance.Pool, err error) {
	err = c.write(ctx, who, appliance.PoolsManage, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		p, tr, err := c.forOwnPool(who, appliance.PoolsManage, in.TenantID, in.PoolID)
		if err != nil {
			return err
		}
		next, err := c.updated(p, in)
		if err != nil {
			return err
		}
		if next.GPUModel != p.GPUModel {
			if err := c.cutMeters(tx, p); err != nil {
				return err
			}
		}
		if err := tx.UpdatePool(next); err != nil {
			return err
		}
		for tenant := range p.seenBy {
			if err := tx.PutAuthz(next.Authz(tenant)); err != nil {
				return err
			}
		}
		facts, err := c.refreshPool(tx, p.ID)
		if err != nil {
			return err
		}
		if _, err := tx.Emit(toPool(ofPool(c.event(tr, appliance.EventPoolUpdated, p.OwnerTenantID, p.ID, c.now()), facts)), poolEvent(facts.Pool)); err != nil {
			return err
		}
		tx.Touch(topicSpecs)
		out, err = c.poolView(tx, facts, in.TenantID)
		return err
	})
	return out, err
}

// updated is the pool that an update asks for, or why it cannot be.
func (c *Control) updated(p *pool, in appliance.UpdatePool) (appliance.Pool, error) {
	next := p.Pool
	if in.Policy == nil && in.GPUModel == "" {
		return next, appliance.Invalid("policy", "an update needs a policy, a gpuModel, or both")
	}
	if p.Archived {
		return next, appliance.Refuse(appliance.InvalidState, "poolId", "poolId: the pool is archived")
	}
	if in.ExpectedVersion != nil && *in.ExpectedVersion != p.Version {
		return next, appliance.Refuse(appliance.ConflictCode, "expectedVersion",
			"expectedVersion: the pool has version %d, not %d; read it again and repeat the change", p.Version, *in.ExpectedVersion).With("version", p.Version)
	}
	if in.GPUModel != "" {
		if err := appliance.CheckGPUModel(in.GPUModel); err != nil {
			return next, err
		}
		next.GPUModel = in.GPUModel
	}
	if in.Policy != nil {
		next.Policy = *in.Policy
	}
	if _, err := checkNext(p, next); err != nil {
		return next, err
	}
	next.Version++
	return next, nil
}

// checkNext reads the policy that a pool is to have, and refuses it as an update
// would.
func checkNext(p *pool, next appliance.Pool) (appliance.Policy, error) {
	facts := policyFacts(next, p.siteKind)
	for _, tenant := range sortedKeys(p.offers) {
		if tenant != p.OwnerTenantID || p.offers[tenant].IncludeDescendants {
			facts.Offers = append(facts.Offers, p.offers[tenant])
		}
	}
	return plan.CheckPolicy(facts, next.Policy)
}

// ArchivePool retires a pool without disturbing what runs on it.
func (c *Control) ArchivePool(ctx context.Context, who appliance.Caller, in appliance.PoolRef) (out appliance.Pool, err error) {
	err = c.write(ctx, who, appliance.PoolsManage, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		p, tr, err := c.forOwnPool(who, appliance.PoolsManage, in.TenantID, in.PoolID)
		if err != nil {
			return err
		}
		if !p.Archived {
			if p, err = c.archive(tx, tr, p, ""); err != nil {
				return err
			}
		}
		out, err = c.poolView(tx, p, in.TenantID)
		return err
	})
	return out, err
}

// archive removes every offer, lowers the offered tenants' quotas to what is in
// use, and marks the pool. The owner's own rows stay.
func (c *Control) archive(tx *store.Tx, tr trail, p *pool, reason string) (*pool, error) {
	at := c.now()
	unoffered := []string{}
	for _, tenant := range sortedKeys(p.seenBy) {
		if tenant == p.OwnerTenantID {
			continue
		}
		if _, err := c.withdraw(tx, p, tenant); err != nil {
			return nil, err
		}
		unoffered = append(unoffered, tenant)
	}
	if _, err := tx.DropOffer(p.ID, p.OwnerTenantID); err != nil {
		return nil, err
	}
	if err := tx.ArchivePool(p.ID, at); err != nil {
		return nil, err
	}
	facts, err := c.refreshPool(tx, p.ID)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"id": p.ID, "name": p.Name, "unoffered": unoffered}
	if reason != "" {
		data["reason"] = reason
	}
	_, err = tx.Emit(ofPool(c.event(tr, appliance.EventPoolArchived, p.OwnerTenantID, p.ID, at), facts), data)
	return facts, err
}
