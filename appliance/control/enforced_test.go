package control

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// An operator sees that a node only books, and why, as its agent says; it is no
// fault of the node, which takes bookings all the same.
func TestWhyANodeEnforcesNothingIsShown(t *testing.T) {
	f := newFixture(t)
	node := f.fleet(f.pool(appliance.SharingExclusive, ""), 1)[0]
	says := func(w *wire.WallsStatus) appliance.Condition {
		f.hear(node, wire.Heartbeat{Bindings: &[]wire.BindingStatus{}, Walls: w})
		return f.condition(node, appliance.ConditionEnforced)
	}
	const why = "systemd 219 is older than 244, the first that can limit CPUs by cgroup"
	if c := says(&wire.WallsStatus{Why: why}); c.Status || c.Message != "reservations are booked and not walled in: "+why || c.Bad() {
		t.Errorf("%+v", c)
	}
	ref := appliance.NodeRef{TenantID: f.own, NodeID: node}
	x, err := f.c.ExplainNode(context.Background(), operator, ref)
	f.must(err)
	if !x.Schedulable || !slices.ContainsFunc(x.Findings, func(s string) bool { return strings.HasSuffix(s, why) }) || slices.Contains(x.Helps, "") {
		t.Errorf("explained as %+v", x)
	}
	if c := says(nil); c.Status || c.Message == "" {
		t.Errorf("of an agent that is older than walls: %+v", c)
	}
	if c := says(&wire.WallsStatus{Enforced: true}); !c.Status || c.Message != "" {
		t.Errorf("once it does: %+v", c)
	}
}

// A booking that is decided and not durable may yet be taken back: a node that
// asks meanwhile waits, and is never told of what then never was.
func TestANodeIsNotToldOfABookingThatIsTakenBack(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	node := f.join(pool, machine("gpu-a", 64, 512, 2))
	kept := f.reserve(pool, 1)
	type answer struct {
		spec  wire.NodeSpec
		newer bool
		err   error
	}
	asked := make(chan answer, 1)
	f.takenBack(func(tx *store.Tx) error {
		who := trail{who: operator}
		if _, err := f.c.insertReservation(tx, who, f.c.mem.pool(pool), appliance.Reservation{
			ID: "res_taken_back", TenantID: f.own, PoolID: pool, State: appliance.Pending, Resources: kept.Resources,
			Nodes: 1, Binding: appliance.BindHold, CreatedAt: f.c.now(),
		}); err != nil {
			return err
		}
		if got := f.c.mem.bindings(node); len(got) != 2 {
			t.Errorf("memory has %+v: nothing was decided", got)
		}
		go func() {
			var a answer
			a.spec, a.newer, _, a.err = f.c.Spec(context.Background(), f.asNode(node), node, 0)
			asked <- a
		}()
		for range 1000 { // it is given time to answer, as it must not
			runtime.Gosched()
		}
		select {
		case a := <-asked:
			asked <- a
			t.Error("the node was told before that was durable")
		default:
		}
		return nil
	})
	a := <-asked
	if a.err != nil || !a.newer || len(a.spec.Bindings) != 1 || a.spec.Bindings[0].ReservationID != kept.ID {
		t.Errorf("the node was told %+v, newer %v, %v", a.spec.Bindings, a.newer, a.err)
	}
	f.verify()
}
