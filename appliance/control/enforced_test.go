package control

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
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
