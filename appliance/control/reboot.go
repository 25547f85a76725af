package control

import (
	"context"
	"fmt"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// RebootNode has a node's machine rebooted by its agent, once. The node takes
// no new bookings from now on. The agent is given leave when no reservation is
// left on it, or at once with Now: then reservations keep what they hold, and
// what runs in them is killed. The node takes bookings again when it reports
// from another boot, unless somebody held it for another reason. Again changes
// nothing; uncordon withdraws it.
func (c *Control) RebootNode(ctx context.Context, who appliance.Caller, in appliance.RebootNode) (appliance.Node, error) {
	ref := appliance.NodeRef{TenantID: in.TenantID, NodeID: in.NodeID}
	if in.DryRun {
		return c.tryReboot(ctx, who, ref, in.Now)
	}
	return c.changeNode(ctx, who, ref, func(tx *store.Tx, tr trail, rec *store.NodeRecord) error {
		inv, err := tx.Inventory(rec.ID)
		if err != nil {
			return err
		}
		if err := canReboot(*rec, inv); err != nil {
			return err
		}
		r, err := tx.Reboot(rec.ID)
		if err != nil {
			return err
		}
		if r != nil && !r.State.Over() {
			if r.Now || !in.Now {
				return nil
			}
			r.Now = true
			return c.putReboot(tx, tr, *rec, *r, r.State)
		}
		r = &store.Reboot{
			Reboot: appliance.Reboot{ID: c.newID(appliance.RebootPrefix), State: appliance.RebootRequested, Now: in.Now, RequestedAt: c.now()},
			BootID: inv.BootID, Drained: rec.Hold == "",
		}
		if r.Drained {
			rec.Hold = appliance.NodeDraining
		}
		return c.putReboot(tx, tr, *rec, *r, "")
	})
}

// tryReboot shows the node as it would be with the reboot asked for.
func (c *Control) tryReboot(ctx context.Context, who appliance.Caller, ref appliance.NodeRef, now bool) (out appliance.Node, err error) {
	if _, err := c.inTenant(who, ref.TenantID); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		rec, err := c.nodeSeen(tx, who, appliance.NodesManage, ref)
		if err != nil {
			return err
		}
		if rec.RemovedAt != nil {
			return removed(rec)
		}
		inv, err := tx.Inventory(rec.ID)
		if err != nil {
			return err
		}
		if err := canReboot(rec, inv); err != nil {
			return err
		}
		r, err := tx.Reboot(rec.ID)
		if err != nil {
			return err
		}
		if r == nil || r.State.Over() {
			r = &store.Reboot{Reboot: appliance.Reboot{State: appliance.RebootRequested, RequestedAt: c.now()}}
		}
		r.Now = r.Now || now
		if out, err = c.viewNode(tx, rec, ref.TenantID); err == nil {
			out.Reboot = c.viewReboot(r, rec, ref.TenantID)
		}
		return err
	})
	return out, c.deny(ctx, who, appliance.NodesManage, ref.TenantID, ref.NodeID, err)
}

func removed(rec store.NodeRecord) error {
	return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: %s is removed", rec.Hostname)
}

// canReboot refuses what the node's agent could not do, with what to do instead.
func canReboot(rec store.NodeRecord, inv wire.Inventory) error {
	refuse := func(reason, format string, args ...any) error {
		return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: "+format, args...).WithReason(reason)
	}
	byHand := fmt.Sprintf("drain it (bc nodes drain %s), reboot the machine by hand when its reservations have ended (systemctl reboot), then bc nodes uncordon %s", rec.ID, rec.ID)
	switch {
	case rec.State == appliance.NodeUnreachable:
		return refuse("unreachable", "%s is unreachable: its agent cannot be asked; look at bcd there (systemctl status bcd), or reboot the machine by hand", rec.Hostname)
	case inv.Agent == nil:
		return refuse("agent-too-old", "the agent of %s is older than this verb; update it, or %s", rec.Hostname, byHand)
	case inv.Agent.NoReboot != "":
		return refuse("agent-cannot", "the agent of %s cannot reboot the machine: %s; %s", rec.Hostname, inv.Agent.NoReboot, byHand)
	case inv.BootID == "":
		return refuse("agent-cannot", "%s does not tell its boots apart, so a reboot could be repeated; %s", rec.Hostname, byHand)
	}
	return nil
}

// putReboot keeps a reboot, tells of it, and wakes the node's agent.
func (c *Control) putReboot(tx *store.Tx, tr trail, rec store.NodeRecord, r store.Reboot, before appliance.RebootState) error {
	if err := tx.PutReboot(rec.ID, r); err != nil {
		return err
	}
	c.dirty(tx, rec.ID)
	p := c.mem.pool(rec.PoolID)
	data := map[string]any{"nodeId": rec.ID, "hostname": rec.Hostname, "rebootId": r.ID, "state": r.State, "before": before}
	if r.Now {
		data["now"] = true
	}
	if r.Message != "" {
		data["reason"] = r.Message
	}
	if held := c.bookingsOn(rec.ID, ""); len(held) > 0 && !r.State.Over() {
		data["reservations"] = held
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventNodeReboot, p.OwnerTenantID, rec.ID, c.now()), p), data)
	return err
}

// bookingsOn lists the live shares of a node, of one tenant or of all, in order
// of reservation.
func (c *Control) bookingsOn(nodeID, tenant string) []appliance.NodeBooking {
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	out := []appliance.NodeBooking{}
	for _, s := range c.mem.index.Shares(nodeID) {
		if tenant == "" || s.TenantID == tenant {
			out = append(out, appliance.NodeBooking{ReservationID: s.ReservationID, TenantID: s.TenantID, Devices: s.Placement.Devices})
		}
	}
	return out
}

