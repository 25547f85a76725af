package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// ListNodes shows the nodes of the pools that a tenant sees.
func (c *Control) ListNodes(ctx context.Context, who appliance.Caller, in appliance.ListNodes) (out appliance.List[appliance.Node], err error) {
	if in.PoolID != "" {
		_, _, err = c.forPool(who, appliance.NodesRead, in.TenantID, in.PoolID)
	} else {
		_, _, err = c.forTenant(who, appliance.NodesRead, in.TenantID)
	}
	if err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	out.Items = []appliance.Node{}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		recs, err := tx.NodesSeen(in.TenantID, in.PoolID, in.Cursor, in.Size()+1)
		if err != nil {
			return err
		}
		page := store.Page(recs, in.Size(), func(r store.NodeRecord) string { return r.ID })
		out.NextCursor = page.NextCursor
		for _, rec := range page.Items {
			if _, _, err := c.forPool(who, appliance.NodesRead, in.TenantID, rec.PoolID); err != nil {
				continue // the caller's policies hide this pool
			}
			n, err := c.viewNode(tx, rec, in.TenantID)
			if err != nil {
				return err
			}
			out.Items = append(out.Items, n)
		}
		return nil
	})
	return out, err
}

// GetNode shows one node of a pool that the tenant sees, removed ones too.
func (c *Control) GetNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (out appliance.Node, err error) {
	if _, err := c.inTenant(who, in.TenantID); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		rec, err := c.nodeSeen(tx, who, appliance.NodesRead, in)
		if err != nil {
			return err
		}
		out, err = c.viewNode(tx, rec, in.TenantID)
		return err
	})
	return out, err
}

// nodeSeen reads a node of a pool that the tenant sees; any other is no node.
func (c *Control) nodeSeen(tx *store.Tx, who appliance.Caller, action appliance.Action, in appliance.NodeRef) (store.NodeRecord, error) {
	rec, err := tx.Node(in.NodeID)
	if err != nil {
		return rec, err
	}
	if _, _, err := c.forPool(who, action, in.TenantID, rec.PoolID); err != nil {
		if isNotFound(err) {
			err = appliance.NoSuch("node")
		}
		return store.NodeRecord{}, err
	}
	return rec, nil
}

// viewNode is a node as a tenant sees it. Who holds what is shown to the
// pool's owner; another tenant is shown its own reservations alone.
func (c *Control) viewNode(tx *store.Tx, rec store.NodeRecord, tenant string) (appliance.Node, error) {
	inv, err := tx.Inventory(rec.ID)
	if err != nil {
		return appliance.Node{}, err
	}
	p := c.mem.pool(rec.PoolID)
	reboot, err := tx.Reboot(rec.ID)
	if err != nil {
		return appliance.Node{}, err
	}
	facts := nodeFacts(p, rec, inv)
	n := appliance.Node{
		ID: rec.ID, PoolID: rec.PoolID, Hostname: rec.Hostname, Role: rec.Role, Control: rec.Control, State: rec.State,
		Schedulable: facts.Schedulable, Conditions: rec.Conditions, Attributes: facts.Attributes, Labels: rec.Labels,
		Devices: []appliance.Device{}, Resources: []appliance.ResourceRow{}, Units: rec.Units, Reboot: c.viewReboot(reboot, rec, tenant), Simulated: rec.Simulated, JoinedAt: rec.JoinedAt,
	}
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	if live := m.nodes[rec.ID]; live != nil && live.reported {
		at := appliance.At(live.seen)
		n.SeenAt = &at
	}
	if rows := m.index.Rows(rec.ID); rows != nil {
		n.Resources = rows
	}
	n.Rollout, n.Releasing = rec.Rollout, m.viewReleasing(p, rec.ID, tenant)
	holders := map[string][]string{}
	for _, s := range m.index.Shares(rec.ID) {
		if p.OwnerTenantID != tenant && s.TenantID != tenant {
			continue
		}
		for _, uuid := range s.Placement.Devices {
			if !slices.Contains(holders[uuid], s.ReservationID) {
				holders[uuid] = append(holders[uuid], s.ReservationID)
			}
		}
	}
	for _, g := range inv.GPUs {
		if !g.Display {
			n.Devices = append(n.Devices, c.viewDevice(p, facts.Replicas, g, holders[g.UUID]))
		}
	}
	if m.releasing[rec.ID] != nil {
		for _, d := range m.index.Devices(rec.ID) {
			if i := slices.IndexFunc(n.Devices, func(v appliance.Device) bool { return v.UUID == d.UUID }); i >= 0 {
				n.Devices[i].Releasing = d.Releasing
			}
		}
	}
	return n, nil
}

