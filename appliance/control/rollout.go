package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// A policy that disrupts reaches its nodes in two steps. Settling a node gives
// it what does not disrupt, and has it wait for the rest; that is all that a
// change of policy does by itself. Waiting nodes are then given their turn, in
// one place, as far as the pool's disruptionBudget allows, and keep it until
// their units have come to rest.

// unitsFor is what a node is to be configured to, and where that leaves it in
// the rollout of its pool's policy. A node of which nothing was asked yet gets
// all at once: there is nothing on it to disrupt.
func (c *Control) unitsFor(rec *store.NodeRecord, want wire.Units, at appliance.Time) wire.Units {
	had := rec.Spec.Units
	if rec.Spec.NodeID == "" {
		return want
	}
	all := plan.Disruptions(had, want)
	switch r := rec.Rollout; {
	case r != nil && r.State == appliance.RolloutChanging:
		rec.Rollout = c.changing(*r, all, rec)
		return want
	case len(all) == 0:
		rec.Rollout = nil
		return want
	default:
		next := &appliance.Rollout{State: appliance.RolloutWaiting, Since: at}
		if r != nil {
			next.Since = r.Since
		}
		addDisruptions(next, all)
		rec.Rollout = next
		return plan.HoldBack(had, want)
	}
}

// changing is where a node stands that has its turn; nil if that is over. What
// the policy asks meanwhile reaches it at once, be it to mend what failed.
func (c *Control) changing(r appliance.Rollout, more []plan.Disruption, rec *store.NodeRecord) *appliance.Rollout {
	if len(more) > 0 {
		addDisruptions(&r, more)
		r.Generation, r.Applied = c.mem.nextGeneration(rec.ID), false
	}
	rest, why := plan.AtRest(r.Kinds, rec.Units)
	switch {
	case r.Generation == 0, r.Applied && rest: // the first: it was taken back before it began
		return nil
	case !r.Applied:
		r.Message = "the node has not taken it up yet"
	default:
		r.Message = why
	}
	return &r
}

// addDisruptions notes what disrupts, each thing once.
func addDisruptions(r *appliance.Rollout, all []plan.Disruption) {
	r.Kinds, r.Reasons = slices.Clone(r.Kinds), slices.Clone(r.Reasons)
	for _, d := range all {
		if !slices.Contains(r.Kinds, d.Kind) {
			r.Kinds = append(r.Kinds, d.Kind)
			r.Reasons = append(r.Reasons, d.Reason)
		}
	}
}

// nextGeneration is that of a node's NodeSpec when it changes now.
func (m *memory) nextGeneration(nodeID string) int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if n := m.nodes[nodeID]; n != nil {
		return n.generation + 1
	}
	return 1
}

// tookUp notes that a node has compared its units with the NodeSpec that it was
// given its turn with. A generation that was never given is of another time: the
// state may have been restored from a backup.
func (c *Control) tookUp(rec *store.NodeRecord, applied int64) {
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	if n := c.mem.nodes[rec.ID]; n != nil && takesUp(rec.Rollout, applied, n.generation) {
		r := *rec.Rollout
		r.Applied = true
		rec.Rollout = &r
	}
}

func takesUp(r *appliance.Rollout, applied, newest int64) bool {
	return r != nil && r.State == appliance.RolloutChanging && !r.Applied && applied >= r.Generation && applied <= newest
}

// noteRollout tells of a node that got its turn, or whose turn is over, and
// wakes those who give out turns.
func (c *Control) noteRollout(tx *store.Tx, tr trail, p *pool, before *appliance.Rollout, rec store.NodeRecord, at appliance.Time) error {
	was, is := rolloutState(before), rolloutState(rec.Rollout)
	if was == is {
		return nil
	}
	tx.Touch(topicSpecs)
	data := map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "state": rec.State}
	switch appliance.RolloutChanging {
	case is:
		data["rollout"], data["reasons"] = is, rec.Rollout.Reasons
	case was:
		data["rollout"] = "done"
	default:
		return nil // the event of the pool's change says it of all nodes
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventNodeUpdated, p.OwnerTenantID, rec.ID, at), p), data)
	return err
}

func rolloutState(r *appliance.Rollout) appliance.RolloutState {
	if r == nil {
		return ""
	}
	return r.State
}

// returnsWithin is how long a node that fell silent while it had its turn may
// take to come back: the firmware of a large machine tests its memory for many
// minutes. Then others get their turn, lest a machine that died stops a rollout
// for ever; a policy that kills machines kills one an hour and not all at once.
const returnsWithin = time.Hour

