package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// CreateTenant makes a tenant below the one in whose name the caller acts.
func (c *Control) CreateTenant(ctx context.Context, who appliance.Caller, in appliance.CreateTenant) (appliance.Tenant, error) {
	if in.ParentID == "" {
		in.ParentID = in.TenantID
	}
	t := appliance.Tenant{ID: in.ID, ParentID: in.ParentID, Name: in.Name, State: appliance.TenantActive, CreatedAt: c.now()}
	if t.Name == "" {
		t.Name = t.ID
	}
	err := c.write(ctx, who, appliance.TenantsManage, in.TenantID, in.ID, func(tx *store.Tx) error {
		tr, err := c.forSubtenant(tx, who, appliance.TenantsManage, in.TenantID, in.ParentID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if parent, _ := c.mem.tenant(in.ParentID); parent.State == appliance.TenantDeleted {
			return appliance.Refuse(appliance.InvalidState, "parentId", "parentId: tenant %s is deleted", in.ParentID)
		}
		if err := tx.InsertTenant(t); err != nil {
			return err
		}
		if err := c.setTenant(tx, t); err != nil {
			return err
		}
		e := c.event(tr, appliance.EventTenantCreated, t.ID, t.ID, t.CreatedAt)
		e.Reader = t.ParentID
		_, err = tx.Emit(e, t)
		return err
	})
	return t, err
}

// forSubtenant decides an action on a tenant at or below the one in whose name
// the caller acts. A tenant outside of that is as absent as none.
func (c *Control) forSubtenant(tx *store.Tx, who appliance.Caller, action appliance.Action, tenant, subject string) (trail, error) {
	if _, err := c.inTenant(who, tenant); err != nil {
		return trail{}, err
	}
	below, err := tx.IsBelow(subject, tenant)
	if err != nil {
		return trail{}, err
	}
	if !below {
		return trail{}, appliance.NoSuch("tenant")
	}
	return c.may(who, action, tenant, nil, subject)
}

// forManaged decides whether a tenant may be suspended, resumed or deleted.
// That is for those above it: it is decided on its parent, so a tenant's own
// owner may not. Root, which has none above, is the local operator's.
func (c *Control) forManaged(tx *store.Tx, who appliance.Caller, in appliance.TenantRef) (trail, error) {
	if _, err := c.forSubtenant(tx, who, appliance.TenantsRead, in.TenantID, in.ID); err != nil {
		return trail{}, err
	}
	t, _ := c.mem.tenant(in.ID)
	return c.may(who, appliance.TenantsManage, in.TenantID, nil, t.ParentID)
}

// GetTenant shows a tenant at or below the caller's.
func (c *Control) GetTenant(ctx context.Context, who appliance.Caller, in appliance.TenantRef) (t appliance.Tenant, err error) {
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		if _, err := c.forSubtenant(tx, who, appliance.TenantsRead, in.TenantID, in.ID); err != nil {
			return err
		}
		t, err = tx.Tenant(in.ID)
		return err
	})
	return t, err
}

// ListTenants shows the tenant in whose name the caller acts and all below it.
func (c *Control) ListTenants(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Tenant], err error) {
	if _, _, err := c.forTenant(who, appliance.TenantsRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		items, err := tx.Subtree(in.TenantID, in.Cursor, in.Size()+1)
		out = store.Page(items, in.Size(), func(t appliance.Tenant) string { return t.ID })
		return err
	})
	return out, err
}

// SuspendTenant refuses a tenant's new reservations; what runs goes on.
func (c *Control) SuspendTenant(ctx context.Context, who appliance.Caller, in appliance.TenantRef) (appliance.Tenant, error) {
	return c.moveTenant(ctx, who, in, appliance.TenantSuspended, appliance.EventTenantSuspended)
}

// ResumeTenant takes a suspended tenant's reservations again.
func (c *Control) ResumeTenant(ctx context.Context, who appliance.Caller, in appliance.TenantRef) (appliance.Tenant, error) {
	return c.moveTenant(ctx, who, in, appliance.TenantActive, appliance.EventTenantResumed)
}

