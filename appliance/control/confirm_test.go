package control

import (
	"context"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// A reservation says what its nodes say of their shares, for as long as they
// say it. A share that is coming down confirms nothing.
func TestAReservationSaysWhatItsNodesSay(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	node := f.join(p, machine("gpu-a", 64, 512, 8))
	f.beat(node)
	r := f.reserve(p, 1)
	const waits = "placed; waiting for the nodes to confirm"
	for _, step := range []struct {
		says    wire.BindingStatus
		state   appliance.ReservationState
		message string
	}{
		{wire.BindingStatus{Ending: true}, appliance.Placed, waits},
		{wire.BindingStatus{Failed: "GPU-1 is not free yet"}, appliance.Placed, "node gpu-a cannot enforce it: GPU-1 is not free yet"},
		{wire.BindingStatus{Unenforced: true, Note: "cgroup v1"}, appliance.Active, "booked and confirmed; node gpu-a does not wall the resources in: cgroup v1"},
		{wire.BindingStatus{}, appliance.Active, ""},
		{wire.BindingStatus{Unenforced: true}, appliance.Active, "booked and confirmed; this node does not wall the resources in"},
		{wire.BindingStatus{Failed: "GPU-1 is lost"}, appliance.Active, "node gpu-a cannot enforce it: GPU-1 is lost"},
		{wire.BindingStatus{Note: "huge pages are booked by number"}, appliance.Active, ""},
	} {
		step.says.ReservationID = r.ID
		_, err := f.c.Heartbeat(context.Background(), f.asNode(node), wire.Heartbeat{
			NodeID: node, InventoryHash: "1", Bindings: &[]wire.BindingStatus{step.says},
		})
		f.must(err)
		if got := f.get(r); got.State != step.state || got.Message != step.message {
			t.Errorf("after %+v: %s, %q; want %s, %q", step.says, got.State, got.Message, step.state, step.message)
		}
	}
}

// Of two nodes, the one that walls nothing in is named, whoever confirms last.
func TestEveryNodeThatWallsNothingInIsHeard(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	a, b := f.join(p, machine("gpu-a", 64, 512, 8)), f.join(p, machine("gpu-b", 64, 512, 8))
	f.beat(a)
	f.beat(b)
	r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
		TenantID: f.own, PoolID: p, Nodes: 2, Resources: appliance.Amounts{appliance.ResourceGPU: 16},
	})
	f.must(err)
	for node, s := range map[string]wire.BindingStatus{a: {Unenforced: true, Note: "no systemd"}, b: {}} {
		s.ReservationID = r.ID
		_, err := f.c.Heartbeat(context.Background(), f.asNode(node), wire.Heartbeat{NodeID: node, InventoryHash: "1", Bindings: &[]wire.BindingStatus{s}})
		f.must(err)
	}
	if got, want := f.get(r), "booked and confirmed; node gpu-a does not wall the resources in: no systemd"; got.State != appliance.Active || got.Message != want {
		t.Errorf("%s, %q; want %q", got.State, got.Message, want)
	}
}
