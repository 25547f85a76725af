package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Index holds the nodes of all pools and what is booked of them. Methods that
// change it must run alone; those that only read may run at the same time as
// one another.
type Index struct {
	nodes    map[string]*node
	pools    map[string]*pool
	bookings map[string]*booking

	// What like machines share.
	classes    table[attributes]
	layouts    table[*layout]
	topologies table[topology]
	shapes     table[shape]
	key        []byte // scratch of PutNode
	last       lastTopology

	classCount  uint32   // numbers of classes that were ever in use
	freeClasses []uint32 // those that are not

	lastClass lastClass

	lists map[string]wire.CPUSet // of what was read last; see cpuSet

	filling bool // nodes do not count in their pools yet: see Fill
}

// pool is what the index keeps of one pool: it is there while it has nodes.
type pool struct {
	id       string
	sharing  appliance.Sharing
	kind     kind
	all      run   // every node
	base     shelf // those that take bookings
	room     room  // the same
	profiles map[string]*profile
	shares   [2]map[int32]int // for vcpu and memoryGiB, share of a GPU to the number of GPU hosts that can give it
	tally    tally
}

// kind is what the atoms of a pool are.
type kind byte

const (
	wholeGPUs kind = iota
	instances
	gpuSlots
)

func kindOf(s appliance.Sharing) kind {
	switch s.Resource() {
	case appliance.ResourceMIG:
		return instances
	case appliance.ResourceSlot:
		return gpuSlots
	}
	return wholeGPUs
}

// profile is what a pool has of one MIG profile.
type profile struct {
	instances int
	shelf     shelf
}

// Booking is a reservation's hold on nodes, as it is stored.
type Booking struct {
	ReservationID string                `json:"reservationId"`
	TenantID      string                `json:"tenantId"`
	PoolID        string                `json:"poolId"`
	Binding       appliance.BindingKind `json:"binding"`
	Placements    []appliance.Placement `json:"placements"`
}

// NewIndex gives an empty index.
func NewIndex() *Index {
	return &Index{nodes: map[string]*node{}, pools: map[string]*pool{}, bookings: map[string]*booking{}}
}

// PutNode adds a node, or replaces the facts of one and keeps its bookings:
// booked atoms that the new facts do not have stay booked. It gives back the
// facts that it replaced, nil if the node is new; putting those back, or
// dropping the new node, undoes it. It refuses what no node can be, a node of
// another sharing mode than the other nodes of its pool, and moving a booked
// node to another pool; nothing has changed then.
func (x *Index) PutNode(facts Node) (previous *Node, err error) {
	if facts.Sharing == "" {
		facts.Sharing = appliance.SharingExclusive
	}
	if err := checkFacts(&facts); err != nil {
		return nil, err
	}
	old := x.nodes[facts.ID]
	if old != nil && x.filling {
		return nil, fmt.Errorf("node %s is put twice", facts.ID)
	}
	if p := x.pools[facts.PoolID]; p != nil && p.sharing != facts.Sharing && !(p.tally.nodes == 1 && old != nil && old.pool == p) {
		return nil, fmt.Errorf("node %s is shared as %s, its pool %s as %s", facts.ID, facts.Sharing, p.id, p.sharing)
	}
	if old != nil && (len(old.shares) > 0 || old.releasing != nil) && (old.pool.id != facts.PoolID || old.pool.sharing != facts.Sharing) {
		return nil, fmt.Errorf("node %s has bookings in pool %s: it cannot change its pool or how that is shared", facts.ID, old.pool.id)
	}
	if err := x.checkTopology(&facts); err != nil {
		return nil, err
	}
	n := &node{id: facts.ID}
	if old != nil {
		was := old.facts()
		previous = &was
		x.leave(old)
		n, n.shares = old, old.shares
	}
	released := *n // what the old facts shared, let go after the new ones are held
	x.describe(n, &facts)
	if old != nil {
		x.letGo(&released)
	}
	n.reset()
	for _, s := range n.shares {
		n.take(s, x.setsOf(s))
	}
	n.markReleasing()
	x.nodes[n.id] = n
	if !x.filling {
		x.enter(n)
	}
	return previous, nil
}

