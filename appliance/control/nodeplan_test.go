package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

func (f *fixture) plan(ctx context.Context, node, policy string) (appliance.NodePlan, error) {
	in := appliance.PlanNode{TenantID: f.own, NodeID: node}
	if policy != "" {
		raw := appliance.RawPolicy(policy)
		in.Policy = &raw
	}
	return f.c.PlanNode(ctx, operator, in)
}

// planner answers each plan that a node is asked for, until the test ends.
func (f *fixture) planner(t *testing.T, node string, answer func(wire.PlanRequest) wire.PlanReport) {
	t.Helper()
	asks, leave, err := f.c.PlanAsks(f.asNode(node), node)
	f.must(err)
	done := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		for {
			select {
			case req := <-asks:
				r := answer(req)
				r.NodeID, r.ID = node, req.ID
				if _, err := f.c.ReportPlan(context.Background(), f.asNode(node), r); err != nil {
					t.Error(err)
				}
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() { close(done); working.Wait(); leave() })
}

// A node is asked for the units of its pool's policy, or of the one that is
// given, with the GPUs that are held; its answer is the plan, with who is there.
func TestAPlanIsOfThePoliciesUnits(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, `{"cpu":{"governor":"performance"}}`)
	id := f.join(p, booted("gpu-a", "boot-1"))
	r := f.reserve(p, 1)
	before := f.node(id)
	generation, _ := f.c.mem.generation(id)
	var asked wire.PlanRequest
	answer := wire.UnitPlan{Kind: wire.UnitCPU, State: wire.PendingReboot, Steps: []wire.PlanStep{{Change: "add isolcpus=2", Needs: "reboot", Undo: "remove it"}}}
	f.planner(t, id, func(req wire.PlanRequest) wire.PlanReport {
		asked = req
		return wire.PlanReport{Units: []wire.UnitPlan{answer}, Note: "noted"}
	})
	for policy, check := range map[string]func(wire.Units) bool{
		"": func(u wire.Units) bool { return u.CPU.Governor == "performance" && u.CPU.Isolate == "" },
		`{"cpu":{"isolate":"2-3"},"iommu":{"passthrough":true}}`: func(u wire.Units) bool { return u.CPU.Isolate == "2-3" && u.IOMMU.Passthrough },
	} {
		plan, err := f.plan(t.Context(), id, policy)
		f.must(err)
		if !check(asked.Units) || len(asked.Held) != 1 || asked.Held[0] != r.Placements[0].Devices[0] {
			t.Errorf("with the policy %q it is asked for %+v", policy, asked)
		}
		if plan.Note != "noted" || len(plan.Units) != 1 || plan.Units[0].Steps[0] != answer.Steps[0] || plan.Simulated {
			t.Errorf("the plan is %+v", plan)
		}
		if len(plan.Reservations) != 1 || plan.Reservations[0].ReservationID != r.ID || plan.Reservations[0].TenantID != f.own {
			t.Errorf("on the node are %+v", plan.Reservations)
		}
	}
	if _, err := f.plan(t.Context(), id, `{"cpu":{"isolate":"0"}}`); err == nil || !strings.HasPrefix(err.Error(), "INVALID_INPUT: policy: cpu.isolate: ") {
		t.Errorf("a policy that an update refuses: %v", err)
	}
	if after, _ := f.c.mem.generation(id); after != generation || f.node(id).State != before.State {
		t.Error("a plan changed what is wanted of the node")
	}
	if n := len(f.c.plans.answers); n != 0 {
		t.Errorf("%d answers are waited for", n)
	}
}

// What cannot be planned is said, with what to do.
func TestANodeThatCannotPlan(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, `{"cpu":{"governor":"performance"}}`)
	old, fleet := booted("old", "b"), booted("fleet", "b")
	old.Agent = nil
	fleet.Agent, fleet.Recorded = &wire.AgentFacts{}, "dgx-h100"
	silent := f.join(p, booted("silent", "b"))
	f.silence(silent)
	for id, reason := range map[string]string{f.join(p, old): "agent-too-old", silent: "unreachable"} {
		_, err := f.plan(t.Context(), id, "")
		var e *appliance.Error
		if !errors.As(err, &e) || e.Code != appliance.InvalidState || e.Reason != reason {
			t.Errorf("%v, want the reason %s", err, reason)
		}
	}
	plan, err := f.plan(t.Context(), f.join(p, fleet), "")
	f.must(err)
	if u := plan.Units; !plan.Simulated || plan.Note == "" || len(u) != 1 || u[0].Wanted != `{"governor":"performance"}` || u[0].State != wire.NotApplicable || len(u[0].Steps) != 0 {
		t.Errorf("a simulated machine is planned as %+v", plan)
	}
	refusing := f.join(p, booted("refusing", "b"))
	f.planner(t, refusing, func(wire.PlanRequest) wire.PlanReport { return wire.PlanReport{Failed: "its ledger cannot be read"} })
	if _, err := f.plan(t.Context(), refusing, ""); appliance.CodeOf(err) != appliance.Unavailable || !strings.Contains(err.Error(), "its ledger cannot be read") {
		t.Errorf("an agent that fails: %v", err)
	}
}

// Who asks waits so long and no longer, and leaves nothing behind, however it
// ends and however many ask.
func TestAskingForPlansIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d planDesks
		ask := func(ctx context.Context, id string) (wire.PlanReport, error) {
			return d.ask(ctx, "node_1", "gpu-a", wire.PlanRequest{ID: id})
		}
		empty := func(when string) {
			t.Helper()
			synctest.Wait()
			if len(d.desks)+len(d.answers) != 0 {
				t.Errorf("%s: %d desks and %d answers are left", when, len(d.desks), len(d.answers))
			}
		}
		start := time.Now()
		if _, err := ask(t.Context(), "plan_1"); appliance.CodeOf(err) != appliance.Unavailable || !strings.Contains(err.Error(), "did not take up") {
			t.Errorf("nobody polls: %v", err)
		}
		if waited := time.Since(start); waited != planTimeout {
			t.Errorf("it waits %v, want %v", waited, planTimeout)
		}
		empty("nobody polled")

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := ask(ctx, "plan_2"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		empty("it was cancelled")

		desk, leave := d.desk("node_1")
		took := make(chan string, 1)
		go func() { took <- (<-desk.asks).ID }() // one, and then the node takes no more
		var all sync.WaitGroup
		var mu sync.Mutex
		outcomes := map[appliance.Code]int{}
		for i := range maxPlans + 3 {
			all.Go(func() {
				_, err := ask(t.Context(), fmt.Sprint("plan_", i))
				mu.Lock()
				defer mu.Unlock()
				outcomes[appliance.CodeOf(err)]++
			})
		}
		synctest.Wait()
		if len(took) != 1 {
			t.Errorf("%d questions are with the node at once", len(took))
		}
		d.answer(wire.PlanReport{NodeID: "node_2", ID: <-took, Note: "of another node"})
		all.Wait()
		if outcomes[appliance.RateLimited] != 3 || outcomes[appliance.Unavailable] != maxPlans {
			t.Errorf("of %d questions at once the outcomes are %v", maxPlans+3, outcomes)
		}
		leave()
		empty("all are gone")
	})
}
