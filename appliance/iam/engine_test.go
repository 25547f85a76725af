package iam

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

// tree makes an engine that knows root, acme and beta below it, and acme-lab
// below acme.
func tree(t testing.TB, acmePolicies ...string) *Engine {
	t.Helper()
	e := New()
	set(t, e, "root", nil)
	set(t, e, "acme", []string{"root"}, acmePolicies...)
	set(t, e, "beta", []string{"root"})
	set(t, e, "acme-lab", []string{"acme", "root"})
	return e
}

func set(t testing.TB, e *Engine, tenant string, ancestors []string, policies ...string) {
	t.Helper()
	var ps []appliance.AccessPolicy
	for i, text := range policies {
		ps = append(ps, appliance.AccessPolicy{TenantID: tenant, Name: fmt.Sprintf("p%d", i+1), Cedar: text})
	}
	if err := e.SetTenant(tenant, ancestors, ps); err != nil {
		t.Fatal(err)
	}
}

func apiKey(tenant string, role appliance.Role) appliance.Caller {
	return appliance.Caller{Kind: appliance.CallerKey, ID: "key_1", Tenant: tenant, Role: role, Address: "10.0.0.7"}
}

func h100(tenant string, owned bool) *appliance.AuthzRow {
	return &appliance.AuthzRow{
		TenantID: tenant, PoolID: "pool_1", GPUModel: "H100", Class: "metal-host",
		Sharing: "exclusive", Region: "fra1", Owned: owned,
	}
}

func TestATenantPolicyThatForbidsAModelHidesJustThatModel(t *testing.T) {
	e := tree(t, `forbid (principal, action, resource is Pool) when { resource.gpuModel == "H100" };`)
	rows := []appliance.AuthzRow{*h100("acme", false), *h100("acme", true), *h100("acme", true)}
	rows[1].GPUModel, rows[2].GPUModel = "L40S", "A100"
	q := Question{Caller: apiKey("acme", appliance.RoleViewer), Action: appliance.PoolsRead, Tenant: "acme", At: noon}

	if got, want := e.DecideAll(q, rows), []bool{false, true, true}; !cmp.Equal(got, want) {
		t.Errorf("which pools a viewer sees = %v, want %v", got, want)
	}
	if d := e.Decide(q); !d.Allowed {
		t.Errorf("listing itself is denied: %s", d.Reason)
	}
	q.Pool = &rows[0]
	if got, want := e.Decide(q).Policies, []string{"tenant:p1"}; !cmp.Equal(got, want) {
		t.Errorf("deciding policies = %v, want %v", got, want)
	}
}

func TestATenantPolicyDecidesOnEachAttributeOfTheAuthzRow(t *testing.T) {
	for _, c := range []struct {
		when   string
		change func(*appliance.AuthzRow)
	}{
		{`resource.gpuModel == "H100"`, func(r *appliance.AuthzRow) { r.GPUModel = "L40S" }},
		{`resource.class == "metal-host"`, func(r *appliance.AuthzRow) { r.Class = "vps-host" }},
		{`resource.sharing == "exclusive"`, func(r *appliance.AuthzRow) { r.Sharing = "mig" }},
		{`resource.region like "fra*"`, func(r *appliance.AuthzRow) { r.Region = "ams1" }},
		{`resource.owned`, func(r *appliance.AuthzRow) { r.Owned = false }},
		{`resource == Pool::"pool_1"`, func(r *appliance.AuthzRow) { r.PoolID = "pool_2" }},
	} {
		e := tree(t, "forbid (principal, action, resource is Pool) when { "+c.when+" };")
		match, other := *h100("acme", true), *h100("acme", true)
		c.change(&other)
		q := Question{Caller: apiKey("acme", appliance.RoleMember), Action: appliance.ReservationsCreate, Tenant: "acme", At: noon}
		got := e.DecideAll(q, []appliance.AuthzRow{match, other, match, other})
		if want := []bool{false, true, false, true}; !cmp.Equal(got, want) {
			t.Errorf("%s: allowed = %v, want %v", c.when, got, want)
		}
	}
}

