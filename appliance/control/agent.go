package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// Node finds the node that a credential stands for.
func (c *Control) nodeCaller(hash string) (appliance.Caller, bool) {
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.byToken[hash]
	if n == nil {
		return appliance.Caller{}, false
	}
	return appliance.Caller{Kind: appliance.CallerNode, ID: n.id, Tenant: m.pools[n.pool].OwnerTenantID}, true
}

// Hello opens or reopens an agent's session, and joins the machine if it is
// new. A machine that no pool fits yet is told why and asks again.
func (c *Control) Hello(ctx context.Context, who appliance.Caller, h wire.Hello) (wire.Welcome, error) {
	out := wire.Welcome{Version: wire.Version, HeartbeatSeconds: max(1, int(c.Settings.Heartbeat/time.Second))}
	if h.MachineID == "" || h.Hostname == "" {
		return out, appliance.Invalid("machineId", "and hostname are required")
	}
	if who.Kind != appliance.CallerNode && who.Kind != appliance.CallerOperator {
		return out, appliance.Refuse(appliance.AccessDenied, "", "%s may not join a machine: join it as the local operator over the Unix socket", who.ID)
	}
	poolID, reason := h.PoolID, ""
	if who.Kind == appliance.CallerOperator && poolID == "" && !c.known(h.MachineID) {
		var err error
		if poolID, reason, err = c.poolFor(ctx, h); h.Local {
			c.local.set(reason)
		}
		if err != nil || poolID == "" {
			out.Reason = reason
			return out, err
		}
	}
	secret, hash, err := iam.NewSecret(iam.NodeSecret, c.Random)
	if err != nil {
		return out, err
	}
	err = c.write(ctx, who, appliance.NodesJoin, "", h.Hostname, func(tx *store.Tx) error {
		rec, tr, err := c.admit(tx, who, h, poolID, hash)
		if err != nil {
			return err
		}
		p := c.mem.pool(rec.PoolID)
		out.NodeID, out.PoolID = rec.ID, rec.PoolID
		if rec.CredentialHash == hash {
			out.Credential = secret
		}
		return c.takeInventory(tx, tr, p, rec, h.Inventory, h.InventoryHash)
	})
	return out, err
}

// known tells whether a machine has joined.
func (c *Control) known(machineID string) bool {
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	_, ok := c.mem.byHost[machineID]
	return ok
}

// admit finds the node's row, or makes one. A machine that joined before and
// lost its credential gets a new one from the local operator, unless an agent
// with that identity is alive: that would be a clone.
func (c *Control) admit(tx *store.Tx, who appliance.Caller, h wire.Hello, poolID, hash string) (store.NodeRecord, trail, error) {
	c.mem.mu.RLock()
	n := c.mem.byHost[h.MachineID]
	id := who.ID
	if who.Kind == appliance.CallerNode {
		n = c.mem.nodes[id]
	} else if n != nil {
		id = n.id
	}
	live := n != nil && n.reported && c.Now().Sub(n.seen) < 2*c.Settings.Heartbeat
	c.mem.mu.RUnlock()

	if n != nil || who.Kind == appliance.CallerNode {
		rec, err := tx.Node(id)
		if err != nil {
			return rec, trail{}, err
		}
		if rec.MachineID != h.MachineID {
			return rec, trail{}, appliance.Refuse(appliance.ConflictCode, "machineId",
				"machineId: this credential belongs to %s on another machine; remove its state directory and join anew", rec.Hostname)
		}
		if poolID != "" && poolID != rec.PoolID {
			return rec, trail{}, appliance.Refuse(appliance.ConflictCode, "poolId",
				"poolId: the machine has joined pool %s; remove the node before it joins another", rec.PoolID)
		}
		tr := trail{who: who, policies: "nodes-report"}
		if who.Kind == appliance.CallerNode {
			rec.Hostname = h.Hostname
			return rec, tr, nil
		}
		if live {
			return rec, tr, appliance.Refuse(appliance.ConflictCode, "machineId",
				"machineId: an agent with this machine's identity is alive as %s; if it is a clone give the machine an identity of its own, else stop the other agent", rec.Hostname)
		}
		rec.CredentialHash, rec.Hostname = hash, h.Hostname
		return rec, tr, nil
	}

	p := c.mem.pool(poolID)
	if p == nil || p.Archived {
		return store.NodeRecord{}, trail{}, appliance.NoSuch("pool")
	}
	if p.Agent == appliance.AgentNone {
		return store.NodeRecord{}, trail{}, appliance.Refuse(appliance.InvalidState, "poolId", "poolId: the machines of pool %s are reached through a provider's API; no agent joins it", poolLabel(p))
	}
	row := p.Authz(p.OwnerTenantID)
	tr, err := c.may(who, appliance.NodesJoin, p.OwnerTenantID, &row, "")
	if err != nil {
		return store.NodeRecord{}, tr, err
	}
	rec := store.NodeRecord{
		ID: c.newID(appliance.NodePrefix), PoolID: p.ID, MachineID: h.MachineID, Hostname: h.Hostname,
		Role: p.Class.NodeRole(), Control: appliance.ControlPlatform, Simulated: h.Inventory.Recorded != "", Local: h.Local,
		CredentialHash: hash, Labels: map[string]string{}, Conditions: []appliance.Condition{}, Units: []appliance.Unit{},
		Checks: []wire.CheckResult{}, JoinedAt: c.now(),
	}
	rec.Conditions = setCondition(rec.Conditions, appliance.Condition{Type: appliance.ConditionReachable, Status: true}, rec.JoinedAt)
	_, err = tx.Emit(ofPool(c.event(tr, appliance.EventNodeJoined, p.OwnerTenantID, rec.ID, rec.JoinedAt), p),
		map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "role": rec.Role, "simulated": rec.Simulated})
	return rec, tr, err
}

