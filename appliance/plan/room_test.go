package plan

import (
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// TestHostRequestsGoWhereAPlainScanSendsThem holds requests for host resources
// alone to a look at every node, in a pool of many stretches that is booked and
// released at random: machines with and without GPUs, of different rows, some
// cordoned, and many with as much free.
func TestHostRequestsGoWhereAPlainScanSendsThem(t *testing.T) {
	for _, sharing := range []appliance.Sharing{appliance.SharingExclusive, appliance.SharingTimeslice} {
		t.Run(string(sharing), func(t *testing.T) {
			random := rand.New(rand.NewPCG(7, 11))
			x := NewIndex()
			for i := range 600 {
				if _, err := x.PutNode(anyHost(random, i, sharing)); err != nil {
					t.Fatal(err)
				}
			}
			var live []string
			placed, refused, gone := 0, 0, 0
			for step := range 1200 {
				r := anyHostRequest(random)
				want, wanted := x.scanForHost(r)
				if step%3 == 0 {
					r.Resources[sharing.Resource()] = (1 + random.IntN(2)) * r.Nodes
				}
				d, ok := x.Place(r)
				if step%3 != 0 {
					var got []string
					for _, p := range d.Placements {
						got = append(got, p.NodeID)
					}
					slices.Sort(got)
					if ok != wanted || !slices.Equal(got, want) {
						t.Fatalf("step %d: Place(%+v) gives %v, a scan %v", step, r, got, want)
					}
					if ok {
						placed++
					} else {
						refused++
					}
				}
				if ok {
					id := fmt.Sprintf("res_%d", step)
					if err := x.Book(d.Booking(id, "acme", r)); err != nil {
						t.Fatal(err)
					}
					live = append(live, id)
				}
				if random.IntN(5) == 0 && len(live) > 0 {
					at := random.IntN(len(live))
					x.Release(live[at])
					live = dropAt(live, at)
					gone++
				}
			}
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			if placed < 300 || refused < 20 || gone < 100 {
				t.Errorf("%d requests were placed, %d refused, %d released: too few to tell", placed, refused, gone)
			}
		})
	}
}

// Of many alike the search passes over all but the first by hostname; not over
// the one among them that has more of what is not asked, and an earlier name.
func TestTheFirstByHostnameIsFoundBehindManyAlike(t *testing.T) {
	x := NewIndex()
	for i := range 200 {
		n := box(fmt.Sprintf("b-%03d", i), 0)
		if i == 199 {
			n.Hostname, n.Rows[1].Total = "a", n.Rows[1].Total+1
		}
		if _, err := x.PutNode(n); err != nil {
			t.Fatal(err)
		}
	}
	for ask, want := range map[string][]string{"vcpu=1": {"node_b-199"}, "vcpu=1 memoryGiB=1": {"node_b-000"}} {
		d, _ := x.Place(asking(ask))
		var got []string
		for _, p := range d.Placements {
			got = append(got, p.NodeID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s goes to %v, not %v", ask, got, want)
		}
	}
}

// Where the host share of the free GPUs is, with the request, beyond any count,
// no node keeps it: the one with the fewest GPUs free is taken.
func TestAHostShareBeyondAnyCountIsNotKept(t *testing.T) {
	huge := func(n *Node) { n.Rows[1].Total = appliance.MaxCount }
	x := indexOf(t, box("a", 2, huge), box("b", 2, huge, sick(0)))
	if err := x.Book(Booking{ReservationID: "res_1", PoolID: "pool", Placements: []appliance.Placement{
		{NodeID: "node_b", Amounts: appliance.Amounts{"memoryGiB": appliance.MaxCount - 10}},
	}}); err != nil {
		t.Fatal(err)
	}
	if d, ok := x.Place(asking("memoryGiB=2")); !ok || d.Placements[0].NodeID != "node_b" {
		t.Errorf("it is %t that it fits, on %+v, not on node_b", ok, d.Placements)
	}
}

func anyHost(random *rand.Rand, i int, sharing appliance.Sharing) Node {
	n := Node{
		ID: fmt.Sprintf("node_%d", i), PoolID: "pool", Hostname: fmt.Sprintf("h-%d", random.IntN(800)), Role: appliance.RoleHost,
		Schedulable: random.IntN(20) > 0, Sharing: sharing, Replicas: 3, Attributes: map[string]string{"rack": fmt.Sprint(i % 9)},
		Rows: []appliance.ResourceRow{{Resource: "vcpu", Total: 16}, {Resource: "memoryGiB", Total: 60 + random.IntN(3)}},
	}
	for k := range []int{0, 1, 2, 2, 2}[random.IntN(5)] {
		n.Devices = append(n.Devices, Device{UUID: fmt.Sprintf("GPU-%d-%d", i, k), Index: k, Healthy: random.IntN(9) > 0})
	}
	switch random.IntN(4) {
	case 0:
		n.Rows = append(n.Rows, appliance.ResourceRow{Resource: "diskGiB", Total: 100 + random.IntN(50)})
	case 1:
		n.Rows = append(n.Rows, appliance.ResourceRow{Resource: "hugepages1Gi", Total: 8 * random.IntN(3)})
	case 2:
		n.Rows = n.Rows[random.IntN(2):][:1]
	}
	if random.IntN(3) == 0 {
		n.Topology = &Topology{NUMA: []NUMANode{{MemoryGiB: 64}}, Isolated: []int{4, 5, 6, 7, 8, 9, 10, 11}}
		for c := range 16 {
			n.Topology.NUMA[0].Cores = append(n.Topology.NUMA[0].Cores, []int{c})
		}
	}
	return n
}

func anyHostRequest(random *rand.Rand) Request {
	r := Request{PoolID: "pool", Nodes: []int{1, 1, 1, 1, 3, 8}[random.IntN(6)], Resources: appliance.Amounts{}, Selector: appliance.Selector{}}
	for len(r.Resources) == 0 {
		for _, c := range []struct {
			name        string
			most, oneIn int
		}{{"vcpu", 9, 2}, {"memoryGiB", 30, 2}, {"diskGiB", 60, 12}, {"hugepages1Gi", 9, 12}} {
			if random.IntN(c.oneIn) == 0 {
				r.Resources[c.name] = (1 + random.IntN(c.most)) * r.Nodes
			}
		}
	}
	r.Binding = []appliance.BindingKind{appliance.BindHold, appliance.BindInstance}[random.IntN(2)]
	if random.IntN(3) == 0 {
		r.Selector["rack"] = appliance.Match{Equals: fmt.Sprint(random.IntN(10))}
	}
	return r
}

// scanForHost says where a request for host resources alone goes, from the
// facts of every node; in order of id.
func (x *Index) scanForHost(r Request) ([]string, bool) {
	share := map[string]int{} // of a GPU
	for _, n := range x.nodes {
		for _, row := range n.rows(nil) {
			if s, known := share[row.Resource]; n.uuids.len() > 0 && (!known || row.Total/n.uuids.len() < s) {
				share[row.Resource] = row.Total / n.uuids.len()
			}
		}
	}
	type rated struct {
		n   *node
		key []int
	}
	var all []rated
	for _, n := range x.nodes {
		if rack := r.Selector["rack"].Equals; !n.shape.value.schedulable || rack != "" && rack != n.class.value.of["rack"] {
			continue
		}
		free := map[string]int{}
		for _, row := range n.rows(nil) {
			free[row.Resource] = row.Total - row.Allocated
		}
		gpus := 0
		for i := range n.uuids.len() {
			gpus += bits.OnesCount64(n.freeAtoms(i))
		}
		key, fits := []int{0, gpus}, n.hasCPUs(int32(r.Resources["vcpu"]/r.Nodes), r.Binding == appliance.BindInstance)
		if n.uuids.len() > 0 {
			key[0] = 1
		}
		for _, name := range appliance.Scalars {
			have, has := free[name]
			left := have - r.Resources[name]/r.Nodes
			if r.Resources[name] > 0 {
				key = append(key, left)
				fits = fits && has && left >= 0
			}
			if s := share[name]; key[0] > 0 && s > 0 && n.pool.sharing == appliance.SharingExclusive &&
				(name == "vcpu" || name == "memoryGiB") && (!has || left < s*gpus) {
				key[0] = 2
			}
		}
		if fits {
			all = append(all, rated{n, key})
		}
	}
	if len(all) < r.Nodes {
		return nil, false
	}
	slices.SortFunc(all, func(a, b rated) int {
		return cmp.Or(slices.Compare(a.key, b.key), cmp.Compare(a.n.hostname, b.n.hostname), cmp.Compare(a.n.id, b.n.id))
	})
	var out []string
	for _, c := range all[:r.Nodes] {
		out = append(out, c.n.id)
	}
	return slices.Sorted(slices.Values(out)), true
}