// turns is what the next turns in a pool depend on.
type turns struct {
	nodes   int // of the pool
	limit   int // that may have their turn at once
	taken   int
	waiting []plan.RolloutNode // that could have one, in order
}

func (t turns) room() int { return min(max(0, t.limit-t.taken), len(t.waiting)) }

// turnsIn looks at the nodes of a pool that are in a rollout. A node that is
// not heard of is not given a turn: it could not use it. The caller holds mu.
func (c *Control) turnsIn(p *pool) turns {
	m := &c.mem
	t := turns{nodes: m.index.NodeCount(p.ID)}
	t.limit = plan.DisruptionLimit(p.policy.DisruptionBudgetOrDefault(), t.nodes)
	for id := range m.rolling[p.ID] {
		n := m.nodes[id]
		silent := n.state == appliance.NodeUnreachable
		switch {
		case n.rollout.State == appliance.RolloutChanging:
			if !silent || c.Now().Sub(n.seen) <= returnsWithin {
				t.taken++
			}
		case !silent:
			t.waiting = append(t.waiting, plan.RolloutNode{ID: id, Booked: len(m.index.Shares(id)) > 0})
		}
	}
	plan.RolloutOrder(t.waiting)
	return t
}

// turnsAtOnce is how many nodes get their turn in one transaction, so that no
// write holds the others up for long.
const turnsAtOnce = 50