func TestAnErroringPolicyNeverPermits(t *testing.T) {
	// Each passes the schema and meets an error when it is asked.
	for _, text := range []string{
		`forbid (principal, action, resource is Pool) when { Pool::"pool_gone".owned };`,
		`forbid (principal, action, resource is Pool) when { 9223372036854775807 + 1 > 0 };`,
		`permit (principal, action, resource is Pool) when { Pool::"pool_gone".owned };`,
	} {
		e := tree(t, text)
		q := Question{Caller: apiKey("acme", appliance.RoleOwner), Action: appliance.PoolsManage, Tenant: "acme", Pool: h100("acme", true), At: noon}
		d := e.Decide(q)
		if d.Allowed {
			t.Errorf("%s: permitted by %v", text, d.Policies)
		}
		if !cmp.Equal(d.Policies, []string{"tenant:p1"}) || !strings.Contains(d.Reason, "could not be decided") {
			t.Errorf("%s: decision = %+v, want it to name the erroring policy", text, d)
		}
	}
}

func TestAnErroringGuardRailNeverPermits(t *testing.T) {
	e := tree(t)
	q := Question{Caller: apiKey("acme", appliance.RoleOwner), Action: appliance.PoolsManage, Tenant: "acme", Pool: h100("acme", true), At: noon}
	rail, err := parse("guardrails:new", `forbid (principal, action, resource is Pool) when { Pool::"pool_gone".owned };`)
	if err != nil {
		t.Fatal(err)
	}
	e.rails = append(e.rails, rail...)
	if d := e.Decide(q); d.Allowed || !cmp.Equal(d.Policies, []string{"guardrails:new"}) {
		t.Errorf("decision = %+v, want a denial by the erroring rail", d)
	}
}

func TestAForeignTenantsPermitAllNeverReachesOthers(t *testing.T) {
	e := tree(t, `permit (principal, action, resource);`)
	intruder := apiKey("acme", appliance.RoleOwner)
	for _, action := range appliance.Actions {
		for _, q := range []Question{
			{Tenant: "beta"},
			{Tenant: "beta", Pool: h100("beta", true)},
			{Tenant: "acme", Pool: h100("beta", true)},
			{Tenant: "beta", Pool: h100("acme", true)},
			{Tenant: "root"},
			{Tenant: "acme", Subject: "beta"},
			{Tenant: "acme", Subject: "root"},
			{Tenant: "acme-lab"},
			{Tenant: "acme-lab", Pool: h100("acme-lab", true)},
			{Tenant: ""},
			{Tenant: "nobody"},
		} {
			q.Caller, q.Action, q.At = intruder, action, noon
			if d := e.Decide(q); d.Allowed {
				t.Errorf("%s in %q's name, about %q %+v: permitted by %v", action, q.Tenant, q.Subject, q.Pool, d.Policies)
			}
		}
	}
	viewer := Question{Caller: apiKey("beta", appliance.RoleViewer), Action: appliance.KeysManage, Tenant: "beta", At: noon}
	if d := e.Decide(viewer); d.Allowed {
		t.Errorf("a viewer of beta was permitted by %v", d.Policies)
	}
}

func TestWhatAPolicyPermitsStaysWithinTheGuardRails(t *testing.T) {
	e := tree(t, `permit (principal, action, resource);`)
	viewer := apiKey("acme", appliance.RoleViewer)
	q := Question{Caller: viewer, Action: appliance.PoolsShare, Tenant: "acme", Pool: h100("acme", true), At: noon}
	if d := e.Decide(q); !d.Allowed || !cmp.Equal(d.Policies, []string{"tenant:p1"}) {
		t.Errorf("sharing an own pool = %+v, want it permitted by the tenant's policy", d)
	}
	q.Pool = h100("acme", false)
	if d := e.Decide(q); d.Allowed || !cmp.Equal(d.Policies, []string{"guardrails:owner-only"}) {
		t.Errorf("sharing an offered pool = %+v, want it stopped by the guard rail", d)
	}
	q = Question{Caller: viewer, Action: appliance.SystemManage, Tenant: "acme", At: noon}
	if d := e.Decide(q); d.Allowed || !cmp.Equal(d.Policies, []string{"guardrails:platform-only"}) {
		t.Errorf("backing up in acme's name = %+v, want it stopped by the guard rail", d)
	}
}

