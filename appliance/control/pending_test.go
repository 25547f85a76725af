package control

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

func (f *fixture) retry() {
	f.t.Helper()
	f.must(f.c.RetryAll(context.Background()))
}

func (f *fixture) state(r appliance.Reservation, want appliance.ReservationState) appliance.Reservation {
	f.t.Helper()
	got := f.get(r)
	if got.State != want {
		f.t.Fatalf("reservation %s is %s (%s), want %s", r.ID, got.State, got.Message, want)
	}
	return got
}

func TestPendingReservationsArePlacedInOrderOfCreation(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	all := f.reserve(pool, 8)
	first, second, third := f.reserve(pool, 4), f.reserve(pool, 4), f.reserve(pool, 4)
	f.restart() // the order is in the rows
	f.release(all)
	f.must(f.c.RetryStirred(context.Background()))
	f.state(first, appliance.Placed)
	f.state(second, appliance.Placed)
	if got := f.state(third, appliance.Pending); !strings.Contains(got.Message, "0 of 8 GPUs free, 4 asked") {
		t.Errorf("why it waits: %q", got.Message)
	}
	f.verify()
}

// What is durable is answered as made: whoever was told of an error would make
// it once more.
func TestAWaitingReservationIsAnsweredThoughItsReasonCannotBeNoted(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	now := f.c.Now
	f.c.Now = func() time.Time { cancel(); return now() } // the caller goes while its reservation is being made
	got, err := f.c.CreateReservation(ctx, operator, appliance.CreateReservation{TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}})
	f.c.Now = now
	if ctx.Err() == nil || err != nil || got.Message != "waiting for resources" {
		t.Fatalf("answered %q, %v", got.Message, err)
	}
	f.join(pool, machine("a", 64, 512, 8))
	f.retry()
	f.state(got, appliance.Placed)
	f.verify()
}

func TestPendingFailsAfterMaxPendingAndWhenThePoolIsGone(t *testing.T) {
	f := newFixture(t)
	f.tenant("beta")
	pool := f.pool(appliance.SharingExclusive, `{"maxPending":"1h"}`)
	_, err := f.c.OfferPool(context.Background(), operator, appliance.OfferPool{TenantID: f.own, PoolID: pool, ToTenantID: "beta", Quota: appliance.QuotaMap{"gpu": 10}})
	f.must(err)
	waits := f.reserve(pool, 1)
	theirs, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{TenantID: "beta", PoolID: pool, Resources: appliance.Amounts{"gpu": 1}})
	f.must(err)

	f.advance(time.Hour)
	f.retry()
	f.state(waits, appliance.Pending)
	_, err = f.c.UnofferPool(context.Background(), operator, appliance.UnofferPool{TenantID: f.own, PoolID: pool, ToTenantID: "beta"})
	f.must(err)
	f.retry()
	if got := f.state(theirs, appliance.Failed); got.Reason != appliance.ReasonPoolGone {
		t.Errorf("failed for %s", got.Reason)
	}
	f.advance(time.Millisecond)
	f.retry()
	if got := f.state(waits, appliance.Failed); got.Reason != appliance.ReasonMaxPending {
		t.Errorf("failed for %s", got.Reason)
	}
	f.verify()
}

// A stream of small reservations keeps a pool full, so that a large one never
// finds a node free by itself.
func TestALargeReservationIsNotOvertakenForEver(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	f.join(pool, machine("b", 64, 512, 8))
	var small []appliance.Reservation
	for range 16 {
		small = append(small, f.timed(pool, "20m"))
		f.advance(time.Minute)
	}
	large := f.reserve(pool, 8)
	placed := func() bool {
		for range 60 { // a minute each: one small one ends, another comes
			f.advance(time.Minute)
			_, err := f.c.ExpireDue(context.Background())
			f.must(err)
			f.retry()
			if f.get(large).State == appliance.Placed {
				return true
			}
			small = append(small, f.timed(pool, "20m"))
		}
		return false
	}
	if !placed() {
		t.Fatal("the large reservation was overtaken for an hour")
	}
	if waited := f.now().Sub(large.CreatedAt.Time); waited < turnAfter || waited > turnAfter+21*time.Minute {
		t.Errorf("it waited %s", waited)
	}
	f.verify()
	young := f.reserve(pool, 1)
	f.advance(20 * time.Minute)
	_, err := f.c.ExpireDue(context.Background())
	f.must(err)
	f.retry()
	f.state(young, appliance.Placed) // nothing is kept any more
}

