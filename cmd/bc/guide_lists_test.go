package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// Every list that takes a limit and a cursor gives the same things in pages of
// one as in one page, each once and in the same order.
func TestGuideLists(t *testing.T) {
	b := startBox(t)
	op := b.operator(t)
	b.tenant(t, "acme")
	site := b.site(t, "acme", "lab", "custom")
	p := b.pool(t, site, "own", object{"ownerQuota": object{"gpu": 8, "vcpu": 8, "memoryGiB": 8}})
	b.fleet(t, p, "cpu-only", 3)
	for i := range 3 {
		n := fmt.Sprint("n", i)
		b.tenant(t, "below-"+n, "acme")
		b.site(t, "acme", n, "custom")
		b.pool(t, site, n, nil)
		b.offer(t, p, "below-"+n, object{"gpu": 1})
		do[appliance.Reservation](t, op, "reservations.create", object{"tenantId": "acme", "poolId": p.ID, "resources": object{"vcpu": 1}})
		do[appliance.Key](t, op, "iam.keys.create", object{"tenantId": "acme", "name": n, "role": "viewer"})
		do[appliance.User](t, op, "iam.users.create", object{"tenantId": "acme", "name": n, "role": "viewer"})
		do[appliance.AccessPolicy](t, op, "iam.policies.put", object{"tenantId": "acme", "name": n, "cedar": `permit (principal, action, resource is Pool) when { resource.owned };`})
		do[appliance.Rate](t, op, "rates.set", object{"tenantId": "acme", "meter": []string{"gpu.h100.hours", "vcpu.hours", "memory.gib-hours"}[i], "perUnit": 1})
	}
	for _, period := range []string{"month", "total"} {
		do[appliance.Budget](t, op, "budgets.set", object{"tenantId": "acme", "period": period, "amount": 1000})
	}
	schemas, _ := inputs(t, op)
	tried := 0
	for _, method := range slices.Sorted(maps.Keys(schemas)) {
		if _, ok := schemas[method].Properties["cursor"]; !ok {
			if strings.HasSuffix(method, ".list") && method != "events.list" { // whose cursor is the sequence number
				t.Errorf("%s takes no cursor", method)
			}
			continue
		}
		tried++
		t.Run(method, func(t *testing.T) {
			type page struct {
				Items      []json.RawMessage `json:"items"`
				NextCursor string            `json:"nextCursor"`
			}
			whole := do[page](t, op, method, object{"tenantId": "acme"})
			if len(whole.Items) < 2 || whole.NextCursor != "" {
				t.Fatalf("the whole list has %d items and the cursor %q", len(whole.Items), whole.NextCursor)
			}
			cursor := ""
			for i, want := range whole.Items {
				in := object{"tenantId": "acme", "limit": 1}
				if cursor != "" {
					in["cursor"] = cursor
				}
				got := do[page](t, op, method, in)
				if len(got.Items) != 1 || idOf(got.Items[0]) != idOf(want) {
					t.Fatalf("page %d is %s, want %s", i, got.Items, want)
				}
				if last := i == len(whole.Items)-1; (got.NextCursor == "") != last {
					t.Fatalf("page %d of %d has the cursor %q", i+1, len(whole.Items), got.NextCursor)
				}
				cursor = got.NextCursor
			}
			for _, limit := range []int{0, -1, 501} {
				refuse(t, op, method, object{"tenantId": "acme", "limit": limit}, appliance.InvalidInput, "limit")
			}
			if a := op.try(t, method, object{"tenantId": "acme", "cursor": "zzzz"}); a.status != 200 || !strings.HasPrefix(string(a.body), `{"items":[]`) {
				t.Errorf("behind the end: %d %s", a.status, a.body)
			}
		})
	}
	if tried < 11 {
		t.Errorf("only %d lists were tried", tried)
	}
}

// idOf is what tells one item of a list from another; amounts may move.
func idOf(item json.RawMessage) string {
	var v struct{ ID, Name, Meter, Period, PoolID, TenantID, Resource string }
	_ = json.Unmarshal(item, &v)
	return fmt.Sprint(v)
}
