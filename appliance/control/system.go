package control

import (
	"context"
	"fmt"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// maxAttention is how many findings a status lists.
const maxAttention = 50

// Status shows the control plane in one answer.
func (c *Control) Status(ctx context.Context, who appliance.Caller, in appliance.SystemRef) (out appliance.SystemStatus, err error) {
	if in.TenantID == "" {
		if in.TenantID = who.Tenant; in.TenantID == "" {
			in.TenantID = appliance.Root
		}
	}
	if _, _, err := c.forTenant(who, appliance.SystemRead, in.TenantID); err != nil {
		return out, err
	}
	home, site, err := c.Home(ctx)
	if err != nil {
		return out, err
	}
	out = appliance.SystemStatus{Version: c.Version, StartedAt: c.started, Tenant: home, SiteID: site.ID, SiteName: site.Name, Attention: []appliance.Attention{}}
	c.mem.mu.RLock()
	for id, p := range c.mem.pools {
		if p.Archived {
			continue
		}
		got := c.mem.index.Capacity(id, perGPU(p))
		out.Pools++
		out.Nodes.Total += got.Nodes.Total
		out.Nodes.Schedulable += got.Nodes.Schedulable
		out.Devices.Healthy += got.Devices.Healthy
		out.Devices.Unhealthy += got.Devices.Unhealthy
		out.Pending += len(c.mem.waiting[id])
	}
	for _, n := range c.mem.nodes {
		out.Simulated = out.Simulated || n.simulated
	}
	c.mem.mu.RUnlock()
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		out.Attention, err = c.attention(tx)
		return err
	})
	return out, err
}

// attention lists what needs somebody: nodes that are not well, and
// reservations that wait.
func (c *Control) attention(tx *store.Tx) ([]appliance.Attention, error) {
	out := []appliance.Attention{}
	nodes, err := tx.NodesUnwell(maxAttention)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		message := fmt.Sprintf("node %s is %s", n.Hostname, n.State)
		for _, cond := range n.Conditions {
			if cond.Bad() && cond.Message != "" {
				message += ": " + cond.Message
				break
			}
		}
		out = append(out, appliance.Attention{Subject: n.ID, Message: message, Command: "bc nodes get " + n.ID})
	}
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	for _, id := range sortedKeys(c.mem.waiting) {
		if n := len(c.mem.waiting[id]); n > 0 && len(out) < maxAttention {
			first := c.mem.waiting[id][0].id
			message := fmt.Sprintf("%d reservations wait in pool %s", n, poolLabel(c.mem.pools[id]))
			if n == 1 {
				message = "a reservation waits in pool " + poolLabel(c.mem.pools[id])
			}
			out = append(out, appliance.Attention{Subject: id, Message: message, Command: "bc reservations explain " + first})
		}
	}
	return out, nil
}

// poolLabel is how people call a pool.
func poolLabel(p *pool) string {
	if p.Name != "" {
		return p.Name
	}
	return p.ID
}

// Ready says why the control plane cannot serve yet, nil when it can: the
// store takes writes.
func (c *Control) Ready(ctx context.Context) error {
	return c.Store.Write(ctx, func(*store.Tx) error { return nil })
}

// LastEvent is the sequence number of the newest event.
func (c *Control) LastEvent(ctx context.Context) (n int64, err error) {
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		n, err = tx.LastSeq()
		return err
	})
	return n, err
}
