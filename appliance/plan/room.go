package plan

import (
	"cmp"
	"math"
	"slices"
)

// A room keeps the nodes of a pool that take bookings by what they have free of
// the counted resources, so that a request for those alone finds the tightest
// node without looking at the others. Its runs are in order of what is free,
// resource by resource, and only then of hostname and id.
type room struct {
	bare run   // nodes without GPUs
	rows []run // the others, by how many atoms they have free
}

func newRoom() room { return room{bare: run{byFree: true}} }

func (m *room) add(sg sign, e entry) {
	for sg.gpus && len(m.rows) <= sg.free {
		m.rows = append(m.rows, run{byFree: true})
	}
	m.of(sg).add(e)
}

// remove takes a node off; it must be there with what it has free now.
func (m *room) remove(sg sign, e entry) {
	m.of(sg).remove(e)
	for len(m.rows) > 0 && len(m.rows[len(m.rows)-1].chunks) == 0 {
		m.rows = m.rows[:len(m.rows)-1]
	}
}

// of is the run of nodes with that sign, nil if there are none.
func (m *room) of(sg sign) *run {
	switch {
	case !sg.gpus:
		return &m.bare
	case sg.free < len(m.rows):
		return &m.rows[sg.free]
	}
	return nil
}

// findHost gives the nodes for host resources alone, in the order of their
// ranks: those without GPUs, those that keep the host share of their free GPUs,
// those that do not.
func (a *ask) findHost() []*node {
	m := &a.pool.room
	out := a.tightest(nil, &m.bare, &a.least, nil)
	for free := range m.rows {
		if need, ok := a.keeping(free); ok {
			out = a.tightest(out, &m.rows[free], &need, nil)
		}
	}
	for free := range m.rows {
		switch need, ok := a.keeping(free); {
		case !ok:
			out = a.tightest(out, &m.rows[free], &a.least, nil)
		case need != a.least:
			out = a.tightest(out, &m.rows[free], &a.least, &need)
		}
	}
	return out
}

// keeping is what a node with so many free atoms must have free so that they
// can still be booked with the default host share after the request; false if
// no node can have so much. Only whole GPUs have one.
func (a *ask) keeping(free int) (need [scalarCount]int32, ok bool) {
	need = a.least
	if a.pool.kind != wholeGPUs {
		return need, true
	}
	for i, share := range a.share {
		if share > 0 {
			v := int64(a.scalars[i]) + int64(share)*int64(free)
			if v > math.MaxInt32 {
				return need, false
			}
			need[i] = int32(v)
		}
	}
	return need, true
}

// tightest adds to out the nodes of a run that fit and have the least left
// over, up to the number asked for: of those that have need free, but not all
// of unless.
func (a *ask) tightest(out []*node, r *run, need, unless *[scalarCount]int32) []*node {
	s := search{ask: a, need: need, unless: unless, want: a.nodes - len(out)}
	if s.want == 0 || len(r.chunks) == 0 {
		return out
	}
	for _, c := range r.chunks[r.find(&entry{free: *need, node: beforeAll}):] {
		if s.ends(c) {
			break
		}
		if s.mayGain(c) {
			s.look(c)
		}
	}
	for _, e := range s.best {
		out = append(out, e.node)
	}
	return out
}

// beforeAll stands before every node in order of hostname and id.
var beforeAll = &node{}

// search walks one run of a room.
type search struct {
	*ask
	need, unless *[scalarCount]int32
	want         int
	best         []*entry // in order, at most want

	// passed is what one had free that was not better than those found: nor are
	// the nodes that have the same free, whose hostnames come later. Zero, which
	// serves no request, is none.
	passed [scalarCount]int32
}

func (s *search) full() bool { return len(s.best) == s.want }

// ends tells whether a stretch and all that follow it have more vcpu left over
// than what was found; vcpu is the first that a run is in order of.
func (s *search) ends(c *chunk) bool {
	return s.full() && s.scalars[vcpuIndex] > 0 && c.least[vcpuIndex] > s.best[s.want-1].free[vcpuIndex]
}

// mayGain tells whether a node of a stretch might be better than those found.
func (s *search) mayGain(c *chunk) bool {
	if !covers(&c.most, s.need) {
		return false
	}
	if !s.full() {
		return true
	}
	least := c.least
	for i, v := range s.need {
		least[i] = max(least[i], v)
	}
	return s.compareLeft(&least, &s.best[s.want-1].free) <= 0 && !(c.least == s.passed && c.most == s.passed)
}

func (s *search) look(c *chunk) {
	for i := range c.entries {
		e := &c.entries[i]
		switch {
		case !covers(&e.free, s.need) || s.unless != nil && covers(&e.free, s.unless) || s.full() && e.free == s.passed:
		case s.full() && s.compareTight(e, s.best[s.want-1]) > 0:
			s.passed = e.free
		case s.matches(e) && s.fits(e.node):
			at, _ := slices.BinarySearchFunc(s.best, e, s.compareTight)
			s.best = slices.Insert(s.best[:min(len(s.best), s.want-1)], at, e)
		}
	}
}

// compareLeft orders what nodes have free by what the request leaves over.
func (a *ask) compareLeft(free, other *[scalarCount]int32) int {
	for i, v := range a.scalars {
		if v > 0 && free[i] != other[i] {
			return cmp.Compare(free[i], other[i])
		}
	}
	return 0
}

func (a *ask) compareTight(e, other *entry) int {
	if c := a.compareLeft(&e.free, &other.free); c != 0 {
		return c
	}
	return compareNodes(e.node, other.node)
}
