package plan

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/bettercompute/bc/appliance"
)

// Request is what a reservation asks of its pool.
type Request struct {
	PoolID string
	// Resources are as asked, over all nodes. A whole-GPU request that names no
	// counted host resource, not even zero of it, gets the default host share.
	Resources appliance.Amounts
	Nodes     int // 0 means 1
	Selector  appliance.Selector
	Binding   appliance.BindingKind
	// ReservationID is that of one that waits: Explain counts nodes that are
	// kept for it. See [Index.Keep].
	ReservationID string
	// PerGPU is policy.perGpu: what it names replaces the default host share of
	// a GPU, resource by resource. Only vcpu and memoryGiB count.
	PerGPU appliance.Amounts
}

// Decision is where a request goes.
type Decision struct {
	Placements []appliance.Placement // in order of hostname
	Booked     appliance.Amounts     // the sum, host share included
	Profile    string                // of the MIG instances
}

// Place decides where a request goes; false if it does not fit now. It books
// nothing, and the same nodes and bookings always give the same decision.
//
// Only nodes of role host that take bookings count, whose attributes match the
// selector and which have enough free: atoms of healthy GPUs, and rows, whose
// totals have the ratio applied (a node without the row has none of it). Of
// those, with all else equal the first by hostname, it takes
//
//   - for GPUs the node with the fewest free atoms left over; then, for whole
//     GPUs, the one where they share NVLink, then a memory node, and break the
//     fewest whole groups; then one with enough CPUs on the GPUs' memory nodes,
//     which is looked for 64 nodes far and not to the end of a large pool.
//   - for host resources alone a node without GPUs; then one that keeps the
//     default host share of its free GPUs; then the one with the fewest free
//     GPUs, and the least left over.
//
// Slots go to distinct GPUs, on the fullest ones first. MIG instances fill one
// GPU before the next. Over several nodes it is all or nothing, on the best
// distinct ones. Binding node takes a machine that is wholly free and well, at
// least as large as asked, with everything that it has.
func (x *Index) Place(r Request) (Decision, bool) {
	a := x.ask(r)
	if a.refusal != "" {
		return Decision{}, false
	}
	for _, a.profile = range a.profiles {
		if nodes := a.find(); len(nodes) == a.nodes {
			return a.decide(nodes), true
		}
	}
	return Decision{}, false
}

// Booking makes the decision a booking.
func (d Decision) Booking(reservationID, tenantID string, r Request) Booking {
	return Booking{ReservationID: reservationID, TenantID: tenantID, PoolID: r.PoolID, Binding: r.Binding, Placements: d.Placements}
}

// ask is a request per node, made ready for comparing.
type ask struct {
	pool     *pool
	nodes    int
	resource string // of the atoms; "" if it asks for none
	atoms    int
	scalars  [scalarCount]int32
	shared   bool               // the scalars are the default host share
	least    [scalarCount]int32 // the same, -1 where nothing is asked
	selector []attribute        // less hostname and MIG profile, in order of name
	hostname *appliance.Match
	profiles []string // MIG profiles that will do, in order; one "" elsewhere
	profile  string   // the one in question
	holder   string   // Request.ReservationID
	pinned   bool
	whole    bool
	refusal  string    // why nothing in the pool can ever serve it
	matched  []verdict // by number of class; nil without a selector
	share    [2]int32  // default host share of a GPU: vcpu, memoryGiB; 0 if no GPU host has the row
}

// attribute is an entry of a selector.
type attribute struct {
	name  string
	match appliance.Match
}

// find gives the best nodes for the request, at most as many as it asks for.
func (a *ask) find() []*node {
	switch {
	case a.hostname != nil:
		return a.findNamed()
	case a.resource == "" && !a.whole:
		return a.findHost()
	case a.profile != "" && !a.whole:
		return a.findTightest(&a.pool.profiles[a.profile].shelf)
	}
	return a.findTightest(&a.pool.base)
}

type rated struct {
	*cell
	cost uint64
}

