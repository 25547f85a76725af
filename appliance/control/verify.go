package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// verify holds the invariants against the rows: no atom booked twice,
// allocated and used equal to the sums of live bookings, every held atom with
// its booking. It names what differs.
func (c *Control) verify(tx *store.Tx, live []store.Claim) error {
	m := &c.mem
	var wrong []string
	if err := m.index.Check(); err != nil {
		wrong = append(wrong, err.Error())
	}
	used, atoms := map[quotaKey]int{}, map[store.HeldAtom]bool{}
	for _, r := range live {
		if !r.State.Booked() {
			continue
		}
		for _, name := range r.Resources.Names() {
			used[quotaKey{r.TenantID, r.PoolID, name}] += r.Resources[name]
		}
		for _, p := range r.Placements {
			for _, a := range p.Atoms {
				atoms[store.HeldAtom{NodeID: p.NodeID, Atom: a, ReservationID: r.ID}] = true
			}
		}
	}
	for k, q := range m.quotas {
		if q.used != used[k] {
			wrong = append(wrong, fmt.Sprintf("quota %s of tenant %s in pool %s says %d used, live bookings sum to %d", k.resource, k.tenant, k.pool, q.used, used[k]))
		}
		delete(used, k)
	}
	for k, n := range used {
		if n > 0 {
			wrong = append(wrong, fmt.Sprintf("tenant %s holds %d %s in pool %s without a quota row", k.tenant, n, k.resource, k.pool))
		}
	}
	held, err := tx.HeldAtoms()
	if err != nil {
		return err
	}
	for _, h := range held {
		if !atoms[h] {
			wrong = append(wrong, fmt.Sprintf("atom %s of node %s is held by %s, which does not book it", h.Atom, h.NodeID, h.ReservationID))
		}
		delete(atoms, h)
	}
	for h := range atoms {
		wrong = append(wrong, fmt.Sprintf("reservation %s books atom %s of node %s, which is not held", h.ReservationID, h.Atom, h.NodeID))
	}
	ledgers, err := tx.Ledgers()
	if err != nil {
		return err
	}
	for _, l := range ledgers {
		n, _ := m.index.Node(l.NodeID)
		for i, row := range l.Resources {
			if i < len(n.Rows) && n.Rows[i].Resource == row.Resource && n.Rows[i].Allocated != row.Allocated {
				wrong = append(wrong, fmt.Sprintf("node %s has %d %s allocated, its bookings sum to %d", l.NodeID, row.Allocated, row.Resource, n.Rows[i].Allocated))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("the state does not add up, so nothing was started; keep the file and restore a backup: %s", strings.Join(wrong, "; "))
}

// Verify reads the state again and holds the invariants against memory, in one
// write so that nothing moves meanwhile.
func (c *Control) Verify(ctx context.Context) error {
	return c.Store.Write(ctx, func(tx *store.Tx) error {
		if err := c.flush(tx); err != nil {
			return err
		}
		live, err := tx.LiveReservations()
		if err != nil {
			return err
		}
		c.mem.mu.RLock()
		defer c.mem.mu.RUnlock()
		if err := c.verify(tx, live); err != nil {
			return err
		}
		for _, r := range live {
			_, booked := c.mem.index.Booking(r.ID)
			if booked != r.State.Booked() {
				return fmt.Errorf("reservation %s is %s, in memory booked=%t", r.ID, r.State, booked)
			}
		}
		return nil
	})
}

// bookingOf is a reservation's booking as the index takes it.
func bookingOf(r appliance.Reservation) plan.Booking {
	return plan.Booking{ReservationID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, Binding: r.Binding, Placements: r.Placements}
}
