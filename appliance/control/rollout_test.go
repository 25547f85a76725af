package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// hear is a heartbeat of a node.
func (f *fixture) hear(node string, h wire.Heartbeat) {
	f.t.Helper()
	h.NodeID, h.InventoryHash = node, "1"
	_, err := f.c.Heartbeat(context.Background(), f.asNode(node), h)
	f.must(err)
}

// wanted is the NodeSpec that a node is given.
func (f *fixture) wanted(node string) wire.NodeSpec {
	f.t.Helper()
	spec, newer, _, err := f.c.Spec(context.Background(), f.asNode(node), node, 0)
	f.must(err)
	if !newer {
		f.t.Fatalf("node %s is given no NodeSpec", node)
	}
	return spec
}

// applied reports a unit's state for the newest NodeSpec of a node, and lets the
// loop that gives out turns run.
func (f *fixture) applied(node string, kind wire.UnitKind, state wire.UnitState) {
	f.t.Helper()
	g := f.wanted(node).Generation
	f.hear(node, wire.Heartbeat{Generation: g, Applied: g, Units: []wire.UnitStatus{{Kind: kind, State: state, Reason: "so says the node"}}})
	f.refresh()
}

func (f *fixture) refresh() {
	f.t.Helper()
	f.must(f.c.RefreshNodes(context.Background()))
	f.verify()
}

// policy gives a pool another policy, and lets it reach the nodes.
func (f *fixture) policy(pool, policy string) {
	f.t.Helper()
	raw := appliance.RawPolicy(policy)
	_, err := f.c.UpdatePool(context.Background(), operator, appliance.UpdatePool{TenantID: f.own, PoolID: pool, Policy: &raw})
	f.must(err)
	f.refresh()
}

// fleet joins machines without GPUs; they are in the order of their ids.
func (f *fixture) fleet(pool string, n int) (nodes []string) {
	f.t.Helper()
	for i := range n {
		id := f.join(pool, machine(fmt.Sprintf("gpu-%c", 'a'+i), 16, 128, 1))
		f.beat(id)
		nodes = append(nodes, id)
	}
	return nodes
}

// iommus says of which nodes the IOMMU is asked, a letter each.
func (f *fixture) iommus(nodes []string) (on string) {
	f.t.Helper()
	for i, id := range nodes {
		if f.wanted(id).Units.IOMMU != nil {
			on += string(rune('a' + i))
		}
	}
	return on
}

func (f *fixture) rollout(pool string) string {
	f.t.Helper()
	p, err := f.c.GetPool(context.Background(), operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
	f.must(err)
	if p.Rollout == nil {
		return ""
	}
	return p.Rollout.Message
}

func (f *fixture) condition(node, kind string) appliance.Condition {
	f.t.Helper()
	n, err := f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: node})
	f.must(err)
	c, _ := condition(n.Conditions, kind)
	return c
}

const onIOMMU = `"iommu":{"passthrough":true}`

