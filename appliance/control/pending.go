package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

const topicPending = "pending" // something changed that a pending reservation may wait for

// enqueue puts a pending reservation into its pool's queue, in order of
// creation.
func (c *Control) enqueue(tx *store.Tx, r store.Claim) {
	c.setWaiting(tx, r.PoolID, func(q []waiting) []waiting {
		at, _ := slices.BinarySearchFunc(q, r.Queue, func(w waiting, n int64) int { return cmp.Compare(w.queue, n) })
		return slices.Insert(slices.Clone(q), at, waitingOf(r))
	})
}

func (c *Control) dequeue(tx *store.Tx, r store.Claim) {
	c.setWaiting(tx, r.PoolID, func(q []waiting) []waiting {
		return slices.DeleteFunc(slices.Clone(q), func(w waiting) bool { return w.id == r.ID })
	})
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	c.endTurn(tx, r.PoolID, r.ID)
}

func waitingOf(r store.Claim) waiting {
	return waiting{queue: r.Queue, id: r.ID, asked: &r.Reservation}
}

func (c *Control) setWaiting(tx *store.Tx, poolID string, change func([]waiting) []waiting) {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.waiting[poolID]
	m.waiting[poolID] = change(before)
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.waiting[poolID] = before
	})
}

// stir marks a pool in which something changed that its pending reservations
// may wait for, and wakes those who retry them once it is committed. It takes
// mu in the end, so the caller may hold it now.
func (c *Control) stir(tx *store.Tx, poolID string) {
	tx.Touch(topicPending)
	tx.Done(func() {
		c.mem.mu.Lock()
		defer c.mem.mu.Unlock()
		if len(c.mem.waiting[poolID]) > 0 {
			c.mem.stirred[poolID] = true
		}
	})
}

// PendingChanged is closed after the next commit that changed something that a
// pending reservation may wait for.
func (c *Control) PendingChanged() <-chan struct{} { return c.Store.ChangedIn(topicPending) }

// RetryStirred tries the pending reservations of the pools in which something
// changed since the last time.
func (c *Control) RetryStirred(ctx context.Context) error {
	c.mem.mu.Lock()
	pools := sortedKeys(c.mem.stirred)
	clear(c.mem.stirred)
	c.mem.mu.Unlock()
	for _, id := range pools {
		if err := c.retryPool(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// RetryAll tries the pending reservations of every pool, and gives those that
// have waited for long their turn.
func (c *Control) RetryAll(ctx context.Context) error {
	c.mem.mu.RLock()
	pools := sortedKeys(c.mem.waiting)
	c.mem.mu.RUnlock()
	for _, id := range pools {
		if err := c.retryPool(ctx, id); err != nil {
			return err
		}
		if err := c.takeTurns(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// explained is for how many of a pool's reservations, the oldest first, a retry
// writes down why they wait. Explaining looks at every node, and it is for
// those that come next that the answer holds; reservations.explain answers for
// any.
const explained = 32

// retryPool tries a pool's pending reservations in order of creation. One
// whose pool is gone for its tenant, or that has waited for too long, fails.
func (c *Control) retryPool(ctx context.Context, poolID string) error {
	c.mem.mu.RLock()
	queue := slices.Clone(c.mem.waiting[poolID])
	c.mem.mu.RUnlock()
	for i, w := range queue {
		var err error
		if c.ripe(w) {
			err = c.Store.Write(ctx, func(tx *store.Tx) error { return c.retry(tx, w.id) })
		}
		if err == nil && i < explained {
			_, err = c.noteWhy(ctx, w.id)
		}
		if err != nil && !isNotFound(err) {
			return fmt.Errorf("retry reservation %s: %w", w.id, err)
		}
	}
	return nil
}

// ripe tells, at the price of no write, whether something is to be done about a
// reservation that waits: it fits now, or has to fail.
func (c *Control) ripe(w waiting) bool {
	p, _ := c.mem.poolSeen(w.asked.PoolID, w.asked.TenantID)
	if p == nil || p.Archived || c.now().Sub(w.asked.CreatedAt.Time) > p.policy.MaxPending() {
		return true
	}
	m := &c.mem
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.tenants[w.asked.TenantID].State != appliance.TenantActive || len(m.shortNow(w.asked.TenantID, p.ID, w.asked.Resources)) > 0 {
		return false
	}
	if m.turns[p.ID].id == w.id { // the index does not show it what is kept for it
		return true
	}
	_, fits := m.index.Place(request(p, *w.asked))
	return fits
}

// noteWhy writes down why a reservation is still pending, if that has changed,
// and gives it. Explaining looks at every node of the pool, so it is not done
// on the writer.
func (c *Control) noteWhy(ctx context.Context, id string) (string, error) {
	var r store.Claim
	err := c.Store.Read(ctx, func(tx *store.Tx) (err error) {
		r, err = tx.Reservation(id)
		return err
	})
	if err != nil || r.State != appliance.Pending {
		return r.Message, err
	}
	why := c.whyPending(c.mem.pool(r.PoolID), r.Reservation)
	if why == r.Message {
		return why, nil
	}
	return why, c.Store.Write(ctx, func(tx *store.Tx) error {
		r, err := tx.Reservation(id)
		if err != nil || r.State != appliance.Pending {
			return err
		}
		r.Message = why
		_, err = tx.UpdateReservation(r, appliance.Pending)
		return err
	})
}

func (c *Control) retry(tx *store.Tx, id string) error {
	r, err := tx.Reservation(id)
	if err != nil || r.State != appliance.Pending {
		return err
	}
	tr := system("pending")
	p, _ := c.mem.poolSeen(r.PoolID, r.TenantID)
	if p == nil || p.Archived {
		_, err := c.end(tx, tr, &r, appliance.ReasonPoolGone, "the pool is archived or no longer offered to the tenant")
		return err
	}
	if limit := p.policy.MaxPending(); c.now().Sub(r.CreatedAt.Time) > limit {
		_, err := c.end(tx, tr, &r, appliance.ReasonMaxPending, fmt.Sprintf("pending for more than %s; last: %s", limit, r.Message))
		return err
	}
	if t, _ := c.mem.tenant(r.TenantID); t.State == appliance.TenantActive && len(c.mem.short(r.TenantID, p.ID, r.Resources)) == 0 {
		placed, err := c.tryPlace(tx, p, &r.Reservation)
		if err != nil {
			return err
		}
		if placed {
			c.dequeue(tx, r)
			if err := c.putPlaced(tx, tr, p, r.Reservation); err != nil {
				return err
			}
			if ok, err := tx.UpdateReservation(r, appliance.Pending); err != nil || !ok {
				return orMoved(err, r.ID)
			}
		}
	}
	return nil
}
