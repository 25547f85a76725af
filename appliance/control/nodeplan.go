package control

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

const (
	planTimeout = 10 * time.Second // for a node to take up and answer one
	maxPlans    = 64               // that are being made at once, over all nodes
)

// planDesks is where those who ask for plans meet the long polls of the nodes
// that make them. Nothing is queued: who asks waits here, and who goes leaves
// nothing behind.
type planDesks struct {
	mu      sync.Mutex
	desks   map[string]*planDesk              // by node
	answers map[string]chan<- wire.PlanReport // by request
}

type planDesk struct {
	asks  chan wire.PlanRequest // handed from who asks to a poll that waits
	turn  chan struct{}         // a node makes one plan at a time
	users int
}

// desk opens a node's desk, for as long as somebody is at it.
func (d *planDesks) desk(nodeID string) (desk *planDesk, leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.desks == nil {
		d.desks = map[string]*planDesk{}
	}
	desk = d.desks[nodeID]
	if desk == nil {
		desk = &planDesk{asks: make(chan wire.PlanRequest), turn: make(chan struct{}, 1)}
		d.desks[nodeID] = desk
	}
	desk.users++
	return desk, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if desk.users--; desk.users == 0 {
			delete(d.desks, nodeID)
		}
	}
}

// await opens a place for the answer to a request.
func (d *planDesks) await(nodeID, id string) (answer <-chan wire.PlanReport, leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.answers) >= maxPlans {
		return nil, nil, appliance.Refuse(appliance.RateLimited, "", "%d plans are being made now, and no more at once; ask again in some seconds", maxPlans)
	}
	if d.answers == nil {
		d.answers = map[string]chan<- wire.PlanReport{}
	}
	ch := make(chan wire.PlanReport, 1)
	d.answers[nodeID+" "+id] = ch
	return ch, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.answers, nodeID+" "+id)
	}, nil
}

// answer gives a report to who waits for it, if somebody does.
func (d *planDesks) answer(r wire.PlanReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch := d.answers[r.NodeID+" "+r.ID]; ch != nil {
		delete(d.answers, r.NodeID+" "+r.ID) // a second answer goes nowhere
		ch <- r
	}
}

// ask has a node make a plan and waits for it.
func (d *planDesks) ask(ctx context.Context, nodeID, hostname string, req wire.PlanRequest) (out wire.PlanReport, err error) {
	answer, leave, err := d.await(nodeID, req.ID)
	if err != nil {
		return out, err
	}
	defer leave()
	desk, away := d.desk(nodeID)
	defer away()
	limited, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	late := func(what string) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return appliance.Refuse(appliance.Unavailable, "", "%s %s within %s; look at bcd there (systemctl status bcd) and ask again", hostname, what, planTimeout).
			WithReason("no-answer")
	}
	select {
	case desk.turn <- struct{}{}:
		defer func() { <-desk.turn }()
	case <-limited.Done():
		return out, late("was busy with other plans and did not come to this one")
	}
	select {
	case desk.asks <- req:
	case <-limited.Done():
		return out, late("did not take up the question")
	}
	select {
	case out = <-answer:
		return out, nil
	case <-limited.Done():
		return out, late("took up the question and did not answer it")
	}
}

// PlanNode shows what a pool's policy, or the one that is given, would still
// change on one of its hosts. The node's agent looks and changes nothing, and
// nothing is kept of the question. A refusal of the policy is that of an update.
func (c *Control) PlanNode(ctx context.Context, who appliance.Caller, in appliance.PlanNode) (appliance.NodePlan, error) {
	out, req, answered, err := c.planFor(ctx, who, in)
	if err != nil || answered {
		return out, c.deny(ctx, who, appliance.NodesManage, in.TenantID, in.NodeID, err)
	}
	r, err := c.plans.ask(ctx, out.NodeID, out.Hostname, req)
	if err != nil {
		return out, err
	}
	if r.Failed != "" {
		return out, appliance.Refuse(appliance.Unavailable, "", "%s made no plan: %s", out.Hostname, r.Failed).WithReason("no-plan")
	}
	out.Note = r.Note
	for _, u := range r.Units {
		if u.Steps == nil {
			u.Steps = []wire.PlanStep{}
		}
		out.Units = append(out.Units, u)
	}
	return out, nil
}

