package control

import (
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// confirm takes what a node says of its bindings: a reservation is active once
// every node of it enforces its share.
func (c *Control) confirm(tx *store.Tx, tr trail, rec store.NodeRecord, bindings []wire.BindingStatus) error {
	for _, b := range bindings {
		r, found, err := tx.FindReservation(b.ReservationID)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(r.Placements, func(p appliance.Placement) bool { return p.NodeID == rec.ID })
		if !found || i < 0 || !r.State.Booked() || b.Ending {
			continue
		}
		from := r.State
		ok, message := b.Failed == "", nodeSays(r.Message, rec.Hostname, b)
		if r.Placements[i].Confirmed == ok && message == r.Message {
			continue
		}
		r.Placements = slices.Clone(r.Placements)
		r.Placements[i].Confirmed = ok || r.Placements[i].Confirmed
		r.Message = message
		if err := c.activate(tx, tr, &r); err != nil {
			return err
		}
		if _, err := tx.UpdateReservation(r, from); err != nil {
			return err
		}
	}
	return nil
}

// onlyBooked begins the message of a reservation that a node does not wall in.
const onlyBooked = "booked and confirmed; "

// nodeSays is the message of a reservation after a node has told how its share
// is: what it says amiss, or else the message without what it said before.
func nodeSays(before, hostname string, b wire.BindingStatus) string {
	node := "node " + hostname + " "
	switch {
	case b.Failed != "":
		return node + "cannot enforce it: " + b.Failed
	case b.Unenforced && b.Note == "": // an agent that gives no reasons
		return onlyBooked + "this node does not wall the resources in"
	case b.Unenforced:
		return onlyBooked + node + "does not wall the resources in: " + b.Note
	case strings.HasPrefix(before, node), strings.HasPrefix(before, onlyBooked+node), strings.HasPrefix(before, onlyBooked+"this node"):
		return ""
	}
	return before
}

func (c *Control) activate(tx *store.Tx, tr trail, r *store.Claim) error {
	waits := slices.ContainsFunc(r.Placements, func(p appliance.Placement) bool { return !p.Confirmed })
	if r.State != appliance.Placed || waits {
		return nil
	}
	now := c.now()
	r.State, r.ActiveAt = appliance.Active, &now
	if !strings.HasPrefix(r.Message, onlyBooked) {
		r.Message = ""
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventReservationActive, r.TenantID, r.ID, now), c.mem.pool(r.PoolID)), reservationEvent(r.Reservation))
	return err
}