// takeInventory keeps an inventory, tells of devices whose health changed, and
// settles the node.
func (c *Control) takeInventory(tx *store.Tx, tr trail, p *pool, rec store.NodeRecord, inv wire.Inventory, hash string) error {
	before, err := tx.Inventory(rec.ID)
	if err != nil && !isNotFound(err) {
		return err
	}
	inv = keepMissing(before, inv)
	rec.InventoryHash = hash
	rec.Simulated = inv.Recorded != ""
	if before.BootID != inv.BootID {
		if err := c.cameUp(tx, tr, &rec, inv.BootID); err != nil {
			return err
		}
	}
	if rec, err = c.settle(tx, tr, p, rec, inv); err != nil {
		return err
	}
	if err := tx.PutInventory(rec.ID, inv); err != nil {
		return err
	}
	return c.emitDevices(tx, tr, p, rec, before, inv)
}

// keepMissing keeps the GPUs that an earlier inventory had and this one lacks,
// as missing: a device keeps its bookings and is never silently replaced. When
// the GPU library does not answer and the list is empty, the last list stays.
func keepMissing(before, now wire.Inventory) wire.Inventory {
	for _, g := range before.GPUs {
		if slices.ContainsFunc(now.GPUs, func(n wire.GPU) bool { return n.UUID == g.UUID }) {
			continue
		}
		if now.GPULibrary.State == wire.GPULibraryReady {
			g.Health, g.HealthReason = wire.GPUMissing, "it was in an earlier inventory and is not in the last one"
		}
		now.GPUs = append(now.GPUs, g)
	}
	return now
}

func (c *Control) emitDevices(tx *store.Tx, tr trail, p *pool, rec store.NodeRecord, before, now wire.Inventory) error {
	for _, g := range now.GPUs {
		i := slices.IndexFunc(before.GPUs, func(b wire.GPU) bool { return b.UUID == g.UUID })
		was := wire.GPUHealthy
		if i >= 0 {
			was = before.GPUs[i].Health
		}
		healthy := g.Health == wire.GPUHealthy
		if (was == wire.GPUHealthy) == healthy {
			continue
		}
		kind := appliance.EventDeviceUnhealthy
		if healthy {
			kind = appliance.EventDeviceRecovered
		}
		_, err := tx.Emit(ofPool(c.event(tr, kind, p.OwnerTenantID, g.UUID, c.now()), p),
			map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "index": g.Index, "health": g.Health, "reason": g.HealthReason})
		if err != nil {
			return err
		}
	}
	return nil
}

// ReportInventory takes a node's whole inventory.
func (c *Control) ReportInventory(ctx context.Context, who appliance.Caller, r wire.InventoryReport) (wire.HeartbeatReply, error) {
	if err := c.asNode(who, r.NodeID); err != nil {
		return wire.HeartbeatReply{}, err
	}
	err := c.Store.Write(ctx, func(tx *store.Tx) error {
		rec, err := tx.Node(who.ID)
		if err != nil || rec.RemovedAt != nil {
			return err
		}
		return c.takeInventory(tx, trail{who: who, policies: "nodes-report"}, c.mem.pool(rec.PoolID), rec, r.Inventory, r.Hash)
	})
	if err != nil {
		return wire.HeartbeatReply{}, err
	}
	return c.reply(who.ID, r.Hash), nil
}

// asNode holds a report to the node that makes it.
func (c *Control) asNode(who appliance.Caller, nodeID string) error {
	if who.Kind != appliance.CallerNode || nodeID != who.ID {
		return appliance.NoSuch("node")
	}
	return nil
}

