package plan

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// box is a small machine: GPUs on two memory nodes, 16 CPUs of which the host
// keeps the first core, 64 GiB. Its GPUs are named HOST-0, HOST-1 …
func box(hostname string, gpus int, change ...func(*Node)) Node {
	n := Node{
		ID: "node_" + hostname, PoolID: "pool", Hostname: hostname, Role: appliance.RoleHost, Schedulable: true,
		Sharing: appliance.SharingExclusive, Attributes: map[string]string{},
		Rows: []appliance.ResourceRow{
			{Resource: "vcpu", Total: 14, Overcommit: 1}, {Resource: "memoryGiB", Total: 56, Overcommit: 1},
		},
		Topology: &Topology{},
	}
	for m := range 2 {
		numa := NUMANode{ID: m, MemoryGiB: 32}
		for c := range 4 {
			numa.Cores = append(numa.Cores, []int{m*4 + c, m*4 + c + 8})
		}
		n.Topology.NUMA = append(n.Topology.NUMA, numa)
	}
	for i := range gpus {
		n.Devices = append(n.Devices, Device{UUID: fmt.Sprintf("%s-%d", hostname, i), Index: i, NUMANode: i * 2 / gpus, Healthy: true})
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

// joined links the GPUs of a box by NVLink in groups of so many.
func joined(size int) func(*Node) {
	return func(n *Node) {
		for i := range n.Devices {
			for j := range n.Devices {
				if i != j && i/size == j/size {
					n.Devices[i].NVLinkPeers = append(n.Devices[i].NVLinkPeers, n.Devices[j].UUID)
				}
			}
		}
	}
}

func sick(gpus ...int) func(*Node) {
	return func(n *Node) {
		for _, i := range gpus {
			n.Devices[i].Healthy, n.Devices[i].HealthReason = false, "Xid 79"
		}
	}
}

func cordoned(n *Node) { n.Schedulable, n.Unschedulable = false, "cordoned" }

// slots makes a box of a pool whose GPUs have so many slots each.
func slots(replicas int) func(*Node) {
	return func(n *Node) { n.Sharing, n.Replicas = appliance.SharingTimeslice, replicas }
}

// sliced makes a box of a mig pool with these instances on each GPU.
func sliced(profiles ...string) func(*Node) {
	return func(n *Node) {
		n.Sharing = appliance.SharingMIG
		for i := range n.Devices {
			for k, p := range profiles {
				n.Devices[i].Instances = append(n.Devices[i].Instances, Instance{UUID: fmt.Sprintf("%s/%d", n.Devices[i].UUID, k), Profile: p})
			}
		}
	}
}

func indexOf(t testing.TB, nodes ...Node) *Index {
	t.Helper()
	x := NewIndex()
	for _, n := range nodes {
		if _, err := x.PutNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// asking is a request for "gpu=2 vcpu=4".
func asking(resources string, change ...func(*Request)) Request {
	r := Request{PoolID: "pool", Resources: appliance.Amounts{}, Binding: appliance.BindHold}
	for _, word := range strings.Fields(resources) {
		name, n, _ := strings.Cut(word, "=")
		count := 0
		fmt.Sscan(n, &count)
		r.Resources[name] = count
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// hold books GPUs, instances or slots by name on the node of that hostname.
func hold(t testing.TB, x *Index, reservation, hostname string, atoms ...string) {
	t.Helper()
	n := x.nodes["node_"+hostname]
	p := appliance.Placement{NodeID: n.id, Atoms: atoms, Amounts: appliance.Amounts{n.pool.sharing.Resource(): len(atoms)}}
	for _, a := range atoms {
		uuid, _, _ := strings.Cut(strings.ReplaceAll(a, "/", "#"), "#")
		if !slices.Contains(p.Devices, uuid) {
			p.Devices = append(p.Devices, uuid)
		}
	}
	if err := x.Book(Booking{ReservationID: reservation, TenantID: "acme", PoolID: "pool", Placements: []appliance.Placement{p}}); err != nil {
		t.Fatal(err)
	}
}

// where writes a decision as "atom atom; …", or says that it does not fit.
func where(d Decision, ok bool) string {
	if !ok {
		return "does not fit"
	}
	var nodes []string
	for _, p := range d.Placements {
		if len(p.Atoms) == 0 {
			nodes = append(nodes, strings.TrimPrefix(p.NodeID, "node_"))
		} else {
			nodes = append(nodes, strings.Join(p.Atoms, " "))
		}
	}
	return strings.Join(nodes, "; ")
}

// TestPlaceTakesTheTightestBestJoinedGPUs gives each rule of the order of
// placement a case where the rule decides.
func TestPlaceTakesTheTightestBestJoinedGPUs(t *testing.T) {
	taken := func(atoms ...string) func(t *testing.T, x *Index) {
		return func(t *testing.T, x *Index) {
			for i, a := range atoms {
				host, _, _ := strings.Cut(a, "-")
				hold(t, x, fmt.Sprintf("res_%d", i), host, a)
			}
		}
	}
	for name, c := range map[string]struct {
		nodes []Node
		book  func(t *testing.T, x *Index)
		ask   Request
		want  string
	}{
		"a broken node before a whole one": {
			[]Node{box("a", 4), box("b", 4)}, taken("b-3"), asking("gpu=1 vcpu=1"), "b-2",
		},
		"a small node before a large one": {
			[]Node{box("a", 8), box("b", 2)}, nil, asking("gpu=2 vcpu=1"), "b-0 b-1",
		},
		"a node whose free GPUs share NVLink before one whose do not": {
			[]Node{box("a", 4, joined(2)), box("b", 4, joined(2))}, taken("a-0", "a-2", "b-0", "b-1"), asking("gpu=2 vcpu=1"), "b-2 b-3",
		},
		"a node whose free GPUs share a memory node before one whose do not": {
			[]Node{box("a", 4), box("b", 4)}, taken("a-0", "a-2", "b-0", "b-1"), asking("gpu=2 vcpu=1"), "b-2 b-3",
		},
		"NVLink before the memory node": {
			[]Node{box("a", 4, func(n *Node) { // 0 and 2 are joined, 0 and 1 share the memory node
				n.Devices[0].NVLinkPeers, n.Devices[2].NVLinkPeers = []string{"a-2"}, []string{"a-0"}
			})}, nil, asking("gpu=2 vcpu=1"), "a-0 a-2",
		},
		"one GPU out of a broken NVLink group": {
			[]Node{box("a", 6, joined(2))}, taken("a-2"), asking("gpu=1 vcpu=1"), "a-3",
		},
		"one GPU out of a broken memory node": {
			[]Node{box("a", 4, joined(4))}, taken("a-3"), asking("gpu=1 vcpu=1"), "a-2",
		},
		"the same by hostname": {
			[]Node{box("c", 4), box("b", 4), box("d", 4)}, nil, asking("gpu=4 vcpu=1"), "b-0 b-1 b-2 b-3",
		},
		"no unhealthy GPU": {
			[]Node{box("a", 4, sick(0, 1)), box("b", 8)}, nil, asking("gpu=3 vcpu=1"), "b-0 b-1 b-2",
		},
		"no cordoned node": {
			[]Node{box("a", 4, cordoned), box("b", 8)}, nil, asking("gpu=1 vcpu=1"), "b-0",
		},
		"no dedicated node": {
			[]Node{box("a", 4, func(n *Node) { n.Role = appliance.RoleDedicated })}, nil, asking("gpu=1 vcpu=1"), "does not fit",
		},
		"all or nothing over nodes": {
			[]Node{box("a", 4), box("b", 4), box("c", 1)}, nil, asking("gpu=6 vcpu=3", func(r *Request) { r.Nodes = 3 }), "does not fit",
		},
		"distinct nodes, the tightest": {
			[]Node{box("a", 4), box("b", 2), box("c", 8)}, nil, asking("gpu=4 vcpu=2", func(r *Request) { r.Nodes = 2 }), "a-0 a-1; b-0 b-1",
		},
		"amounts that do not divide": {
			[]Node{box("a", 4), box("b", 4)}, nil, asking("gpu=3 vcpu=2", func(r *Request) { r.Nodes = 2 }), "does not fit",
		},
		"GPUs with their default host share": { // 14 CPUs of 4 GPUs: 3 each
			[]Node{box("a", 4), box("b", 8, func(n *Node) { n.Rows[0].Total = 31 })}, func(t *testing.T, x *Index) {
				d, _ := x.Place(asking("vcpu=9"))
				if err := x.Book(d.Booking("res", "acme", asking("vcpu=9"))); err != nil {
					t.Fatal(err)
				}
			}, asking("gpu=2"), "b-0 b-1",
		},
		"slots on distinct GPUs, the fullest first": {
			[]Node{box("a", 3, slots(3))}, taken("a-2#0", "a-2#1"), asking("gpu.slot=2"), "a-0#0 a-2#2",
		},
		"never two slots on one GPU": {
			[]Node{box("a", 2, slots(4))}, nil, asking("gpu.slot=3"), "does not fit",
		},
		"one GPU's instances before the next one's": {
			[]Node{box("a", 2, sliced("1g.10gb", "1g.10gb", "1g.10gb"))}, taken("a-1/1"), asking("gpu.mig=3"), "a-0/0 a-1/0 a-1/2",
		},
		"instances of the profile, exactly": {
			[]Node{box("a", 1, sliced("1g.10gb+me", "1g.10gb", "2g.20gb"))}, nil,
			asking("gpu.mig=1", func(r *Request) { r.Selector = appliance.Selector{"migProfile": {Equals: "1g.10gb"}} }), "a-0/1",
		},
		"no profile where there are several": {
			[]Node{box("a", 1, sliced("1g.10gb", "2g.20gb"))}, nil, asking("gpu.mig=1"), "does not fit",
		},
		"slots in a pool of whole GPUs": {
			[]Node{box("a", 1)}, nil, asking("gpu.slot=1"), "does not fit",
		},
		"host resources on a node without GPUs": {
			[]Node{box("a", 4), box("z", 0)}, nil, asking("vcpu=2"), "z",
		},
		"host resources where no free GPU loses its share": {
			[]Node{box("a", 2), box("b", 2, func(n *Node) { n.Rows[0].Total = 20 })}, nil, asking("vcpu=6"), "b",
		},
		"host resources on the fullest node": {
			[]Node{box("a", 0), box("b", 0)}, func(t *testing.T, x *Index) {
				p := appliance.Placement{NodeID: "node_b", Amounts: appliance.Amounts{"vcpu": 5}}
				if err := x.Book(Booking{ReservationID: "res", PoolID: "pool", Placements: []appliance.Placement{p}}); err != nil {
					t.Fatal(err)
				}
			}, asking("vcpu=2"), "b",
		},
		"host resources where the second one is tightest": {
			[]Node{box("a", 0), box("b", 0, func(n *Node) { n.Rows[1].Total = 40 }), box("c", 0)}, nil, asking("vcpu=2 memoryGiB=8"), "b",
		},
		"a whole machine, wholly free": {
			[]Node{box("a", 2), box("b", 4)}, taken("a-1"), asking("gpu=2", func(r *Request) { r.Binding = appliance.BindNode }), "b-0 b-1 b-2 b-3",
		},
		"no whole machine with an unhealthy GPU": {
			[]Node{box("a", 2, sick(1))}, nil, asking("gpu=1", func(r *Request) { r.Binding = appliance.BindNode }), "does not fit",
		},
		"a node by its name": {
			[]Node{box("a", 2), box("b", 4)}, nil, asking("gpu=1 vcpu=1", func(r *Request) {
				r.Selector = appliance.Selector{"hostname": {In: []string{"b", "q", "b"}}}
			}), "b-0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := indexOf(t, c.nodes...)
			if c.book != nil {
				c.book(t, x)
			}
			if got := where(x.Place(c.ask)); got != c.want {
				t.Errorf("it goes to %s, not to %s", got, c.want)
			}
		})
	}
}

// TestPlaceSetsCPUsAside shows which CPUs and memory nodes go with a placement.
// CPUs n and n+8 are one core; 0 to 3 and 8 to 11 are on memory node 0; the row
// of 14 leaves 0 and 8 to the host.
func TestPlaceSetsCPUsAside(t *testing.T) {
	pinned := func(r *Request) { r.Binding = appliance.BindInstance }
	isolated := func(cpus ...int) func(*Node) { return func(n *Node) { n.Topology.Isolated = cpus } }
	onGPU := func(host, uuid string) []func(*Node) {
		return []func(*Node){func(n *Node) { // only this GPU is well
			for i := range n.Devices {
				n.Devices[i].Healthy = n.Devices[i].UUID == uuid
			}
		}}
	}
	for name, c := range map[string]struct {
		node   Node
		first  []Request // booked before
		ask    Request
		cpus   string
		memory string
	}{
		"whole cores near the GPU":      {box("a", 2, onGPU("a", "a-1")...), nil, asking("gpu=1 vcpu=4"), "4-5,12-13", "1"},
		"not the host's own core":       {box("a", 2, onGPU("a", "a-0")...), nil, asking("gpu=1 vcpu=6"), "1-3,9-11", "0"},
		"the rest from the other node":  {box("a", 2, onGPU("a", "a-0")...), nil, asking("gpu=1 vcpu=8"), "1-4,9-12", "0-1"},
		"in proportion to the GPUs":     {box("a", 2), nil, asking("gpu=2 vcpu=8"), "1-2,4-5,9-10,12-13", "0-1"},
		"an odd count splits a core":    {box("a", 2, onGPU("a", "a-1")...), nil, asking("gpu=1 vcpu=3"), "4-5,12", "1"},
		"the next odd count fills it":   {box("a", 4, joined(4)), []Request{asking("gpu=1 vcpu=3")}, asking("gpu=1 vcpu=3"), "3,10-11", "0"},
		"isolated CPUs for nobody else": {box("a", 0, isolated(4, 5, 6, 7, 12, 13, 14, 15)), nil, asking("vcpu=6"), "1-3,9-11", "0"},
		"isolated CPUs first if pinned": {box("a", 0, isolated(7, 15)), nil, asking("vcpu=2", pinned), "7,15", "1"},
		"without GPUs the best fit":     {box("a", 0), nil, asking("vcpu=6"), "1-3,9-11", "0"},
		"memory beyond one node":        {box("a", 2, onGPU("a", "a-1")...), nil, asking("gpu=1 vcpu=2 memoryGiB=40"), "4,12", "0-1"},
		"memory already booked there":   {box("a", 2), []Request{asking("gpu=1 vcpu=2 memoryGiB=30")}, asking("gpu=1 vcpu=2 memoryGiB=20"), "4,12", "1"},
		"only counted if overcommitted": {box("a", 2, func(n *Node) { n.Rows[0].Overcommit = 2 }), nil, asking("gpu=1 vcpu=2"), "", "0"},
		"nothing without a topology":    {box("a", 2, func(n *Node) { n.Topology = nil }), nil, asking("gpu=1 vcpu=2"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			x := indexOf(t, c.node)
			for i, r := range c.first {
				d, ok := x.Place(r)
				if !ok {
					t.Fatal("the first booking does not fit")
				}
				if err := x.Book(d.Booking(fmt.Sprintf("res_%d", i), "acme", r)); err != nil {
					t.Fatal(err)
				}
			}
			d, ok := x.Place(c.ask)
			if !ok {
				t.Fatal("does not fit")
			}
			if p := d.Placements[0]; p.CPUs != c.cpus || p.NUMANodes != c.memory {
				t.Errorf("CPUs %q of memory nodes %q, not %q of %q", p.CPUs, p.NUMANodes, c.cpus, c.memory)
			}
		})
	}
}

// TestPlaceBooksAWholeMachine shows that binding node takes everything, and
// that what the machine gains later is nobody else's.
func TestPlaceBooksAWholeMachine(t *testing.T) {
	x := indexOf(t, box("a", 2))
	r := asking("", func(r *Request) { r.Binding = appliance.BindNode })
	d, ok := x.Place(r)
	if !ok {
		t.Fatal("does not fit")
	}
	want := Decision{
		Placements: []appliance.Placement{{
			NodeID: "node_a", Devices: []string{"a-0", "a-1"}, Atoms: []string{"a-0", "a-1"}, CPUs: "1-7,9-15", NUMANodes: "0-1",
			Amounts: appliance.Amounts{"gpu": 2, "vcpu": 14, "memoryGiB": 56},
		}},
		Booked: appliance.Amounts{"gpu": 2, "vcpu": 14, "memoryGiB": 56},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
	if err := x.Book(d.Booking("res", "acme", r)); err != nil {
		t.Fatal(err)
	}
	if _, err := x.PutNode(box("a", 3)); err != nil {
		t.Fatal(err)
	}
	if got := where(x.Place(asking("gpu=1 vcpu=0"))); got != "does not fit" {
		t.Errorf("a new GPU of a leased machine goes to another reservation: %s", got)
	}
}

// TestDefaultHostShare shows what a whole-GPU request books beside its GPUs.
func TestDefaultHostShare(t *testing.T) {
	nodes := []Node{box("a", 4), box("b", 3), box("c", 2, cordoned), box("d", 0), box("e", 1, func(n *Node) { n.Rows = nil })}
	for name, c := range map[string]struct {
		ask  Request
		want appliance.Amounts
	}{
		"the smallest share of a GPU host": {asking("gpu=2"), appliance.Amounts{"gpu": 2, "vcpu": 6, "memoryGiB": 28}},
		"what the policy says": {
			asking("gpu=2", func(r *Request) { r.PerGPU = appliance.Amounts{"vcpu": 2, "memoryGiB": 5} }),
			appliance.Amounts{"gpu": 2, "vcpu": 4, "memoryGiB": 10},
		},
		"what the policy does not say": {
			asking("gpu=2", func(r *Request) { r.PerGPU = appliance.Amounts{"vcpu": 0} }), appliance.Amounts{"gpu": 2, "memoryGiB": 28},
		},
		"none where a scalar is named":     {asking("gpu=2 memoryGiB=1"), appliance.Amounts{"gpu": 2, "memoryGiB": 1}},
		"none where zero of one is named":  {asking("gpu=2 vcpu=0"), appliance.Amounts{"gpu": 2}},
		"none for a request without a GPU": {asking("vcpu=1 gpu=0"), appliance.Amounts{"vcpu": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			d, ok := indexOf(t, nodes...).Place(c.ask)
			if diff := cmp.Diff(c.want, d.Booked); !ok || diff != "" {
				t.Errorf("booked (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLostDevicesKeepTheirBookings takes a booked GPU away and brings it back.
func TestLostDevicesKeepTheirBookings(t *testing.T) {
	x := indexOf(t, box("a", 2))
	hold(t, x, "res", "a", "a-0", "a-1")
	before := snapshot(x)
	if _, err := x.PutNode(box("a", 2, func(n *Node) { n.Devices = n.Devices[1:] })); err != nil {
		t.Fatal(err)
	}
	want := []DeviceState{
		{UUID: "a-1", Atoms: 1, Reservations: []string{"res"}},
		{UUID: "a-0", Missing: true, Reservations: []string{"res"}},
	}
	if diff := cmp.Diff(want, x.Devices("node_a")); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if got := x.Capacity("pool", nil).Resources["gpu"]; got != (appliance.Rollup{Total: 2, Allocated: 2}) {
		t.Errorf("the lost GPU counts as %+v", got)
	}
	again := Booking{ReservationID: "res_2", PoolID: "pool", Placements: []appliance.Placement{{
		NodeID: "node_a", Devices: []string{"a-0"}, Atoms: []string{"a-0"}, Amounts: appliance.Amounts{"gpu": 1},
	}}}
	if err := x.Book(again); err == nil {
		t.Error("the lost GPU is booked twice")
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	if _, err := x.PutNode(box("a", 2)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(x)); diff != "" {
		t.Errorf("the GPU's return does not restore the index:\n%s", diff)
	}
}

// TestBookRefuses shows that nothing is booked twice or half.
func TestBookRefuses(t *testing.T) {
	place := func(p appliance.Placement) Booking {
		return Booking{ReservationID: "res_2", PoolID: "pool", Placements: []appliance.Placement{p}}
	}
	for want, b := range map[string]Booking{
		"a-0 is booked already":           place(appliance.Placement{NodeID: "node_a", Atoms: []string{"a-0"}, Amounts: appliance.Amounts{"gpu": 1}}),
		"a-1 is booked already":           place(appliance.Placement{NodeID: "node_a", Atoms: []string{"a-1", "a-1"}, Amounts: appliance.Amounts{"gpu": 2}}),
		"CPU 3 is booked already":         place(appliance.Placement{NodeID: "node_a", CPUs: "2-3"}),
		"node node_z is not in the index": place(appliance.Placement{NodeID: "node_z"}),
		"node node_q is in pool other":    place(appliance.Placement{NodeID: "node_q"}),
		"2 gpu for 1 atoms of gpu":        place(appliance.Placement{NodeID: "node_a", Atoms: []string{"a-1"}, Amounts: appliance.Amounts{"gpu": 2}}),
		"vcpu -1 is not 0 to 2147483647":  place(appliance.Placement{NodeID: "node_a", Amounts: appliance.Amounts{"vcpu": -1}}),
		"CPU list: \"x\"":                 place(appliance.Placement{NodeID: "node_a", CPUs: "x"}),
		"it is booked already":            {ReservationID: "res_1", PoolID: "pool", Placements: []appliance.Placement{{NodeID: "node_a"}}},
		"names no reservation or no node": {PoolID: "pool"},
		"node node_a stands in it twice": {ReservationID: "res_2", PoolID: "pool", Placements: []appliance.Placement{
			{NodeID: "node_a"}, {NodeID: "node_a"},
		}},
	} {
		x := indexOf(t, box("a", 2), box("q", 1, func(n *Node) { n.PoolID = "other" }))
		first := Booking{ReservationID: "res_1", PoolID: "pool", Placements: []appliance.Placement{{
			NodeID: "node_a", Devices: []string{"a-0"}, Atoms: []string{"a-0"}, CPUs: "3-4", Amounts: appliance.Amounts{"gpu": 1},
		}}}
		if err := x.Book(first); err != nil {
			t.Fatal(err)
		}
		before := snapshot(x)
		if err := x.Book(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Book says %v, not %q", err, want)
		}
		if snapshot(x) != before {
			t.Errorf("a refused booking (%s) changes the index", want)
		}
	}
}

// TestPutNodeRefuses shows what no node can be.
func TestPutNodeRefuses(t *testing.T) {
	for want, change := range map[string]func(*Node){
		"both need an id":                func(n *Node) { n.ID = "" },
		"at most 64 can be booked":       func(n *Node) { n.Devices = make([]Device, 65) },
		"twice or without a UUID":        func(n *Node) { n.Devices[1].UUID = n.Devices[0].UUID },
		"names MIG instance \"i\" twice": func(n *Node) { n.Devices[0].Instances = []Instance{{UUID: "i"}, {UUID: "i"}} },
		"0 slots a GPU is not 1 to 64":   func(n *Node) { n.Sharing = appliance.SharingMPS },
		"its pool pool as exclusive":     func(n *Node) { n.Sharing = appliance.SharingMIG },
		"row of \"gpu\"":                 func(n *Node) { n.Rows[0].Resource = "gpu" },
		"two rows of vcpu":               func(n *Node) { n.Rows[1].Resource = "vcpu" },
		"vcpu total -1 is not 0":         func(n *Node) { n.Rows[0].Total = -1 },
		"CPU 1 stands twice":             func(n *Node) { n.Topology.NUMA[1].Cores[0] = []int{1} },
		"memory node 0 stands twice":     func(n *Node) { n.Topology.NUMA[1].ID = 0 },
		"isolated CPU -1 is none":        func(n *Node) { n.Topology.Isolated = []int{-1} },
		"it cannot change its pool":      func(n *Node) { n.ID, n.PoolID = "node_a", "elsewhere" },
	} {
		x := indexOf(t, box("a", 2))
		hold(t, x, "res", "a", "a-0")
		before := snapshot(x)
		if _, err := x.PutNode(box("b", 2, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("PutNode says %v, not %q", err, want)
		}
		if snapshot(x) != before {
			t.Errorf("a refused node (%s) changes the index", want)
		}
	}
}

// TestPlaceLooksPastNodesWithFarCPUs shows that of equally tight nodes one with
// CPUs near its GPUs wins, within the look-ahead.
func TestPlaceLooksPastNodesWithFarCPUs(t *testing.T) {
	far := func(n *Node) { // the GPU's memory node has one core, which is the host's
		n.Topology.NUMA[0].Cores = n.Topology.NUMA[0].Cores[:1]
		n.Rows[0].Total = 8
	}
	for nodes, want := range map[int]string{lookAhead: "z-0", lookAhead + 1: "a00-0"} {
		x := NewIndex()
		for i := range nodes {
			if _, err := x.PutNode(box(fmt.Sprintf("a%02d", i), 1, far)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := x.PutNode(box("z", 1)); err != nil {
			t.Fatal(err)
		}
		if got := where(x.Place(asking("gpu=1 vcpu=2"))); got != want {
			t.Errorf("behind %d nodes with far CPUs it goes to %s, not to %s", nodes, got, want)
		}
	}
}

// TestReadsRunSideBySide is for the race detector: readers share what layouts
// remember.
func TestReadsRunSideBySide(t *testing.T) {
	x := indexOf(t, box("a", 8, joined(4)), box("b", 8, joined(2)))
	want := where(x.Place(asking("gpu=1 vcpu=1")))
	x = indexOf(t, box("a", 8, joined(4)), box("b", 8, joined(2)))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for gpus := 1; gpus <= 8; gpus++ {
				x.Place(asking(fmt.Sprintf("gpu=%d vcpu=1", gpus)))
				x.Explain(asking(fmt.Sprintf("gpu=%d", gpus), func(r *Request) { r.Selector = appliance.Selector{"rack": {Equals: "1"}} }))
				x.Capacity("pool", nil)
			}
			if got := where(x.Place(asking("gpu=1 vcpu=1"))); got != want {
				t.Errorf("it goes to %s, not to %s", got, want)
			}
		})
	}
	group.Wait()
}

// TestChooseOfManyGPUs holds the search that cannot try every set to what is
// plainly best: 64 GPUs in groups of eight, the last group whole.
func TestChooseOfManyGPUs(t *testing.T) {
	n := box("a", 64, joined(8))
	l := newLayout(layoutOf(n.Devices))
	free := ^uint64(0) &^ 0x0001010101010101 // one GPU of each other group is taken
	if got := l.choose(free, 0, 8).devices; got != 0xff<<56 {
		t.Errorf("eight GPUs are %x", got)
	}
	if got := l.choose(free, 0, 7).devices; got != 0xfe {
		t.Errorf("seven GPUs are %x, not the rest of a broken group", got)
	}
	if got := l.choose(free, 0, 1).devices; got != 0x02 {
		t.Errorf("one GPU is %x", got)
	}
}

// TestNodeFrom reads a node from an inventory.
func TestNodeFrom(t *testing.T) {
	inv := wire.Inventory{
		Hostname: "gpu-01", Arch: "amd64", Kernel: "6.8.0",
		CPU: wire.CPUInfo{
			Model: "EPYC", Online: "0-6", Isolated: "3", Siblings: []string{"0,4", "1,5", "2,6", "3,7"},
		},
		NUMA: []wire.NUMANode{
			{ID: 0, CPUs: "0-1,4-5", MemoryKiB: 64 << 20}, {ID: 1, CPUs: "2-3,6-7", MemoryKiB: 64<<20 - 1}, {ID: 2, MemoryKiB: 96 << 20},
		},
		GPULibrary: wire.GPULibrary{Driver: "550.90.07", CUDA: "12.4"},
		GPUs: []wire.GPU{
			{UUID: "GPU-b", Index: 1, Address: "0000:2b:00.0", Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, NUMANode: 1, Health: wire.GPULost},
			{UUID: "GPU-a", Index: 0, Address: "0000:1b:00.0", Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, Health: wire.GPUHealthy,
				NVLinkPeers: []wire.NVLinkPeer{{UUID: "GPU-b", Links: 18}, {UUID: "GPU-c"}},
				MIG:         &wire.MIGInfo{Enabled: true, Instances: []wire.MIGInstance{{UUID: "MIG-1", Profile: "1g.10gb"}}}},
			{UUID: "GPU-d", Index: 2, Product: "NVIDIA T400", MemoryMiB: 2048, Display: true, Health: wire.GPUHealthy},
		},
	}
	want := Node{
		Hostname: "gpu-01",
		Attributes: map[string]string{
			"gpuProduct": "NVIDIA H100 80GB HBM3", "vramGiB": "80", "gpuCount": "2", "driverVersion": "550.90.07", "cudaVersion": "12.4",
			"numaNodes": "2", "cpuModel": "EPYC", "kernel": "6.8.0", "arch": "amd64", "hostname": "gpu-01", "rack": "7",
		},
		Devices: []Device{
			{UUID: "GPU-b", Index: 1, Address: "0000:2b:00.0", NUMANode: 1, HealthReason: "lost"},
			{UUID: "GPU-a", Address: "0000:1b:00.0", Healthy: true, NVLinkPeers: []string{"GPU-b"}, Instances: []Instance{{"MIG-1", "1g.10gb"}}},
		},
		Topology: &Topology{
			NUMA:     []NUMANode{{0, 64, [][]int{{0, 4}, {1, 5}}}, {1, 63, [][]int{{2, 6}, {3}}}},
			Isolated: []int{3},
		},
	}
	if diff := cmp.Diff(want, NodeFrom(inv, map[string]string{"rack": "7", "gpuCount": "99"})); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	inv.CPU.Siblings = []string{"zero"}
	if got := TopologyFrom(inv); got != nil {
		t.Errorf("siblings that are no cpulist give topology %+v", got)
	}
}