// Fill makes an index of what is stored: fill puts every node, once, and books
// what is booked. Each node is then put in its place once and not for each of
// its bookings, which is most of the work. When fill fails there is no index.
func Fill(fill func(*Index) error) (*Index, error) {
	x := NewIndex()
	x.filling = true
	if err := fill(x); err != nil {
		return nil, err
	}
	x.filling, x.lastClass = false, lastClass{}
	for _, n := range slices.SortedFunc(maps.Values(x.nodes), compareNodes) {
		x.enter(n)
	}
	return x, nil
}

// DropNode forgets a node without bookings and gives back its facts. It refuses
// a booked node and one of which ended reservations keep something; a node that is not there is nil without an error.
func (x *Index) DropNode(id string) (previous *Node, err error) {
	n := x.nodes[id]
	if n == nil {
		return nil, nil
	}
	if len(n.shares) > 0 {
		return nil, fmt.Errorf("node %s is booked by reservation %s", id, n.shares[0].booking.id)
	}
	if n.releasing != nil {
		return nil, fmt.Errorf("reservation %s still keeps atoms of node %s", n.releasing.of[0].ReservationID, id)
	}
	was := n.facts()
	x.leave(n)
	x.letGo(n)
	delete(x.nodes, id)
	return &was, nil
}

// Node gives the facts of a node, with what is allocated of its rows. Its
// topology is shared: it must not be changed.
func (x *Index) Node(id string) (Node, bool) {
	n := x.nodes[id]
	if n == nil {
		return Node{}, false
	}
	return n.facts(), true
}

// Rows gives a node's counted resources with what is allocated of them, as
// Node does and for less; nil if there is no such node.
func (x *Index) Rows(id string) []appliance.ResourceRow {
	n := x.nodes[id]
	if n == nil {
		return nil
	}
	return n.rows(nil)
}

// SameRows tells whether the rows of a node are these.
func (x *Index) SameRows(id string, rows []appliance.ResourceRow) bool {
	var few [scalarCount]appliance.ResourceRow
	n := x.nodes[id]
	return n != nil && slices.Equal(n.rows(few[:0]), rows)
}

// describe sets the node's facts.
func (x *Index) describe(n *node, facts *Node) {
	devices := devicesInOrder(facts.Devices)
	n.hostname = facts.Hostname
	n.pool = x.pools[facts.PoolID]
	if n.pool == nil {
		n.pool = &pool{id: facts.PoolID, profiles: map[string]*profile{}, shares: [2]map[int32]int{{}, {}}, room: newRoom()}
		x.pools[facts.PoolID] = n.pool
	}
	n.pool.sharing, n.pool.kind = facts.Sharing, kindOf(facts.Sharing)

	n.class = x.class(facts)
	n.layout = x.layout(facts, devices)
	n.topology = x.topology(facts)

	is := shape{
		role: facts.Role, control: facts.Control, replicas: facts.Replicas,
		schedulable: facts.Schedulable, why: facts.Unschedulable,
	}
	n.total = [scalarCount]int32{}
	for _, r := range facts.Rows {
		i := scalarIndex(r.Resource)
		n.total[i], is.present[i], is.overcommit[i] = int32(r.Total), true, ratio(r)
	}
	x.key = is.appendKey(x.key[:0])
	n.shape = x.shapes.hold(x.key, func() shape { return is })
	n.setDevices(devices)
}

// setDevices keeps what tells the node's GPUs from those of like machines.
func (n *node) setDevices(devices []Device) {
	n.uuids = uuidsOf(devices)
	n.healthy, n.waits, n.reasons, n.parts = 0, 0, nil, nil
	for i, d := range devices {
		if d.Healthy {
			n.healthy |= 1 << i
		}
		if d.Waits {
			n.waits |= 1 << i
		}
		if d.HealthReason != "" {
			if n.reasons == nil {
				n.reasons = map[string]string{}
			}
			n.reasons[n.uuids.at(i)] = d.HealthReason
		}
		if len(d.Instances) > 0 {
			if n.parts == nil {
				n.parts = make([][]Instance, len(devices))
			}
			n.parts[i] = slices.Clone(d.Instances)
		}
	}
}

