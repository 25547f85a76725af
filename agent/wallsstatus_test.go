package agent

import (
	"log/slog"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
)

// A device is given to the next when its last holder's wall is gone. So a list of
// bindings is never said to be of a NodeSpec that the walls were not brought to:
// one that was taken up while they were being looked at has a round of its own.
func TestAListOfBindingsSaysWhichNodeSpecItIsOf(t *testing.T) {
	w := &walls{log: slog.New(slog.DiscardHandler), poke: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	n := &node{walls: w}
	look := func() wire.WallsStatus {
		n.walled = n.wallsStatus(n.wallReport())
		return n.walled
	}
	wants := func(generation int64, reservations ...string) {
		n.spec = wire.NodeSpec{NodeID: "node_1", Generation: generation}
		for _, id := range reservations {
			n.spec.Bindings = append(n.spec.Bindings, wire.Binding{ReservationID: id})
		}
	}
	ends := func(asked int) { w.tell(wallReport{asked: asked}) }
	for _, step := range []struct {
		name string
		do   func()
		want wire.WallsStatus
	}{
		{"nothing was looked at", func() { wants(4, "res_1") }, wire.WallsStatus{Enforced: true}},
		{"the first round", func() { ends(1) }, wire.WallsStatus{Enforced: true, Generation: 4}},
		{"units alone changed", func() { wants(5, "res_1") }, wire.WallsStatus{Enforced: true, Generation: 5}},
		{"a binding went", func() { wants(6) }, wire.WallsStatus{Enforced: true, Generation: 5}},
		{"a round that began before", func() { ends(1) }, wire.WallsStatus{Enforced: true, Generation: 5}},
		{"its own round", func() { ends(2) }, wire.WallsStatus{Enforced: true, Generation: 6}},
		{"systemd did not answer", func() { ends(0) }, wire.WallsStatus{Enforced: true}},
		{"no walls here after all", func() { w.tell(wallReport{asked: 2, refusal: "cgroup v1"}) }, wire.WallsStatus{Why: "cgroup v1"}},
	} {
		step.do()
		if got := look(); got != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
	n.walls, n.unwalled = nil, leftAlone
	if got := look(); got != (wire.WallsStatus{Why: leftAlone}) {
		t.Errorf("an agent that observes says %+v", got)
	}
}