// A change that disrupts reaches one node of a small pool after the other, those
// without bookings first, and nobody's turn is lost when the control plane
// restarts. What does not disrupt reaches all at once.
func TestADisruptingPolicyGoesFromNodeToNode(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	nodes := f.fleet(pool, 3)
	r := f.reserve(pool, 1) // on gpu-a
	f.policy(pool, `{`+onIOMMU+`,"cpu":{"governor":"performance"}}`)
	for _, id := range nodes {
		if c := f.wanted(id).Units.CPU; c == nil || c.Governor != "performance" {
			t.Errorf("the governor, which disrupts nobody, has not reached %s", id)
		}
	}
	steps := []struct {
		name string
		do   func()
		on   string
		says string
	}{
		{"the policy came", func() {}, "b", "0 of 3 nodes have all of policy version 2; 1 changing; 2 wait: disruptionBudget 0.05 lets 1 of 3 be disrupted at once"},
		{"a restart", f.restart, "b", "0 of 3 nodes have all of policy version 2; 1 changing; 2 wait"},
		{"an answer to an older NodeSpec", func() {
			f.hear(nodes[1], wire.Heartbeat{Generation: 9, Applied: f.wanted(nodes[1]).Generation - 1, Units: []wire.UnitStatus{{Kind: wire.UnitIOMMU, State: wire.InSync}}})
			f.refresh()
		}, "b", "0 of 3"},
		{"an answer to one that never was", func() {
			f.hear(nodes[1], wire.Heartbeat{Generation: 9, Applied: f.wanted(nodes[1]).Generation + 1})
			f.refresh()
		}, "b", "0 of 3"},
		{"it waits for a reboot", func() { f.applied(nodes[1], wire.UnitIOMMU, wire.PendingReboot) }, "b", "0 of 3"},
		{"a restart meanwhile", f.restart, "b", "0 of 3"},
		{"another unit of it fails", func() { f.applied(nodes[1], wire.UnitTelemetry, wire.Failed) }, "b", "0 of 3"},
		{"it is done", func() { f.applied(nodes[1], wire.UnitIOMMU, wire.InSync) }, "bc", "1 of 3 nodes have all of policy version 2; 1 changing; 1 wait"},
		{"the next cannot", func() { f.applied(nodes[2], wire.UnitIOMMU, wire.Unsupported) }, "abc", "2 of 3 nodes have all of policy version 2; 1 changing"},
		{"the last is done", func() { f.applied(nodes[0], wire.UnitIOMMU, wire.InSync) }, "abc", ""},
	}
	for _, s := range steps {
		s.do()
		if got := f.iommus(nodes); got != s.on {
			t.Fatalf("%s: the IOMMU is asked of %q, want %q", s.name, got, s.on)
		}
		if got := f.rollout(pool); !strings.HasPrefix(got, s.says) || s.says == "" && got != "" {
			t.Fatalf("%s: the pool says %q, want %q", s.name, got, s.says)
		}
	}
	if c := f.condition(nodes[0], appliance.ConditionConfigApplied); !c.Status {
		t.Errorf("after all that: %+v", c)
	}
	f.release(r)
}

// A node that failed keeps its turn, so that a policy that breaks nodes breaks no
// more of them than the budget allows; what mends it reaches it first.
func TestABadPolicyStopsAtTheBudget(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	nodes := f.fleet(pool, 3)
	f.policy(pool, `{`+onIOMMU+`}`)
	f.applied(nodes[0], wire.UnitIOMMU, wire.Failed)
	f.restart()
	f.advanceAll(2 * returnsWithin)
	f.beat(nodes[0])
	f.refresh()
	if got := f.iommus(nodes); got != "a" {
		t.Fatalf("one node failed and %q have it", got)
	}
	p, err := f.c.GetPool(context.Background(), operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
	f.must(err)
	if got := p.Rollout.Changing; len(got) != 1 || got[0].Hostname != "gpu-a" || got[0].Message != "iommu: Failed: so says the node" {
		t.Errorf("the pool says of who is changing %+v", got)
	}
	if c := f.condition(nodes[0], appliance.ConditionConfigApplied); c.Status || c.Reason != "UnitFailed" {
		t.Errorf("the node that failed: %+v", c)
	}
	f.policy(pool, `{}`)
	if got := f.iommus(nodes); got != "" || !strings.HasPrefix(f.rollout(pool), "2 of 3 nodes have all of policy version 3; 1 changing") {
		t.Fatalf("taken back, the IOMMU is still asked of %q: %s", got, f.rollout(pool))
	}
	f.applied(nodes[0], wire.UnitIOMMU, "")
	if got := f.rollout(pool); got != "" {
		t.Errorf("all is undone, and %s", got)
	}
}

// advanceAll moves the clock; nodes are heard of when the test says so.
func (f *fixture) advanceAll(d time.Duration) {
	f.t.Helper()
	f.advance(d)
	f.must(f.c.CheckLiveness(context.Background()))
}

// How many nodes have their turn at once, by budget; with 0 it is said where a
// person looks.
func TestTheBudgetIsKept(t *testing.T) {
	for _, c := range []struct {
		budget string
		on     string
	}{{"0", ""}, {"0.0001", "a"}, {"0.5", "ab"}, {"0.75", "abc"}, {"1", "abcd"}} {
		t.Run(c.budget, func(t *testing.T) {
			f := newFixture(t)
			pool := f.pool(appliance.SharingExclusive, "")
			nodes := f.fleet(pool, 4)
			f.policy(pool, `{`+onIOMMU+`,"disruptionBudget":`+c.budget+`}`)
			if got := f.iommus(nodes); got != c.on {
				t.Fatalf("the IOMMU is asked of %q, want %q", got, c.on)
			}
			if c.budget != "0" {
				return
			}
			if got := f.rollout(pool); !strings.Contains(got, "4 wait: disruptionBudget is 0, so none is disrupted until it is raised") {
				t.Errorf("the pool says %q", got)
			}
			if got := f.condition(nodes[0], appliance.ConditionConfigApplied); got.Status || !strings.Contains(got.Message, "disruptionBudget is 0") {
				t.Errorf("the node says %+v", got)
			}
			f.policy(pool, `{`+onIOMMU+`,"disruptionBudget":0.5}`)
			if got := f.iommus(nodes); got != "ab" {
				t.Errorf("the budget is 0.5 of 4 now, and the IOMMU is asked of %q", got)
			}
		})
	}
}

// A node that is not heard of is given no turn. One that fell silent in its turn,
// as a rebooting one does, keeps it for an hour; one that is removed gives it up.
func TestSilentNodesDoNotStopARollout(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	nodes := f.fleet(pool, 4)
	f.silence(nodes[0])
	f.policy(pool, `{`+onIOMMU+`}`)
	if got := f.iommus(nodes); got != "b" {
		t.Fatalf("gpu-a is silent, and the IOMMU is asked of %q", got)
	}
	if got := f.rollout(pool); !strings.HasSuffix(got, "1 of them do not answer and are passed over") {
		t.Errorf("the pool says %q", got)
	}
	hear := func(ids ...string) {
		for _, id := range ids {
			f.beat(id)
		}
		f.must(f.c.CheckLiveness(context.Background()))
		f.refresh()
	}
	f.advance(returnsWithin - time.Second)
	hear(nodes[2], nodes[3])
	if got := f.iommus(nodes); got != "b" {
		t.Fatalf("gpu-b may still be on its way up, and the IOMMU is asked of %q", got)
	}
	f.advance(2 * time.Second)
	hear(nodes[2], nodes[3])
	if got := f.iommus(nodes); got != "bc" {
		t.Fatalf("gpu-b has not come back for an hour, and the IOMMU is asked of %q", got)
	}
	_, err := f.c.RemoveNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: nodes[2]})
	f.must(err)
	f.refresh()
	if got := f.iommus([]string{nodes[0], nodes[1], nodes[3]}); got != "bc" {
		t.Fatalf("gpu-c is gone and gpu-d should have its turn; the IOMMU is asked of %q", got)
	}
}

