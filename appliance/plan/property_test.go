package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

// snapshot writes everything that an index holds, in an order that does not
// depend on how it came to hold it.
func snapshot(x *Index) string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(x.nodes)) {
		n := x.nodes[id]
		cpus := slices.Clone(n.cpus)
		for len(cpus) > 0 && cpus[len(cpus)-1] == 0 {
			cpus = cpus[:len(cpus)-1]
		}
		memory := slices.DeleteFunc(slices.Clone(n.memoryMiB), func(v int64) bool { return v == 0 })
		facts := n.facts()
		topology := facts.Topology
		facts.Topology = nil
		fmt.Fprintf(&b, "releasing %v", x.Releasing(id))
		fmt.Fprintf(&b, "%+v %+v booked %v strays %q allocated %v cpus %v memory %v leased %v\n",
			facts, topology, n.booked, n.strays, n.allocated, cpus, memory, n.leased)
		for _, s := range n.shares {
			fmt.Fprintf(&b, "  %s %s %s %+v\n", s.booking.id, s.booking.tenant, s.booking.binding, s.placement())
		}
	}
	for _, id := range slices.Sorted(maps.Keys(x.pools)) {
		p := x.pools[id]
		fmt.Fprintf(&b, "pool %s %s %+v %v\n", id, p.sharing, p.tally, p.shares)
		writeShelf(&b, "base", &p.base)
		writeRun(&b, "without GPUs", &p.room.bare)
		for free := range p.room.rows {
			writeRun(&b, fmt.Sprint(free, " free"), &p.room.rows[free])
		}
		for _, name := range slices.Sorted(maps.Keys(p.profiles)) {
			fmt.Fprintf(&b, " %s has %d\n", name, p.profiles[name].instances)
			writeShelf(&b, name, &p.profiles[name].shelf)
		}
	}
	fmt.Fprintf(&b, "bookings %q\n", slices.Sorted(maps.Keys(x.bookings)))
	fmt.Fprintf(&b, "held %d %d %d %d\n", len(x.classes.held), len(x.layouts.held), len(x.topologies.held), len(x.shapes.held))
	return b.String()
}

func writeShelf(b *strings.Builder, name string, s *shelf) {
	var lines []string
	for _, row := range s.rows {
		for _, c := range row {
			var line strings.Builder
			writeRun(&line, fmt.Sprintf("  %s %d %v %b", name, c.sign.free, c.sign.gpus, c.sign.devices), &c.run)
			lines = append(lines, line.String())
		}
	}
	slices.Sort(lines)
	fmt.Fprintf(b, "%d rows\n%s\n", len(s.rows), strings.Join(lines, ""))
}

func writeRun(b *strings.Builder, name string, r *run) {
	b.WriteString(name)
	for _, chunk := range r.chunks {
		for _, e := range chunk.entries {
			fmt.Fprintf(b, " %s%v", e.node.id, e.free)
		}
	}
	b.WriteString("\n")
}

// TestPlacementAgreesWithSimpleModel runs random histories of a few nodes and
// holds every decision to the model, every state to Check, every undo to the
// state before, and the whole to an index that saw it in another order.
func TestPlacementAgreesWithSimpleModel(t *testing.T) {
	for _, sharing := range []appliance.Sharing{
		appliance.SharingExclusive, appliance.SharingMIG, appliance.SharingTimeslice,
	} {
		t.Run(string(sharing), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { runHistory(t, sharing) })
		})
	}
}

// history is an index and the model, led through the same changes.
type history struct {
	x       *Index
	m       *model
	sharing appliance.Sharing
	serial  int
}

var nodeIDs = []string{"node_1", "node_2", "node_3", "node_4", "node_5"}

