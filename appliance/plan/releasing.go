package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Releasing is what an ended reservation still keeps of a node: atoms that
// nobody has booked and that cannot be booked, until the node has said that
// nobody is behind the wall any more.
type Releasing struct {
	ReservationID string
	Atoms         []string
}

// releasing is that of one node; most nodes have none.
type releasing struct {
	of    []Releasing // in order of reservation
	atoms []uint64    // of each GPU
}

// Hold keeps atoms of a node from being booked for a reservation that has
// ended. It refuses what is booked or held already; nothing has changed then.
func (x *Index) Hold(nodeID, reservationID string, atoms []string) error {
	n := x.nodes[nodeID]
	if n == nil {
		return fmt.Errorf("hold atoms of node %s: it is not in the index", nodeID)
	}
	at, held := n.heldFor(reservationID)
	if held {
		return fmt.Errorf("hold atoms of node %s: reservation %s holds some already", nodeID, reservationID)
	}
	for i, name := range atoms {
		if n.isBooked(name) || slices.Contains(atoms[:i], name) {
			return fmt.Errorf("hold atoms of node %s: %s is booked or held already", nodeID, name)
		}
	}
	if len(atoms) == 0 {
		return nil
	}
	n.uncount()
	if n.releasing == nil {
		n.releasing = &releasing{}
	}
	n.releasing.of = slices.Insert(n.releasing.of, at, Releasing{reservationID, slices.Clone(atoms)})
	n.markReleasing()
	n.count()
	return nil
}

// Free lets go what an ended reservation keeps of a node, and gives its atoms;
// nil if it keeps none.
func (x *Index) Free(nodeID, reservationID string) []string {
	n := x.nodes[nodeID]
	if n == nil {
		return nil
	}
	at, held := n.heldFor(reservationID)
	if !held {
		return nil
	}
	atoms := n.releasing.of[at].Atoms
	n.uncount()
	n.releasing.of = slices.Delete(n.releasing.of, at, at+1)
	n.markReleasing()
	n.count()
	return atoms
}

// Releasing lists what ended reservations keep of a node, in order of
// reservation. The list must not be changed.
func (x *Index) Releasing(nodeID string) []Releasing {
	n := x.nodes[nodeID]
	if n == nil || n.releasing == nil {
		return nil
	}
	return n.releasing.of
}

// heldFor finds what a reservation keeps of the node, or where it would stand.
func (n *node) heldFor(reservationID string) (int, bool) {
	if n.releasing == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(n.releasing.of, reservationID, func(r Releasing, id string) int {
		return strings.Compare(r.ReservationID, id)
	})
}

// markReleasing finds the atoms that are held among those that the node has.
func (n *node) markReleasing() {
	if n.releasing == nil || len(n.releasing.of) == 0 {
		n.releasing = nil
		return
	}
	n.releasing.atoms = make([]uint64, n.uuids.len())
	for _, r := range n.releasing.of {
		for _, name := range r.Atoms {
			if i, at, ok := n.findAtom(name); ok {
				n.releasing.atoms[i] |= 1 << at
			}
		}
	}
}

// releasingOf is the set of atoms of the i-th GPU that are held.
func (n *node) releasingOf(i int) uint64 {
	if n.releasing == nil {
		return 0
	}
	return n.releasing.atoms[i]
}

// isReleasing tells whether an atom is held, also one that the node has no more.
func (n *node) isReleasing(name string) bool {
	return n.releasing != nil && slices.ContainsFunc(n.releasing.of, func(r Releasing) bool { return slices.Contains(r.Atoms, name) })
}

// releasingAtoms counts what is held of the node's GPUs.
func (n *node) releasingAtoms() int {
	count := 0
	for i := range n.uuids.len() {
		count += bits.OnesCount64(n.releasingOf(i))
	}
	return count
}

// heldAtoms counts also what is held of GPUs and instances that the node has no
// more.
func (n *node) heldAtoms() int {
	count := 0
	if n.releasing != nil {
		for _, r := range n.releasing.of {
			count += len(r.Atoms)
		}
	}
	return count
}

// KeptGPUs lists the GPUs that wait for another MIG layout and of which
// something is booked or held: they keep what they have until that is over.
func (x *Index) KeptGPUs(nodeID string) []string {
	n := x.nodes[nodeID]
	if n == nil || n.waits == 0 {
		return nil
	}
	var out []string
	for i, uuid := range n.uuids.all() {
		if n.waits&(1<<i) != 0 && n.booked[i]|n.releasingOf(i) != 0 {
			out = append(out, uuid)
		}
	}
	slices.Sort(out)
	return out
}
