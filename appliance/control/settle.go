package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// A node is settled: from what is stored of it (its row, its inventory, its
// pool) follow its conditions, its state, what can be booked of it and what is
// wanted of it. settle is called wherever one of these changed, so there is one
// place where a node's state is decided.
func (c *Control) settle(tx *store.Tx, tr trail, p *pool, rec store.NodeRecord, inv wire.Inventory) (store.NodeRecord, error) {
	before, specBefore, rolloutBefore := rec.State, rec.Spec, rec.Rollout
	at := c.now()
	c.judge(&rec, p, inv, at)
	rec.Spec = c.specFor(p, &rec, inv, at)
	facts, err := c.place(tx, p, &rec, inv)
	if err != nil {
		return rec, err
	}
	rec.SpecVersion = p.Version
	rec.Conditions = setCondition(rec.Conditions, rolloutCondition(configCondition(rec.Units), rec.Rollout, p), at)
	rec.Conditions = setCondition(rec.Conditions, rebootCondition(rec.Units), at)
	if err := tx.PutNode(rec); err != nil {
		return rec, err
	}
	packed, err := facts.Pack()
	if err != nil {
		return rec, err
	}
	if err := tx.PutNodeFacts(rec.ID, store.NodeFacts(packed)); err != nil {
		return rec, err
	}
	c.remember(tx, rec, !plan.SameSpec(specBefore, rec.Spec))
	c.stir(tx, p.ID)
	if err := c.noteRollout(tx, tr, p, rolloutBefore, rec, at); err != nil {
		return rec, err
	}
	return rec, c.emitState(tx, tr, p, rec, before, at)
}

// resettle settles a node whose row has changed, by the inventory that is stored.
func (c *Control) resettle(tx *store.Tx, tr trail, rec store.NodeRecord) (store.NodeRecord, error) {
	inv, err := tx.Inventory(rec.ID)
	if err != nil {
		return rec, err
	}
	return c.settle(tx, tr, c.mem.pool(rec.PoolID), rec, inv)
}

// judge sets the conditions and the state that follow from them.
func (c *Control) judge(rec *store.NodeRecord, p *pool, inv wire.Inventory, at appliance.Time) {
	model := c.modelCondition(p, inv)
	accepted := acceptedCondition(p.policy.Checks(), rec.Checks)
	gpus := gpuCondition(inv)
	for _, cond := range []appliance.Condition{model, accepted, gpus} {
		rec.Conditions = setCondition(rec.Conditions, cond, at)
	}
	reachable, known := condition(rec.Conditions, appliance.ConditionReachable)
	switch {
	case rec.RemovedAt != nil:
		rec.State = appliance.NodeRemoved
	case known && !reachable.Status:
		rec.State = appliance.NodeUnreachable
	case !model.Status || accepted.Reason == reasonCheckFailed:
		rec.State = appliance.NodeQuarantined
	case !accepted.Status:
		rec.State = appliance.NodeAdopting
	case rec.Hold != "":
		rec.State = rec.Hold
	default:
		rec.State = appliance.NodeReady
	}
}

// Reasons of conditions.
const (
	reasonCheckFailed  = "CheckFailed"
	reasonCheckPending = "CheckPending"
)

// modelCondition holds the one-model rule: every compute GPU of the node is of
// the pool's family, whatever the order of enumeration.
func (c *Control) modelCondition(p *pool, inv wire.Inventory) appliance.Condition {
	var others []string
	for _, g := range inv.GPUs {
		if !g.Display && wire.GPUFamilyAliased(g.Product, c.Settings.Aliases) != p.GPUModel && !slices.Contains(others, g.Product) {
			others = append(others, g.Product)
		}
	}
	slices.Sort(others)
	if len(others) > 0 {
		return appliance.Condition{
			Type: appliance.ConditionModelMatches, Reason: "OtherModel",
			Message: fmt.Sprintf("the pool holds %s, this node has %s; remove the node, or add a [gpu.aliases] entry if the name is another spelling", p.GPUModel, strings.Join(others, ", ")),
		}
	}
	return appliance.Condition{Type: appliance.ConditionModelMatches, Status: true}
}

