package control

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// A reservation that fits is placed at once, also while older ones wait for
// more than is free: small ones would otherwise wait for nothing. So that a
// large one is not overtaken for ever, the oldest of a pool's waiting
// reservations that has waited for turnAfter, or for a quarter of the pool's
// maxPending if that is shorter, has its turn: the nodes that could serve it
// and are free the soonest take no new bookings until it is placed. What is
// booked there goes on to its end, and the other nodes of the pool go on
// taking the younger ones.
//
// That bounds its wait by the ends of what was booked when its turn came, since
// the nodes are chosen anew only for such that are free sooner. Where every
// node that could serve it has a booking without an end, only a release helps,
// and those with the least in the way are kept. A reservation that waits for
// quota, or that no nodes of the pool could serve, has no turn.
const turnAfter = 10 * time.Minute

// turn is a reservation that has its turn and the nodes kept for it.
type turn struct {
	id    string
	nodes []string
}

// takeTurns gives the pool's oldest reservation its turn, if one has waited for
// long, and takes it from one that lost it.
func (c *Control) takeTurns(ctx context.Context, poolID string) error {
	c.mem.mu.RLock()
	next := c.nextTurn(poolID)
	same := next.equal(c.mem.turns[poolID])
	c.mem.mu.RUnlock()
	if same {
		return nil
	}
	return c.Store.Write(ctx, func(tx *store.Tx) error {
		c.mem.mu.Lock()
		defer c.mem.mu.Unlock()
		c.setTurn(tx, poolID, c.nextTurn(poolID))
		return nil
	})
}

func (t turn) equal(o turn) bool { return t.id == o.id && slices.Equal(t.nodes, o.nodes) }

// nextTurn says whose turn it is in a pool, nobody's if no reservation has
// waited for long. The caller holds mu.
func (c *Control) nextTurn(poolID string) turn {
	m := &c.mem
	p := m.pools[poolID]
	if p == nil || p.Archived {
		return turn{}
	}
	longest := min(turnAfter, p.policy.MaxPending()/4)
	for _, w := range m.waiting[poolID] {
		if c.now().Sub(w.asked.CreatedAt.Time) < longest {
			return turn{} // the others are younger
		}
		if m.tenants[w.asked.TenantID].State != appliance.TenantActive || len(m.shortNow(w.asked.TenantID, poolID, w.asked.Resources)) > 0 {
			continue
		}
		if _, sees := p.seenBy[w.asked.TenantID]; !sees {
			continue
		}
		if nodes := m.index.Could(request(p, *w.asked), m.endOf); nodes != nil {
			return turn{w.id, nodes}
		}
	}
	return turn{}
}

// endOf is when a reservation ends, false if it has no end.
func (m *memory) endOf(id string) (int64, bool) {
	at, ok := m.ends.at[id]
	if !ok {
		return math.MaxInt64, false
	}
	return at.UnixMilli(), true
}

// setTurn changes whose turn it is in a pool. The caller holds mu.
func (c *Control) setTurn(tx *store.Tx, poolID string, next turn) {
	m := &c.mem
	before := m.turns[poolID]
	m.keep(poolID, before, next)
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.keep(poolID, next, before)
	})
}

func (m *memory) keep(poolID string, before, next turn) {
	m.index.Keep(before.nodes, "")
	m.index.Keep(next.nodes, next.id)
	if next.id == "" {
		delete(m.turns, poolID)
	} else {
		m.turns[poolID] = next
	}
}

// endTurn gives back what is kept for a reservation that waits no longer. The
// caller holds mu.
func (c *Control) endTurn(tx *store.Tx, poolID, id string) {
	if c.mem.turns[poolID].id == id {
		c.setTurn(tx, poolID, turn{})
		c.stir(tx, poolID)
	}
}
