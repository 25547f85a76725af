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