// enter makes the node count in its pool.
func (x *Index) enter(n *node) {
	p := n.pool
	p.all.add(entry{node: n})
	n.eachShare(func(i int, share int32) { p.shares[i][share]++ })
	for _, parts := range n.bookable() {
		for _, part := range parts {
			if p.profiles[part.Profile] == nil {
				p.profiles[part.Profile] = &profile{}
			}
			p.profiles[part.Profile].instances++
		}
	}
	n.count()
}

// leave undoes enter.
func (x *Index) leave(n *node) {
	n.uncount()
	p := n.pool
	p.all.remove(entry{node: n})
	n.eachShare(func(i int, share int32) {
		if p.shares[i][share]--; p.shares[i][share] == 0 {
			delete(p.shares[i], share)
		}
	})
	for _, parts := range n.bookable() {
		for _, part := range parts {
			if p.profiles[part.Profile].instances--; p.profiles[part.Profile].instances == 0 {
				delete(p.profiles, part.Profile)
			}
		}
	}
	if len(p.all.chunks) == 0 {
		delete(x.pools, p.id)
	}
}

// eachShare tells what share of vcpu and memoryGiB each GPU of the node can
// have, if it is a GPU host and has the row.
func (n *node) eachShare(f func(i int, share int32)) {
	if n.shape.value.role != appliance.RoleHost || n.uuids.len() == 0 {
		return
	}
	for i := range 2 {
		if n.shape.value.present[i] {
			f(i, n.total[i]/int32(n.uuids.len()))
		}
	}
}

// count adds the node to the sums of its pool and puts it on its shelves;
// uncount, before its bookings change, undoes it.
func (n *node) count() {
	n.pool.tally.add(n.tally(), 1)
	if !n.takes() {
		return
	}
	sg, e := n.sign(), n.entry()
	n.pool.base.add(sg, e)
	n.pool.room.add(sg, e)
	for _, profile := range n.profiles() {
		n.pool.profiles[profile].shelf.add(n.profileSign(profile), e)
	}
}

func (n *node) uncount() {
	n.pool.tally.add(n.tally(), -1)
	if !n.takes() {
		return
	}
	sg, e := n.sign(), n.entry()
	n.pool.base.remove(sg, e)
	n.pool.room.remove(sg, e)
	for _, profile := range n.profiles() {
		n.pool.profiles[profile].shelf.remove(n.profileSign(profile), e)
	}
}

// Book applies a booking: one that Place decided, or one that is stored. It
// does not ask whether the booking still fits: atoms and CPUs may be unhealthy
// or gone, and rows may have shrunk. It refuses a reservation that is booked
// already, an atom or CPU that another booking holds, and what is not
// consistent in itself; nothing has changed then.
func (x *Index) Book(b Booking) error {
	made, err := x.prepare(b)
	if err != nil {
		return fmt.Errorf("booking of reservation %s: %w", b.ReservationID, err)
	}
	for i := range made.shares {
		s := &made.shares[i]
		if !x.filling {
			s.node.uncount()
		}
		at, _ := slices.BinarySearchFunc(s.node.shares, made.id, func(s *share, id string) int {
			return strings.Compare(s.booking.id, id)
		})
		s.node.shares = slices.Insert(s.node.shares, at, s)
		s.node.take(s, x.setsOf(s))
		if !x.filling {
			s.node.count()
		}
	}
	x.bookings[made.id] = made
	return nil
}

// Release ends a booking and gives it back; false if there is none.
func (x *Index) Release(reservationID string) (Booking, bool) {
	b, ok := x.Booking(reservationID)
	if !ok {
		return Booking{}, false
	}
	made := x.bookings[reservationID]
	for i := range made.shares {
		s := &made.shares[i]
		s.node.uncount()
		s.node.shares = slices.DeleteFunc(s.node.shares, func(other *share) bool { return other == s })
		s.node.give(s, x.setsOf(s))
		s.node.count()
	}
	delete(x.bookings, reservationID)
	return b, true
}

// Booking gives the booking of a reservation.
func (x *Index) Booking(reservationID string) (Booking, bool) {
	made := x.bookings[reservationID]
	if made == nil {
		return Booking{}, false
	}
	b := Booking{
		ReservationID: made.id, TenantID: made.tenant, PoolID: made.pool, Binding: made.binding,
		Placements: make([]appliance.Placement, len(made.shares)),
	}
	for i := range made.shares {
		b.Placements[i] = made.shares[i].placement()
	}
	return b, true
}

