package control

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// newestEvents is how many events are looked at for a gap at every start;
// Verify looks at all.
const newestEvents = 10_000

// findings gathers what does not add up.
type findings []string

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// verify holds the invariants against the rows: no atom booked twice, allocated
// and used equal to the sums of live bookings, every held atom with its
// booking, no gap among the newest events. It names what differs.
func (c *Control) verify(tx *store.Tx, live []store.Claim, events int) error {
	var wrong findings
	if err := c.mem.index.Check(); err != nil {
		wrong.add("%s", err)
	}
	for _, check := range []func(*store.Tx, []store.Claim, *findings) error{c.verifyQuotas, c.verifyAtoms, c.verifyNodes} {
		if err := check(tx, live, &wrong); err != nil {
			return err
		}
	}
	if err := c.verifyReleasing(tx, &wrong); err != nil {
		return err
	}
	if err := c.verifyRollouts(tx, &wrong); err != nil {
		return err
	}
	stray, err := tx.StrayHolds()
	if err != nil {
		return err
	}
	for _, id := range stray {
		wrong.add("the hold of reservation %s is not what the reservation says", id)
	}
	gaps, err := tx.EventGaps(events)
	if err != nil {
		return err
	}
	if gaps > 0 {
		wrong.add("%d events are missing", gaps)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("the state does not add up, so nothing was started; keep the file and restore a backup: %s", strings.Join(wrong, "; "))
}

// verifyQuotas compares the sums of live bookings with the rows and those in
// memory.
func (c *Control) verifyQuotas(tx *store.Tx, live []store.Claim, wrong *findings) error {
	used := map[quotaKey]int{}
	for _, r := range live {
		if !r.State.Booked() {
			continue
		}
		for name, n := range r.Resources {
			used[quotaKey{r.TenantID, r.PoolID, name}] += n
		}
	}
	rows, err := tx.AllQuotas()
	if err != nil {
		return err
	}
	if len(rows) != len(c.mem.quotas) {
		wrong.add("there are %d quota rows, in memory %d", len(rows), len(c.mem.quotas))
	}
	for _, q := range rows {
		k := quotaKey{q.TenantID, q.PoolID, q.Resource}
		if q.Used != used[k] {
			wrong.add("quota %s of tenant %s in pool %s says %d used, live bookings sum to %d", k.resource, k.tenant, k.pool, q.Used, used[k])
		}
		if have := c.mem.quotas[k]; have == nil || have.used != q.Used || have.max != q.Max {
			wrong.add("quota %s of tenant %s in pool %s is %d of %d, in memory it is not", k.resource, k.tenant, k.pool, q.Used, q.Max)
		}
		delete(used, k)
	}
	for k, n := range used {
		if n > 0 {
			wrong.add("tenant %s holds %d %s in pool %s without a quota row", k.tenant, n, k.resource, k.pool)
		}
	}
	return nil
}

// verifyAtoms compares what is held with what live bookings hold.
func (c *Control) verifyAtoms(tx *store.Tx, live []store.Claim, wrong *findings) error {
	atoms := map[store.HeldAtom]bool{}
	for _, r := range live {
		if !r.State.Booked() {
			continue
		}
		for _, p := range r.Placements {
			for _, a := range p.Atoms {
				atoms[store.HeldAtom{NodeID: p.NodeID, Atom: a, ReservationID: r.ID}] = true
			}
		}
	}
	held, err := tx.HeldAtoms()
	if err != nil {
		return err
	}
	for _, h := range held {
		if !atoms[h] {
			wrong.add("atom %s of node %s is held by %s, which does not book it", h.Atom, h.NodeID, h.ReservationID)
		}
		delete(atoms, h)
	}
	for h := range atoms {
		wrong.add("reservation %s books atom %s of node %s, which is not held", h.ReservationID, h.Atom, h.NodeID)
	}
	return nil
}

// verifyNodes compares the stored counters of nodes with the index, which sums
// the bookings.
func (c *Control) verifyNodes(tx *store.Tx, _ []store.Claim, wrong *findings) error {
	ledgers, err := tx.Ledgers()
	if err != nil {
		return err
	}
	for _, l := range ledgers {
		rows := c.mem.index.Rows(l.NodeID)
		if len(rows) != len(l.Resources) {
			wrong.add("node %s has %d resource rows, in memory %d", l.NodeID, len(l.Resources), len(rows))
			continue
		}
		for i, row := range l.Resources {
			if rows[i] != row {
				wrong.add("node %s has %d of %d %s allocated, its bookings sum to %d of %d", l.NodeID, row.Allocated, row.Total, row.Resource, rows[i].Allocated, rows[i].Total)
			}
		}
		if n := c.mem.nodes[l.NodeID]; n == nil || n.generation != l.Generation {
			wrong.add("node %s has generation %d, in memory it has not", l.NodeID, l.Generation)
		}
	}
	if len(ledgers) != len(c.mem.nodes) {
		wrong.add("there are %d nodes with counters, in memory %d", len(ledgers), len(c.mem.nodes))
	}
	return nil
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
		if err := c.verify(tx, live, math.MaxInt32); err != nil {
			return err
		}
		return c.verifyMemory(live)
	})
}

// verifyMemory compares what is kept of live reservations with their rows.
func (c *Control) verifyMemory(live []store.Claim) error {
	queues, timed := map[string][]waiting{}, 0
	for _, r := range live {
		if _, booked := c.mem.index.Booking(r.ID); booked != r.State.Booked() {
			return fmt.Errorf("reservation %s is %s, in memory booked=%t", r.ID, r.State, booked)
		}
		if r.State == appliance.Pending {
			queues[r.PoolID] = append(queues[r.PoolID], waitingOf(r))
		}
		if r.ExpiresAt != nil {
			timed++
			if at := c.mem.ends.at[r.ID]; !at.Equal(r.ExpiresAt.Time) {
				return fmt.Errorf("reservation %s ends at %s, in memory at %s", r.ID, r.ExpiresAt, at)
			}
		}
	}
	if timed != len(c.mem.ends.at) {
		return fmt.Errorf("%d live reservations have an end, in memory %d", timed, len(c.mem.ends.at))
	}
	for pool, kept := range c.mem.waiting {
		want := queues[pool]
		delete(queues, pool)
		if !slices.EqualFunc(kept, want, func(a, b waiting) bool { return a.id == b.id && a.queue == b.queue }) {
			return fmt.Errorf("in pool %s wait %v, in memory %v", pool, want, kept)
		}
	}
	for pool, want := range queues {
		return fmt.Errorf("in pool %s wait %v, in memory none", pool, want)
	}
	return nil
}

// bookingOf is a reservation's booking as the index takes it.
func bookingOf(r appliance.Reservation) plan.Booking {
	return plan.Booking{ReservationID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, Binding: r.Binding, Placements: r.Placements}
}