// Heartbeat takes a sign of life. A quiet one writes nothing.
func (c *Control) Heartbeat(ctx context.Context, who appliance.Caller, h wire.Heartbeat) (wire.HeartbeatReply, error) {
	if err := c.asNode(who, h.NodeID); err != nil {
		return wire.HeartbeatReply{}, err
	}
	m := &c.mem
	m.mu.Lock()
	n := m.nodes[who.ID]
	if n == nil {
		m.mu.Unlock()
		return wire.HeartbeatReply{Gone: true}, nil
	}
	n.seen, n.reported = c.Now(), true
	back := n.state == appliance.NodeUnreachable || takesUp(n.rollout, h.Applied, n.generation)
	m.mu.Unlock()

	if back || len(h.Units) > 0 || len(h.Checks) > 0 || h.Bindings != nil {
		err := c.Store.Write(ctx, func(tx *store.Tx) error { return c.takeReport(tx, who, h) })
		if err != nil {
			return wire.HeartbeatReply{}, err
		}
		if h.Bindings != nil {
			m.mu.Lock()
			if n := m.nodes[who.ID]; n != nil {
				n.told = true
			}
			m.mu.Unlock()
		}
	}
	return c.reply(who.ID, h.InventoryHash), nil
}

// reply tells the agent what is newer here than there, and what is not known.
func (c *Control) reply(nodeID, inventory string) wire.HeartbeatReply {
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.nodes[nodeID]
	if n == nil {
		return wire.HeartbeatReply{Gone: true}
	}
	return wire.HeartbeatReply{Generation: n.generation, SendAll: !n.told, SendInv: n.inventory != inventory}
}

// takeReport takes what a heartbeat says has changed.
func (c *Control) takeReport(tx *store.Tx, who appliance.Caller, h wire.Heartbeat) error {
	rec, err := tx.Node(who.ID)
	if err != nil {
		return err
	}
	if rec.RemovedAt != nil { // since the heartbeat came in
		return nil
	}
	tr, p, at := trail{who: who, policies: "nodes-report"}, c.mem.pool(rec.PoolID), c.now()
	rec.Conditions = setCondition(rec.Conditions, appliance.Condition{Type: appliance.ConditionReachable, Status: true}, at)
	for _, u := range h.Units {
		if err := c.takeUnit(tx, tr, p, &rec, u); err != nil {
			return err
		}
	}
	for _, r := range h.Checks {
		i := slices.IndexFunc(rec.Checks, func(o wire.CheckResult) bool { return o.Kind == r.Kind })
		if i < 0 {
			rec.Checks = append(rec.Checks, r)
		} else {
			rec.Checks[i] = r
		}
	}
	c.tookUp(&rec, h.Applied)
	if h.Bindings != nil {
		rec.Walled = h.Walls != nil && h.Walls.Enforced
		rec.Conditions = setCondition(rec.Conditions, enforcedCondition(h.Walls), at)
	}
	if _, err := c.resettle(tx, tr, rec); err != nil {
		return err
	}
	if h.Bindings == nil {
		return nil
	}
	if err := c.takeWalls(tx, p, rec, h); err != nil {
		return err
	}
	return c.confirm(tx, tr, rec, *h.Bindings)
}

// takeUnit takes what became of one config unit, and tells of a new state.
func (c *Control) takeUnit(tx *store.Tx, tr trail, p *pool, rec *store.NodeRecord, s wire.UnitStatus) error {
	u := appliance.Unit{Kind: s.Kind, State: s.State, Reason: s.Reason, Wanted: s.Wanted, Got: s.Got, Since: appliance.At(s.Since)}
	i := slices.IndexFunc(rec.Units, func(o appliance.Unit) bool { return o.Kind == u.Kind })
	before := wire.UnitState("")
	if i >= 0 {
		before = rec.Units[i].State
		rec.Units[i] = u
	} else {
		rec.Units = append(rec.Units, u)
	}
	if u.State == "" { // no longer wanted, and put back
		rec.Units = slices.DeleteFunc(rec.Units, func(o appliance.Unit) bool { return o.Kind == u.Kind })
	}
	if before == u.State {
		return nil
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventNodeUnit, p.OwnerTenantID, rec.ID, c.now()), p),
		map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "kind": u.Kind, "state": u.State, "before": before, "reason": u.Reason})
	return err
}