// findTightest looks at the nodes with just enough atoms first.
func (a *ask) findTightest(s *shelf) []*node {
	var out []*node
	var cells []rated
	for free := a.atoms; free < len(s.rows) && len(out) < a.nodes; free++ {
		cells = cells[:0]
		for _, c := range s.rows[free] {
			if cost, ok := a.cost(c.sign); ok {
				cells = append(cells, rated{c, cost})
			}
		}
		slices.SortFunc(cells, func(p, q rated) int { return cmp.Compare(p.cost, q.cost) })
		for i := 0; i < len(cells) && len(out) < a.nodes; {
			j := i + 1
			for j < len(cells) && cells[j].cost == cells[i].cost {
				j++
			}
			out = a.merge(cells[i:j], out)
			i = j
		}
	}
	return out
}

// cost rates the free atoms of a node for the request; false if they cannot
// serve it. Their number is not compared.
func (a *ask) cost(sg sign) (uint64, bool) {
	switch {
	case a.whole:
		return 0, sg.layout == nil || sg.devices == low(len(sg.layout.devices))
	case a.resource == appliance.ResourceGPU:
		return sg.layout.choose(sg.devices, 0, a.atoms).cost, true
	case a.resource == appliance.ResourceSlot:
		return 0, sg.devices >= uint64(a.atoms)
	}
	return 0, true
}

// lookAhead is how many nodes beyond those asked for are looked at for one
// whose CPUs are near its GPUs.
const lookAhead = 64

// merge walks the nodes of equally good cells by hostname and adds those that
// fit, up to the number asked for; first those with CPUs near their GPUs.
func (a *ask) merge(cells []rated, out []*node) []*node {
	var queue []head
	for i := range cells {
		h := head{cursor: cursor{run: &cells[i].run}}
		if h.next(a) {
			queue = append(queue, h)
		}
	}
	for i := len(queue)/2 - 1; i >= 0; i-- {
		siftDown(queue, i)
	}
	need := a.nodes - len(out)
	var near, far []*node
	for len(queue) > 0 && len(near) < need && len(near)+len(far) < need+lookAhead {
		n := queue[0].node
		if ok := a.fits(n); ok && a.isNear(n) {
			near = append(near, n)
		} else if ok {
			far = append(far, n)
		}
		if !queue[0].next(a) {
			queue[0] = queue[len(queue)-1]
			queue = queue[:len(queue)-1]
		}
		siftDown(queue, 0)
	}
	return append(out, append(near, far...)[:min(need, len(near)+len(far))]...)
}

// head is a cursor and the node that it stands on.
type head struct {
	cursor cursor
	node   *node
}

func (h *head) next(a *ask) bool {
	e := h.cursor.next(a)
	if e == nil {
		return false
	}
	h.node = e.node
	return true
}

// siftDown restores the heap below i.
func siftDown(queue []head, i int) {
	for {
		child := 2*i + 1
		if child >= len(queue) {
			return
		}
		if child+1 < len(queue) && compareNodes(queue[child+1].node, queue[child].node) < 0 {
			child++
		}
		if compareNodes(queue[i].node, queue[child].node) <= 0 {
			return
		}
		queue[i], queue[child] = queue[child], queue[i]
		i = child
	}
}

// fits asks what the shelf does not know: CPUs, and whether a machine is wholly
// free.
func (a *ask) fits(n *node) bool {
	if a.whole {
		free, _ := a.countAtoms(n)
		return len(n.shares) == 0 && n.releasing == nil && n.healthy&^n.waits == low(n.uuids.len()) && free >= a.atoms
	}
	return n.hasCPUs(a.scalars[vcpuIndex], a.pinned)
}

// isNear tells whether the node has the CPUs near the GPUs it would give.
func (a *ask) isNear(n *node) bool {
	if a.whole || a.resource == "" || a.scalars[vcpuIndex] == 0 {
		return true
	}
	return n.hasCPUsNear(a.devices(n), a.scalars[vcpuIndex], a.pinned)
}

// verdict remembers whether the selector takes a class of nodes.
type verdict byte

const (
	unknown verdict = iota
	taken
	refused
)

// matches tells whether the selector takes the node's attributes.
func (a *ask) matches(e *entry) bool {
	if a.matched == nil {
		return true
	}
	v := &a.matched[e.class]
	if *v == unknown {
		*v = taken
		for i := range a.selector {
			value, has := e.node.class.value.of[a.selector[i].name]
			if !has || !a.selector[i].match.Matches(value) {
				*v = refused
				break
			}
		}
	}
	return *v == taken
}

