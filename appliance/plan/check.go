package plan

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Check holds the index to what must always be so: no atom and no CPU of a node
// is booked twice; what is allocated of a node is the sum of its bookings; the
// sums and shelves of each pool are what its nodes give when counted anew. It
// reads everything and names the first thing that is not so.
func (x *Index) Check() error {
	if err := x.checkBookings(); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(x.nodes)) {
		if err := x.nodes[id].check(); err != nil {
			return fmt.Errorf("node %s: %w", id, err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(x.pools)) {
		if err := x.checkPool(x.pools[id]); err != nil {
			return fmt.Errorf("pool %s: %w", id, err)
		}
	}
	return nil
}

// checkBookings goes from the bookings to the nodes; each node's check goes
// back.
func (x *Index) checkBookings() error {
	for _, id := range slices.Sorted(maps.Keys(x.bookings)) {
		b := x.bookings[id]
		for i := range b.shares {
			s := &b.shares[i]
			if x.nodes[s.node.id] != s.node {
				return fmt.Errorf("reservation %s is booked on node %s, which is not in the index", id, s.node.id)
			}
			if s.booking != b || !slices.Contains(s.node.shares, s) {
				return fmt.Errorf("node %s does not know of reservation %s, which is booked on it", s.node.id, id)
			}
		}
	}
	return nil
}

func (n *node) check() error {
	fresh := node{pool: n.pool, shape: n.shape, uuids: n.uuids, parts: n.parts, topology: n.topology}
	fresh.reset()
	atoms := 0
	for i, s := range n.shares {
		if s.node != n || i > 0 && n.shares[i-1].booking.id >= s.booking.id {
			return fmt.Errorf("its bookings are out of order at reservation %s", s.booking.id)
		}
		atoms += len(s.atoms)
		before := fresh.cpus.countFree(nil)
		cpus, err := wire.ParseCPUList(s.cpus)
		if err != nil {
			return err
		}
		memoryNodes, err := wire.ParseCPUList(s.memoryNodes)
		if err != nil {
			return err
		}
		fresh.take(s, hostSets{cpus, memoryNodes})
		if fresh.cpus.countFree(nil) != before+cpus.Count() {
			return fmt.Errorf("CPUs %s of reservation %s are booked twice", s.cpus, s.booking.id)
		}
	}
	held := len(slices.Compact(slices.Clone(fresh.strays)))
	for _, set := range fresh.booked {
		held += bits.OnesCount64(set)
	}
	if err := fresh.checkReleasing(n.releasing); err != nil {
		return err
	}
	switch {
	case held != atoms:
		return n.bookedTwice()
	case n.allocated != fresh.allocated:
		return fmt.Errorf("allocated are %v, its bookings sum to %v (%v)", n.allocated, fresh.allocated, appliance.Scalars)
	case !slices.Equal(n.booked, fresh.booked) || !slices.Equal(n.strays, fresh.strays):
		return errors.New("booked atoms differ from its bookings")
	case n.cpus.countFree(fresh.cpus) != 0 || fresh.cpus.countFree(n.cpus) != 0:
		return errors.New("CPUs set aside differ from its bookings")
	case n.leased != fresh.leased || !sameMemory(n.memoryMiB, fresh.memoryMiB):
		return errors.New("memory or lease differ from its bookings")
	}
	return nil
}

// checkReleasing holds what is being released to the node's bookings, of which
// it is no part.
func (n *node) checkReleasing(have *releasing) error {
	if have == nil {
		return nil
	}
	marked := slices.Clone(have.atoms)
	n.releasing = nil
	seen := map[string]bool{}
	for i, r := range have.of {
		if i > 0 && have.of[i-1].ReservationID >= r.ReservationID {
			return fmt.Errorf("what it releases is out of order at reservation %s", r.ReservationID)
		}
		for _, name := range r.Atoms {
			if n.isBooked(name) || seen[name] {
				return fmt.Errorf("%s is kept by reservation %s, which has ended, and by another", name, r.ReservationID)
			}
			seen[name] = true
		}
	}
	n.releasing = &releasing{of: have.of}
	n.markReleasing()
	if n.releasing == nil || !slices.Equal(n.releasing.atoms, marked) {
		return errors.New("atoms that are kept differ from those of the ended reservations")
	}
	return nil
}

// bookedTwice names an atom that two reservations hold.
func (n *node) bookedTwice() error {
	holder := map[string]string{}
	for _, s := range n.shares {
		for _, atom := range s.atoms {
			if other, taken := holder[atom]; taken {
				return fmt.Errorf("%s is booked by reservations %s and %s", atom, other, s.booking.id)
			}
			holder[atom] = s.booking.id
		}
	}
	return errors.New("an atom is booked twice")
}

// sameMemory compares what is booked of each memory node; nil is nothing.
func sameMemory(a, b []int64) bool {
	for i := range max(len(a), len(b)) {
		var p, q int64
		if i < len(a) {
			p = a[i]
		}
		if i < len(b) {
			q = b[i]
		}
		if p != q {
			return false
		}
	}
	return true
}

// checkPool counts the pool anew in an index of its own and compares.
func (x *Index) checkPool(p *pool) error {
	var sum tally
	shares := [2]map[int32]int{{}, {}}
	base, profiles := 0, map[string]int{}
	var before *node
	for _, c := range p.all.chunks {
		for _, e := range c.entries {
			n := e.node
			if n.pool != p || x.nodes[n.id] != n || before != nil && compareNodes(before, n) >= 0 {
				return fmt.Errorf("node %s is not in its place", n.id)
			}
			before = n
			sum.add(n.tally(), 1)
			n.eachShare(func(i int, share int32) { shares[i][share]++ })
			if n.takes() {
				base++
				for _, name := range n.profiles() {
					profiles[name]++
				}
			}
		}
	}
	if sum != p.tally {
		return fmt.Errorf("its sums are %+v, its nodes give %+v", p.tally, sum)
	}
	if !maps.Equal(shares[0], p.shares[0]) || !maps.Equal(shares[1], p.shares[1]) {
		return errors.New("its host shares differ from those of its nodes")
	}
	if err := p.base.check(base, (*node).sign); err != nil {
		return err
	}
	if err := p.room.check(base); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.profiles)) {
		if err := p.profiles[name].shelf.check(profiles[name], func(n *node) sign { return n.profileSign(name) }); err != nil {
			return fmt.Errorf("MIG profile %s: %w", name, err)
		}
	}
	return nil
}