func (c *Control) viewDevice(p *pool, replicas int, g wire.GPU, holders []string) appliance.Device {
	d := appliance.Device{
		UUID: g.UUID, Index: g.Index, Address: g.Address, Product: g.Product,
		Model: wire.GPUFamilyAliased(g.Product, c.Settings.Aliases), VRAMGiB: plan.VRAMGiB(g.MemoryMiB), NUMANode: g.NUMANode,
		MIG: g.MIG, Power: g.Power, ECC: g.ECC, Health: g.Health, HealthReason: g.HealthReason, Bookings: holders,
	}
	for _, peer := range g.NVLinkPeers {
		d.NVLinkPeers = append(d.NVLinkPeers, peer.UUID)
	}
	switch p.Sharing.Resource() {
	case appliance.ResourceMIG:
		if g.MIG != nil {
			d.Atoms = len(g.MIG.Instances)
		}
	case appliance.ResourceSlot:
		d.Atoms = replicas
	default:
		d.Atoms = 1
	}
	return d
}

// CordonNode takes no new bookings on a node; what runs goes on.
func (c *Control) CordonNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (appliance.Node, error) {
	return c.changeNode(ctx, who, in, c.hold(appliance.NodeCordoned))
}

// hold sets that an operator wants no new bookings on a node.
func (c *Control) hold(as appliance.NodeState) nodeChange {
	return func(tx *store.Tx, _ trail, rec *store.NodeRecord) error {
		rec.Hold = as
		return c.holdAfterReboot(tx, *rec)
	}
}

// UncordonNode takes bookings on a node again, and withdraws a reboot that waits.
func (c *Control) UncordonNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (appliance.Node, error) {
	return c.changeNode(ctx, who, in, func(tx *store.Tx, tr trail, rec *store.NodeRecord) error {
		rec.Hold = ""
		return c.withdrawReboot(tx, tr, *rec)
	})
}

// DrainNode takes no new bookings on a node, to empty it: what runs goes on to
// its end.
func (c *Control) DrainNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (appliance.Node, error) {
	return c.changeNode(ctx, who, in, c.hold(appliance.NodeDraining))
}

// LabelNode sets a node's labels; an empty value removes one.
func (c *Control) LabelNode(ctx context.Context, who appliance.Caller, in appliance.LabelNode) (appliance.Node, error) {
	ref := appliance.NodeRef{TenantID: in.TenantID, NodeID: in.NodeID}
	return c.changeNode(ctx, who, ref, func(_ *store.Tx, _ trail, rec *store.NodeRecord) error {
		if err := in.Validate(); err != nil {
			return err
		}
		labels := maps.Clone(rec.Labels)
		for k, v := range in.Labels {
			if v == "" {
				delete(labels, k)
			} else {
				labels[k] = v
			}
		}
		if len(labels) > 64 {
			return appliance.Invalid("labels", "the node would have %d labels, more than 64", len(labels))
		}
		rec.Labels = labels
		return nil
	})
}

// RemoveNode takes a node out of its pool. A node with live bookings stays:
// drain it first.
func (c *Control) RemoveNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (appliance.Node, error) {
	return c.changeNode(ctx, who, in, func(tx *store.Tx, tr trail, rec *store.NodeRecord) error {
		c.mem.mu.RLock()
		n := len(c.mem.index.Shares(rec.ID))
		c.mem.mu.RUnlock()
		if n > 0 {
			return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: %d reservations are on %s; drain it and wait for their end, or release them", n, rec.Hostname)
		}
		at := c.now()
		rec.RemovedAt = &at
		return c.withdrawReboot(tx, tr, *rec)
	})
}

// nodeChange is what one verb does to a node's row.
type nodeChange func(tx *store.Tx, tr trail, rec *store.NodeRecord) error

