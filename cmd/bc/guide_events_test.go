package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// openAPI is what the tests read of the document.
type openAPI struct {
	Paths map[string]struct {
		Post *struct {
			Action string `json:"x-action"`
		}
	}
}

// methods gives every method that the server has, with its action.
func methods(t *testing.T, p *person) map[string]appliance.Action {
	t.Helper()
	body, err := p.Get(t.Context(), "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc openAPI
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]appliance.Action{}
	for path, item := range doc.Paths {
		if name, ok := strings.CutPrefix(path, "/v1/"); ok && item.Post != nil {
			out[name] = appliance.Action(item.Post.Action)
		}
	}
	if len(out) < 50 {
		t.Fatalf("the document has only %d methods", len(out))
	}
	return out
}

// step is a write and the events that it leaves.
type step struct {
	as, method string // the tenant, and what is done in its name
	in         object
	want       string // types of the events, "" for none
	keep       string // under which name to remember the id
}

// Every write stores its events in the transaction that causes them: in order,
// without a gap, for the right readers, and none where it was refused.
func TestGuideEvents(t *testing.T) {
	b := startBox(t)
	op := b.operator(t)
	for _, id := range []string{"acme", "guest", "other", "rival"} {
		b.tenant(t, id)
	}
	site := b.site(t, "acme", "lab", "custom")
	p := b.pool(t, site, "events", object{"idempotencyKey": "events"})
	node := b.fleet(t, p, "dgx-h100", 1)[0]
	ids := map[string]string{} // what a step makes, for the steps behind it

	steps := []step{
		{"root", "tenants.create", object{"id": "short"}, "tenant.created", ""},
		{"root", "tenants.suspend", object{"id": "short"}, "tenant.suspended", ""},
		{"root", "tenants.suspend", object{"id": "short"}, "", ""},
		{"root", "tenants.resume", object{"id": "short"}, "tenant.resumed", ""},
		{"root", "tenants.delete", object{"id": "short"}, "tenant.deleted", ""},
		{"root", "tenants.delete", object{"id": "short"}, "", ""},
		{"acme", "sites.create", object{"kind": "custom", "name": "second", "region": "eu"}, "site.created", ""},
		{"acme", "pools.create", object{"siteId": site.ID, "class": "metal-host", "gpuModel": "H100"}, "pool.created", "spare"},
		{"acme", "pools.offer", object{"poolId": p.ID, "toTenantId": "guest", "quota": object{"gpu": 4}}, "pool.offered", ""},
		{"acme", "pools.offer", object{"poolId": p.ID, "toTenantId": "other", "quota": object{"gpu": 4}}, "pool.offered", ""},
		{"acme", "pools.update", object{"poolId": p.ID, "policy": object{"maxPending": "6h"}}, "pool.updated", ""},
		{"acme", "quotas.set", object{"poolId": p.ID, "forTenantId": "guest", "resource": "gpu", "max": 3}, "quota.updated", ""},
		{"acme", "nodes.label", object{"nodeId": node.ID, "labels": object{"rack": "r1"}}, "node.updated", ""},
		{"acme", "nodes.label", object{"nodeId": node.ID, "labels": object{"rack": "r1"}}, "", ""},
		{"acme", "nodes.cordon", object{"nodeId": node.ID}, "node.updated", ""},
		{"acme", "nodes.cordon", object{"nodeId": node.ID}, "", ""},
		{"acme", "nodes.drain", object{"nodeId": node.ID}, "node.updated", ""},
		{"acme", "nodes.uncordon", object{"nodeId": node.ID}, "node.updated", ""},
		{"guest", "reservations.create", object{"poolId": p.ID, "resources": object{"gpu": 1}, "duration": "1h"}, "reservation.created reservation.placed", "res"},
		{"guest", "reservations.create", object{"poolId": p.ID, "resources": object{"gpu": 1}, "dryRun": true}, "", ""},
		{"acme", "nodes.plan", object{"nodeId": node.ID}, "", ""},
		{"acme", "nodes.reboot", object{"nodeId": node.ID, "dryRun": true}, "", ""},
		{"acme", "nodes.reboot", object{"nodeId": node.ID}, "node.reboot node.updated", ""}, // it waits for the reservation
		{"acme", "nodes.reboot", object{"nodeId": node.ID}, "", ""},
		{"acme", "nodes.uncordon", object{"nodeId": node.ID}, "node.reboot node.updated", ""},
		{"guest", "reservations.extend", object{"reservationId": "$res", "duration": "3h"}, "reservation.updated", ""},
		{"guest", "reservations.shorten", object{"reservationId": "$res", "duration": "2h"}, "reservation.updated", ""},
		{"guest", "reservations.release", object{"reservationId": "$res"}, "reservation.ended", ""},
		{"guest", "reservations.release", object{"reservationId": "$res"}, "", ""},
		{"acme", "rates.set", object{"meter": "gpu.h100.hours", "perUnit": 2.5}, "rate.updated", ""},
		{"acme", "budgets.set", object{"period": "month", "amount": 1000}, "budget.updated", ""},
		{"acme", "iam.keys.create", object{"name": "k", "role": "viewer"}, "key.created", "key"},
		{"acme", "iam.keys.revoke", object{"keyId": "$key"}, "key.revoked", ""},
		{"acme", "iam.keys.revoke", object{"keyId": "$key"}, "", ""},
		{"acme", "iam.users.create", object{"name": "ada", "role": "member"}, "user.created", "user"},
		{"acme", "iam.users.update", object{"userId": "$user", "role": "viewer"}, "user.updated", ""},
		{"acme", "iam.users.setPassword", object{"userId": "$user", "password": "correct horse battery"}, "user.updated", ""},
		{"acme", "iam.login", object{"name": "ada", "password": "correct horse battery"}, "user.loggedIn", ""},
		{"acme", "iam.users.loginLink", object{"userId": "$user"}, "user.updated", ""},
		{"acme", "iam.users.delete", object{"userId": "$user"}, "user.deleted", ""},
		{"acme", "iam.policies.put", object{"name": "mine", "cedar": `permit (principal, action, resource is Pool) when { resource.owned };`}, "policy.put", ""},
		{"acme", "iam.policies.delete", object{"name": "mine"}, "policy.deleted", ""},
		{"acme", "iam.policies.delete", object{"name": "mine"}, "", ""},
		{"acme", "pools.unoffer", object{"poolId": p.ID, "toTenantId": "other"}, "pool.unoffered", ""},
		{"acme", "pools.unoffer", object{"poolId": p.ID, "toTenantId": "other"}, "", ""},
		{"acme", "pools.archive", object{"poolId": "$spare"}, "pool.archived", ""},
		{"acme", "pools.archive", object{"poolId": "$spare"}, "", ""},
		{"acme", "nodes.remove", object{"nodeId": node.ID}, "node.removed", ""},
	}

	// What nodes do by themselves happens in between; it is left out here.
	own := func(e appliance.Event) bool {
		return !strings.HasPrefix(string(e.Type), "node.unit") && e.Type != appliance.EventReservationActive && e.Type != appliance.EventNodeJoined && e.Type != appliance.EventNodeAccepted
	}
	t.Run("every write has its events", func(t *testing.T) {
		done := map[string]bool{}
		for _, s := range steps {
			done[s.method] = true
			for k, v := range s.in {
				if name, ok := v.(string); ok && strings.HasPrefix(name, "$") {
					s.in[k] = ids[name[1:]]
				}
			}
			s.in["tenantId"] = s.as
			reader := s.as
			after := lastSeq(t, op, reader)
			a := op.try(t, s.method, s.in)
			if a.status != 200 {
				t.Fatalf("%s %v: %s", s.method, s.in, a.body)
			}
			if s.keep != "" {
				var made struct{ ID string }
				if err := json.Unmarshal(a.body, &made); err != nil {
					t.Fatal(err)
				}
				ids[s.keep] = made.ID
			}
			var got []string
			for _, e := range eventsOf(t, op, reader, after) {
				if own(e) {
					got = append(got, string(e.Type))
				}
			}
			if strings.Join(got, " ") != s.want {
				t.Errorf("%s %v: the events are %v, want %q", s.method, s.in, got, s.want)
			}
		}
		for method, action := range methods(t, op) {
			if action != anonymous && action.Writes() && method != "pools.offers" && !done[method] {
				t.Errorf("%s writes, and no step here says which event it leaves", method)
			}
		}
	})

	t.Run("sequence numbers rise by one, whoever reads", func(t *testing.T) {
		seen := map[int64]appliance.EventType{}
		for _, tenant := range []string{"root", "local", "acme", "guest", "other", "rival", "short"} {
			last := int64(0)
			for _, e := range eventsOf(t, op, tenant, 0) {
				if e.Seq <= last {
					t.Errorf("%s reads %d behind %d", tenant, e.Seq, last)
				}
				last, seen[e.Seq] = e.Seq, e.Type
			}
		}
		for n := int64(1); n <= int64(len(seen)); n++ {
			if seen[n] == "" {
				t.Fatalf("of %d events number %d is missing", len(seen), n)
			}
		}
	})

	t.Run("no event holds a secret", func(t *testing.T) {
		for _, tenant := range []string{"root", "acme"} {
			for _, e := range eventsOf(t, op, tenant, 0) {
				for _, secret := range []string{"bck_", "bcl_", "bcj_", "correct horse", "$argon2"} {
					if strings.Contains(string(e.Data), secret) {
						t.Errorf("%s holds %s", e.Type, e.Data)
					}
				}
			}
		}
	})

	t.Run("each tenant reads its own and what it may of pools that it sees", func(t *testing.T) {
		fresh := b.pool(t, site, "readers", nil)
		after := fmt.Sprint(lastSeq(t, op, "acme"))
		in := func(tenant string, more object) object {
			more["tenantId"], more["poolId"] = tenant, fresh.ID
			return more
		}
		b.offer(t, fresh, "guest", object{"gpu": 4})
		b.offer(t, fresh, "other", object{"gpu": 4})
		do[appliance.Quota](t, op, "quotas.set", in("acme", object{"forTenantId": "other", "resource": "gpu", "max": 5}))
		do[appliance.Pool](t, op, "pools.update", in("acme", object{"policy": object{"maxPending": "5h"}}))
		mine := do[appliance.Reservation](t, op, "reservations.create", in("guest", object{"resources": object{"gpu": 1}}))
		do[appliance.Reservation](t, op, "reservations.create", in("other", object{"resources": object{"gpu": 1}}))
		do[appliance.Reservation](t, op, "reservations.create", in("acme", object{"resources": object{"gpu": 1}}))
		do[appliance.Reservation](t, op, "reservations.release", object{"tenantId": "guest", "reservationId": mine.ID})
		read := func(tenant string) []string {
			var got []string
			for _, e := range eventsOf(t, op, tenant, 0) {
				if e.PoolID == fresh.ID {
					got = append(got, string(e.Type)+" of "+e.TenantID)
				}
			}
			return got
		}
		want := map[string][]string{
			"acme": {"pool.created of acme", "pool.offered of acme", "pool.offered of acme", "quota.updated of acme", "pool.updated of acme",
				"reservation.created of guest", "reservation.created of other", "reservation.created of acme", "reservation.ended of guest"},
			"guest": {"pool.created of acme", "pool.offered of acme", "pool.updated of acme", "reservation.created of guest", "reservation.ended of guest"},
			"other": {"pool.created of acme", "pool.offered of acme", "quota.updated of acme", "pool.updated of acme", "reservation.created of other"},
			"rival": nil,
		}
		for tenant, want := range want {
			if got := read(tenant); !slices.Equal(got, want) {
				t.Errorf("%s reads (after %s)\n%v, want\n%v", tenant, after, got, want)
			}
		}
		do[appliance.Unoffered](t, op, "pools.unoffer", in("acme", object{"toTenantId": "guest"}))
		if got, want := read("guest"), []string{"pool.offered of acme", "reservation.created of guest", "reservation.ended of guest", "pool.unoffered of acme"}; !slices.Equal(got, want) {
			t.Errorf("after the offer was withdrawn guest reads\n%v, want\n%v", got, want)
		}
		if got := read("other"); len(got) != len(want["other"]) {
			t.Errorf("other reads of guest's offer: %v", got)
		}
	})

	t.Run("a stream that breaks off goes on without a gap", func(t *testing.T) {
		all := eventsOf(t, op, "acme", 0)
		reader := b.key(t, "acme", appliance.RoleViewer) // one more event
		all = append(all, eventsOf(t, op, "acme", all[len(all)-1].Seq)...)
		var got []int64
		for after := int64(0); len(got) < len(all); {
			part := 0
			for e, err := range reader.Events(t.Context(), "acme", after) {
				if err != nil {
					t.Fatal(err)
				}
				got, after, part = append(got, e.Seq), e.Seq, part+1
				if part == 7 || len(got) == len(all) {
					break
				}
			}
		}
		for i, e := range all {
			if got[i] != e.Seq {
				t.Fatalf("event %d of the stream is %d, of the list %d", i, got[i], e.Seq)
			}
		}
	})

	t.Run("Last-Event-ID resumes behind it", func(t *testing.T) {
		all := eventsOf(t, op, "acme", 0)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, op.base+"/v1/events?tenantId=acme&after=0", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Last-Event-ID", fmt.Sprint(all[2].Seq))
		resp, err := op.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		head := make([]byte, 200)
		n, _ := resp.Body.Read(head)
		if want := fmt.Sprintf("id: %d\n", all[3].Seq); !strings.Contains(string(head[:n]), want) {
			t.Errorf("it begins %q, want %q", head[:n], want)
		}
	})

	t.Run("pages of one join to the whole", func(t *testing.T) {
		all := eventsOf(t, op, "acme", 0)[:10]
		after := int64(0)
		for _, want := range all {
			page := do[events](t, op, "events.list", object{"tenantId": "acme", "after": after, "limit": 1}).Items
			if len(page) != 1 || page[0].Seq != want.Seq {
				t.Fatalf("behind %d comes %v, want %d", after, page, want.Seq)
			}
			after = page[0].Seq
		}
	})

	t.Run("a refused call leaves none", func(t *testing.T) {
		viewer := b.person(t, "a viewer", do[appliance.Key](t, op, "iam.keys.create", object{"tenantId": "acme", "name": "refused", "role": "viewer"}).Secret)
		before := map[string]int64{}
		for _, tenant := range []string{"root", "acme", "guest", "rival"} {
			before[tenant] = lastSeq(t, op, tenant)
		}
		missing := object{"tenantId": "acme", "poolId": "pool_01k5c000000000000000000000"}
		refuse(t, op, "pools.archive", missing, appliance.NotFound, "")
		refuse(t, viewer, "pools.archive", object{"tenantId": "acme", "poolId": p.ID}, appliance.AccessDenied, "")
		refuse(t, viewer, "iam.keys.create", object{"tenantId": "acme", "name": "no", "role": "owner"}, appliance.AccessDenied, "")
		refuse(t, op, "pools.offer", object{"tenantId": "rival", "poolId": p.ID, "toTenantId": "guest", "quota": object{}}, appliance.NotFound, "")
		refuse(t, op, "tenants.create", object{"tenantId": "root", "id": "acme"}, appliance.ConflictCode, "")
		refuse(t, op, "iam.policies.put", object{"tenantId": "acme", "name": "bad", "cedar": "permit (everything);"}, appliance.InvalidInput, "")
		refuse(t, op, "reservations.create", object{"tenantId": "rival", "poolId": p.ID, "resources": object{"gpu": 1}}, appliance.NotFound, "")
		for tenant, after := range before {
			if left := eventsOf(t, op, tenant, after); len(left) != 0 {
				t.Errorf("%s reads %v", tenant, types(left))
			}
		}
		if site := b.site(t, "rival", "next", "custom"); site.ID == "" || lastSeq(t, op, "rival") != lastOf(before)+1 {
			t.Errorf("the next event is number %d, the last was %d", lastSeq(t, op, "rival"), lastOf(before))
		}
	})

	t.Run("a deleted tenant's events are there for the operator, and for no stranger", func(t *testing.T) {
		do[appliance.Tenant](t, op, "tenants.delete", object{"tenantId": "root", "id": "other"})
		got := types(eventsOf(t, op, "other", 0))
		if len(got) == 0 || got[len(got)-1] != "tenant.deleted" {
			t.Errorf("the operator reads %v", got)
		}
		rival := b.key(t, "rival", appliance.RoleOwner)
		refuse(t, rival, "events.list", object{"tenantId": "other"}, appliance.NotFound, "")
	})
}

func lastOf(m map[string]int64) int64 {
	last := int64(0)
	for _, n := range m {
		last = max(last, n)
	}
	return last
}