// acceptedCondition says whether every check of the pool has passed.
func acceptedCondition(want []wire.Check, got []wire.CheckResult) appliance.Condition {
	out := appliance.Condition{Type: appliance.ConditionAccepted, Status: true}
	for _, w := range want {
		i := slices.IndexFunc(got, func(r wire.CheckResult) bool { return r.Kind == w.Kind })
		if i >= 0 && got[i].Passed {
			continue
		}
		if i >= 0 {
			return appliance.Condition{Type: out.Type, Reason: reasonCheckFailed, Message: w.Kind + ": " + got[i].Reason}
		}
		out = appliance.Condition{Type: out.Type, Reason: reasonCheckPending, Message: "waiting for the node to run " + w.Kind}
	}
	return out
}

// gpuCondition says whether the GPU library answers and every GPU is healthy.
func gpuCondition(inv wire.Inventory) appliance.Condition {
	out := appliance.Condition{Type: appliance.ConditionGPUHealthy, Status: true}
	if len(inv.GPUs) == 0 {
		return out
	}
	if inv.GPULibrary.State != wire.GPULibraryReady {
		return appliance.Condition{Type: out.Type, Reason: "GPULibrary" + strings.ToUpper(string(inv.GPULibrary.State[:1])) + string(inv.GPULibrary.State[1:]),
			Message: "the GPU driver does not answer, so nothing new is booked here; what was booked stays: " + inv.GPULibrary.Reason}
	}
	var bad []string
	for _, g := range inv.GPUs {
		if g.Health != wire.GPUHealthy && !g.Display {
			bad = append(bad, fmt.Sprintf("GPU %d (%s) is %s: %s", g.Index, g.UUID, g.Health, g.HealthReason))
		}
	}
	if len(bad) > 0 {
		return appliance.Condition{Type: out.Type, Reason: "GPUUnhealthy", Message: strings.Join(bad, "; ")}
	}
	return out
}

// configCondition sums up the config units: Conflict and Failed degrade a node.
func configCondition(units []appliance.Unit) appliance.Condition {
	var bad, open []string
	for _, u := range units {
		switch u.State {
		case wire.Conflict, wire.Failed:
			bad = append(bad, fmt.Sprintf("%s: %s: %s", u.Kind, u.State, u.Reason))
		case wire.InSync, wire.NotApplicable:
		default:
			open = append(open, fmt.Sprintf("%s: %s: %s", u.Kind, u.State, u.Reason))
		}
	}
	out := appliance.Condition{Type: appliance.ConditionConfigApplied, Status: len(bad)+len(open) == 0}
	if len(bad) > 0 {
		out.Reason = "UnitFailed"
	} else if len(open) > 0 {
		out.Reason = "UnitOpen"
	}
	out.Message = strings.Join(append(bad, open...), "; ")
	return out
}

// enforcedCondition says whether a node walls reservations in, and if not why.
func enforcedCondition(w *wire.WallsStatus) appliance.Condition {
	if w != nil && w.Enforced {
		return appliance.Condition{Type: appliance.ConditionEnforced, Status: true}
	}
	out := appliance.Condition{Type: appliance.ConditionEnforced, Reason: "BookedOnly", Message: "reservations are booked and not walled in"}
	if w != nil && w.Why != "" {
		out.Message += ": " + w.Why
	}
	return out
}

func rebootCondition(units []appliance.Unit) appliance.Condition {
	out := appliance.Condition{Type: appliance.ConditionRebootRequired}
	var waits []string
	for _, u := range units {
		if u.State == wire.PendingReboot {
			waits = append(waits, string(u.Kind))
		}
	}
	if len(waits) > 0 {
		out.Status, out.Reason = true, "UnitPendingReboot"
		out.Message = "wait for a reboot: " + strings.Join(waits, ", ")
	}
	return out
}

// setCondition replaces the condition of a type. Since stays while the status
// and the reason stay.
func setCondition(all []appliance.Condition, c appliance.Condition, at appliance.Time) []appliance.Condition {
	c.Since = at
	i := slices.IndexFunc(all, func(o appliance.Condition) bool { return o.Type == c.Type })
	if i < 0 {
		return append(all, c)
	}
	if o := all[i]; o.Status == c.Status && o.Reason == c.Reason {
		c.Since = o.Since
	}
	out := slices.Clone(all)
	out[i] = c
	return out
}

