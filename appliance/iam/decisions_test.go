package iam

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

var update = flag.Bool("update", false, "write testdata/decisions.txt anew")

// Every action, on everything that it can be decided on, by everyone.
func TestTheTableOfDecisions(t *testing.T) {
	e := tree(t)
	callers := []struct {
		name string
		as   func(tenant string) appliance.Caller
	}{
		{"node", func(tenant string) appliance.Caller {
			return appliance.Caller{Kind: appliance.CallerNode, ID: "node_1", Tenant: tenant}
		}},
		{"operator", func(string) appliance.Caller { return appliance.Operator("r1", "unix:uid=0") }},
		{"system", func(string) appliance.Caller { return appliance.System("expiry") }},
	}
	things := []struct {
		name string
		ask  Question
		only string // for others, engine_test.go shows that it is never permitted
	}{
		{"no pool", Question{Tenant: "acme"}, ""},
		{"own pool", Question{Tenant: "acme", Pool: h100("acme", true)}, ""},
		{"offered pool", Question{Tenant: "acme", Pool: h100("acme", false)}, ""},
		{"tenant below", Question{Tenant: "acme", Subject: "acme-lab"}, "iam:tenants:"},
		{"other tenant", Question{Tenant: "acme", Subject: "beta"}, "iam:tenants:"},
		{"as root", Question{Tenant: "root"}, "system:"},
	}

	var b bytes.Buffer
	fmt.Fprint(&b, `Who may do what by default, in their own tenant's name. Written by the tests of package iam.

yes   permitted
no    no policy permits it
rail  a guard rail forbids it, whatever a tenant's policies permit

An action that has no line for a thing is not decided on it.

`)
	fmt.Fprintf(&b, "%-34s%-14s", "action", "on")
	for _, r := range appliance.Roles {
		fmt.Fprintf(&b, "%-10s", r)
	}
	fmt.Fprintln(&b, "node  local operator  system")
	for _, action := range appliance.Actions {
		for _, thing := range things {
			q := thing.ask
			q.Action, q.At = action, noon
			a := e.words.asked[action]
			if q.Pool != nil && !a.ofPool || q.Pool == nil && !a.ofTenant || !strings.HasPrefix(string(action), thing.only) {
				continue
			}
			fmt.Fprintf(&b, "%-34s%-14s", action, thing.name)
			for _, r := range appliance.Roles {
				q.Caller = apiKey(q.Tenant, r)
				fmt.Fprintf(&b, "%-10s", cell(e.Decide(q)))
			}
			for i, c := range callers {
				q.Caller = c.as(q.Tenant)
				fmt.Fprintf(&b, "%-*s", []int{6, 16, 0}[i], cell(e.Decide(q)))
			}
			fmt.Fprintln(&b)
		}
	}

	const file = "testdata/decisions.txt"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-kept +now; -update writes it anew):\n%s", file, diff)
	}
}

func cell(d Decision) string {
	switch {
	case d.Allowed:
		return "yes"
	case len(d.Policies) > 0:
		return "rail"
	}
	return "no"
}

