package control

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

const topicExpiries = "expiries" // an end came to be the first

// ends are the ends of live reservations, the first of them at hand.
type ends struct {
	at    map[string]appliance.Time
	queue endQueue // holds every end of at, and some that are no longer so
}

type end struct {
	at appliance.Time
	id string
}

// set changes the end of a reservation, nil to forget it, and tells whether it
// is now the first.
func (e *ends) set(id string, at *appliance.Time) (first bool) {
	if at == nil {
		delete(e.at, id)
	} else {
		if e.at == nil {
			e.at = map[string]appliance.Time{}
		}
		e.at[id] = *at
		heap.Push(&e.queue, end{*at, id})
		first = e.queue[0].id == id
	}
	if len(e.queue) > 2*len(e.at)+64 { // mostly of the past: those that ended early, or moved
		e.queue = e.queue[:0]
		for id, at := range e.at {
			e.queue = append(e.queue, end{at, id})
		}
		heap.Init(&e.queue)
	}
	return first
}

// due takes up to limit reservations whose end has come, in order, and says
// when the next one is: the zero time if there is none. What is taken stays
// known and comes again with put.
func (e *ends) due(now appliance.Time, limit int) (due []end, next appliance.Time) {
	for len(e.queue) > 0 {
		first := e.queue[0]
		if at, ok := e.at[first.id]; !ok || !at.Equal(first.at.Time) {
			heap.Pop(&e.queue)
			continue
		}
		if first.at.After(now.Time) || len(due) == limit {
			return due, first.at
		}
		if len(due) == 0 || due[len(due)-1] != first { // an end that was set twice stands there twice
			due = append(due, first)
		}
		heap.Pop(&e.queue)
	}
	return due, appliance.Time{}
}

func (e *ends) put(taken []end) {
	for _, t := range taken {
		heap.Push(&e.queue, t)
	}
}

type endQueue []end

func (q endQueue) Len() int { return len(q) }
func (q endQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at.Time) || q[i].at.Equal(q[j].at.Time) && q[i].id < q[j].id
}
func (q endQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *endQueue) Push(x any)   { *q = append(*q, x.(end)) }
func (q *endQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = slices.Delete(*q, last, last+1)
	return x
}

// setExpiry keeps the end of a live reservation in memory; nil forgets it.
func (c *Control) setExpiry(tx *store.Tx, id string, at *appliance.Time) {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before, was := m.ends.at[id]
	if !was && at == nil {
		return
	}
	if m.ends.set(id, at) {
		tx.Touch(topicExpiries)
	}
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if was {
			m.ends.set(id, &before)
		} else {
			m.ends.set(id, nil)
		}
	})
}

// ExpiriesChanged is closed after the next commit that gave some reservation
// the first end of all.
func (c *Control) ExpiriesChanged() <-chan struct{} { return c.Store.ChangedIn(topicExpiries) }

// endsAtOnce is how many reservations end in one transaction, so that no write
// holds the others up for long.
const endsAtOnce = 32

// ExpireDue ends the reservations whose time has come, and says how long it is
// to the next; 0 if none has an end.
func (c *Control) ExpireDue(ctx context.Context) (time.Duration, error) {
	m := &c.mem
	for {
		now := c.now()
		m.mu.Lock()
		due, next := m.ends.due(now, endsAtOnce)
		m.ends.put(due) // they leave when they end
		m.mu.Unlock()
		if len(due) == 0 {
			if next.IsZero() {
				return 0, nil
			}
			return next.Sub(now.Time), nil
		}
		err := c.Store.Write(ctx, func(tx *store.Tx) error {
			for _, d := range due {
				if err := c.expire(tx, d.id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
}

func (c *Control) expire(tx *store.Tx, id string) error {
	r, err := tx.Reservation(id)
	if err != nil || r.ExpiresAt == nil || r.ExpiresAt.After(c.now().Time) { // moved meanwhile
		return err
	}
	_, err = c.end(tx, system("expiry"), &r, appliance.ReasonExpired, "its time is over")
	return err
}