// giveTurns gives nodes that wait in a rollout their turn, as far as the budgets
// of their pools allow.
func (c *Control) giveTurns(ctx context.Context) error {
	m := &c.mem
	m.mu.RLock()
	var ready []string
	for id := range m.rolling {
		if p := m.pools[id]; p != nil && c.turnsIn(p).room() > 0 {
			ready = append(ready, id)
		}
	}
	m.mu.RUnlock()
	slices.Sort(ready)
	for _, id := range ready {
		for more := true; more; {
			err := c.Store.Write(ctx, func(tx *store.Tx) (err error) {
				more, err = c.giveTurnsIn(tx, id)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// giveTurnsIn decides on the writer, so that no two give the same turn. It tells
// whether there is more to give.
func (c *Control) giveTurnsIn(tx *store.Tx, poolID string) (more bool, err error) {
	m := &c.mem
	m.mu.RLock()
	p := m.pools[poolID]
	if p == nil {
		m.mu.RUnlock()
		return false, nil
	}
	t := c.turnsIn(p)
	m.mu.RUnlock()
	next := t.waiting[:min(t.room(), turnsAtOnce)]
	for _, n := range next {
		rec, err := tx.Node(n.ID)
		if err != nil {
			return false, err
		}
		rec.Rollout = &appliance.Rollout{State: appliance.RolloutChanging, Since: c.now()}
		if _, err := c.resettle(tx, system("rollout"), rec); err != nil {
			return false, err
		}
	}
	return len(next) == turnsAtOnce, nil
}

// roll keeps which nodes of a pool are in a rollout.
func (m *memory) roll(poolID, nodeID string, rolling bool) {
	switch {
	case !rolling:
		if delete(m.rolling[poolID], nodeID); len(m.rolling[poolID]) == 0 {
			delete(m.rolling, poolID)
		}
	case m.rolling[poolID] == nil:
		m.rolling[poolID] = map[string]bool{nodeID: true}
	default:
		m.rolling[poolID][nodeID] = true
	}
}

// loadRollouts reads which nodes are in a rollout, and which raise walls.
func (c *Control) loadRollouts(tx *store.Tx) error {
	m := &c.mem
	rollouts, err := tx.Rollouts()
	if err != nil {
		return err
	}
	for _, r := range rollouts {
		n := m.nodes[r.NodeID]
		n.rollout = &r.Rollout
		m.roll(n.pool, n.id, true)
	}
	walled, err := tx.WalledNodes()
	if err != nil {
		return err
	}
	for _, id := range walled {
		m.nodes[id].walled = true
	}
	return nil
}

// verifyRollouts compares which nodes are in a rollout, and which raise walls,
// with the rows.
func (c *Control) verifyRollouts(tx *store.Tx, wrong *findings) error {
	rollouts, err := tx.Rollouts()
	if err != nil {
		return err
	}
	walled, err := tx.WalledNodes()
	if err != nil {
		return err
	}
	m := &c.mem
	rolling, raising := 0, 0
	for _, n := range m.nodes {
		if n.walled {
			raising++
		}
		if n.rollout != nil {
			rolling++
		}
	}
	for _, r := range rollouts {
		n := m.nodes[r.NodeID]
		if n == nil || n.rollout == nil || n.rollout.State != r.Rollout.State || n.rollout.Generation != r.Rollout.Generation ||
			n.rollout.Applied != r.Rollout.Applied || !m.rolling[n.pool][n.id] {
			wrong.add("node %s is %s in a rollout, in memory it is not", r.NodeID, r.Rollout.State)
		}
	}
	for _, id := range walled {
		if n := m.nodes[id]; n == nil || !n.walled {
			wrong.add("node %s raises walls, in memory it does not", id)
		}
	}
	kept := 0
	for _, ids := range m.rolling {
		kept += len(ids)
	}
	if rolling != len(rollouts) || kept != len(rollouts) || raising != len(walled) {
		wrong.add("%d nodes are in a rollout and %d raise walls, in memory %d (%d by pool) and %d", len(rollouts), len(walled), rolling, kept, raising)
	}
	return nil
}

// rolloutCondition adds to what the units say of a node what the rollout does.
func rolloutCondition(out appliance.Condition, r *appliance.Rollout, p *pool) appliance.Condition {
	if r == nil {
		return out
	}
	reason, text := "RolloutChanging", "it has its turn in the rollout of the pool's policy: "+strings.Join(r.Reasons, "; ")
	if r.State == appliance.RolloutWaiting {
		reason, text = "RolloutWaiting", "waits for its turn in the rollout of the pool's policy: "+strings.Join(r.Reasons, "; ")+"; bc pools get "+p.ID+" shows whose turn it is"
		if p.policy.DisruptionBudgetOrDefault() == 0 {
			text = "the pool's disruptionBudget is 0, so nothing disrupts it: " + strings.Join(r.Reasons, "; ")
		}
	} else if out.Message == "" && r.Message != "" {
		text += "; " + r.Message
	}
	if out.Reason == "" {
		out.Reason = reason
	}
	if out.Status = false; out.Message != "" {
		out.Message += "; "
	}
	out.Message += text
	return out
}

// rolloutShown is how many nodes a pool's rollout names of each kind.
const rolloutShown = 20

// viewRollout sums up how far a pool's nodes are with its policy; nil if all
// have it.
func (c *Control) viewRollout(p *pool) *appliance.PoolRollout {
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	if len(m.rolling[p.ID]) == 0 {
		return nil
	}
	t := c.turnsIn(p)
	out := &appliance.PoolRollout{
		Version: p.Version, Nodes: t.nodes, Current: t.nodes - len(m.rolling[p.ID]), AtOnce: t.limit,
		Changing: []appliance.RolloutNode{}, Waiting: []appliance.RolloutNode{},
	}
	silent := 0
	for _, id := range sortedKeys(m.rolling[p.ID]) {
		n := m.nodes[id]
		text := n.rollout.Message
		if n.state == appliance.NodeUnreachable {
			text = "the node does not answer"
		}
		switch {
		case n.rollout.State == appliance.RolloutChanging:
			out.ChangingCount++
			out.Changing = append(out.Changing, appliance.RolloutNode{NodeID: id, Hostname: n.hostname, Message: text})
		case n.state == appliance.NodeUnreachable:
			silent++
			out.Waiting = append(out.Waiting, appliance.RolloutNode{NodeID: id, Hostname: n.hostname, Message: text})
		}
	}
	for i, w := range t.waiting {
		n := m.nodes[w.ID]
		out.Waiting = slices.Insert(out.Waiting, i, appliance.RolloutNode{NodeID: w.ID, Hostname: n.hostname, Message: strings.Join(n.rollout.Reasons, "; ")})
	}
	out.WaitingCount = len(out.Waiting)
	out.Message = rolloutSentence(out, p.policy.DisruptionBudgetOrDefault(), silent)
	out.Changing = out.Changing[:min(len(out.Changing), rolloutShown)]
	out.Waiting = out.Waiting[:min(len(out.Waiting), rolloutShown)]
	return out
}

func rolloutSentence(r *appliance.PoolRollout, budget float64, silent int) string {
	text := fmt.Sprintf("%d of %d nodes have all of policy version %d", r.Current, r.Nodes, r.Version)
	if r.ChangingCount > 0 {
		text += fmt.Sprintf("; %d changing", r.ChangingCount)
	}
	switch {
	case r.WaitingCount == 0:
	case budget == 0:
		text += fmt.Sprintf("; %d wait: disruptionBudget is 0, so none is disrupted until it is raised", r.WaitingCount)
	default:
		text += fmt.Sprintf("; %d wait: disruptionBudget %v lets %d of %d be disrupted at once", r.WaitingCount, budget, r.AtOnce, r.Nodes)
	}
	if silent > 0 {
		text += fmt.Sprintf("; %d of them do not answer and are passed over", silent)
	}
	return text
}