func runHistory(t *rapid.T, sharing appliance.Sharing) {
	h := &history{x: NewIndex(), m: &model{nodes: map[string]Node{}, bookings: map[string]Booking{}, held: map[string]map[string][]string{}}, sharing: sharing}
	for range rapid.IntRange(1, 5).Draw(t, "first nodes") {
		h.put(t)
	}
	t.Repeat(map[string]func(*rapid.T){
		"book": h.book, "book again": h.book, "release": h.release, "free": h.free, "put": h.put, "drop": h.drop, "": h.check,
	})
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// undone holds an undo to the state before.
func (h *history) undone(t *rapid.T, what string, do, undo func()) {
	before := snapshot(h.x)
	do()
	undo()
	if diff := cmp.Diff(before, snapshot(h.x)); diff != "" {
		t.Fatalf("%s and its undoing change the index:\n%s", what, diff)
	}
}

// put adds a node or changes everything about one: devices come and go, fall
// ill and recover, rows grow and shrink.
func (h *history) put(t *rapid.T) {
	n := drawNode(t, rapid.SampledFrom(nodeIDs).Draw(t, "id"), h.sharing)
	old, had := h.m.nodes[n.ID]
	if len(h.m.on(n.ID))+len(h.m.held[n.ID]) > 0 {
		n.PoolID = old.PoolID
	}
	put := func(n Node) *Node {
		previous, err := h.x.PutNode(n)
		must(t, err)
		return previous
	}
	h.undone(t, "PutNode", func() {
		previous := put(n)
		if had != (previous != nil) {
			t.Fatalf("PutNode of %s gives %v back", n.ID, previous)
		}
		if had {
			put(*previous)
			put(n)
		}
	}, func() {
		if had {
			put(old)
		} else {
			_, err := h.x.DropNode(n.ID)
			must(t, err)
		}
	})
	if had {
		h.undone(t, "PutNode", func() { old = *put(n) }, func() { put(old) })
	}
	put(n)
	h.m.nodes[n.ID] = n
}

func (h *history) drop(t *rapid.T) {
	id := rapid.SampledFrom(nodeIDs).Draw(t, "id")
	previous, err := h.x.DropNode(id)
	if booked := len(h.m.on(id))+len(h.m.held[id]) > 0; (err != nil) != booked {
		t.Fatalf("DropNode of %s is %v; booked is %v", id, err, booked)
	}
	if err != nil || previous == nil {
		return
	}
	h.undone(t, "DropNode", func() {
		_, err := h.x.PutNode(*previous)
		must(t, err)
	}, func() {
		_, err := h.x.DropNode(id)
		must(t, err)
	})
	delete(h.m.nodes, id)
}

func (h *history) book(t *rapid.T) {
	r := drawRequest(t, h.sharing)
	before := snapshot(h.x)
	d, ok := h.x.Place(r)
	e := h.x.Explain(r)
	h.x.Capacity(r.PoolID, r.PerGPU)
	if snapshot(h.x) != before {
		t.Fatal("Place, Explain or Capacity change the index")
	}
	h.m.checkDecision(t, r, d, ok)
	checkOrder(t, h.x, r, d, ok)
	checkExplanation(t, r, e, ok)
	if !ok {
		return
	}
	h.serial++
	b := d.Booking(fmt.Sprintf("res_%d", h.serial), "acme", r)
	h.undone(t, "Book", func() { must(t, h.x.Book(b)) }, func() { h.x.Release(b.ReservationID) })
	must(t, h.x.Book(b))
	if h.x.Book(b) == nil {
		t.Fatal("the same booking is taken twice")
	}
	h.m.bookings[b.ReservationID] = b
}

func checkExplanation(t *rapid.T, r Request, e appliance.Explanation, placed bool) {
	fits := 0
	for _, n := range e.Nodes {
		if n.Fits {
			fits++
		}
		if n.Fits != (len(n.Missing) == 0) {
			t.Fatalf("node %s fits: %v, and lacks %q", n.Hostname, n.Fits, n.Missing)
		}
	}
	if placed != strings.HasPrefix(e.Message, "fits now") || placed && fits < r.Nodes {
		t.Fatalf("Place(%+v) is %v, Explain says %q and lets %d nodes fit", r, placed, e.Message, fits)
	}
	if !placed && fits >= r.Nodes {
		t.Fatalf("Place(%+v) finds nothing, Explain lets %d nodes fit", r, fits)
	}
}

func (h *history) release(t *rapid.T) {
	if len(h.m.bookings) == 0 {
		return
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(h.m.bookings))).Draw(t, "reservation")
	h.undone(t, "Release", func() { h.x.Release(id) }, func() { must(t, h.x.Book(h.m.bookings[id])) })
	got, ok := h.x.Release(id)
	if diff := cmp.Diff(h.m.bookings[id], got); !ok || diff != "" {
		t.Fatalf("Release gives another booking back (-booked +released):\n%s", diff)
	}
	for _, p := range h.m.bookings[id].Placements {
		if len(p.Atoms) > 0 && rapid.Bool().Draw(t, "walled") {
			h.hold(t, p.NodeID, id, p.Atoms)
		}
	}
	delete(h.m.bookings, id)
}