func (x *Index) prepare(b Booking) (*booking, error) {
	if b.ReservationID == "" || len(b.Placements) == 0 {
		return nil, fmt.Errorf("it names no reservation or no node")
	}
	if x.bookings[b.ReservationID] != nil {
		return nil, fmt.Errorf("it is booked already")
	}
	made := &booking{id: b.ReservationID, tenant: b.TenantID, pool: b.PoolID, binding: b.Binding}
	made.shares = make([]share, len(b.Placements))
	var on map[string]bool // the nodes before, if there are more than one
	if len(b.Placements) > 1 {
		on = make(map[string]bool, len(b.Placements))
	}
	for i := range b.Placements {
		p := &b.Placements[i]
		n := x.nodes[p.NodeID]
		switch {
		case n == nil:
			return nil, fmt.Errorf("node %s is not in the index", p.NodeID)
		case n.pool.id != b.PoolID:
			return nil, fmt.Errorf("node %s is in pool %s, not %s", p.NodeID, n.pool.id, b.PoolID)
		case on[p.NodeID]:
			return nil, fmt.Errorf("node %s stands in it twice", p.NodeID)
		}
		if on != nil {
			on[p.NodeID] = true
		}
		made.pool = n.pool.id
		made.shares[i] = share{booking: made, node: n}
		if err := x.fill(&made.shares[i], p); err != nil {
			return nil, fmt.Errorf("node %s: %w", p.NodeID, err)
		}
	}
	return made, nil
}

// fill reads a placement and refuses what is booked already.
func (x *Index) fill(s *share, p *appliance.Placement) error {
	n := s.node
	resource := n.pool.sharing.Resource()
	s.cpus, s.memoryNodes, s.confirmed = p.CPUs, p.NUMANodes, p.Confirmed
	for name, amount := range p.Amounts {
		i := scalarIndex(name)
		switch {
		case name == resource && amount == len(p.Atoms):
			s.namedAtoms = true
		case i < 0:
			return fmt.Errorf("%d %s for %d atoms of %s", amount, name, len(p.Atoms), resource)
		case amount < 0 || amount > appliance.MaxCount:
			return fmt.Errorf("%s %d is not 0 to %d", name, amount, appliance.MaxCount)
		default:
			s.scalars[i], s.named[i] = int32(amount), true
		}
	}
	s.devices = slices.Clone(p.Devices)
	for i, uuid := range s.devices {
		if at := n.uuids.index(uuid); at >= 0 {
			s.devices[i] = n.uuids.at(at) // the string that is there already
		}
	}
	if slices.Equal(p.Atoms, p.Devices) {
		s.atoms = s.devices
	} else {
		s.atoms = slices.Clone(p.Atoms)
	}
	for i, name := range s.atoms {
		if n.isBooked(name) || slices.Contains(s.atoms[:i], name) {
			return fmt.Errorf("%s is booked already", name)
		}
	}
	set, err := x.cpuSet(s.cpus)
	if err != nil {
		return err
	}
	if cpu := n.cpus.common(set); cpu >= 0 {
		return fmt.Errorf("CPU %d is booked already", cpu)
	}
	_, err = x.cpuSet(s.memoryNodes)
	return err
}

// maxLists bounds what is remembered of lists. Like machines have the same ones.
const maxLists = 512

// cpuSet reads a list of CPUs or memory nodes.
func (x *Index) cpuSet(list string) (wire.CPUSet, error) {
	set, ok := x.lists[list]
	if ok {
		return set, nil
	}
	set, err := wire.ParseCPUList(list)
	if err != nil {
		return set, err
	}
	if x.lists == nil || len(x.lists) == maxLists {
		x.lists = map[string]wire.CPUSet{}
	}
	x.lists[list] = set
	return set, nil
}

// hostSets are the sets of a share's CPUs and memory nodes.
type hostSets struct{ cpus, memoryNodes wire.CPUSet }

// setsOf reads again what fill has read without an error.
func (x *Index) setsOf(s *share) (sets hostSets) {
	sets.cpus, _ = x.cpuSet(s.cpus)
	sets.memoryNodes, _ = x.cpuSet(s.memoryNodes)
	return sets
}
