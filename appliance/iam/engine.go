package iam

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	"github.com/bettercompute/bc/appliance"
)

// Types of the schema's entities.
const (
	typeUser          types.EntityType = "User"
	typeKey           types.EntityType = "Key"
	typeNode          types.EntityType = "Node"
	typeLocalOperator types.EntityType = "LocalOperator"
	typeSystem        types.EntityType = "System"
	typeRole          types.EntityType = "Role"
	typeTenant        types.EntityType = "Tenant"
	typePool          types.EntityType = "Pool"
	typeAction        types.EntityType = "Action"
)

// Engine decides. It holds each tenant's place in the tree and its policies,
// parsed, and remembers decisions. It is safe for concurrent use.
type Engine struct {
	words    words
	rails    statements
	roles    statements
	platform *tenant  // decides about those who belong to no role
	tenants  sync.Map // id → *tenant
}

// tenant is what the engine knows of one tenant. It never changes: a change of
// the tenant makes a new one, with nothing remembered.
type tenant struct {
	entity types.Entity
	grants statements // the roles and the tenant's own
	facts  facts
	broken string // why its policies cannot be read
	memory *memory
}

// New makes an engine that knows no tenant: it denies every user and key until
// [Engine.SetTenant] has named theirs.
func New() *Engine {
	return &Engine{
		words: vocabulary(), rails: builtin("guardrails"), roles: builtin("roles"),
		platform: &tenant{grants: builtin("platform"), memory: newMemory()},
	}
}

// SetTenant makes a tenant known or replaces what is known of it. Ancestors are
// all the tenants above it, in any order. From the moment it returns, decisions
// are made by these policies and no earlier ones.
//
// Policies that [ValidatePolicy] would refuse are an error that names the
// policy; then every user and key of the tenant is denied, with that reason,
// until SetTenant succeeds: the local operator can mend it.
func (e *Engine) SetTenant(tenantID string, ancestors []string, policies []appliance.AccessPolicy) error {
	t := &tenant{grants: e.roles[:len(e.roles):len(e.roles)], memory: newMemory()}
	above := make([]types.EntityUID, len(ancestors))
	for i, id := range ancestors {
		above[i] = tenantUID(id)
	}
	t.entity = types.Entity{UID: tenantUID(tenantID), Parents: types.NewEntityUIDSet(above...)}

	var failed error
	for _, p := range policies {
		own, err := parse("tenant:"+p.Name, p.Cedar)
		if err != nil {
			failed = fmt.Errorf("policy %s of tenant %s: %w", p.Name, tenantID, err)
			t.broken = fmt.Sprintf("the tenant's policy %s cannot be read, so nothing is permitted until it is put again or deleted", p.Name)
			break
		}
		for _, s := range own {
			t.facts.add(s.policy)
		}
		t.grants = append(t.grants, own...)
	}
	e.tenants.Store(tenantID, t)
	return failed
}

// DropTenant forgets a tenant: its users and keys are denied everything. A
// deleted tenant whose keys may still read its events is not dropped.
func (e *Engine) DropTenant(tenantID string) { e.tenants.Delete(tenantID) }

// Question is one thing to decide.
type Question struct {
	Caller appliance.Caller
	Action appliance.Action
	Tenant string // in whose name the caller acts; empty only for system callers, without a pool

	// Pool is the pool that the action is decided on, as Tenant sees it. Nil for
	// actions that are decided on a tenant.
	Pool *appliance.AuthzRow

	// Subject is the tenant that the action is decided on, where that is not
	// Tenant itself. iam:tenants:manage is decided on the parent of the tenant
	// that is made, suspended, resumed or deleted, so that nobody resumes or
	// deletes its own; iam:tenants:read on the tenant that is read.
	Subject string

	At time.Time // now; policies may look at it
}

// Decision is whether, by which policies, and why in words.
type Decision = appliance.CheckResult

// Decide answers a question. The Policies of the answer are shared between
// callers and must not be changed.
//
// It costs in proportion to the tenant's policies the first time; a question
// that differs from an earlier one only in what no policy of the tenant looks
// at is answered from memory. Nothing is remembered for a tenant whose policies
// look at the hour or the address.
func (e *Engine) Decide(q Question) Decision {
	t, denied := e.judge(q)
	if denied != "" {
		return deny(denied)
	}
	memory := t.memory
	if t.facts.context {
		memory = nil
	}
	return e.decide(t, memory, q, nil)
}