func condition(all []appliance.Condition, kind string) (appliance.Condition, bool) {
	i := slices.IndexFunc(all, func(o appliance.Condition) bool { return o.Type == kind })
	if i < 0 {
		return appliance.Condition{}, false
	}
	return all[i], true
}

// schedulable says whether a node takes new bookings, and if not why, in words
// that follow "node is".
func schedulable(rec store.NodeRecord, inv wire.Inventory) (bool, string) {
	if rec.State != appliance.NodeReady {
		return false, string(rec.State)
	}
	if len(inv.GPUs) > 0 && inv.GPULibrary.State != wire.GPULibraryReady {
		return false, "without an answer from its GPU driver"
	}
	return true, ""
}

// nodeFacts is what the placement index has to know of a node, but its rows.
func nodeFacts(p *pool, rec store.NodeRecord, inv wire.Inventory) plan.Node {
	facts := plan.NodeFrom(inv, rec.Labels)
	identify(&facts, p, rec)
	if s := rec.Spec.Units.GPUSharing; s != nil { // as its GPUs are shared now, which a policy may be about to change
		facts.Replicas = s.Replicas
	}
	markWaiting(facts.Devices, p, rec, inv)
	facts.Schedulable, facts.Unschedulable = schedulable(rec, inv)
	if rec.Control == appliance.ControlTenantControlled {
		facts.Schedulable, facts.Unschedulable = false, "controlled by its tenant"
	}
	return facts
}

// markWaiting marks the GPUs that are to get another MIG layout than they have:
// nothing of them is booked anew, so that they become free for it. That is so
// from the node's turn in a rollout on, until its agent has cut them, or has said
// that it will not.
func markWaiting(devices []plan.Device, p *pool, rec store.NodeRecord, inv wire.Inventory) {
	want := rec.Spec.Units.MIGLayout
	if want == nil || !layoutComes(rec) {
		return
	}
	for i := range devices {
		at := slices.IndexFunc(inv.GPUs, func(g wire.GPU) bool { return g.UUID == devices[i].UUID })
		if at < 0 || inv.GPUs[at].MIG == nil {
			continue
		}
		to, err := wire.ResolveLayout(p.GPUModel, inv.GPUs[at].MemoryMiB, want.Layout)
		if err != nil {
			continue // the agent will not cut it either
		}
		var has []string
		for _, m := range inv.GPUs[at].MIG.Instances {
			has = append(has, m.Profile)
		}
		slices.Sort(has)
		slices.Sort(to)
		devices[i].Waits = !slices.Equal(has, to)
	}
}

// layoutComes tells whether a node's agent is about to cut GPUs.
func layoutComes(rec store.NodeRecord) bool {
	i := slices.IndexFunc(rec.Units, func(u appliance.Unit) bool { return u.Kind == wire.UnitMIGLayout })
	if i >= 0 {
		switch rec.Units[i].State {
		case wire.PendingIdle, wire.PendingReboot, wire.Partial:
			return true
		case wire.Unsupported, wire.NotApplicable:
			return false
		}
	}
	r := rec.Rollout
	return r != nil && r.State == appliance.RolloutChanging && !r.Applied && slices.Contains(r.Kinds, wire.UnitMIGLayout)
}

// identify says who a node is and how its pool shares it.
func identify(facts *plan.Node, p *pool, rec store.NodeRecord) {
	facts.ID, facts.PoolID, facts.Hostname = rec.ID, rec.PoolID, rec.Hostname
	facts.Role, facts.Control, facts.Sharing = rec.Role, rec.Control, p.Sharing
	facts.Replicas = p.policy.Replicas(p.Sharing)
}

// place puts the node's facts and rows into the placement index.
func (c *Control) place(tx *store.Tx, p *pool, rec *store.NodeRecord, inv wire.Inventory) (plan.Node, error) {
	facts := nodeFacts(p, *rec, inv)
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	allocated := map[string]int{}
	for _, r := range m.index.Rows(rec.ID) {
		allocated[r.Resource] = r.Allocated
	}
	facts.Rows = plan.Rows(p.Class, rec.Control, p.policy, inv, allocated)
	previous, err := m.index.PutNode(facts)
	if err != nil {
		return facts, err
	}
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if previous == nil {
			_, err = m.index.DropNode(rec.ID)
		} else {
			_, err = m.index.PutNode(*previous)
		}
		if err != nil {
			panic(err) // memory would no longer equal the rows
		}
		m.dirtyNodes[rec.ID] = true
	})
	write, gone := plan.RowChanges(rowsOf(previous), facts.Rows)
	if previous == nil || len(write)+len(gone) > 0 {
		m.dirtyNodes[rec.ID] = true
	}
	return facts, nil
}