// Spec is what is wanted of a node, if that is newer than a generation. Wait is
// closed when it may have changed.
func (c *Control) Spec(ctx context.Context, who appliance.Caller, nodeID string, after int64) (spec wire.NodeSpec, newer bool, wait <-chan struct{}, err error) {
	if err := c.asNode(who, nodeID); err != nil {
		return spec, false, nil, err
	}
	wait = c.Store.ChangedIn(nodeID)
	generation, ok := c.mem.generation(nodeID)
	if !ok {
		return spec, false, nil, appliance.NoSuch("node")
	}
	if generation <= after {
		return spec, false, wait, nil
	}
	var durable int64
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		l, err := tx.Ledger(nodeID)
		if durable = l.Generation; err != nil || durable <= after {
			return err
		}
		spec, err = c.readSpec(tx, nodeID)
		return err
	})
	if err == nil && durable > after && durable != spec.Generation {
		// Memory is ahead of the file, and may yet be taken back: a node must not
		// enforce what never was. A write is answered when all that it saw is durable.
		err = c.Store.Write(ctx, func(tx *store.Tx) (err error) {
			spec, err = c.readSpec(tx, nodeID)
			return err
		})
	}
	if err != nil {
		return wire.NodeSpec{}, false, nil, err
	}
	if durable <= after {
		return wire.NodeSpec{}, false, wait, nil
	}
	return spec, true, wait, nil
}

// readSpec makes a node's spec of what is stored of it, and of its bookings and
// its generation as memory has them.
func (c *Control) readSpec(tx *store.Tx, nodeID string) (spec wire.NodeSpec, err error) {
	rec, err := tx.Node(nodeID)
	if err != nil {
		return spec, err
	}
	reboot, err := tx.Reboot(nodeID)
	if err != nil {
		return spec, err
	}
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	n := c.mem.nodes[nodeID]
	if n == nil { // removed since
		return spec, appliance.NoSuch("node")
	}
	spec = rec.Spec
	spec.Version, spec.Generation = wire.Version, n.generation
	spec.Bindings = c.mem.bindings(nodeID)
	if want := spec.Units.MIGLayout; want != nil {
		layout := *want
		layout.Hold = c.mem.index.KeptGPUs(nodeID)
		spec.Units.MIGLayout = &layout
	}
	spec.Reboot = wantedReboot(reboot, len(spec.Bindings))
	return spec, nil
}

// generation is that of a node's NodeSpec.
func (m *memory) generation(nodeID string) (int64, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n := m.nodes[nodeID]
	if n == nil {
		return 0, false
	}
	return n.generation, true
}

// bindings are the node's live bookings as its agent enforces them.
func (m *memory) bindings(nodeID string) []wire.Binding {
	out := []wire.Binding{}
	for _, s := range m.index.Shares(nodeID) {
		a := s.Placement.Amounts
		b := wire.Binding{
			ReservationID: s.ReservationID, TenantID: s.TenantID, Kind: string(s.Binding),
			CPUs: s.Placement.CPUs, NUMANodes: s.Placement.NUMANodes, VCPU: a[appliance.ResourceVCPU],
			MemoryGiB: a[appliance.ResourceMemoryGiB], Hugepages2Mi: a[appliance.ResourceHugepages2Mi], Hugepages1Gi: a[appliance.ResourceHugepages1Gi],
		}
		b.Devices = s.Devices
		out = append(out, b)
	}
	return out
}

// CheckLiveness marks the nodes that have not been heard of for too long, and
// says when the next one would be due.
func (c *Control) CheckLiveness(ctx context.Context) error {
	m := &c.mem
	m.mu.RLock()
	var silent []string
	for id := range m.nodes {
		if c.silent(id) {
			silent = append(silent, id)
		}
	}
	m.mu.RUnlock()
	slices.Sort(silent)
	for _, id := range silent {
		err := c.Store.Write(ctx, func(tx *store.Tx) error {
			m.mu.RLock()
			still := c.silent(id) // a heartbeat may have come since
			m.mu.RUnlock()
			if !still {
				return nil
			}
			rec, err := tx.Node(id)
			if err != nil {
				return err
			}
			rec.Conditions = setCondition(rec.Conditions, appliance.Condition{
				Type: appliance.ConditionReachable, Reason: "NoHeartbeat",
				Message: fmt.Sprintf("no heartbeat for %s; look at bcd on %s (systemctl status bcd)", c.Settings.UnreachableAfter, rec.Hostname),
			}, c.now())
			_, err = c.resettle(tx, system("liveness"), rec)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// silent tells whether a node has not been heard of for too long and is not
// marked so yet. The caller holds mu.
func (c *Control) silent(id string) bool {
	n := c.mem.nodes[id]
	return n != nil && n.state != appliance.NodeUnreachable && c.Now().Sub(n.seen) > c.Settings.UnreachableAfter
}