// DecideAll answers the question for each row in place of its Pool.
func (e *Engine) DecideAll(q Question, rows []appliance.AuthzRow) []bool {
	out := make([]bool, len(rows))
	t, denied := e.judge(q)
	if denied != "" {
		return out
	}
	memory := t.memory
	if t.facts.context {
		memory = newMemory() // the hour and the address are the same for all rows
	}
	w := e.world(q)
	for i := range rows {
		q.Pool = &rows[i]
		out[i] = e.decide(t, memory, q, w).Allowed
	}
	return out
}

// judge finds whose policies decide, or why nobody's can.
func (e *Engine) judge(q Question) (*tenant, string) {
	if _, known := e.words.asked[q.Action]; !known {
		return nil, fmt.Sprintf("there is no action %q", q.Action)
	}
	switch q.Caller.Kind {
	case appliance.CallerOperator, appliance.CallerSystem:
		return e.platform, ""
	case appliance.CallerNode:
		if q.Action != appliance.NodesReport {
			return nil, "a node does nothing but fetch its spec and report"
		}
		return e.platform, ""
	case appliance.CallerUser, appliance.CallerKey:
		if q.Action == appliance.NodesReport {
			return nil, fmt.Sprintf("%s is for nodes alone", q.Action)
		}
		t, ok := e.tenants.Load(q.Tenant)
		if !ok {
			return nil, fmt.Sprintf("no tenant %q is known", q.Tenant)
		}
		return t.(*tenant), ""
	}
	return nil, fmt.Sprintf("%q is no kind of caller", q.Caller.Kind)
}

// decide answers from memory, if given one, or else by the policies. It makes
// the world for them if none is given.
func (e *Engine) decide(t *tenant, memory *memory, q Question, w *world) Decision {
	var k key
	if q.Subject != "" && q.Subject != q.Tenant {
		memory = nil
	}
	if memory != nil {
		k = t.facts.key(q)
		if d, ok := memory.get(k); ok {
			return d
		}
	}
	if w == nil {
		w = e.world(q)
	}
	d := e.evaluate(t, q, w)
	if memory != nil {
		memory.put(k, d)
	}
	return d
}

// evaluate asks the guard rails, then the policies that grant. It turns the
// world to what the question is about.
func (e *Engine) evaluate(t *tenant, q Question, w *world) Decision {
	a := e.words.asked[q.Action]
	if q.Pool != nil && !a.ofPool {
		return deny(fmt.Sprintf("%s is decided on a tenant, not on a pool", q.Action))
	}
	if q.Pool == nil && !a.ofTenant {
		return deny(fmt.Sprintf("%s is decided on a pool, and none is given", q.Action))
	}
	switch {
	case q.Pool != nil:
		w.object = pool(*q.Pool)
	case q.Subject != "" && q.Subject != q.Tenant:
		w.object = e.tenantEntity(q.Subject)
	default:
		w.object = w.tenant
	}
	req := cedar.Request{Principal: w.principal.UID, Action: a.uid, Resource: w.object.UID, Context: w.context}
	verdict, diag := cedar.Authorize(e.rails, w, req)
	if verdict != cedar.Allow || len(diag.Errors) > 0 {
		return explain(e.rails, verdict, diag, q)
	}
	if t.broken != "" {
		return deny(t.broken)
	}
	verdict, diag = cedar.Authorize(t.grants, w, req)
	return explain(t.grants, verdict, diag, q)
}