// hold keeps what a reservation had from being booked: its wall is not gone yet.
func (h *history) hold(t *rapid.T, node, id string, atoms []string) {
	h.undone(t, "Hold", func() { must(t, h.x.Hold(node, id, atoms)) }, func() {
		if diff := cmp.Diff(atoms, h.x.Free(node, id)); diff != "" {
			t.Fatalf("Free gives other atoms (-held +freed):\n%s", diff)
		}
	})
	must(t, h.x.Hold(node, id, atoms))
	if h.x.Hold(node, id, atoms) == nil || h.x.Hold(node, "res_other", atoms) == nil {
		t.Fatal("what is held is held twice")
	}
	if h.x.Book(Booking{ReservationID: "res_other", PoolID: h.m.nodes[node].PoolID, Placements: []appliance.Placement{{
		NodeID: node, Atoms: atoms[:1], Amounts: appliance.Amounts{h.sharing.Resource(): 1},
	}}}) == nil {
		t.Fatal("what is held is booked")
	}
	if h.m.held[node] == nil {
		h.m.held[node] = map[string][]string{}
	}
	h.m.held[node][id] = atoms
}

// free ends what an ended reservation keeps of a node.
func (h *history) free(t *rapid.T) {
	for _, node := range slices.Sorted(maps.Keys(h.m.held)) {
		for _, id := range slices.Sorted(maps.Keys(h.m.held[node])) {
			if !rapid.Bool().Draw(t, "gone") {
				continue
			}
			atoms := h.m.held[node][id]
			h.undone(t, "Free", func() { h.x.Free(node, id) }, func() { must(t, h.x.Hold(node, id, atoms)) })
			h.x.Free(node, id)
			delete(h.m.held[node], id)
		}
	}
}

// check holds the index to its own rules, and to one that was filled in another
// order.
func (h *history) check(t *rapid.T) {
	must(t, h.x.Check())
	if held, free := len(h.x.classes.held), len(h.x.freeClasses); int(h.x.classCount) != held+free {
		t.Fatalf("of %d numbers of classes %d are held and %d are free", h.x.classCount, held, free)
	}
	other := NewIndex()
	for _, id := range rapid.Permutation(slices.Sorted(maps.Keys(h.m.nodes))).Draw(t, "nodes") {
		_, err := other.PutNode(h.m.nodes[id])
		must(t, err)
	}
	for _, id := range rapid.Permutation(slices.Sorted(maps.Keys(h.m.bookings))).Draw(t, "bookings") {
		must(t, other.Book(h.m.bookings[id]))
	}
	for node, held := range h.m.held {
		for id, atoms := range held {
			must(t, other.Hold(node, id, atoms))
		}
	}
	h.checkReleasing(t)
	if diff := cmp.Diff(snapshot(h.x), snapshot(other)); diff != "" {
		t.Fatalf("the index depends on the order in which it was filled:\n%s", diff)
	}
	r := drawRequest(t, h.sharing)
	a, okA := h.x.Place(r)
	b, okB := other.Place(r)
	if diff := cmp.Diff(a, b); okA != okB || diff != "" {
		t.Fatalf("the decision depends on the order in which the index was filled:\n%s", diff)
	}
}

// checkReleasing holds what a pool says is being released to the model: what is
// still one of its atoms, counted once.
func (h *history) checkReleasing(t *rapid.T) {
	for _, pool := range []string{"pool_a", "pool_b"} {
		want := 0
		for id, n := range h.m.nodes {
			for _, d := range n.Devices {
				for _, atom := range h.m.atoms(d, n, "") {
					for _, atoms := range h.m.held[id] {
						if n.PoolID == pool && n.Role == appliance.RoleHost && slices.Contains(atoms, atom) {
							want++
						}
					}
				}
			}
		}
		got := h.x.Capacity(pool, nil).Resources[h.sharing.Resource()]
		if got.Releasing != want || got.Allocated+got.Available+got.Releasing > got.Total {
			t.Fatalf("%s says %+v, the model releases %d", pool, got, want)
		}
	}
}
