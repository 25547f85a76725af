package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/bettercompute/bc/appliance"
)

// Keep keeps nodes free for a reservation that waits: they take no bookings of
// others. An empty reservation lets them go. Nodes that are not there are
// passed over, and bookings that a node has stay.
func (x *Index) Keep(nodeIDs []string, reservationID string) {
	for _, id := range nodeIDs {
		if n := x.nodes[id]; n != nil && n.keptFor != reservationID {
			n.uncount()
			n.keptFor = reservationID
			n.count()
		}
	}
}

// Could finds the nodes that would serve a request if nothing were booked on
// them, and that are free the soonest; nil if there are not enough. The end
// says when a reservation ends, in any unit that rises; false if it has no end.
// Nodes without an endless booking come first, in order of the last end of
// what is on them; then those that lack the fewest atoms.
func (x *Index) Could(r Request, end func(reservationID string) (int64, bool)) []string {
	a := x.ask(r)
	if a.refusal != "" {
		return nil
	}
	for _, a.profile = range a.profiles {
		var found []soon
		for _, c := range a.pool.all.chunks {
			for i := range c.entries {
				if s, ok := a.soonest(c.entries[i].node, end); ok {
					found = append(found, s)
				}
			}
		}
		if len(found) < a.nodes {
			continue
		}
		slices.SortStableFunc(found, func(p, q soon) int { // stable: they are in order of hostname
			return cmp.Or(cmp.Compare(p.last, q.last), cmp.Compare(p.short, q.short))
		})
		out := make([]string, a.nodes)
		for i := range out {
			out[i] = found[i].node.id
		}
		return out
	}
	return nil
}

// soon is a node and what stands between it and a request.
type soon struct {
	node  *node
	last  int64 // end of what is booked there
	short int   // atoms
}

func (a *ask) soonest(n *node, end func(string) (int64, bool)) (soon, bool) {
	if n.shape.value.role != appliance.RoleHost || !n.shape.value.schedulable || a.hostname != nil && !a.hostname.Matches(n.hostname) {
		return soon{}, false
	}
	empty := *n
	empty.shares, empty.releasing = nil, nil
	empty.reset()
	e := empty.entry()
	free, _ := a.countAtoms(&empty)
	if !a.matches(&e) || !covers(&e.free, &a.least) || free < a.atoms || !a.fits(&empty) {
		return soon{}, false
	}
	s := soon{node: n}
	now, _ := a.countAtoms(n)
	s.short = max(0, a.atoms-now)
	for _, held := range n.shares {
		at, ends := end(held.booking.id)
		if !ends {
			at = math.MaxInt64
		}
		s.last = max(s.last, at)
	}
	return s, true
}