// Nothing runs on a node that has just joined: it gets all of the policy at once
// and takes nobody's turn.
func TestANewNodeHasThePolicyAtOnce(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, `{`+onIOMMU+`,"disruptionBudget":0}`)
	nodes := f.fleet(pool, 2)
	if got := f.iommus(nodes); got != "ab" || f.rollout(pool) != "" {
		t.Fatalf("two new nodes: the IOMMU is asked of %q; %s", got, f.rollout(pool))
	}
}

// A node that has to wait shares its GPUs as it does now, not as it will.
func TestSlotsAreThoseOfTheNodeNotOfThePolicy(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingMPS, `{"sharing":{"replicas":2}}`)
	f.fleet(pool, 2)
	slots := func() int {
		c, err := f.c.PoolCapacity(context.Background(), operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
		f.must(err)
		return c.Resources[appliance.ResourceSlot].Total
	}
	f.policy(pool, `{"sharing":{"replicas":5}}`)
	if got := slots(); got != 7 {
		t.Errorf("one node has 5 slots and one waits with 2, and there are %d", got)
	}
	f.restart()
	if got := slots(); got != 7 {
		t.Errorf("after a restart there are %d slots, want 7", got)
	}
}

// The gate of a MIG layout: a GPU with a live booking keeps its instances, one
// that waits for its layout takes no new booking, and a release opens the gate.
func TestTheMIGGate(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingMIG, `{"migLayout":"all-3g.40gb"}`)
	inv := machine("gpu-a", 64, 512, 2, "3g.40gb", "3g.40gb")
	node := f.join(pool, inv)
	f.beat(node)
	ask := func(profile string) appliance.Reservation {
		r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
			TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{appliance.ResourceMIG: 1},
			Selector: appliance.Selector{appliance.MIGProfile: {Equals: profile}},
		})
		f.must(err)
		return r
	}
	first := ask("3g.40gb")
	gpu := first.Placements[0].Devices[0]
	if hold := f.wanted(node).Units.MIGLayout.Hold; len(hold) != 0 {
		t.Errorf("nothing is to change, and %v keep what they have", hold)
	}
	f.policy(pool, `{"migLayout":"all-1g.10gb"}`)
	spec := f.wanted(node)
	if m := spec.Units.MIGLayout; m.Layout != "all-1g.10gb" || len(m.Hold) != 1 || m.Hold[0] != gpu {
		t.Fatalf("the node is asked for %+v; %s is booked", m, gpu)
	}
	blocked := ask("3g.40gb")
	if blocked.State != appliance.Pending || !strings.Contains(blocked.Message, "2 GPUs waiting for another MIG layout") {
		t.Errorf("a new booking of the old layout is %s: %s", blocked.State, blocked.Message)
	}
	f.applied(node, wire.UnitMIGLayout, wire.PendingIdle)
	f.restart()
	if again := ask("3g.40gb"); again.State != appliance.Pending {
		t.Errorf("while a GPU waits to be idle, a booking is %s", again.State)
	}
	before := f.wanted(node).Generation
	f.release(first)
	if spec := f.wanted(node); len(spec.Units.MIGLayout.Hold) != 0 || spec.Generation <= before {
		t.Errorf("released, and the node is still to keep %v (generation %d, before %d)", spec.Units.MIGLayout.Hold, spec.Generation, before)
	}
	for i := range inv.GPUs {
		inv.GPUs[i].MIG = machine("gpu-a", 64, 512, 2, "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb").GPUs[i].MIG
	}
	f.report(node, inv)
	f.applied(node, wire.UnitMIGLayout, wire.InSync)
	if r := ask("1g.10gb"); r.State != appliance.Placed {
		t.Errorf("cut anew, and a booking is %s: %s", r.State, r.Message)
	}
}