// withdrawReboot is what uncordoning means for a reboot that is not over. One
// that the agent was given leave for has begun, as far as anyone can know: it is
// withdrawn only of a node that is not heard of.
func (c *Control) withdrawReboot(tx *store.Tx, tr trail, rec store.NodeRecord) error {
	r, err := tx.Reboot(rec.ID)
	if err != nil || r == nil {
		return err
	}
	if r.State == appliance.RebootRebooting && rec.State != appliance.NodeUnreachable && rec.RemovedAt == nil {
		return appliance.Refuse(appliance.InvalidState, "nodeId", "nodeId: %s is being rebooted since %s; it takes bookings again when it is back",
			rec.Hostname, r.RebootingAt.UTC().Format("2006-01-02 15:04:05Z")).WithReason("rebooting")
	}
	before := r.State
	r.Drained = false
	if before.Over() {
		return tx.PutReboot(rec.ID, *r)
	}
	r.State = appliance.RebootWithdrawn
	return c.putReboot(tx, tr, rec, *r, before)
}

// holdAfterReboot has a node stay held when it is back, for somebody said so.
func (c *Control) holdAfterReboot(tx *store.Tx, rec store.NodeRecord) error {
	r, err := tx.Reboot(rec.ID)
	if err != nil || r == nil || !r.Drained {
		return err
	}
	r.Drained = false
	return tx.PutReboot(rec.ID, *r)
}

// GiveLeave answers an agent that could reboot its machine now. Leave is kept
// before it is given: after that no booking comes onto the node until it is in
// another boot, and whoever asks again in the same boot gets it again.
func (c *Control) GiveLeave(ctx context.Context, who appliance.Caller, in wire.RebootReport) (out wire.RebootReply, err error) {
	if err := c.asNode(who, in.NodeID); err != nil {
		return out, err
	}
	err = c.Store.Write(ctx, func(tx *store.Tx) error {
		out.Go = false
		rec, err := tx.Node(who.ID)
		if err != nil {
			return err
		}
		r, err := tx.Reboot(rec.ID)
		if err != nil || r == nil || r.State.Over() || r.ID != in.ID || r.BootID != in.BootID {
			return err
		}
		tr, before := trail{who: who, policies: "nodes-report"}, r.State
		if in.Failed != "" {
			r.State, r.Message = appliance.RebootFailed, in.Failed
			return c.putReboot(tx, tr, rec, *r, before)
		}
		if rec.Hold == "" || !r.Now && len(c.bookingsOn(rec.ID, "")) > 0 {
			return nil
		}
		out.Go = true
		if r.State == appliance.RebootRebooting {
			return nil
		}
		at := c.now()
		r.State, r.RebootingAt = appliance.RebootRebooting, &at
		return c.putReboot(tx, tr, rec, *r, before)
	})
	return out, err
}

// cameUp takes that a node reports from another boot than before: whatever
// rebooted it, the reboot that was asked for is done. The caller settles the node.
func (c *Control) cameUp(tx *store.Tx, tr trail, rec *store.NodeRecord, bootID string) error {
	r, err := tx.Reboot(rec.ID)
	if err != nil || r == nil || r.State == appliance.RebootDone || r.State == appliance.RebootWithdrawn || r.BootID == bootID {
		return err
	}
	before, at := r.State, c.now()
	r.State, r.DoneAt, r.Message = appliance.RebootDone, &at, ""
	if before != appliance.RebootRebooting {
		r.Message = "the machine was rebooted by other means"
	}
	if r.Drained && rec.Hold == appliance.NodeDraining {
		rec.Hold = ""
	}
	r.Drained = false
	return c.putReboot(tx, tr, *rec, *r, before)
}

// wantedReboot is the reboot that a node's agent is asked for, if nothing is in
// its way.
func wantedReboot(r *store.Reboot, bindings int) *wire.Reboot {
	if r == nil || r.State.Over() || bindings > 0 && !r.Now {
		return nil
	}
	return &wire.Reboot{ID: r.ID, BootID: r.BootID, Now: r.Now}
}

// viewReboot is a node's reboot as a tenant sees it: another than the pool's
// owner is shown its own reservations alone. Nil: none was asked for.
func (c *Control) viewReboot(kept *store.Reboot, rec store.NodeRecord, tenant string) *appliance.Reboot {
	if kept == nil {
		return nil
	}
	r := kept.Reboot
	if r.State.Over() {
		return &r
	}
	all := c.bookingsOn(rec.ID, "")
	r.Reservations = all
	others := c.mem.pool(rec.PoolID).OwnerTenantID != tenant
	if others {
		r.Reservations = c.bookingsOn(rec.ID, tenant)
	}
	switch {
	case r.State == appliance.RebootRebooting:
		r.Message = "it was handed to the machine and is done when the node reports from another boot"
	case len(all) > 0 && !r.Now && others:
		r.State, r.Message = appliance.RebootWaiting, "waits for the reservations on the node to end"
	case len(all) == 1 && !r.Now:
		r.State, r.Message = appliance.RebootWaiting, "waits for 1 reservation to end"
	case len(all) > 0 && !r.Now:
		r.State, r.Message = appliance.RebootWaiting, fmt.Sprintf("waits for %d reservations to end", len(all))
	default:
		r.Message = "the node's agent takes it up next"
	}
	return &r
}