func TestATurnKeepsOnlyWhatItNeeds(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	a := f.join(pool, machine("a", 64, 512, 8))
	f.join(pool, machine("b", 64, 512, 8))
	long, short := f.reserve(pool, 5), f.timed(pool, "2h") // both on one node
	other := f.reserve(pool, 8)
	large := f.reserve(pool, 8)
	f.advance(turnAfter)
	f.retry()
	f.release(other) // at once the large one's: its turn, and it fits
	f.must(f.c.RetryStirred(context.Background()))
	f.state(large, appliance.Placed)

	next := f.reserve(pool, 8)
	f.advance(turnAfter)
	f.retry()
	younger := f.reserve(pool, 1)
	if got := f.state(younger, appliance.Pending); !strings.Contains(got.Message, "kept free for a reservation that has waited longer") && !strings.Contains(got.Message, "not taking bookings") {
		t.Errorf("why the younger one waits: %q", got.Message)
	}
	x, err := f.c.ExplainReservation(context.Background(), operator, appliance.ReservationRef{TenantID: f.own, ReservationID: next.ID})
	f.must(err)
	for _, n := range x.Nodes {
		if strings.Contains(strings.Join(n.Missing, " "), "kept") {
			t.Errorf("the one that has its turn is told that %s is kept from it", n.Hostname)
		}
	}
	f.release(next)
	f.must(f.c.RetryStirred(context.Background()))
	f.state(younger, appliance.Placed) // the turn ended with it

	impossible := f.reserve(pool, 9)
	unpaid := f.reserve(pool, 3)
	_, err = f.c.SetQuota(context.Background(), operator, appliance.SetQuota{TenantID: f.own, PoolID: pool, Resource: "gpu", Max: 16})
	f.must(err)
	f.advance(turnAfter)
	f.retry()
	f.state(impossible, appliance.Pending)
	f.state(unpaid, appliance.Pending)
	f.state(f.reserve(pool, 1), appliance.Placed) // neither keeps anything: one fits nowhere, one has no quota
	_, _, _ = long, short, a
	f.verify()
}

func TestALostGPUKeepsItsBookingAndComesBack(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	whole := machine("a", 64, 512, 8)
	node := f.join(pool, whole)
	var all []appliance.Reservation
	for range 8 {
		all = append(all, f.reserve(pool, 1))
	}
	lost := whole
	lost.GPUs = append([]wire.GPU{}, whole.GPUs[:7]...)
	f.report(node, lost)
	c, err := f.c.PoolCapacity(context.Background(), operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
	f.must(err)
	if got := c.Resources["gpu"]; got.Available != 0 || got.Allocated != 8 {
		t.Fatalf("with one of eight booked GPUs lost: %+v", got)
	}
	n, err := f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: node})
	f.must(err)
	var flagged []string
	for _, d := range n.Devices {
		if d.Health == wire.GPUMissing {
			flagged = append(flagged, d.Bookings...)
		}
	}
	if len(flagged) != 1 {
		t.Fatalf("the lost GPU shows %v", flagged)
	}
	for _, r := range all { // the lost one's is released, and does not come to be free
		if r.ID == flagged[0] {
			f.release(r)
		}
	}
	waits := f.reserve(pool, 1)
	f.state(waits, appliance.Pending)
	f.report(node, whole)
	f.must(f.c.RetryStirred(context.Background()))
	if got := f.state(waits, appliance.Placed); got.Placements[0].Devices[0] != whole.GPUs[7].UUID {
		t.Errorf("it was placed on %s", got.Placements[0].Devices)
	}
	f.verify()
}

func TestAnUnreachableNodeTakesNothingNewAndComesBack(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	node := f.join(pool, machine("a", 64, 512, 8))
	f.beat(node)
	runs := f.reserve(pool, 1)
	f.advance(f.c.Settings.UnreachableAfter)
	f.must(f.c.CheckLiveness(context.Background()))
	f.state(f.reserve(pool, 1), appliance.Placed) // silent for no longer than it may be
	f.advance(time.Second)
	f.must(f.c.CheckLiveness(context.Background()))
	waits := f.reserve(pool, 1)
	f.state(waits, appliance.Pending)
	f.state(runs, appliance.Placed)
	f.beat(node)
	f.must(f.c.RetryStirred(context.Background()))
	f.state(waits, appliance.Placed)
	f.verify()
}
