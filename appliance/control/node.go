package control

import (
	"context"
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
	facts := nodeFacts(p, rec, inv)
	n := appliance.Node{
		ID: rec.ID, PoolID: rec.PoolID, Hostname: rec.Hostname, Role: rec.Role, Control: rec.Control, State: rec.State,
		Schedulable: facts.Schedulable, Conditions: rec.Conditions, Attributes: facts.Attributes, Labels: rec.Labels,
		Devices: []appliance.Device{}, Resources: []appliance.ResourceRow{}, Units: rec.Units, Simulated: rec.Simulated, JoinedAt: rec.JoinedAt,
	}
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	if live := m.nodes[rec.ID]; live != nil && live.reported {
		at := appliance.At(live.seen)
		n.SeenAt = &at
	}
	if rows := m.rows(rec.ID); rows != nil {
		n.Resources = rows
	}
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
			n.Devices = append(n.Devices, c.viewDevice(p, g, holders[g.UUID]))
		}
	}
	return n, nil
}

func (c *Control) viewDevice(p *pool, g wire.GPU, holders []string) appliance.Device {
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
		d.Atoms = p.policy.Replicas(p.Sharing)
	default:
		d.Atoms = 1
	}
	return d
}