// What is remembered is what would be decided again: for random policies and
// questions, asked in any order, the engine answers as the policies themselves.
func TestRememberedDecisionsAreTheOnesThatWouldBeMade(t *testing.T) {
	statement := rapid.Custom(func(t *rapid.T) string {
		effect := rapid.SampledFrom([]string{"permit", "forbid"}).Draw(t, "effect")
		scope := rapid.SampledFrom([]string{
			`principal`, `principal is User`, `principal in Role::"viewer"`, `principal == Key::"key_1"`, `principal == User::"user_1"`,
		}).Draw(t, "principal") + ", " + rapid.SampledFrom([]string{
			`action`, `action == Action::"compute:pools:read"`, `action in Action::"compute:reservations:*"`,
		}).Draw(t, "action") + ", " + rapid.SampledFrom([]string{
			`resource is Pool`, `resource == Pool::"pool_1"`,
		}).Draw(t, "resource")
		when := rapid.SampledFrom([]string{
			`true`, `resource.gpuModel == "H100"`, `resource.gpuModel like "A*"`, `resource.class != "vps-host"`,
			`["mig", "mps"].contains(resource.sharing)`, `resource.region == "fra1" && resource.owned`, `!resource.owned`,
			`resource has region && resource.region like "f*"`, `principal.role == "member"`, `principal == Key::"key_2"`,
			`resource in [Pool::"pool_2", Pool::"pool_3"]`, `Pool::"pool_2".owned`, `{a: resource} == {a: Pool::"pool_2"}`,
			`principal is Key && [principal].contains(Key::"key_2")`, `context.at > datetime("2026-03-04T12:00:30Z")`,
			`context has address && context.address == ip("10.0.0.7")`, `principal.tenant == Tenant::"acme"`,
			`if resource.owned then resource.gpuModel == "L40S" else principal is Key`,
		}).Draw(t, "when")
		return fmt.Sprintf("%s (%s) when { %s };", effect, scope, when)
	})
	// Each question differs from the one before in one thing, which is where a
	// memory that leaves out too much would go wrong.
	change := func(t *rapid.T, q *Question) {
		from := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "value") }
		row := appliance.AuthzRow{TenantID: "acme", PoolID: "pool_1", GPUModel: "H100", Class: "metal-host", Sharing: "exclusive", Region: "fra1"}
		if q.Pool != nil {
			row = *q.Pool
		}
		q.Pool = &row
		switch rapid.IntRange(0, 13).Draw(t, "what") {
		case 0:
			q.Caller.Kind = rapid.SampledFrom([]appliance.CallerKind{appliance.CallerKey, appliance.CallerUser, appliance.CallerOperator}).Draw(t, "kind")
		case 1:
			q.Caller.ID = from("key_1", "key_2", "user_1")
		case 2:
			q.Caller.Tenant = from("acme", "beta")
		case 3:
			q.Caller.Role = rapid.SampledFrom(appliance.Roles).Draw(t, "role")
		case 4:
			q.Caller.Address = from("10.0.0.7", "10.0.0.8", "unix:uid=0")
		case 5:
			q.Action = rapid.SampledFrom([]appliance.Action{
				appliance.PoolsRead, appliance.PoolsManage, appliance.ReservationsCreate, appliance.ReservationsRead,
			}).Draw(t, "action")
		case 6:
			q.Tenant = from("acme", "beta")
		case 7:
			q.At = noon.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "minutes")) * time.Minute)
		case 8:
			row.PoolID = from("pool_1", "pool_2", "pool_3")
		case 9:
			row.GPUModel = from("H100", "A100", "L40S")
		case 10:
			row.Class = from("metal-host", "vps-host")
		case 11:
			row.Sharing = from("exclusive", "mig")
		case 12:
			row.Region, row.Owned = from("fra1", "ams1"), rapid.Bool().Draw(t, "owned")
		case 13:
			q.Pool = nil
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		e := New()
		for _, tenant := range []string{"acme", "beta"} {
			var policies []appliance.AccessPolicy
			for i, text := range rapid.SliceOfN(statement, 0, 2).Draw(t, tenant) {
				policies = append(policies, appliance.AccessPolicy{Name: fmt.Sprintf("p%d", i), Cedar: text})
			}
			if err := e.SetTenant(tenant, []string{"root"}, policies); err != nil {
				t.Fatal(err)
			}
		}
		q := Question{Caller: apiKey("acme", appliance.RoleMember), Action: appliance.PoolsRead, Tenant: "acme", At: noon}
		for range 60 {
			change(t, &q)
			who, denied := e.judge(q)
			if denied != "" {
				t.Fatal(denied)
			}
			want := e.evaluate(who, q, e.world(q))
			if diff := cmp.Diff(want, e.Decide(q)); diff != "" {
				t.Fatalf("%+v %+v: Decide (-by the policies +as answered):\n%s", q, q.Pool, diff)
			}
			if q.Pool != nil {
				if got := e.DecideAll(q, []appliance.AuthzRow{*q.Pool}); got[0] != want.Allowed {
					t.Fatalf("%+v %+v: DecideAll = %v, want %v", q, q.Pool, got[0], want.Allowed)
				}
			}
		}
	})
}