// An agent that changes nothing will not cut the GPUs either: they are booked as
// they are.
func TestAnObservingNodeIsBookedAsItIs(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingMIG, "")
	node := f.join(pool, machine("gpu-a", 64, 512, 1, "3g.40gb"))
	f.beat(node)
	f.policy(pool, `{"migLayout":"all-1g.10gb"}`)
	book := func() appliance.ReservationState {
		r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
			TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{appliance.ResourceMIG: 1},
		})
		f.must(err)
		return r.State
	}
	if got := book(); got != appliance.Pending {
		t.Errorf("the node has not answered yet, and a booking is %s", got)
	}
	f.applied(node, wire.UnitMIGLayout, wire.Unsupported)
	if got := book(); got != appliance.Placed {
		t.Errorf("the node leaves the GPU as it is, and a booking is %s", got)
	}
}

// Taking a unit away disrupts as much as asking for it: a node whose kernel still
// runs with what was taken out of the policy needs a reboot, says so, and keeps
// its turn until nothing of the unit is left.
func TestAUnitThatIsBeingRemovedKeepsTheTurn(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, `{`+onIOMMU+`}`)
	nodes := f.fleet(pool, 2)
	for _, id := range nodes {
		f.applied(id, wire.UnitIOMMU, wire.InSync)
	}
	f.policy(pool, `{}`)
	left := wire.UnitStatus{Kind: wire.UnitIOMMU, State: wire.PendingReboot, Reason: "taken out of the policy; the next boot goes without iommu=pt"}
	g := f.wanted(nodes[0]).Generation
	f.hear(nodes[0], wire.Heartbeat{Generation: g, Applied: g, Units: []wire.UnitStatus{left}})
	f.refresh()
	if c := f.condition(nodes[0], appliance.ConditionRebootRequired); !c.Status || c.Message != "wait for a reboot: iommu" {
		t.Errorf("RebootRequired is %+v", c)
	}
	if c := f.condition(nodes[0], appliance.ConditionConfigApplied); c.Status || !strings.Contains(c.Message, left.Reason) {
		t.Errorf("ConfigApplied is %+v", c)
	}
	if on, says := f.iommus(nodes), f.rollout(pool); on != "b" || !strings.HasPrefix(says, "0 of 2 nodes have all of policy version 2; 1 changing; 1 wait") {
		t.Errorf("the IOMMU is asked of %q, and the pool says %q", on, says)
	}
	f.applied(nodes[0], wire.UnitIOMMU, "")
	if on, says := f.iommus(nodes), f.rollout(pool); on != "" || !strings.HasPrefix(says, "1 of 2 nodes have all of policy version 2; 1 changing") {
		t.Errorf("once it is undone the IOMMU is asked of %q, and the pool says %q", on, says)
	}
	if c := f.condition(nodes[0], appliance.ConditionRebootRequired); c.Status {
		t.Errorf("once it is undone RebootRequired is %+v", c)
	}
}
