package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

// TestExplainSaysWhatIsMissing holds every kind of reason to its words.
func TestExplainSaysWhatIsMissing(t *testing.T) {
	booked := func(hostname string, atoms ...string) func(x *Index) {
		return func(x *Index) { hold(t, x, "res_"+hostname, hostname, atoms...) }
	}
	product := func(p string) func(*Node) { return func(n *Node) { n.Attributes["gpuProduct"] = p } }
	for name, c := range map[string]struct {
		nodes []Node
		book  func(x *Index)
		ask   Request
		want  string
	}{
		"no nodes": {nil, nil, asking("gpu=1"), "cannot be placed: the pool has no nodes"},
		"fits":     {[]Node{box("a", 2), box("b", 2)}, nil, asking("gpu=4 vcpu=2", func(r *Request) { r.Nodes = 2 }), "fits now on a, b\na fits\nb fits"},
		"GPUs": {[]Node{box("a", 8, sick(7)), box("b", 2)}, booked("a", "a-0", "a-1", "a-2", "a-3", "a-4"), asking("gpu=3 vcpu=1"),
			`fits on 0 of 2 nodes, 1 needed: 2 without enough free GPUs; closest is a: 2 of 8 GPUs free (1 unhealthy), 3 asked
a: 2 of 8 GPUs free (1 unhealthy), 3 asked
b: 2 of 2 GPUs free, 3 asked
ask for 2 GPUs instead of 3
bring the unhealthy GPUs of a back
`},
		"a release": {[]Node{box("a", 2)}, booked("a", "a-0"), asking("gpu=2 vcpu=1"),
			`fits on 0 of 1 node, 1 needed: 1 without enough free GPUs; closest is a: 1 of 2 GPUs free, 2 asked
a: 1 of 2 GPUs free, 2 asked
ask for 1 GPU instead of 2
1 GPU more free on a
`},
		"spread": {[]Node{box("a", 2), box("b", 2)}, nil, asking("gpu=4 vcpu=2"),
			`fits on 0 of 2 nodes, 1 needed: 2 without enough free GPUs; closest is a: 2 of 2 GPUs free, 4 asked
a: 2 of 2 GPUs free, 4 asked
b: 2 of 2 GPUs free, 4 asked
ask for 2 GPUs instead of 4
spread it over 2 nodes (nodes: 2): it then fits on a, b
`},
		"a cordoned node": {[]Node{box("a", 2, cordoned)}, nil, asking("gpu=1 vcpu=1"),
			`fits on 0 of 1 node, 1 needed: 1 not taking bookings; closest is a: node is cordoned
a: node is cordoned
let a take bookings again
`},
		"a selector": {[]Node{box("a", 2, product("H100 NVL")), box("b", 2)}, nil, asking("gpu=1 vcpu=1", func(r *Request) {
			r.Selector = appliance.Selector{"gpuProduct": {In: []string{"H100 PCIe"}}}
		}),
			`fits on 0 of 2 nodes, 1 needed: 2 not matching the selector; closest is a: selector gpuProduct {"in":["H100 PCIe"]}: it is "H100 NVL"
a: selector gpuProduct {"in":["H100 PCIe"]}: it is "H100 NVL"
b: selector gpuProduct {"in":["H100 PCIe"]}: the node has none
leave gpuProduct out of the selector: it then fits on a
`},
		"rows": {[]Node{box("a", 2), box("b", 2, func(n *Node) { n.Rows = nil })}, nil, asking("gpu=1 vcpu=16 memoryGiB=8"),
			`fits on 0 of 2 nodes, 1 needed: 2 without enough free host resources; closest is a: vcpu: 14 of 14 free, 16 asked
a: vcpu: 14 of 14 free, 16 asked
b: vcpu: the node has none to book, 16 asked, memoryGiB: the node has none to book, 8 asked
ask for vcpu 14 instead of 16
`},
		"the host share": {[]Node{box("a", 2)}, func(x *Index) {
			p := appliance.Placement{NodeID: "node_a", Amounts: appliance.Amounts{"vcpu": 8}}
			if err := x.Book(Booking{ReservationID: "res", PoolID: "pool", Placements: []appliance.Placement{p}}); err != nil {
				t.Fatal(err)
			}
		}, asking("gpu=1"),
			`fits on 0 of 1 node, 1 needed: 1 without enough free host resources; closest is a: vcpu: 6 of 14 free, 7 asked (the host share of 1 GPU)
a: vcpu: 6 of 14 free, 7 asked (the host share of 1 GPU)
name less vcpu and memoryGiB than the default host share: a has vcpu 6 and memoryGiB 56 free
`},
		"isolated CPUs": {[]Node{box("a", 0, func(n *Node) { n.Topology.Isolated = []int{4, 5, 6, 7, 12, 13, 14, 15} })}, nil, asking("vcpu=7"),
			`fits on 0 of 1 node, 1 needed: 1 without enough free host resources; closest is a: vcpu: 6 can be set aside, the other free CPUs are isolated, 7 asked
a: vcpu: 6 can be set aside, the other free CPUs are isolated, 7 asked
ask for vcpu 6 instead of 7
`},
		"instances": {[]Node{box("a", 1, sliced("1g.10gb", "2g.20gb"))}, nil, asking("gpu.mig=2", func(r *Request) {
			r.Selector = appliance.Selector{"migProfile": {Equals: "1g.10gb"}}
		}),
			`fits on 0 of 1 node, 1 needed: 1 without enough free 1g.10gb instances; closest is a: 1 of 1 1g.10gb instance free, 2 asked
a: 1 of 1 1g.10gb instance free, 2 asked
ask for 1 1g.10gb instance instead of 2
`},
		"no such profile": {[]Node{box("a", 1, sliced("1g.10gb", "2g.20gb"))}, nil, asking("gpu.mig=2", func(r *Request) {
			r.Selector = appliance.Selector{"migProfile": {Equals: "7g.80gb"}}
		}), `cannot be placed: selector migProfile "7g.80gb": the pool has 1g.10gb, 2g.20gb`},
		"slots": {[]Node{box("a", 2, slots(4))}, nil, asking("gpu.slot=3"),
			`fits on 0 of 1 node, 1 needed: 1 without enough free slots; closest is a: 2 of 2 GPUs with a slot free, 3 asked, each on a GPU of its own
a: 2 of 2 GPUs with a slot free, 3 asked, each on a GPU of its own
ask for 2 slots instead of 3
`},
		"a whole machine": {[]Node{box("a", 2, sick(0)), box("b", 2)}, booked("b", "b-1"), asking("", func(r *Request) { r.Binding = appliance.BindNode }),
			`fits on 0 of 2 nodes, 1 needed: 2 not wholly free and healthy; closest is a: 1 of 2 GPUs unhealthy
a: 1 of 2 GPUs unhealthy
b: 1 booking on the machine, which must be wholly free
bring the unhealthy GPUs of a back
`},
		"the wrong atom": {[]Node{box("a", 2)}, nil, asking("gpu.mig=1"), "cannot be placed: the pool's GPUs are booked as gpu, not as gpu.mig"},
		"amounts that do not divide": {[]Node{box("a", 2)}, nil, asking("gpu=3", func(r *Request) { r.Nodes = 2 }),
			"cannot be placed: gpu: 3 does not divide by 2 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			x := indexOf(t, c.nodes...)
			if c.book != nil {
				c.book(x)
			}
			e := x.Explain(c.ask)
			lines := []string{e.Message}
			for _, n := range e.Nodes {
				if n.Fits {
					lines = append(lines, n.Hostname+" fits")
				} else {
					lines = append(lines, n.Hostname+": "+strings.Join(n.Missing, ", "))
				}
			}
			lines = append(lines, e.Helps...)
			if diff := cmp.Diff(strings.TrimSpace(c.want), strings.Join(lines, "\n")); diff != "" {
				t.Errorf("explanation (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExplainStaysShortInLargePools shows that the closest nodes are listed.
func TestExplainStaysShortInLargePools(t *testing.T) {
	x := NewIndex()
	for i := range 3 * MaxReasons {
		if _, err := x.PutNode(box(fmt.Sprintf("n%03d", i), 1+i%3)); err != nil {
			t.Fatal(err)
		}
	}
	e := x.Explain(asking("gpu=4 vcpu=1"))
	if len(e.Nodes) != MaxReasons || !strings.HasSuffix(e.Message, "the 50 closest of 150 nodes are listed") {
		t.Errorf("%d nodes and %q", len(e.Nodes), e.Message)
	}
	for i, n := range e.Nodes {
		if n.Missing[0] != "3 of 3 GPUs free, 4 asked" || i > 0 && e.Nodes[i-1].Hostname >= n.Hostname {
			t.Errorf("%s stands at %d: %s", n.Hostname, i, n.Missing)
		}
	}
}

// A machine of which an ended reservation keeps what it has no more is not
// wholly free, and the words say so.
func TestWholeMachineWaitsForWhatItHasNoMore(t *testing.T) {
	x := indexOf(t, box("a", 2))
	if err := x.Hold("node_a", "res_1", []string{"MIG-gone"}); err != nil {
		t.Fatal(err)
	}
	e := x.Explain(asking("", func(r *Request) { r.Binding = appliance.BindNode }))
	if e.Nodes[0].Fits || !slices.Equal(e.Nodes[0].Missing, []string{"1 GPU being released"}) {
		t.Errorf("%+v", e.Nodes[0])
	}
}

// TestCapacity sums a pool with an unhealthy GPU, a cordoned node and bookings.
func TestCapacity(t *testing.T) {
	empty := appliance.Capacity{PoolID: "pool", Resources: map[string]appliance.Rollup{}, Largest: map[string]int{}}
	if diff := cmp.Diff(empty, NewIndex().Capacity("pool", nil)); diff != "" {
		t.Errorf("an empty pool (-want +got):\n%s", diff)
	}
	x := indexOf(t, box("a", 4, sick(0, 1)), box("b", 4), box("c", 2, cordoned), box("d", 1, func(n *Node) { n.Role = appliance.RoleDedicated }))
	hold(t, x, "res_1", "a", "a-0")
	hold(t, x, "res_2", "b", "b-0")
	p := appliance.Placement{NodeID: "node_b", Amounts: appliance.Amounts{"vcpu": 8}}
	if err := x.Book(Booking{ReservationID: "res_3", PoolID: "pool", Placements: []appliance.Placement{p}}); err != nil {
		t.Fatal(err)
	}
	want := appliance.Capacity{
		PoolID: "pool",
		Nodes:  appliance.NodeCount{Total: 4, Schedulable: 3},
		Resources: map[string]appliance.Rollup{
			// a-1 is no part of it; two are on c. 1 - (2²+3²)/(4²+1²)
			"gpu":       {Total: 9, Allocated: 2, Available: 5, Fragmentation: 0.24},
			"vcpu":      {Total: 42, Allocated: 8, Available: 20},
			"memoryGiB": {Total: 168, Available: 112},
		},
		Largest: map[string]int{"gpu": 2, "vcpu": 14, "memoryGiB": 56}, // b has 3 GPUs free, but vcpu 6 and not 9
		Devices: appliance.DeviceCount{Healthy: 9, Unhealthy: 2},
		Free:    appliance.FreeCount{GPUs: 5},
	}
	if diff := cmp.Diff(want, x.Capacity("pool", nil)); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	if got := x.Capacity("pool", appliance.Amounts{"vcpu": 2}).Largest["gpu"]; got != 3 {
		t.Errorf("with a share of 2 CPUs one node takes %d GPUs, not 3", got)
	}
}

// TestCheckFindsWhatIsWrong breaks one thing at a time.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	for want, spoil := range map[string]func(x *Index){
		"a-2 is booked by reservations res_1 and res_2": func(x *Index) { x.bookings["res_2"].shares[0].atoms = []string{"a-2"} },
		"booked atoms differ":                           func(x *Index) { x.nodes["node_a"].booked[1] = 1 },
		"CPUs set aside differ":                         func(x *Index) { x.nodes["node_a"].cpus.add(100) },
		"its bookings sum to":                           func(x *Index) { x.nodes["node_a"].allocated[0]++ },
		"its nodes give":                                func(x *Index) { x.pools["pool"].tally.avail[0]++ },
		"host shares differ":                            func(x *Index) { x.pools["pool"].shares[0][99]++ },
		"does not know of reservation":                  func(x *Index) { x.nodes["node_a"].shares = nil },
		"which is not in the index":                     func(x *Index) { delete(x.nodes, "node_a") },
		"is not in its place on the shelf":              func(x *Index) { x.nodes["node_a"].healthy = 1; x.recount("pool") },
		"memory or lease differ":                        func(x *Index) { x.nodes["node_a"].memoryMiB[0]++ },
		"1 nodes are on the shelf": func(x *Index) {
			n := x.nodes["node_b"]
			n.pool.base.remove(n.sign(), n.entry())
		},
		"1 nodes are in the room": func(x *Index) {
			n := x.nodes["node_b"]
			n.pool.room.remove(n.sign(), n.entry())
		},
		"is not in its place in the room": func(x *Index) {
			n := x.nodes["node_a"]
			n.pool.room.remove(n.sign(), n.entry())
			n.pool.room.bare.add(n.entry())
		},
		"a stretch in the room": func(x *Index) {
			x.pools["pool"].room.of(x.nodes["node_a"].sign()).chunks[0].least[0]--
		},
	} {
		x := indexOf(t, box("a", 3), box("b", 3))
		for _, id := range []string{"res_1", "res_2"} {
			r := asking("gpu=1 vcpu=1 memoryGiB=1")
			d, _ := x.Place(r)
			if err := x.Book(d.Booking(id, "acme", r)); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		spoil(x)
		if err := x.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check says %v, not %q", err, want)
		}
	}
}

// recount makes the pool's sums those of its nodes as they are now.
func (x *Index) recount(pool string) {
	p := x.pools[pool]
	p.tally = tally{}
	for _, c := range p.all.chunks {
		for _, e := range c.entries {
			p.tally.add(e.node.tally(), 1)
		}
	}
}