// check holds a shelf to its order: want nodes, each under its sign.
func (s *shelf) check(want int, signOf func(*node) sign) error {
	have := 0
	for free, row := range s.rows {
		for _, cell := range row {
			n, err := cell.check("on the shelf", func(n *node) bool {
				sg := signOf(n)
				return sg == cell.sign && sg.free == free
			})
			if err != nil {
				return err
			}
			have += n
		}
	}
	if have != want {
		return fmt.Errorf("%d nodes are on the shelf, %d take bookings", have, want)
	}
	return nil
}

// check holds a room to its order: want nodes, each by its free atoms.
func (m *room) check(want int) error {
	have, err := m.bare.check("in the room", func(n *node) bool { return m.of(n.sign()) == &m.bare })
	for i := range m.rows {
		if err != nil {
			return err
		}
		var n int
		n, err = m.rows[i].check("in the room", func(n *node) bool { return m.of(n.sign()) == &m.rows[i] })
		have += n
	}
	if err == nil && have != want {
		return fmt.Errorf("%d nodes are in the room, %d take bookings", have, want)
	}
	return err
}

// check counts the nodes of a run and holds it to its order, each chunk to what
// its entries say, and each node to what it has free and to being here.
func (r *run) check(where string, isHere func(*node) bool) (int, error) {
	have := 0
	var before *entry
	for _, c := range r.chunks {
		fresh := chunk{entries: c.entries}
		fresh.measure()
		if fresh.least != c.least || fresh.most != c.most {
			return 0, fmt.Errorf("a stretch %s says %v to %v is free, its nodes say %v to %v", where, c.least, c.most, fresh.least, fresh.most)
		}
		for i := range c.entries {
			e := &c.entries[i]
			if !e.node.takes() || *e != e.node.entry() || before != nil && r.compare(before, e) >= 0 || !isHere(e.node) {
				return 0, fmt.Errorf("node %s is not in its place %s", e.node.id, where)
			}
			before = e
			have++
		}
	}
	return have, nil
}
