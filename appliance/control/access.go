package control

import (
	"context"
	"slices"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// PutPolicy makes or replaces one of the tenant's own policies. It is in force
// for the next request. A text that does not fit the schema is refused: Cedar
// skips a policy that meets an error, forbids included.
func (c *Control) PutPolicy(ctx context.Context, who appliance.Caller, in appliance.PutPolicy) (out appliance.AccessPolicy, err error) {
	err = c.write(ctx, who, appliance.PoliciesManage, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.PoliciesManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if err := iam.ValidatePolicy(in.Cedar); err != nil {
			return err
		}
		at := c.now()
		out = appliance.AccessPolicy{TenantID: in.TenantID, Name: in.Name, Cedar: in.Cedar, CreatedAt: at, UpdatedAt: at}
		if err := tx.PutAccessPolicy(out); err != nil {
			return err
		}
		all, err := c.refreshPolicies(tx, in.TenantID)
		if err != nil {
			return err
		}
		out = all[slices.IndexFunc(all, func(p appliance.AccessPolicy) bool { return p.Name == in.Name })]
		_, err = tx.Emit(c.event(tr, appliance.EventPolicyPut, in.TenantID, in.Name, at), map[string]any{"name": in.Name})
		return err
	})
	return out, err
}

// refreshPolicies takes a tenant's policies, as this transaction has them, into
// the engine.
func (c *Control) refreshPolicies(tx *store.Tx, tenant string) ([]appliance.AccessPolicy, error) {
	all, err := tx.AccessPolicies(tenant)
	if err != nil {
		return nil, err
	}
	c.mem.mu.Lock()
	above, before := c.mem.above(tenant), c.mem.policies[tenant]
	c.mem.policies[tenant] = all
	c.mem.mu.Unlock()
	tx.Undo(func() {
		c.mem.mu.Lock()
		defer c.mem.mu.Unlock()
		c.mem.policies[tenant] = before
		_ = c.IAM.SetTenant(tenant, above, before) // an error locks the tenant out, as before
	})
	return all, c.IAM.SetTenant(tenant, above, all)
}

// ListPolicies shows the tenant's own policies.
func (c *Control) ListPolicies(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.AccessPolicy], err error) {
	if _, _, err := c.forTenant(who, appliance.PoliciesRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.AccessPolicies(in.TenantID)
		out = pageOf(all, in.Page, func(p appliance.AccessPolicy) string { return p.Name })
		return err
	})
	return out, err
}

// DeletePolicy removes one of the tenant's own policies.
func (c *Control) DeletePolicy(ctx context.Context, who appliance.Caller, in appliance.DeletePolicy) (out appliance.PolicyDeleted, err error) {
	err = c.write(ctx, who, appliance.PoliciesManage, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.PoliciesManage, in.TenantID)
		if err != nil {
			return err
		}
		if out.Removed, err = tx.DropAccessPolicy(in.TenantID, in.Name); err != nil || !out.Removed {
			return err
		}
		if _, err := c.refreshPolicies(tx, in.TenantID); err != nil {
			return err
		}
		_, err = tx.Emit(c.event(tr, appliance.EventPolicyDeleted, in.TenantID, in.Name, c.now()), map[string]any{"name": in.Name})
		return err
	})
	return out, err
}

// Check says whether a principal of the tenant might do something, and which
// policies decide.
func (c *Control) Check(ctx context.Context, who appliance.Caller, in appliance.Check) (out appliance.CheckResult, err error) {
	if _, _, err := c.forTenant(who, appliance.PoliciesRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Validate(); err != nil {
		return out, err
	}
	principal, err := c.principal(ctx, in.TenantID, in.Principal)
	if err != nil {
		return out, err
	}
	q := iam.Question{Caller: principal, Action: in.Action, Tenant: in.TenantID, At: c.Now()}
	if in.PoolID != "" {
		p, row := c.mem.poolSeen(in.PoolID, in.TenantID)
		if p == nil {
			return out, appliance.NoSuch("pool")
		}
		q.Pool = &row
	}
	d := c.IAM.Decide(q)
	out = d
	if out.Policies == nil {
		out.Policies = []string{}
	}
	return out, nil
}

// principal finds who an id of the tenant stands for.
func (c *Control) principal(ctx context.Context, tenant, id string) (who appliance.Caller, err error) {
	if id == string(appliance.CallerOperator) {
		return appliance.Operator("", ""), nil
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		switch {
		case appliance.IsID(appliance.KeyPrefix, id):
			k, err := tx.Key(id)
			who = appliance.Caller{Kind: appliance.CallerKey, ID: k.ID, Tenant: k.TenantID, Role: k.Role}
			return err
		case appliance.IsID(appliance.UserPrefix, id):
			u, err := tx.User(id)
			who = appliance.Caller{Kind: appliance.CallerUser, ID: u.ID, Tenant: u.TenantID, Role: u.Role}
			return err
		}
		n, err := tx.Node(id)
		if err == nil {
			who = appliance.Caller{Kind: appliance.CallerNode, ID: n.ID, Tenant: c.mem.pool(n.PoolID).OwnerTenantID}
		}
		return err
	})
	if isNotFound(err) || err == nil && who.Tenant != tenant {
		return who, appliance.NoSuch("principal")
	}
	return who, err
}