// explain puts Cedar's verdict in words. A policy that met an error is a
// denial, whatever the others say: Cedar itself would have skipped it.
func explain(set statements, verdict cedar.Decision, diag cedar.Diagnostic, q Question) Decision {
	if len(diag.Errors) > 0 {
		d := Decision{Reason: "denied because a policy could not be decided"}
		for _, err := range diag.Errors {
			d.Policies = append(d.Policies, string(err.PolicyID))
		}
		d.Reason += fmt.Sprintf(": %s: %s", d.Policies[0], diag.Errors[0].Message)
		return d
	}
	if len(diag.Reasons) == 0 {
		return deny(fmt.Sprintf("no policy permits %s to %s", who(q.Caller), q.Action))
	}
	d := Decision{Allowed: verdict == cedar.Allow}
	for _, r := range diag.Reasons {
		d.Policies = append(d.Policies, string(r.PolicyID))
	}
	d.Reason = "forbidden by "
	if d.Allowed {
		d.Reason = "permitted by "
	}
	d.Reason += strings.Join(d.Policies, ", ")
	if why := set.reasonOf(d.Policies[0]); why != "" {
		d.Reason += ": " + why
	}
	return d
}

func deny(reason string) Decision { return Decision{Policies: []string{}, Reason: reason} }

func who(c appliance.Caller) string {
	switch c.Kind {
	case appliance.CallerKey, appliance.CallerUser:
		return fmt.Sprintf("a %s with the role %q", c.Kind, c.Role)
	}
	return "a " + string(c.Kind)
}

// world is what questions of one caller in one tenant's name are decided in:
// the few entities that they name. A tenant's policy that names any other thing
// learns nothing of it, not even whether it exists.
type world struct {
	actions                   types.EntityMap
	principal, tenant, object types.Entity
	context                   types.Record
}

// world is everything of a question but its action and what it is decided on.
func (e *Engine) world(q Question) *world {
	w := &world{actions: e.words.actions, principal: principal(q.Caller), tenant: e.tenantEntity(q.Tenant)}
	context := types.RecordMap{"tenant": w.tenant.UID, "at": types.NewDatetime(q.At)}
	// ::ffff:10.0.0.7 is 10.0.0.7 to whoever wrote a range.
	if addr, err := netip.ParseAddr(q.Caller.Address); err == nil {
		addr = addr.Unmap().WithZone("")
		context["address"] = types.IPAddr(netip.PrefixFrom(addr, addr.BitLen()))
	}
	w.context = types.NewRecord(context)
	return w
}

// Get makes the world a types.EntityGetter.
func (w *world) Get(uid types.EntityUID) (types.Entity, bool) {
	switch uid {
	case w.principal.UID:
		return w.principal, true
	case w.object.UID:
		return w.object, true
	case w.tenant.UID:
		return w.tenant, true
	}
	if uid.Type == typeAction {
		return w.actions.Get(uid)
	}
	return types.Entity{}, false
}

func (e *Engine) tenantEntity(id string) types.Entity {
	if t, ok := e.tenants.Load(id); ok {
		return t.(*tenant).entity
	}
	return types.Entity{UID: tenantUID(id)}
}

func tenantUID(id string) types.EntityUID {
	return types.NewEntityUID(typeTenant, types.String(id))
}

func principal(c appliance.Caller) types.Entity {
	id := types.String(c.ID)
	switch c.Kind {
	case appliance.CallerOperator:
		return types.Entity{UID: types.NewEntityUID(typeLocalOperator, id)}
	case appliance.CallerSystem:
		return types.Entity{UID: types.NewEntityUID(typeSystem, id)}
	case appliance.CallerNode:
		return types.Entity{
			UID:        types.NewEntityUID(typeNode, id),
			Attributes: types.NewRecord(types.RecordMap{"tenant": tenantUID(c.Tenant)}),
		}
	}
	typ := typeKey
	if c.Kind == appliance.CallerUser {
		typ = typeUser
	}
	return types.Entity{
		UID:     types.NewEntityUID(typ, id),
		Parents: types.NewEntityUIDSet(types.NewEntityUID(typeRole, types.String(c.Role))),
		Attributes: types.NewRecord(types.RecordMap{
			"tenant": tenantUID(c.Tenant), "role": types.String(c.Role),
		}),
	}
}

func pool(row appliance.AuthzRow) types.Entity {
	return types.Entity{
		UID: types.NewEntityUID(typePool, types.String(row.PoolID)),
		Attributes: types.NewRecord(types.RecordMap{
			"tenant":   tenantUID(row.TenantID),
			"gpuModel": types.String(row.GPUModel),
			"class":    types.String(row.Class),
			"sharing":  types.String(row.Sharing),
			"region":   types.String(row.Region),
			"owned":    types.Boolean(row.Owned),
		}),
	}
}
