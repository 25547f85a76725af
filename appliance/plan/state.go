package plan

import (
	"maps"
	"math/bits"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// node is a machine in the index: its facts in a small form, and sums over its
// bookings. The sums depend on facts and bookings alone.
type node struct {
	id, hostname string
	pool         *pool

	class    *class             // attributes, but for the hostname
	layout   *shared[*layout]   // where the GPUs are
	topology *shared[topology]  // nil: not known
	shape    *shared[shape]     // what it is to its pool, and which resource rows there are
	total    [scalarCount]int32 // of the rows
	leased   bool               // whole, by a booking that binds the node
	uuids    uuids              // of the GPUs
	healthy  uint64             // GPUs
	waits    uint64             // GPUs that wait for another MIG layout
	reasons  map[string]string  // UUID to why it is unhealthy; nil if all are well
	parts    [][]Instance       // MIG instances of each GPU; nil if there are none

	shares    []*share // in order of reservation
	booked    []uint64 // the booked atoms of each GPU
	strays    []string // booked atoms that the facts no longer have, sorted
	allocated [scalarCount]int64
	cpus      cpuBits // set aside
	memoryMiB []int64 // booked on each memory node of the topology; nil: nothing

	releasing *releasing // what ended reservations still keep; nil if nothing

	keptFor string // the reservation for which the node is kept free; "" if there is none
}

// class is the attributes that some nodes have alike, but for the hostname.
type class = shared[attributes]

type attributes struct {
	number uint32 // below the index's classCount
	of     map[string]string
}

// booking is a Booking in a small form.
type booking struct {
	id, tenant string
	pool       string
	binding    appliance.BindingKind
	shares     []share
}

// share is a booking's placement on one node.
type share struct {
	booking     *booking
	node        *node
	devices     []string
	atoms       []string
	cpus        string
	memoryNodes string
	scalars     [scalarCount]int32
	named       [scalarCount]bool // which scalars the placement named, zero or not
	namedAtoms  bool
	confirmed   bool
}

func (s *share) placement() appliance.Placement {
	p := appliance.Placement{
		NodeID: s.node.id, Devices: slices.Clone(s.devices), Atoms: slices.Clone(s.atoms),
		CPUs: s.cpus, NUMANodes: s.memoryNodes, Amounts: appliance.Amounts{}, Confirmed: s.confirmed,
	}
	if s.namedAtoms {
		p.Amounts[s.node.pool.sharing.Resource()] = len(s.atoms)
	}
	for i, named := range s.named {
		if named {
			p.Amounts[appliance.Scalars[i]] = int(s.scalars[i])
		}
	}
	return p
}

// atomsOf is the set of atoms that the i-th GPU yields when it is healthy.
func (n *node) atomsOf(i int) uint64 {
	switch n.pool.kind {
	case instances:
		if n.parts == nil {
			return 0
		}
		return low(len(n.parts[i]))
	case gpuSlots:
		return low(n.shape.value.replicas)
	default:
		return 1
	}
}

// low is the set of the n lowest bits.
func low(n int) uint64 { return 1<<n - 1 }

// freeAtoms is the set of atoms of the i-th GPU that can be booked.
func (n *node) freeAtoms(i int) uint64 {
	if (n.healthy&^n.waits)&(1<<i) == 0 {
		return 0
	}
	return n.atomsOf(i) &^ n.booked[i] &^ n.releasingOf(i)
}

// freeOf narrows freeAtoms to MIG instances of one profile.
func (n *node) freeOf(i int, profile string) uint64 {
	free := n.freeAtoms(i)
	for m := free; m != 0; m &= m - 1 {
		if at := bits.TrailingZeros64(m); n.parts[i][at].Profile != profile {
			free &^= 1 << at
		}
	}
	return free
}

// atomName is how an atom is written in a placement.
func (n *node) atomName(i, atom int) string {
	switch n.pool.kind {
	case instances:
		return n.parts[i][atom].UUID
	case gpuSlots:
		return n.uuids.at(i) + "#" + strconv.Itoa(atom)
	default:
		return n.uuids.at(i)
	}
}

// findAtom is where an atom of that name is, or false if the node has none.
func (n *node) findAtom(name string) (device, atom int, ok bool) {
	switch n.pool.kind {
	case instances:
		for i, parts := range n.parts {
			for j := range parts {
				if parts[j].UUID == name {
					return i, j, true
				}
			}
		}
		return 0, 0, false
	case gpuSlots:
		uuid, slot, _ := strings.Cut(name, "#")
		at, err := strconv.Atoi(slot)
		if err != nil || at < 0 || at >= n.shape.value.replicas || strconv.Itoa(at) != slot {
			return 0, 0, false
		}
		i := n.uuids.index(uuid)
		return i, at, i >= 0
	default:
		i := n.uuids.index(name)
		return i, 0, i >= 0
	}
}

// isBooked tells whether any booking holds the atom, or one that has ended.
func (n *node) isBooked(name string) bool {
	if n.isReleasing(name) {
		return true
	}
	if i, at, ok := n.findAtom(name); ok {
		return n.booked[i]&(1<<at) != 0
	}
	_, found := slices.BinarySearch(n.strays, name)
	return found
}

// takes tells whether the node takes new bookings.
func (n *node) takes() bool {
	return n.shape.value.role == appliance.RoleHost && n.shape.value.schedulable && !n.leased && n.keptFor == ""
}

// freeRow is what is free of a counted resource, -1 if there is no row.
func (n *node) freeRow(i int) int32 {
	if !n.shape.value.present[i] {
		return -1
	}
	return int32(max(0, int64(n.total[i])-n.allocated[i]))
}

func (n *node) entry() entry {
	e := entry{class: n.class.value.number, node: n}
	for i := range e.free {
		e.free[i] = n.freeRow(i)
	}
	return e
}

// sign says under which sign the node is on the shelf of its pool.
func (n *node) sign() sign {
	sg := sign{gpus: n.uuids.len() > 0}
	exclusive := n.pool.kind == wholeGPUs
	for i := range n.uuids.len() {
		if free := n.freeAtoms(i); free != 0 {
			sg.free += bits.OnesCount64(free)
			if exclusive {
				sg.devices |= 1 << i
			} else {
				sg.devices++
			}
		}
	}
	if exclusive {
		sg.layout = n.layout.value
	}
	return sg
}

// bookable is the MIG instances of each GPU where they are what is booked: those
// of GPUs that are booked otherwise are no matter of the index.
func (n *node) bookable() [][]Instance {
	if n.pool.kind != instances {
		return nil
	}
	return n.parts
}

// profiles lists the profiles of the node's MIG instances in order.
func (n *node) profiles() []string {
	var out []string
	for _, parts := range n.bookable() {
		for _, p := range parts {
			if at, found := slices.BinarySearch(out, p.Profile); !found {
				out = slices.Insert(out, at, p.Profile)
			}
		}
	}
	return out
}

// profileSign is the sign on the shelf of one MIG profile.
func (n *node) profileSign(profile string) sign {
	sg := sign{gpus: true}
	for i := range n.uuids.len() {
		if free := n.freeOf(i, profile); free != 0 {
			sg.free += bits.OnesCount64(free)
			sg.devices++
		}
	}
	return sg
}

// reset forgets the sums over bookings.
func (n *node) reset() {
	n.booked = make([]uint64, n.uuids.len())
	n.strays, n.cpus, n.memoryMiB, n.leased = nil, nil, nil, false
	n.allocated = [scalarCount]int64{}
}

// take adds a share to the sums.
func (n *node) take(s *share, sets hostSets) {
	for _, name := range s.atoms {
		if i, at, ok := n.findAtom(name); ok {
			n.booked[i] |= 1 << at
		} else {
			at := sort.SearchStrings(n.strays, name)
			n.strays = slices.Insert(n.strays, at, name)
		}
	}
	for i, v := range s.scalars {
		n.allocated[i] += int64(v)
	}
	n.cpus.addAll(sets.cpus)
	n.spread(s, sets.memoryNodes, 1)
	n.leased = n.leased || s.booking.binding == appliance.BindNode
}

// give undoes take.
func (n *node) give(s *share, sets hostSets) {
	for _, name := range s.atoms {
		if i, at, ok := n.findAtom(name); ok {
			n.booked[i] &^= 1 << at
		} else if at, found := slices.BinarySearch(n.strays, name); found {
			n.strays = slices.Delete(n.strays, at, at+1)
		}
	}
	for i, v := range s.scalars {
		n.allocated[i] -= int64(v)
	}
	n.cpus.dropAll(sets.cpus)
	n.spread(s, sets.memoryNodes, -1)
	n.leased = slices.ContainsFunc(n.shares, func(other *share) bool {
		return other.booking.binding == appliance.BindNode
	})
}

// spread charges a share's memory to its memory nodes, in proportion to their
// size.
func (n *node) spread(s *share, on wire.CPUSet, sign int64) {
	need := s.memoryMiB()
	if n.topology == nil || need == 0 {
		return
	}
	var size int64
	numa := n.topology.value.numa
	for _, m := range numa {
		if on.Contains(m.id) {
			size += m.memoryMiB
		}
	}
	if size == 0 {
		return
	}
	if n.memoryMiB == nil {
		n.memoryMiB = make([]int64, len(numa))
	}
	for i, m := range numa {
		if on.Contains(m.id) {
			n.memoryMiB[i] += sign * int64(float64(need)*(float64(m.memoryMiB)/float64(size)))
		}
	}
}

func (s *share) memoryMiB() int64 { return memoryMiB(&s.scalars) }

// memoryMiB is the memory in an amount, huge pages included.
func memoryMiB(scalars *[scalarCount]int32) int64 {
	return int64(scalars[memoryIndex])<<10 + int64(scalars[hugepages2MiIndex])<<1 + int64(scalars[hugepages1GiIndex])<<10
}

// facts gives back the node as it was put.
func (n *node) facts() Node {
	out := Node{
		ID: n.id, PoolID: n.pool.id, Hostname: n.hostname, Role: n.shape.value.role, Control: n.shape.value.control,
		Schedulable: n.shape.value.schedulable, Unschedulable: n.shape.value.why, Sharing: n.pool.sharing, Replicas: n.shape.value.replicas,
		Attributes: maps.Clone(n.class.value.of),
	}
	out.Attributes[AttributeHostname] = n.hostname
	for i, p := range n.layout.value.devices {
		d := Device{
			UUID: n.uuids.at(i), Index: p.index, Address: p.address, NUMANode: p.numa,
			Healthy: n.healthy&(1<<i) != 0, HealthReason: n.reasons[n.uuids.at(i)], Waits: n.waits&(1<<i) != 0,
		}
		for m := p.peers; m != 0; m &= m - 1 {
			d.NVLinkPeers = append(d.NVLinkPeers, n.uuids.at(bits.TrailingZeros64(m)))
		}
		if n.parts != nil {
			d.Instances = slices.Clone(n.parts[i])
		}
		out.Devices = append(out.Devices, d)
	}
	out.Rows = n.rows(nil)
	if n.topology != nil {
		out.Topology = n.topology.value.facts
	}
	return out
}

// rows are the node's counted resources with what is booked of them, behind
// those that are there.
func (n *node) rows(out []appliance.ResourceRow) []appliance.ResourceRow {
	for i, resource := range appliance.Scalars {
		if n.shape.value.present[i] {
			out = append(out, appliance.ResourceRow{
				Resource: resource, Total: int(n.total[i]), Allocated: int(n.allocated[i]), Overcommit: n.shape.value.overcommit[i],
			})
		}
	}
	return out
}
