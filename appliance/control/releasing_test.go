package control

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// walls is a heartbeat of a node that raises walls: which bindings it lists, and
// which NodeSpec its walls were brought to.
func (f *fixture) walls(node string, generation int64, list ...wire.BindingStatus) {
	f.t.Helper()
	if list == nil {
		list = []wire.BindingStatus{}
	}
	f.hear(node, wire.Heartbeat{Generation: generation, Bindings: &list, Walls: &wire.WallsStatus{Enforced: true, Generation: generation}})
	f.must(f.c.RetryStirred(context.Background()))
	f.verify()
}

// walled is a pool with one node of one GPU that raises walls.
func walled(t *testing.T) (f *fixture, pool, node string) {
	f = newFixture(t)
	pool = f.pool(appliance.SharingExclusive, "")
	node = f.join(pool, machine("gpu-a", 64, 512, 1))
	f.walls(node, f.wanted(node).Generation)
	return f, pool, node
}

// A GPU is given to the next when its node says that the last one's wall is
// gone, and not before: whatever is heard of an older NodeSpec, over restarts,
// and while the node is away.
func TestAGPUIsFreeWhenItsNodeSaysSo(t *testing.T) {
	f, pool, node := walled(t)
	first := f.reserve(pool, 1)
	booked := f.wanted(node).Generation
	f.release(first)
	next := f.reserve(pool, 1)
	released := f.wanted(node).Generation
	ending := wire.BindingStatus{ReservationID: first.ID, Ending: true, Note: "python3 (pid 4711, user ada) holds /dev/nvidia0"}
	for _, s := range []struct {
		name string
		do   func()
		says string
	}{
		{"released", func() {}, "1 GPU is being freed on node gpu-a: waiting for the node to say that it is free"},
		{"a restart", f.restart, "1 GPU is being freed on node gpu-a"},
		{"a list from before", func() { f.walls(node, booked) }, "1 GPU is being freed on node gpu-a"},
		{"a list of no known NodeSpec", func() { f.walls(node, 0) }, "1 GPU is being freed on node gpu-a"},
		{"a list of a NodeSpec that never was", func() { f.walls(node, released+7) }, "1 GPU is being freed on node gpu-a"},
		{"it is still enforced", func() { f.walls(node, released, wire.BindingStatus{ReservationID: first.ID}) }, "1 GPU is being freed on node gpu-a: its node still enforces it"},
		{"it is ending", func() { f.walls(node, released, ending) }, "1 GPU is being freed on node gpu-a: python3 (pid 4711, user ada) holds /dev/nvidia0"},
		{"the node is away", func() { f.silence(node) }, "the node does not answer, so nobody knows whether it is free"},
		{"a restart while it is away", f.restart, "the node does not answer"},
		{"it is back", func() { f.beat(node) }, "1 GPU is being freed on node gpu-a"},
	} {
		s.do()
		f.must(f.c.RetryAll(context.Background()))
		x, err := f.c.ExplainReservation(context.Background(), operator, appliance.ReservationRef{TenantID: f.own, ReservationID: next.ID})
		f.must(err)
		if x.State != appliance.Pending || !strings.Contains(x.Message, s.says) {
			t.Fatalf("%s: the next is %s: %q, want %q", s.name, x.State, x.Message, s.says)
		}
		f.verify()
	}
	c, err := f.c.PoolCapacity(context.Background(), operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
	f.must(err)
	if got := c.Resources[appliance.ResourceGPU]; got.Total != 1 || got.Allocated != 0 || got.Available != 0 || got.Releasing != 1 || c.Free.GPUs != 0 {
		t.Errorf("capacity says %+v, %+v", got, c.Free)
	}
	n, err := f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: node})
	f.must(err)
	if len(n.Releasing) != 1 || n.Releasing[0].ReservationID != first.ID || len(n.Devices[0].Bookings) != 0 || n.Devices[0].Releasing != 1 {
		t.Errorf("the node says %+v, bookings %v, %d", n.Releasing, n.Devices[0].Bookings, n.Devices[0].Releasing)
	}
	f.walls(node, released)
	if got := f.get(next); got.State != appliance.Placed {
		t.Fatalf("the wall is gone, and the next is %s: %s", got.State, got.Message)
	}
}