func (c *Control) moveTenant(ctx context.Context, who appliance.Caller, in appliance.TenantRef, to appliance.TenantState, kind appliance.EventType) (t appliance.Tenant, err error) {
	err = c.write(ctx, who, appliance.TenantsManage, in.TenantID, in.ID, func(tx *store.Tx) error {
		tr, err := c.forManaged(tx, who, in)
		if err != nil {
			return err
		}
		if t, err = tx.Tenant(in.ID); err != nil {
			return err
		}
		switch {
		case t.State == to:
			return nil
		case t.State == appliance.TenantDeleted:
			return appliance.Refuse(appliance.InvalidState, "id", "id: tenant %s is deleted", t.ID)
		case t.ID == appliance.Root:
			return appliance.Refuse(appliance.InvalidState, "id", "id: root cannot be suspended")
		}
		t.State = to
		if err := c.putTenantState(tx, tr, t, kind); err != nil {
			return err
		}
		for _, p := range c.mem.poolsSeenBy(t.ID) {
			c.stir(tx, p.ID)
		}
		return nil
	})
	return t, err
}

// putTenantState writes a tenant's new state and tells of it.
func (c *Control) putTenantState(tx *store.Tx, tr trail, t appliance.Tenant, kind appliance.EventType) error {
	if err := tx.SetTenantState(t.ID, t.State); err != nil {
		return err
	}
	if err := c.setTenant(tx, t); err != nil {
		return err
	}
	e := c.event(tr, kind, t.ID, t.ID, c.now())
	e.Reader = t.ParentID
	_, err := tx.Emit(e, t)
	return err
}

// DeleteTenant tears a tenant down, in one transaction: its pools are archived
// and the quotas of those they were offered to zeroed, offers made to it are
// withdrawn, and its own reservations end. What others run in its pools goes on
// to its end. Its id is never used again.
func (c *Control) DeleteTenant(ctx context.Context, who appliance.Caller, in appliance.TenantRef) (t appliance.Tenant, err error) {
	err = c.write(ctx, who, appliance.TenantsManage, in.TenantID, in.ID, func(tx *store.Tx) error {
		tr, err := c.forManaged(tx, who, in)
		if err != nil {
			return err
		}
		if t, err = tx.Tenant(in.ID); err != nil || t.State == appliance.TenantDeleted {
			return err
		}
		if t.ID == appliance.Root {
			return appliance.Refuse(appliance.InvalidState, "id", "id: root cannot be deleted")
		}
		children, err := tx.LiveChildren(t.ID)
		if err != nil {
			return err
		}
		if children > 0 {
			return appliance.Refuse(appliance.InvalidState, "id", "id: tenant %s has %d tenants below it; delete those first", t.ID, children)
		}
		if err := c.tearDown(tx, tr, t.ID); err != nil {
			return err
		}
		t.State = appliance.TenantDeleted
		return c.putTenantState(tx, tr, t, appliance.EventTenantDeleted)
	})
	return t, err
}

const reasonTenantDeleted = "tenant deleted"

func (c *Control) tearDown(tx *store.Tx, tr trail, tenant string) error {
	claims, err := tx.LiveReservationsOf(tenant)
	if err != nil {
		return err
	}
	for _, r := range claims {
		if _, err := c.end(tx, tr, &r, appliance.ReasonTenantDeleted, "the tenant was deleted"); err != nil {
			return err
		}
	}
	for _, p := range c.mem.poolsSeenBy(tenant) {
		if p.OwnerTenantID == tenant {
			if err := c.tearDownPool(tx, tr, p); err != nil {
				return err
			}
			continue
		}
		if _, err := c.withdraw(tx, p, tenant); err != nil {
			return err
		}
		if p, err = c.refreshPool(tx, p.ID); err != nil {
			return err
		}
		if err := c.emitUnoffered(tx, tr, p, tenant, reasonTenantDeleted); err != nil {
			return err
		}
	}
	return nil
}

func (c *Control) tearDownPool(tx *store.Tx, tr trail, p *pool) error {
	if p.Archived {
		return nil
	}
	others := sortedKeys(p.seenBy)
	if _, err := c.archive(tx, tr, p, reasonTenantDeleted); err != nil {
		return err
	}
	for _, other := range others {
		if other == p.OwnerTenantID {
			continue
		}
		if err := tx.ZeroQuotas(other, p.ID); err != nil {
			return err
		}
		if _, err := c.refreshQuotas(tx, other, p.ID); err != nil {
			return err
		}
	}
	return nil
}