func rowsOf(n *plan.Node) []appliance.ResourceRow {
	if n == nil {
		return nil
	}
	return n.Rows
}

// specFor is what is wanted of the node now, without bindings, generation and
// the GPUs that keep their MIG layout. It sets where the node is in the rollout
// of its pool's policy.
func (c *Control) specFor(p *pool, rec *store.NodeRecord, inv wire.Inventory, at appliance.Time) wire.NodeSpec {
	facts := plan.PoolFacts{Class: p.Class, Sharing: p.Sharing, GPUModel: p.GPUModel, Telemetry: c.Settings.Telemetry}
	units := plan.NodeUnits(c.unitsFor(rec, plan.Units(p.policy, facts), at), facts, inv.GPUs, nil)
	return plan.NodeSpec(wire.NodeSpec{}, rec.ID, rec.PoolID, units, p.policy.Checks(), nil)
}

// heldGPUs lists the GPUs of a node that have live bookings.
func (c *Control) heldGPUs(nodeID string) []string {
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	held := map[string]bool{}
	for _, s := range c.mem.index.Shares(nodeID) {
		for _, uuid := range s.Placement.Devices {
			held[uuid] = true
		}
	}
	return slices.Sorted(maps.Keys(held))
}

// emitState tells of a node that came into another state.
func (c *Control) emitState(tx *store.Tx, tr trail, p *pool, rec store.NodeRecord, before appliance.NodeState, at appliance.Time) error {
	if rec.State == before {
		return nil
	}
	kinds := map[appliance.NodeState]appliance.EventType{
		appliance.NodeQuarantined: appliance.EventNodeQuarantined,
		appliance.NodeUnreachable: appliance.EventNodeUnreachable,
		appliance.NodeRemoved:     appliance.EventNodeRemoved,
	}
	kind, ok := kinds[rec.State]
	switch {
	case ok:
	case before == appliance.NodeUnreachable:
		kind = appliance.EventNodeRecovered
	case rec.State == appliance.NodeReady && (before == appliance.NodeAdopting || before == appliance.NodeQuarantined || before == ""):
		kind = appliance.EventNodeAccepted
	case before == "": // joined, which has an event of its own
		return nil
	default:
		kind = appliance.EventNodeUpdated
	}
	data := map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "state": rec.State, "before": before}
	for _, cond := range rec.Conditions {
		if cond.Message != "" && cond.Bad() && cond.Type != appliance.ConditionRebootRequired {
			data["reason"] = cond.Message
			break
		}
	}
	_, err := tx.Emit(ofPool(c.event(tr, kind, p.OwnerTenantID, rec.ID, at), p), data)
	return err
}

// remember takes a node's row into memory and wakes its agent if what is
// wanted of it changed.
func (c *Control) remember(tx *store.Tx, rec store.NodeRecord, specChanged bool) {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before, was := m.nodes[rec.ID]
	next := &node{seen: c.Now(), generation: 1}
	if was {
		*next = *before
	} else {
		m.dirtyNodes[rec.ID] = true
	}
	next.id, next.pool, next.hostname, next.token = rec.ID, rec.PoolID, rec.Hostname, rec.CredentialHash
	next.machine = rec.MachineID
	next.state, next.inventory, next.version, next.simulated = rec.State, rec.InventoryHash, rec.SpecVersion, rec.Simulated
	next.owned = rec.Control == appliance.ControlTenantOwned
	next.walled, next.rollout = rec.Walled, rec.Rollout
	if was && specChanged {
		next.generation++
		m.dirtyNodes[rec.ID] = true
	}
	if was {
		m.drop(before) // its credential may be another
	}
	m.put(next)
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drop(next)
		if was {
			m.put(before)
		}
	})
	tx.Touch(rec.ID)
}