// Quota and usage end with the reservation, not with its last process.
func TestReleasingCostsNothing(t *testing.T) {
	f, pool, _ := walled(t)
	from, r := f.now(), f.reserve(pool, 1)
	f.advance(time.Hour)
	f.release(r)
	if got := f.c.mem.quotas[quotaKey{f.own, pool, appliance.ResourceGPU}].used; got != 0 {
		t.Errorf("%d GPUs are charged to the quota after the release", got)
	}
	f.advance(time.Hour)
	u, err := f.c.QueryUsage(context.Background(), operator, appliance.QueryUsage{TenantID: f.own, From: appliance.At(from), To: appliance.At(f.now())})
	f.must(err)
	hours := -1.0
	for _, l := range u.Items {
		if l.Meter == "gpu.h100.hours" {
			hours = l.Quantity
		}
	}
	if hours != 1 {
		t.Errorf("%v GPU-hours for one hour", hours)
	}
}

// Where nobody raises walls there is nothing to wait for: at an agent that only
// observes, one that is older than this, a simulated one, and at one that used to
// raise them.
func TestWithoutWallsAGPUIsFreeAtOnce(t *testing.T) {
	for name, h := range map[string]wire.Heartbeat{
		"observes": {Bindings: &[]wire.BindingStatus{}, Walls: &wire.WallsStatus{}},
		"older":    {Bindings: &[]wire.BindingStatus{}},
		"silent":   {},
	} {
		f := newFixture(t)
		pool := f.pool(appliance.SharingExclusive, "")
		node := f.join(pool, machine("gpu-a", 64, 512, 1))
		f.hear(node, h)
		f.release(f.reserve(pool, 1))
		if r := f.reserve(pool, 1); r.State != appliance.Placed {
			t.Errorf("%s: the next is %s: %s", name, r.State, r.Message)
		}
		f.verify()
	}
	f, pool, node := walled(t)
	f.release(f.reserve(pool, 1))
	next := f.reserve(pool, 1)
	f.hear(node, wire.Heartbeat{Bindings: &[]wire.BindingStatus{}, Walls: &wire.WallsStatus{}})
	f.must(f.c.RetryStirred(context.Background()))
	if got := f.get(next); got.State != appliance.Placed {
		t.Errorf("the agent was started without --manage-host, and the next is %s: %s", got.State, got.Message)
	}
	f.verify()
}

// Host resources have no holder: they are free at once.
func TestAHostReservationKeepsNothing(t *testing.T) {
	f, pool, node := walled(t)
	r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
		TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{appliance.ResourceVCPU: 4},
	})
	f.must(err)
	f.release(r)
	if got := f.c.mem.index.Releasing(node); got != nil {
		t.Errorf("%v is kept", got)
	}
	f.verify()
}

// A node that is removed takes what it was about to give back with it, and a
// transaction that is taken back leaves everything as it was.
func TestARemovedNodeReleasesNothing(t *testing.T) {
	f, pool, node := walled(t)
	f.release(f.reserve(pool, 1))
	_, err := f.c.RemoveNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: node})
	f.must(err)
	f.verify()
	f.restart()
	if len(f.c.mem.releasing) != 0 {
		t.Errorf("%v is kept of a node that is gone", f.c.mem.releasing)
	}
}

// Whose programs still hold a GPU is told to those whose reservation it was and to
// the pool's owner, and to nobody else.
func TestAStrangerIsNotToldWhoHoldsAGPU(t *testing.T) {
	f, pool, node := walled(t)
	f.tenant("beta")
	_, err := f.c.OfferPool(context.Background(), operator, appliance.OfferPool{
		TenantID: f.own, PoolID: pool, ToTenantID: "beta", Quota: appliance.QuotaMap{appliance.ResourceGPU: 8},
	})
	f.must(err)
	first := f.reserve(pool, 1)
	f.release(first)
	f.walls(node, f.wanted(node).Generation, wire.BindingStatus{ReservationID: first.ID, Ending: true, Note: "secret-project (pid 4711)"})
	r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
		TenantID: "beta", PoolID: pool, Resources: appliance.Amounts{appliance.ResourceGPU: 1},
	})
	f.must(err)
	x, err := f.c.ExplainReservation(context.Background(), operator, appliance.ReservationRef{TenantID: "beta", ReservationID: r.ID})
	f.must(err)
	all := r.Message + x.Message + strings.Join(x.Nodes[0].Missing, "")
	if strings.Contains(all, "secret-project") || !strings.Contains(x.Message, "1 GPU is being freed on node gpu-a: its last user's programs have not ended yet") {
		t.Errorf("another tenant is told %q", all)
	}
	n, err := f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: "beta", NodeID: node})
	f.must(err)
	if len(n.Releasing) != 0 {
		t.Errorf("another tenant sees %+v", n.Releasing)
	}
}