// planFor is what a node is to be asked, and what is known without asking. Of a
// simulated machine without an agent of its own that is all.
func (c *Control) planFor(ctx context.Context, who appliance.Caller, in appliance.PlanNode) (out appliance.NodePlan, req wire.PlanRequest, answered bool, err error) {
	if _, err := c.inTenant(who, in.TenantID); err != nil {
		return out, req, false, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		rec, err := c.nodeSeen(tx, who, appliance.NodesManage, appliance.NodeRef{TenantID: in.TenantID, NodeID: in.NodeID})
		if err != nil {
			return err
		}
		if rec.RemovedAt != nil {
			return removed(rec)
		}
		p := c.mem.pool(rec.PoolID)
		policy := p.policy
		if in.Policy != nil {
			next := p.Pool
			next.Policy = *in.Policy
			if policy, err = checkNext(p, next); err != nil {
				return err
			}
		}
		inv, err := tx.Inventory(rec.ID)
		if err != nil {
			return err
		}
		held := c.heldGPUs(rec.ID)
		req = wire.PlanRequest{ID: c.newID(appliance.PlanPrefix), Units: c.plannedUnits(p, policy, inv, held), Held: held}
		out = appliance.NodePlan{
			NodeID: rec.ID, Hostname: rec.Hostname, Simulated: rec.Simulated, Units: []wire.UnitPlan{}, Reservations: c.bookingsOn(rec.ID, ""),
		}
		switch {
		case inv.Agent == nil && !rec.Simulated:
			return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: the agent of %s is older than this verb; update it, or run bc host plan there", rec.Hostname).
				WithReason("agent-too-old")
		case inv.Agent == nil || !inv.Agent.Plans:
			out.Note = "this is a simulated machine: there is no host to compare with"
			out.Units, err = uncompared(req.Units)
			answered = true
			return err
		case rec.State == appliance.NodeUnreachable:
			return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: %s is unreachable: its agent cannot be asked; look at bcd there (systemctl status bcd)", rec.Hostname).
				WithReason("unreachable")
		}
		return nil
	})
	return out, req, answered, err
}

// plannedUnits is what a policy asks of the configuration of a node.
func (c *Control) plannedUnits(p *pool, policy appliance.Policy, inv wire.Inventory, held []string) wire.Units {
	facts := plan.PoolFacts{Class: p.Class, Sharing: p.Sharing, GPUModel: p.GPUModel, Telemetry: c.Settings.Telemetry}
	return plan.NodeUnits(plan.Units(policy, facts), facts, inv.GPUs, held)
}

// uncompared is what is wanted where there is no host.
func uncompared(units wire.Units) ([]wire.UnitPlan, error) {
	text, err := json.Marshal(units)
	if err != nil {
		return nil, fmt.Errorf("write units: %w", err)
	}
	var wanted map[wire.UnitKind]json.RawMessage
	if err := json.Unmarshal(text, &wanted); err != nil {
		return nil, fmt.Errorf("read units: %w", err)
	}
	out := []wire.UnitPlan{}
	for _, kind := range units.Wanted() {
		out = append(out, wire.UnitPlan{
			Kind: kind, State: wire.NotApplicable, Wanted: string(wanted[kind]), Steps: []wire.PlanStep{},
			Reason: "a simulated machine has no host configuration",
		})
	}
	return out, nil
}

// PlanAsks gives a node's long poll the plans that it is asked for, until it leaves.
func (c *Control) PlanAsks(who appliance.Caller, nodeID string) (asks <-chan wire.PlanRequest, leave func(), err error) {
	if err := c.asNode(who, nodeID); err != nil {
		return nil, nil, err
	}
	desk, leave := c.plans.desk(nodeID)
	return desk.asks, leave, nil
}

// ReportPlan takes the plan that a node was asked for. One that nobody waits for
// any more is dropped.
func (c *Control) ReportPlan(_ context.Context, who appliance.Caller, r wire.PlanReport) (struct{}, error) {
	if err := c.asNode(who, r.NodeID); err != nil {
		return struct{}{}, err
	}
	c.plans.answer(r)
	return struct{}{}, nil
}
