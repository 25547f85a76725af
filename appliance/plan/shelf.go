package plan

import (
	"cmp"
	"slices"
	"sort"
	"strings"
)

// A shelf keeps the nodes of a pool that take bookings, by how many atoms they
// have free, so that the tightest fit is found without looking at the others.
// Nodes with as many free atoms are in one row of the shelf; those among them
// whose free GPUs are worth the same are in one cell, in order of hostname and
// id.
type shelf struct {
	rows [][]*cell
}

// sign says what the free atoms of a node are worth. In exclusive pools that is
// the machine's layout and which of its GPUs are free. Elsewhere layout is nil
// and devices counts the GPUs with an atom free.
type sign struct {
	free    int
	gpus    bool // the machine has GPUs at all
	layout  *layout
	devices uint64
}

type cell struct {
	sign sign
	run
}

// run is a list of nodes, cut into chunks so that an insertion moves few of
// them. It is in order of hostname and id; before that, if it is by what is
// free, of each counted resource.
type run struct {
	chunks []*chunk
	byFree bool
}

// chunk is a stretch of a run with the least and the most that any of its nodes
// has free of each counted resource, so that a stretch where nothing fits, or
// nothing as tightly, is passed over.
type chunk struct {
	least, most [scalarCount]int32
	entries     []entry
}

// entry is a node with what it has free of the counted resources, -1 where it
// has no row, and the number of its class.
type entry struct {
	free  [scalarCount]int32
	class uint32
	node  *node
}

const maxChunk = 128

func (r *run) compare(a, b *entry) int {
	if r.byFree {
		if c := slices.Compare(a.free[:], b.free[:]); c != 0 {
			return c
		}
	}
	return compareNodes(a.node, b.node)
}

func compareNodes(a, b *node) int {
	if c := strings.Compare(a.hostname, b.hostname); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

func (s *shelf) add(sg sign, e entry) {
	for len(s.rows) <= sg.free {
		s.rows = append(s.rows, nil)
	}
	row := &s.rows[sg.free]
	i := slices.IndexFunc(*row, func(c *cell) bool { return c.sign == sg })
	if i < 0 {
		i = len(*row)
		*row = append(*row, &cell{sign: sg})
	}
	(*row)[i].add(e)
}

// remove takes a node off; it must be there under this sign.
func (s *shelf) remove(sg sign, e entry) {
	row := &s.rows[sg.free]
	i := slices.IndexFunc(*row, func(c *cell) bool { return c.sign == sg })
	c := (*row)[i]
	c.remove(e)
	if len(c.chunks) > 0 {
		return
	}
	*row = dropAt(*row, i)
	for len(s.rows) > 0 && len(s.rows[len(s.rows)-1]) == 0 {
		s.rows = s.rows[:len(s.rows)-1]
	}
}

// dropAt removes one element; the last one takes its place.
func dropAt[T any](s []T, i int) []T {
	last := len(s) - 1
	s[i] = s[last]
	clear(s[last:])
	return s[:last]
}

func (r *run) add(e entry) {
	at := r.find(&e)
	if at == len(r.chunks) {
		if at == 0 || len(r.chunks[at-1].entries) >= maxChunk {
			r.chunks = append(r.chunks, &chunk{least: e.free, most: e.free, entries: []entry{e}})
			return
		}
		at--
	}
	c := r.chunks[at]
	c.entries = slices.Insert(c.entries, r.findIn(c, &e), e)
	for k, v := range e.free {
		c.least[k], c.most[k] = min(c.least[k], v), max(c.most[k], v)
	}
	if len(c.entries) > maxChunk {
		half := len(c.entries) / 2
		upper := &chunk{entries: slices.Clone(c.entries[half:])}
		c.entries = slices.Clone(c.entries[:half])
		c.measure()
		upper.measure()
		r.chunks = slices.Insert(r.chunks, at+1, upper)
	}
}

// remove takes a node off; it must be there, and where the run is in order of
// what is free with as much free.
func (r *run) remove(e entry) {
	at := r.find(&e)
	c := r.chunks[at]
	i := r.findIn(c, &e)
	free := c.entries[i].free
	c.entries = slices.Delete(c.entries, i, i+1)
	if len(c.entries) > 0 {
		c.lose(&free)
		return
	}
	r.chunks = slices.Delete(r.chunks, at, at+1)
}

// find is the first chunk whose last node is not before e.
func (r *run) find(e *entry) int {
	return sort.Search(len(r.chunks), func(i int) bool {
		entries := r.chunks[i].entries
		return r.compare(&entries[len(entries)-1], e) >= 0
	})
}

// findIn is the first node of a chunk that is not before e.
func (r *run) findIn(c *chunk, e *entry) int {
	return sort.Search(len(c.entries), func(i int) bool { return r.compare(&c.entries[i], e) >= 0 })
}

func (c *chunk) measure() {
	c.least, c.most = c.entries[0].free, c.entries[0].free
	for _, e := range c.entries[1:] {
		for k, v := range e.free {
			c.least[k], c.most[k] = min(c.least[k], v), max(c.most[k], v)
		}
	}
}

// lose measures anew after a node went that had so much free: only what it was
// the least or the most of, and until another is found that is as well.
func (c *chunk) lose(free *[scalarCount]int32) {
	for k, v := range free {
		if c.least[k] < v && v < c.most[k] {
			continue
		}
		least, most := c.entries[0].free[k], c.entries[0].free[k]
		for i := 1; i < len(c.entries) && (least > c.least[k] || most < c.most[k]); i++ {
			least, most = min(least, c.entries[i].free[k]), max(most, c.entries[i].free[k])
		}
		c.least[k], c.most[k] = least, most
	}
}

// cursor walks the nodes of a run.
type cursor struct {
	run      *run
	chunk, i int
}

// next finds the next node that has enough of the counted resources free and
// the attributes asked for, or nil.
func (c *cursor) next(a *ask) *entry {
	for ; c.chunk < len(c.run.chunks); c.chunk, c.i = c.chunk+1, 0 {
		here := c.run.chunks[c.chunk]
		if !covers(&here.most, &a.least) {
			continue
		}
		for c.i < len(here.entries) {
			e := &here.entries[c.i]
			c.i++
			if covers(&e.free, &a.least) && a.matches(e) {
				return e
			}
		}
	}
	return nil
}

func covers(free, ask *[scalarCount]int32) bool {
	return free[0] >= ask[0] && free[1] >= ask[1] && free[2] >= ask[2] && free[3] >= ask[3] && free[4] >= ask[4]
}
