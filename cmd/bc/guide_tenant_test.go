package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// What the life of a tenant does to what it owns, was offered and runs.
func TestGuideTenantLife(t *testing.T) {
	b := startBox(t)
	g := &guide{box: b, op: b.operator(t)}
	op := g.op
	for _, id := range []string{"acme", "guest", "rival"} {
		b.tenant(t, id)
	}
	g.shared = b.site(t, "root", "fra1", "shared")
	site := b.site(t, "acme", "lab", "custom")
	mine := b.pool(t, site, "mine", nil)     // acme's own
	lent := b.pool(t, g.shared, "lent", nil) // root's, offered to acme
	b.fleet(t, mine, "dgx-h100", 1)
	b.fleet(t, lent, "dgx-h100", 1)
	b.offer(t, mine, "guest", object{"gpu": 5})
	b.offer(t, lent, "acme", object{"gpu": 8})
	root := func(id string) object { return object{"tenantId": "root", "id": id} }

	t.Run("root can be neither suspended nor deleted", func(t *testing.T) {
		refuse(t, op, "tenants.suspend", root("root"), appliance.InvalidState, "id")
		refuse(t, op, "tenants.delete", root("root"), appliance.InvalidState, "id")
	})
	t.Run("a suspended tenant's new reservations are refused, what runs goes on, and resuming takes them again", func(t *testing.T) {
		r := g.reserve(t, "acme", lent, object{"gpu": 2}, object{"duration": "2h"})
		if got := do[appliance.Tenant](t, op, "tenants.suspend", root("acme")); got.State != "suspended" {
			t.Errorf("got %+v", got)
		}
		for _, p := range []appliance.Pool{mine, lent} {
			in := object{"tenantId": "acme", "poolId": p.ID, "resources": object{"gpu": 1}}
			refuse(t, op, "reservations.create", in, appliance.InvalidState, "tenantId")
		}
		if got := g.reservation(t, r); !got.State.Booked() {
			t.Errorf("what runs is %s", got.State)
		}
		do[appliance.Reservation](t, op, "reservations.shorten", object{"tenantId": "acme", "reservationId": r.ID, "duration": "1h"})
		if r := g.reserve(t, "guest", mine, object{"gpu": 1}); r.State != appliance.Placed {
			t.Errorf("another tenant's in its pool is %s", r.State)
		} else {
			g.release(t, r)
		}
		if got := do[appliance.Tenant](t, op, "tenants.resume", root("acme")); got.State != "active" {
			t.Errorf("got %+v", got)
		}
		if r := g.reserve(t, "acme", mine, object{"gpu": 1}); r.State != appliance.Placed {
			t.Errorf("after resuming it is %s", r.State)
		} else {
			g.release(t, r)
		}
		g.release(t, r)
	})
	t.Run("a tenant cannot suspend, resume or delete itself", func(t *testing.T) {
		owner := b.key(t, "acme", appliance.RoleOwner)
		for _, verb := range []string{"suspend", "resume", "delete"} {
			refuse(t, owner, "tenants."+verb, object{"tenantId": "acme", "id": "acme"}, appliance.AccessDenied, "")
		}
		if got := do[appliance.Tenant](t, owner, "tenants.get", object{"tenantId": "acme", "id": "acme"}); got.State != "active" {
			t.Errorf("it is %s", got.State)
		}
	})
	t.Run("quota lowered below use: what runs stays, nothing new fits, and it is never negative", func(t *testing.T) {
		r := g.reserve(t, "guest", mine, object{"gpu": 4})
		in := object{"tenantId": "acme", "poolId": mine.ID, "forTenantId": "guest", "resource": "gpu", "max": 1}
		if q := do[appliance.Quota](t, op, "quotas.set", in); q.Max != 1 || q.Used != 4 || q.Available != 0 {
			t.Errorf("the row is %+v", q)
		}
		e := refuse(t, op, "reservations.create", object{"tenantId": "guest", "poolId": mine.ID, "resources": object{"gpu": 1}}, appliance.QuotaExceeded, "resources.gpu")
		if e.Details["asked"] != 1.0 || e.Details["used"] != 4.0 || e.Details["max"] != 1.0 || !strings.Contains(e.Message, "4 of 1") {
			t.Errorf("the refusal is %q with %v", e.Message, e.Details)
		}
		if got := g.reservation(t, r); !got.State.Booked() {
			t.Errorf("what runs is %s", got.State)
		}
		in["max"] = 5
		do[appliance.Quota](t, op, "quotas.set", in)
		g.release(t, r)
	})
	t.Run("a pending reservation waits for quota too, and is placed when that is raised", func(t *testing.T) {
		full := g.reserve(t, "acme", mine, object{"gpu": 8})
		waits := g.reserve(t, "guest", mine, object{"gpu": 3})
		in := object{"tenantId": "acme", "poolId": mine.ID, "forTenantId": "guest", "resource": "gpu", "max": 2}
		do[appliance.Quota](t, op, "quotas.set", in)
		g.release(t, full)
		await(t, op, "guest", "it says that it waits for quota", func() bool {
			x := do[appliance.Explanation](t, op, "reservations.explain", object{"tenantId": "guest", "reservationId": waits.ID})
			return x.State == appliance.Pending && len(x.Quota) == 1 && x.Quota[0].Max == 2 && strings.Contains(x.Message, "quota")
		})
		in["max"] = 5
		do[appliance.Quota](t, op, "quotas.set", in)
		await(t, op, "guest", "it is placed", func() bool { return g.reservation(t, waits).State.Booked() })
		g.release(t, waits)
	})
	t.Run("children first", func(t *testing.T) {
		b.tenant(t, "guest-team", "guest")
		refuse(t, op, "tenants.delete", root("guest"), appliance.InvalidState, "id")
		do[appliance.Tenant](t, op, "tenants.delete", root("guest-team"))
	})

	// acme has everything that a teardown meets: pools with others' bookings and
	// claims, an offer with its own, an archived pool, and a key.
	old := b.pool(t, site, "old", nil)
	do[appliance.Pool](t, op, "pools.archive", object{"tenantId": "acme", "poolId": old.ID})
	own := g.reserve(t, "acme", mine, object{"gpu": 6})
	guests := g.reserve(t, "guest", mine, object{"gpu": 2})
	guestWaits := g.reserve(t, "guest", mine, object{"gpu": 3})
	ownWaits := g.reserve(t, "acme", mine, object{"gpu": 8})
	abroad := g.reserve(t, "acme", lent, object{"gpu": 4})
	if guests.State != appliance.Placed || guestWaits.State != appliance.Pending || abroad.State != appliance.Placed || ownWaits.State != appliance.Pending {
		t.Fatalf("states: %s, %s, %s, %s", guests.State, guestWaits.State, abroad.State, ownWaits.State)
	}
	key := do[appliance.Key](t, op, "iam.keys.create", object{"tenantId": "acme", "name": "kept", "role": "owner"})
	holder := b.person(t, "acme's owner", key.Secret)
	after := map[string]int64{"acme": lastSeq(t, op, "acme"), "root": lastSeq(t, op, "root"), "guest": lastSeq(t, op, "guest")}
	guestsNow := g.reservation(t, guests)

	if got := do[appliance.Tenant](t, op, "tenants.delete", root("acme")); got.State != "deleted" {
		t.Fatalf("got %+v", got)
	}
	t.Run("deleted: its pools are archived with reason tenant deleted, once", func(t *testing.T) {
		var got []string
		for _, e := range eventsOf(t, op, "acme", after["acme"]) {
			if e.Type == appliance.EventPoolArchived {
				got = append(got, fmt.Sprint(e.Subject, " ", strings.Contains(string(e.Data), `"reason":"tenant deleted"`), strings.Contains(string(e.Data), `"unoffered":["guest"]`)))
			}
		}
		if want := []string{mine.ID + " true true"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if p := g.see(t, "acme", mine.ID); !p.Archived {
			t.Error("the pool is not archived")
		}
	})
	t.Run("deleted: the quotas of the offered tenants are zeroed", func(t *testing.T) {
		for _, q := range do[quotas](t, op, "quotas.list", object{"tenantId": "acme", "poolId": mine.ID, "forTenantId": "guest"}).Items {
			if q.Max != 0 || q.Available != 0 || q.Resource == "gpu" && q.Used < 2 {
				t.Errorf("the row is %+v", q)
			}
		}
	})
	t.Run("deleted: offers made to it are withdrawn, pool.unoffered to the owner", func(t *testing.T) {
		if offers := do[appliance.List[appliance.Offer]](t, op, "pools.offers", object{"tenantId": "root", "poolId": lent.ID}).Items; len(offers) != 0 {
			t.Errorf("the offers are %v", offers)
		}
		if !slices.ContainsFunc(eventsOf(t, op, "root", after["root"]), func(e appliance.Event) bool {
			return e.Type == appliance.EventPoolUnoffered && e.Subject == lent.ID && strings.Contains(string(e.Data), `"tenantId":"acme"`)
		}) {
			t.Error("root does not read of it")
		}
		refuse(t, op, "pools.get", object{"tenantId": "acme", "poolId": lent.ID}, appliance.NotFound, "")
	})
	t.Run("deleted: its own reservations end with TenantDeleted and give back", func(t *testing.T) {
		for _, r := range []appliance.Reservation{own, ownWaits, abroad} {
			if got := g.reservation(t, r); got.State != appliance.Ended || got.Reason != "TenantDeleted" {
				t.Errorf("got %s with %s", got.State, got.Reason)
			}
		}
		if c := g.capacity(t, lent); c.Resources["gpu"].Allocated != 0 {
			t.Errorf("root's pool has %+v", c.Resources["gpu"])
		}
	})
	t.Run("deleted: other tenants' live bookings in its pools run on to their end", func(t *testing.T) {
		got := g.reservation(t, guests)
		if !got.State.Booked() || !slices.Equal(got.Placements[0].Devices, guestsNow.Placements[0].Devices) {
			t.Errorf("got %+v", got)
		}
		await(t, op, "guest", "the node confirms it", func() bool { return g.reservation(t, guests).State == appliance.Active })
		do[appliance.Reservation](t, op, "reservations.shorten", object{"tenantId": "guest", "reservationId": guests.ID, "duration": "1s"})
		await(t, op, "guest", "it ends by its time", func() bool { return g.reservation(t, guests).State == appliance.Ended })
		if got := g.reservation(t, guests); got.Reason != "Expired" {
			t.Errorf("it ended with %s", got.Reason)
		}
	})
	t.Run("deleted: other tenants' pending ones fail with PoolGone", func(t *testing.T) {
		await(t, op, "guest", "it fails", func() bool { return g.reservation(t, guestWaits).State == appliance.Failed })
		if got := g.reservation(t, guestWaits); got.Reason != "PoolGone" {
			t.Errorf("it failed with %s", got.Reason)
		}
	})
	t.Run("deleted: it does nothing any more", func(t *testing.T) {
		for method, in := range map[string]object{
			"pools.create":        {"siteId": site.ID, "class": "metal-host", "gpuModel": "H100"},
			"sites.create":        {"kind": "custom", "name": "again", "region": "eu"},
			"iam.keys.create":     {"name": "again", "role": "owner"},
			"iam.users.create":    {"name": "again", "role": "owner"},
			"iam.policies.put":    {"name": "again", "cedar": "permit (principal, action, resource);"},
			"tenants.create":      {"id": "heir", "parentId": "acme"},
			"pools.update":        {"poolId": mine.ID, "policy": object{}},
			"pools.offer":         {"poolId": mine.ID, "toTenantId": "guest", "quota": object{"gpu": 1}},
			"quotas.set":          {"poolId": mine.ID, "forTenantId": "acme", "resource": "gpu", "max": 1},
			"rates.set":           {"meter": "gpu.h100.hours", "perUnit": 1},
			"budgets.set":         {"period": "total", "amount": 1},
			"reservations.create": {"poolId": mine.ID, "resources": object{"gpu": 1}},
		} {
			in["tenantId"] = "acme"
			for _, p := range []*person{op, holder} {
				a := p.try(t, method, in)
				if c := a.code(); c != appliance.InvalidState && c != appliance.NotFound {
					t.Errorf("%s's %s: %d %s", p.name, method, a.status, a.body)
				}
			}
		}
	})
	t.Run("deleted: it cannot be offered to, suspended or resumed, and its id is never used again", func(t *testing.T) {
		refuse(t, op, "pools.offer", object{"tenantId": "root", "poolId": lent.ID, "toTenantId": "acme", "quota": object{}}, appliance.NotFound, "")
		refuse(t, op, "tenants.suspend", root("acme"), appliance.InvalidState, "id")
		refuse(t, op, "tenants.resume", root("acme"), appliance.InvalidState, "id")
		refuse(t, op, "tenants.create", root("acme"), appliance.ConflictCode, "id")
		if got := do[appliance.Tenant](t, op, "tenants.delete", root("acme")); got.State != "deleted" {
			t.Errorf("deleting again: %+v", got)
		}
	})
	t.Run("the state adds up after a restart", func(t *testing.T) {
		b.stop(t)
		b.start(t)
		if got := do[appliance.Tenant](t, op, "tenants.get", root("acme")); got.State != "deleted" {
			t.Errorf("got %+v", got)
		}
		if c := g.capacity(t, mine); c.Resources["gpu"].Allocated != 0 {
			t.Errorf("the archived pool has %+v", c.Resources["gpu"])
		}
	})
}