// decide chooses atoms, CPUs and memory on the nodes.
func (a *ask) decide(nodes []*node) Decision {
	slices.SortFunc(nodes, compareNodes)
	d := Decision{Placements: make([]appliance.Placement, len(nodes)), Booked: appliance.Amounts{}, Profile: a.profile}
	if a.whole {
		d.Profile = ""
	}
	for i, n := range nodes {
		d.Placements[i] = a.on(n)
		for r, v := range d.Placements[i].Amounts {
			d.Booked[r] += v
		}
	}
	return d
}

// on is the placement on one node.
func (a *ask) on(n *node) appliance.Placement {
	p := appliance.Placement{NodeID: n.id, Devices: []string{}, Atoms: []string{}, Amounts: appliance.Amounts{}}
	scalars, pinned := a.scalars, a.pinned
	var atoms [maxDevices]uint64
	if a.whole {
		pinned = true
		for i := range scalars {
			scalars[i] = max(0, n.freeRow(i))
		}
		for i := range n.uuids.len() {
			atoms[i] = n.freeAtoms(i)
		}
	} else {
		a.choose(n, &atoms)
	}
	var devices uint64
	for i, uuid := range n.uuids.all() {
		if atoms[i] == 0 {
			continue
		}
		devices |= 1 << i
		p.Devices = append(p.Devices, uuid)
		for m := atoms[i]; m != 0; m &= m - 1 {
			p.Atoms = append(p.Atoms, n.atomName(i, bits.TrailingZeros64(m)))
		}
	}
	if len(p.Atoms) > 0 {
		p.Amounts[n.pool.sharing.Resource()] = len(p.Atoms)
	}
	for i, v := range scalars {
		if v > 0 {
			p.Amounts[appliance.Scalars[i]] = int(v)
		}
	}
	host := n.hostShare(devices, &scalars, pinned)
	p.CPUs, p.NUMANodes = host.cpus, host.memoryNodes
	return p
}

// devices is the set of GPUs of which the request would take atoms.
func (a *ask) devices(n *node) uint64 {
	var atoms [maxDevices]uint64
	a.choose(n, &atoms)
	var set uint64
	for i := range n.uuids.len() {
		if atoms[i] != 0 {
			set |= 1 << i
		}
	}
	return set
}

// choose picks the atoms of each GPU. The node has enough of them.
func (a *ask) choose(n *node, atoms *[maxDevices]uint64) {
	switch a.resource {
	case appliance.ResourceGPU:
		for m := n.layout.value.choose(n.sign().devices, 0, a.atoms).devices; m != 0; m &= m - 1 {
			atoms[bits.TrailingZeros64(m)] = 1
		}
	case appliance.ResourceSlot:
		a.chooseSlots(n, atoms)
	case appliance.ResourceMIG:
		a.chooseInstances(n, atoms)
	}
}

// chooseSlots takes one slot of each of the GPUs with the fewest slots free;
// among those with as many, the best joined ones.
func (a *ask) chooseSlots(n *node, atoms *[maxDevices]uint64) {
	var byFree [maxAtoms + 1]uint64
	for i := range n.uuids.len() {
		free := n.freeAtoms(i)
		byFree[bits.OnesCount64(free)] |= 1 << i
	}
	var set uint64
	for free, need := 1, a.atoms; need > 0 && free <= maxAtoms; free++ {
		count := min(need, bits.OnesCount64(byFree[free]))
		set |= n.layout.value.choose(byFree[free], set, count).devices
		need -= count
	}
	for m := set; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		free := n.freeAtoms(i)
		atoms[i] = free & -free
	}
}

// chooseInstances fills the GPU with the fewest instances of the profile free
// before the next; of those with as many, one that is in use already.
func (a *ask) chooseInstances(n *node, atoms *[maxDevices]uint64) {
	var order []int
	for i := range n.uuids.len() {
		if n.freeOf(i, a.profile) != 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if d := bits.OnesCount64(n.freeOf(i, a.profile)) - bits.OnesCount64(n.freeOf(j, a.profile)); d != 0 {
			return d
		}
		return min(bits.OnesCount64(n.booked[j]), 1) - min(bits.OnesCount64(n.booked[i]), 1)
	})
	need := a.atoms
	for _, i := range order {
		for m := n.freeOf(i, a.profile); m != 0 && need > 0; m &= m - 1 {
			atoms[i] |= m & -m
			need--
		}
	}
}