func TestAnAncestorRunsTheTreeAndSeesNothingInIt(t *testing.T) {
	e := tree(t)
	root := apiKey("root", appliance.RoleOwner)
	for _, below := range []string{"acme", "acme-lab"} {
		for _, action := range appliance.Actions {
			got := e.Decide(Question{Caller: root, Action: action, Tenant: "root", Subject: below, At: noon}).Allowed
			want := action == appliance.TenantsManage || action == appliance.TenantsRead
			if got != want {
				t.Errorf("root's owner, %s on %s: %v, want %v", action, below, got, want)
			}
		}
	}
	lab := Question{Caller: apiKey("acme-lab", appliance.RoleOwner), Action: appliance.TenantsManage, Tenant: "acme-lab", Subject: "acme", At: noon}
	if d := e.Decide(lab); d.Allowed {
		t.Errorf("a child manages its parent, by %v", d.Policies)
	}
}

func TestTheLocalOperatorMendsATenantThatLockedItselfOut(t *testing.T) {
	lockout := `forbid (principal, action, resource);`
	broken := `forbid (principal, action, resource) when { resource.gone };`
	for _, text := range []string{lockout, broken} {
		e := tree(t)
		err := e.SetTenant("acme", []string{"root"}, []appliance.AccessPolicy{{TenantID: "acme", Name: "bad", Cedar: text}})
		if (err != nil) != (text == broken) {
			t.Fatalf("%s: SetTenant = %v", text, err)
		}
		q := Question{Caller: apiKey("acme", appliance.RoleOwner), Action: appliance.PoliciesManage, Tenant: "acme", At: noon}
		if d := e.Decide(q); d.Allowed || !strings.Contains(d.Reason, "bad") {
			t.Errorf("%s: the owner gets %+v, want a denial that names the policy", text, d)
		}
		q.Caller = appliance.Operator("r1", "unix:uid=0")
		if d := e.Decide(q); !d.Allowed || !cmp.Equal(d.Policies, []string{"platform:local-operator"}) {
			t.Errorf("%s: the local operator gets %+v, want it permitted", text, d)
		}
		set(t, e, "acme", []string{"root"})
		q.Caller = apiKey("acme", appliance.RoleOwner)
		if d := e.Decide(q); !d.Allowed {
			t.Errorf("%s: mended, the owner still gets %+v", text, d)
		}
	}
}

func TestAPolicyLearnsNothingOfOtherTenants(t *testing.T) {
	e := tree(t,
		`permit (principal, action == Action::"iam:keys:manage", resource) when { Tenant::"beta" in Tenant::"root" };`,
		`permit (principal, action == Action::"iam:keys:manage", resource) when { Tenant::"absent" in Tenant::"root" };`)
	q := Question{Caller: apiKey("acme", appliance.RoleViewer), Action: appliance.KeysManage, Tenant: "acme", At: noon}
	if d := e.Decide(q); d.Allowed {
		t.Errorf("%v tells a tenant that exists from one that does not", d.Policies)
	}
}

func TestPoliciesDecideOnTheHourAndTheAddress(t *testing.T) {
	e := tree(t,
		`forbid (principal, action, resource) when { context.at >= datetime("2026-03-05") };`,
		`forbid (principal, action, resource) unless { context has address && context.address.isInRange(ip("10.0.0.0/8")) };`)
	for _, c := range []struct {
		at      time.Time
		address string
		want    bool
	}{
		{noon, "10.0.0.7", true},
		{noon, "::ffff:10.0.0.7", true},
		{noon, "192.0.2.1", false},
		{noon, "2001:db8::1", false},
		{noon, "unix:uid=1000", false},
		{noon, "", false},
		{noon.Add(24 * time.Hour), "10.0.0.7", false},
		{noon, "10.0.0.7", true},
	} {
		q := Question{Caller: apiKey("acme", appliance.RoleViewer), Action: appliance.PoolsRead, Tenant: "acme", At: c.at}
		q.Caller.Address = c.address
		if d := e.Decide(q); d.Allowed != c.want {
			t.Errorf("from %q at %s: %+v, want %v", c.address, c.at, d, c.want)
		}
		if got := e.DecideAll(q, []appliance.AuthzRow{*h100("acme", true)}); got[0] != c.want {
			t.Errorf("a list from %q at %s: %v, want %v", c.address, c.at, got[0], c.want)
		}
	}
}

