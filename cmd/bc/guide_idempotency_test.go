package main_test

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// together sends one input many times at once, and gives every answer.
func together(t *testing.T, n int, p *person, method string, in object) []answer {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]answer, n)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			answers[i] = p.post(t, method, body)
		})
	}
	close(start)
	all.Wait()
	return answers
}

// Retries under one key make one thing, however many come at once.
func TestGuideIdempotency(t *testing.T) {
	const n = 24
	b := startBox(t)
	op := b.operator(t)
	b.tenant(t, "acme")
	site := b.site(t, "acme", "lab", "custom")
	owner, other := b.key(t, "acme", appliance.RoleOwner), b.key(t, "acme", appliance.RoleOperator)
	pool := object{"tenantId": "acme", "siteId": site.ID, "class": "metal-host", "gpuModel": "H100", "idempotencyKey": "the-key", "policy": object{"maxPending": "6h"}}

	one := func(t *testing.T, method string, in object, kind appliance.EventType) string {
		t.Helper()
		after := lastSeq(t, op, "acme")
		var made struct{ ID string }
		for i, a := range together(t, n, owner, method, in) {
			var got struct{ ID string } // a late answer may tell that the thing has gone on meanwhile
			if err := json.Unmarshal(a.body, &got); err != nil || a.status != 200 || got.ID == "" || i > 0 && got.ID != made.ID {
				t.Fatalf("one answer is %d %s, another is of %q", a.status, a.body, made.ID)
			}
			made = got
		}
		seen := map[string]int{}
		for _, e := range eventsOf(t, op, "acme", after) {
			seen[string(e.Type)]++
			if e.Subject != made.ID || seen[string(e.Type)] > 1 {
				t.Errorf("%d calls left a second %s, of %s", n, e.Type, e.Subject)
			}
		}
		if seen[string(kind)] != 1 {
			t.Errorf("%d calls left %v", n, seen)
		}
		return made.ID
	}
	with := func(in object, more object) object {
		out := object{}
		for _, m := range []object{in, more} {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}

	poolID := one(t, "pools.create", pool, appliance.EventPoolCreated)
	t.Run("a pool: another caller with the same key gets another", func(t *testing.T) {
		if p := do[appliance.Pool](t, other, "pools.create", pool); p.ID == poolID {
			t.Error("it is the first caller's")
		}
	})
	t.Run("a pool: a refused first try leaves nothing, and the mended one takes the key", func(t *testing.T) {
		after := lastSeq(t, op, "acme")
		again := with(pool, object{"idempotencyKey": "mended", "policy": object{"maxPending": "soon"}})
		refuse(t, owner, "pools.create", again, appliance.InvalidInput, "policy.maxPending")
		refuse(t, owner, "pools.create", with(again, object{"siteId": "site_01k5c000000000000000000000"}), appliance.NotFound, "")
		again["policy"] = object{"maxPending": "7h"}
		p := do[appliance.Pool](t, owner, "pools.create", again)
		if string(p.Policy) != `{"maxPending":"7h"}` {
			t.Errorf("got %s", p.Policy)
		}
		if got := types(eventsOf(t, op, "acme", after)); len(got) != 1 {
			t.Errorf("the events are %v", got)
		}
	})
	t.Run("a pool: other fields than the five are no conflict, and change nothing", func(t *testing.T) {
		p := do[appliance.Pool](t, owner, "pools.create", with(pool, object{"gpuModel": "A100", "policy": object{}, "name": "late"}))
		if p.ID != poolID || p.GPUModel != "H100" || p.Name != "" || string(p.Policy) != `{"maxPending":"6h"}` {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("a pool: the conflict leaves no event", func(t *testing.T) {
		after := lastSeq(t, op, "acme")
		refuse(t, owner, "pools.create", with(pool, object{"class": "vps-host"}), appliance.ConflictCode, "idempotencyKey")
		if got := types(eventsOf(t, op, "acme", after)); len(got) != 0 {
			t.Errorf("the events are %v", got)
		}
	})
	t.Run("a pool: a key of 200 bytes is taken, a longer one refused", func(t *testing.T) {
		do[appliance.Pool](t, owner, "pools.create", with(pool, object{"idempotencyKey": string(bytes.Repeat([]byte("k"), 200))}))
		refuse(t, owner, "pools.create", with(pool, object{"idempotencyKey": string(bytes.Repeat([]byte("k"), 201))}), appliance.InvalidInput, "idempotencyKey")
	})

	full := do[appliance.Pool](t, op, "pools.get", object{"tenantId": "acme", "poolId": poolID})
	b.fleet(t, full, "dgx-h100", 1)
	r := object{"tenantId": "acme", "poolId": poolID, "resources": object{"gpu": 2}, "idempotencyKey": "the-key", "name": "train", "labels": object{"team": "a"}}
	reservation := one(t, "reservations.create", r, appliance.EventReservationCreated)
	used := func() int {
		for _, q := range do[quotas](t, op, "quotas.list", object{"tenantId": "acme", "poolId": poolID}).Items {
			if q.Resource == "gpu" {
				return q.Used
			}
		}
		return -1
	}
	t.Run("a reservation: it is charged and booked once", func(t *testing.T) {
		c := do[appliance.Capacity](t, op, "pools.capacity", object{"tenantId": "acme", "poolId": poolID})
		if used() != 2 || c.Resources["gpu"].Allocated != 2 {
			t.Errorf("used is %d, allocated %+v", used(), c.Resources["gpu"])
		}
	})
	t.Run("a reservation: another caller with the same key gets another", func(t *testing.T) {
		if got := do[appliance.Reservation](t, other, "reservations.create", r); got.ID == reservation || got.CreatedBy == owner.name {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a reservation: the same key for something else is CONFLICT", func(t *testing.T) {
		for _, change := range []object{
			{"resources": object{"gpu": 3}}, {"resources": object{"gpu": 2, "vcpu": 1}}, {"nodes": 2}, {"name": "other"},
			{"labels": object{"team": "b"}}, {"selector": object{"arch": "x86_64"}},
		} {
			before := used()
			refuse(t, owner, "reservations.create", with(r, change), appliance.ConflictCode, "idempotencyKey")
			if used() != before {
				t.Errorf("%v: used went from %d to %d", change, before, used())
			}
		}
	})
	t.Run("a reservation: a refused first try mended with the same key", func(t *testing.T) {
		again := with(r, object{"idempotencyKey": "mended", "resources": object{"gpu": 2, "vcpu": 4}})
		refuse(t, owner, "reservations.create", again, appliance.QuotaExceeded, "resources.vcpu")
		do[appliance.Quota](t, op, "quotas.set", object{"tenantId": "acme", "poolId": poolID, "resource": "vcpu", "max": 4})
		if got := do[appliance.Reservation](t, owner, "reservations.create", again); got.State != appliance.Placed || got.Booked["vcpu"] != 4 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a reservation: a retry after the end answers what became of it", func(t *testing.T) {
		do[appliance.Reservation](t, owner, "reservations.release", object{"tenantId": "acme", "reservationId": reservation})
		if got := do[appliance.Reservation](t, owner, "reservations.create", r); got.ID != reservation || got.State != appliance.Ended {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a dry run under a key keeps nothing", func(t *testing.T) {
		dry := with(r, object{"idempotencyKey": "dry", "dryRun": true})
		if got := do[appliance.Reservation](t, owner, "reservations.create", dry); got.ID != "" || got.State != appliance.Placed {
			t.Errorf("got %+v", got)
		}
		delete(dry, "dryRun")
		if got := do[appliance.Reservation](t, owner, "reservations.create", dry); got.ID == "" {
			t.Errorf("got %+v", got)
		}
	})
}