// changeNode changes a node's row and settles it.
func (c *Control) changeNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef, change nodeChange) (out appliance.Node, err error) {
	if _, err := c.inTenant(who, in.TenantID); err != nil {
		return out, err
	}
	err = c.write(ctx, who, appliance.NodesManage, in.TenantID, in.NodeID, func(tx *store.Tx) error {
		rec, err := c.nodeSeen(tx, who, appliance.NodesManage, in)
		if err != nil {
			return err
		}
		p := c.mem.pool(rec.PoolID)
		tr, err := c.may(who, appliance.NodesManage, in.TenantID, row(p, in.TenantID), "")
		if err != nil {
			return err
		}
		if rec.RemovedAt != nil {
			return removed(rec)
		}
		before := rec
		if err := change(tx, tr, &rec); err != nil {
			return err
		}
		if rec, err = c.resettle(tx, tr, rec); err != nil {
			return err
		}
		if err := c.emitChanged(tx, tr, p, before, rec); err != nil {
			return err
		}
		out, err = c.viewNode(tx, rec, in.TenantID)
		if err == nil && rec.RemovedAt != nil {
			err = c.forgetNode(tx, rec)
		}
		return err
	})
	return out, err
}

// emitChanged tells of a change that left the node's state as it was: every
// write that changes something is in the trail.
func (c *Control) emitChanged(tx *store.Tx, tr trail, p *pool, before, now store.NodeRecord) error {
	if now.State != before.State || now.Hold == before.Hold && maps.Equal(now.Labels, before.Labels) {
		return nil
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventNodeUpdated, p.OwnerTenantID, now.ID, c.now()), p),
		map[string]any{"nodeId": now.ID, "hostname": now.Hostname, "state": now.State, "hold": now.Hold, "labels": now.Labels})
	return err
}

func row(p *pool, tenant string) *appliance.AuthzRow {
	r := p.seenBy[tenant]
	return &r
}

// forgetNode takes a removed node, which has no bookings, out of memory: its
// credential is worth nothing from now on.
func (c *Control) forgetNode(tx *store.Tx, rec store.NodeRecord) error {
	m := &c.mem
	if err := c.freeAll(tx, rec.ID); err != nil {
		return err
	}
	if rec.Rollout != nil {
		tx.Touch(topicSpecs) // its turn is another's
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	facts, err := m.index.DropNode(rec.ID)
	if err != nil {
		return err
	}
	n := m.nodes[rec.ID]
	m.drop(n)
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if _, err := m.index.PutNode(*facts); err != nil {
			panic(err) // memory would no longer equal the rows
		}
		m.put(n)
	})
	return nil
}

// ExplainNode says in words what a node is and what it lacks.
func (c *Control) ExplainNode(ctx context.Context, who appliance.Caller, in appliance.NodeRef) (appliance.NodeExplanation, error) {
	n, err := c.GetNode(ctx, who, in)
	if err != nil {
		return appliance.NodeExplanation{}, err
	}
	x := appliance.NodeExplanation{NodeID: n.ID, State: n.State, Schedulable: n.Schedulable, Findings: []string{}, Helps: []string{}}
	x.Message = fmt.Sprintf("%s is %s and takes new bookings", n.Hostname, n.State)
	if !n.Schedulable {
		x.Message = fmt.Sprintf("%s is %s and takes no new bookings", n.Hostname, n.State)
	}
	help := map[string]string{
		appliance.ConditionReachable:      "start the agent there: systemctl start bcd",
		appliance.ConditionAccepted:       "mend what the check names; it runs again by itself",
		appliance.ConditionModelMatches:   "bc nodes remove " + n.ID,
		appliance.ConditionGPUHealthy:     "look at the driver on the node: nvidia-smi",
		appliance.ConditionConfigApplied:  "bc nodes get " + n.ID,
		appliance.ConditionRebootRequired: "bc nodes reboot " + n.ID + ", which waits for its reservations to end",
		appliance.ConditionEnforced:       "start its agent as root with --manage-host, with systemd 244 or newer and cgroup v2 alone, to have reservations walled in",
	}
	for _, cond := range n.Conditions {
		unwalled := cond.Type == appliance.ConditionEnforced && !cond.Status && !n.Simulated
		if cond.Bad() || unwalled {
			x.Findings = append(x.Findings, cond.Type+": "+cond.Message)
			x.Helps = append(x.Helps, help[cond.Type])
		}
	}
	if r := n.Reboot; r != nil && (!r.State.Over() || r.State == appliance.RebootFailed) {
		x.Findings = append(x.Findings, fmt.Sprintf("Reboot: %s: %s", r.State, r.Message))
	}
	if n.State == appliance.NodeCordoned || n.State == appliance.NodeDraining {
		x.Helps = append(x.Helps, "bc nodes uncordon "+n.ID)
	}
	return x, nil
}