func TestUnknownThingsAreDenied(t *testing.T) {
	e := tree(t)
	owner := apiKey("acme", appliance.RoleOwner)
	good := Question{Caller: owner, Action: appliance.PoolsManage, Tenant: "acme", Pool: h100("acme", true), At: noon}
	if d := e.Decide(good); !d.Allowed {
		t.Fatalf("the good question: %+v", d)
	}
	for name, spoil := range map[string]func(*Question){
		"action":       func(q *Question) { q.Action = "compute:pools:steal" },
		"action group": func(q *Question) { q.Action = "compute:*" },
		"no action":    func(q *Question) { q.Action = "" },
		"role":         func(q *Question) { q.Caller.Role = "admin" },
		"no role":      func(q *Question) { q.Caller.Role = "" },
		"caller kind":  func(q *Question) { q.Caller.Kind = "robot" },
		"no caller":    func(q *Question) { q.Caller = appliance.Caller{} },
		"tenant":       func(q *Question) { q.Tenant, q.Caller.Tenant, q.Pool.TenantID = "nobody", "nobody", "nobody" },
		"no pool":      func(q *Question) { q.Pool = nil },
	} {
		q := good
		q.Pool = h100("acme", true)
		spoil(&q)
		if d := e.Decide(q); d.Allowed || d.Reason == "" {
			t.Errorf("%s: %+v, want a denial with a reason", name, d)
		}
	}
	e.DropTenant("acme")
	if d := e.Decide(good); d.Allowed {
		t.Errorf("a dropped tenant's owner: %+v", d)
	}
}

func TestANodeOnlyReports(t *testing.T) {
	e := tree(t, `permit (principal, action, resource);`)
	node := appliance.Caller{Kind: appliance.CallerNode, ID: "node_1", Tenant: "acme"}
	for _, action := range appliance.Actions {
		got := e.Decide(Question{Caller: node, Action: action, Tenant: "acme", Pool: h100("acme", true), At: noon}).Allowed
		if want := action == appliance.NodesReport; got != want {
			t.Errorf("%s: %v, want %v", action, got, want)
		}
	}
	q := Question{Caller: node, Action: appliance.NodesReport, Tenant: "beta", At: noon}
	if d := e.Decide(q); d.Allowed {
		t.Errorf("a node reports in a foreign tenant's name: %+v", d)
	}
	q = Question{Caller: apiKey("acme", appliance.RoleOwner), Action: appliance.NodesReport, Tenant: "acme", At: noon}
	if d := e.Decide(q); d.Allowed {
		t.Errorf("a key reports as a node: %+v", d)
	}
}

func TestDecisionsFollowPoliciesAsTheyAreSetWhileOthersAsk(t *testing.T) {
	e := tree(t)
	q := Question{Caller: apiKey("acme", appliance.RoleMember), Action: appliance.ReservationsCreate, Tenant: "acme", Pool: h100("acme", false), At: noon}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					e.Decide(q)
					e.DecideAll(q, []appliance.AuthzRow{*q.Pool, *h100("acme", true)})
				}
			}
		})
	}
	for i := range 200 {
		if i%2 == 0 {
			set(t, e, "acme", []string{"root"}, `forbid (principal, action, resource);`)
		} else {
			set(t, e, "acme", []string{"root"})
		}
		if got, want := e.Decide(q).Allowed, i%2 != 0; got != want {
			t.Errorf("after change %d: allowed = %v, want %v", i, got, want)
		}
	}
	close(stop)
	asking.Wait()
}

// The guide's table of the pools API: method, action, decided on.
func TestPoolsActionsAreDecidedOnWhatTheGuideSays(t *testing.T) {
	e := tree(t)
	owner := apiKey("acme", appliance.RoleOwner)
	for _, m := range []struct {
		method string
		action appliance.Action
		onPool bool
	}{
		{"pools.list", "compute:pools:read", false},
		{"pools.get", "compute:pools:read", true},
		{"pools.create", "compute:pools:create", false},
		{"pools.capacity", "compute:capacity:read", true},
		{"pools.offer", "compute:pools:share", true},
		{"pools.unoffer", "compute:pools:share", true},
		{"pools.update", "compute:pools:manage", true},
		{"pools.archive", "compute:pools:manage", true},
	} {
		q := Question{Caller: owner, Action: m.action, Tenant: "acme", At: noon}
		if m.onPool {
			q.Pool = h100("acme", true)
		}
		if d := e.Decide(q); !d.Allowed {
			t.Errorf("%s: the owner gets %+v", m.method, d)
		}
		if !m.onPool {
			continue
		}
		q.Pool = h100("acme", false)
		offered := m.action == appliance.PoolsRead || m.action == appliance.CapacityRead
		if d := e.Decide(q); d.Allowed != offered {
			t.Errorf("%s on an offered pool: %+v, want %v", m.method, d, offered)
		}
	}
}
