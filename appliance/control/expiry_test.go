package control

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// timed makes a reservation of one GPU with an end.
func (f *fixture) timed(pool, duration string) appliance.Reservation {
	f.t.Helper()
	r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
		TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}, Duration: duration,
	})
	f.must(err)
	return r
}

func TestReservationsEndToTheSecondAndNotBefore(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	placed, later := f.timed(pool, "10s"), f.timed(pool, "1h")
	f.reserve(pool, 6)
	waiting := f.timed(pool, "20s") // a pending one ends too
	ctx := context.Background()

	f.advance(9*time.Second + 999*time.Millisecond)
	if next, err := f.c.ExpireDue(ctx); err != nil || next != time.Millisecond {
		t.Fatalf("the next end is in %s (%v), want 1ms", next, err)
	}
	if got := f.get(placed); got.State != appliance.Placed {
		t.Fatalf("ended before its time: %s", got.State)
	}
	f.advance(time.Millisecond)
	if next, err := f.c.ExpireDue(ctx); err != nil || next != 10*time.Second {
		t.Fatalf("the next end is in %s (%v), want 10s", next, err)
	}
	if got := f.get(placed); got.State != appliance.Ended || got.Reason != appliance.ReasonExpired {
		t.Fatalf("is %s %s at its end", got.State, got.Reason)
	}
	if got := f.get(waiting); got.State != appliance.Pending {
		t.Fatalf("the waiting one is %s", got.State)
	}
	f.advance(10 * time.Second)
	f.restart() // ends are known after a restart
	if _, err := f.c.ExpireDue(ctx); err != nil {
		t.Fatal(err)
	}
	if got := f.get(waiting); got.State != appliance.Ended {
		t.Fatalf("the waiting one is %s at its end", got.State)
	}
	if got := f.get(later); got.State != appliance.Placed {
		t.Fatalf("another's end took it: %s", got.State)
	}
	f.verify()
}

func TestMovedEndsCountAndManyEndAtOnce(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingTimeslice, `{"sharing":{"replicas":48}}`)
	f.join(pool, machine("a", 64, 512, 8))
	ctx := context.Background()
	var all []appliance.Reservation
	for range 200 {
		r, err := f.c.CreateReservation(ctx, operator, appliance.CreateReservation{
			TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{"gpu.slot": 1}, Duration: "10s",
		})
		f.must(err)
		all = append(all, r)
	}
	for i, r := range all[:50] {
		move := f.c.ExtendReservation
		if i%2 == 0 {
			move = f.c.ShortenReservation
		}
		_, err := move(ctx, operator, appliance.MoveReservation{TenantID: f.own, ReservationID: r.ID, Duration: fmt.Sprintf("%ds", 5+10*(i%2))})
		f.must(err)
	}
	for _, step := range []struct {
		after time.Duration
		left  int
	}{{5 * time.Second, 175}, {5 * time.Second, 25}, {5 * time.Second, 0}} {
		f.advance(step.after)
		if _, err := f.c.ExpireDue(ctx); err != nil {
			t.Fatal(err)
		}
		live := 0
		for _, r := range all {
			if f.get(r).State.Live() {
				live++
			}
		}
		if live != step.left {
			t.Fatalf("%d are live at %s, want %d", live, f.now(), step.left)
		}
	}
	f.verify()
}

// Only the first end of all wakes the loop: with many reservations that come
// and go, the loop would else run with every commit.
func TestOnlyTheFirstEndWakesTheLoop(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	f.timed(pool, "1h")
	woken := f.c.ExpiriesChanged()
	f.release(f.timed(pool, "2h"))
	f.release(f.reserve(pool, 1))
	select {
	case <-woken:
		t.Fatal("a later end and a release woke the loop")
	default:
	}
	f.timed(pool, "1m")
	select {
	case <-woken:
	default:
		t.Fatal("an earlier end did not wake the loop")
	}
}
