package plan

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// model is placement as simply as it can be said: facts and bookings in lists,
// everything counted anew for each question.
type model struct {
	nodes    map[string]Node
	bookings map[string]Booking
	held     map[string]map[string][]string // by node and ended reservation: atoms that are not free yet
}

func (m *model) atoms(d Device, n Node, profile string) []string {
	var out []string
	switch n.Sharing {
	case appliance.SharingMIG:
		for _, i := range d.Instances {
			if profile == "" || i.Profile == profile {
				out = append(out, i.UUID)
			}
		}
	case appliance.SharingTimeslice, appliance.SharingMPS:
		for i := range n.Replicas {
			out = append(out, fmt.Sprintf("%s#%d", d.UUID, i))
		}
	default:
		out = append(out, d.UUID)
	}
	return out
}

func (m *model) on(id string) []appliance.Placement {
	var out []appliance.Placement
	for _, b := range m.bookings {
		for _, p := range b.Placements {
			if p.NodeID == id {
				out = append(out, p)
			}
		}
	}
	return out
}

// free lists the free atoms of each healthy device.
func (m *model) free(n Node, profile string) map[string][]string {
	taken := map[string]bool{}
	for _, p := range m.on(n.ID) {
		for _, a := range p.Atoms {
			taken[a] = true
		}
	}
	for _, atoms := range m.held[n.ID] {
		for _, a := range atoms {
			taken[a] = true
		}
	}
	out := map[string][]string{}
	for _, d := range n.Devices {
		for _, a := range m.atoms(d, n, profile) {
			if d.Healthy && !d.Waits && !taken[a] {
				out[d.UUID] = append(out[d.UUID], a)
			}
		}
	}
	return out
}

func (m *model) leased(id string) bool {
	for _, b := range m.bookings {
		for _, p := range b.Placements {
			if p.NodeID == id && b.Binding == appliance.BindNode {
				return true
			}
		}
	}
	return false
}

// freeRow is total less bookings; false if there is no row.
func (m *model) freeRow(n Node, resource string) (int, bool) {
	for _, r := range n.Rows {
		if r.Resource == resource {
			free := r.Total
			for _, p := range m.on(n.ID) {
				free -= p.Amounts[resource]
			}
			return free, true
		}
	}
	return 0, false
}

// cpus counts the CPUs that can be set aside; false if they are only counted.
func (m *model) cpus(n Node, pinned bool) (int, bool) {
	if n.Topology == nil {
		return 0, false
	}
	total := -1
	for _, r := range n.Rows {
		if r.Resource == appliance.ResourceVCPU && r.Overcommit == 1 {
			total = r.Total
		}
	}
	if total < 0 {
		return 0, false
	}
	var all []int
	for _, numa := range n.Topology.NUMA {
		for _, core := range numa.Cores {
			all = append(all, core...)
		}
	}
	free := 0
	for i, cpu := range all {
		ok := i >= len(all)-total && (pinned || !slices.Contains(n.Topology.Isolated, cpu))
		for _, p := range m.on(n.ID) {
			set, _ := wire.ParseCPUList(p.CPUs)
			ok = ok && !set.Contains(cpu)
		}
		if ok {
			free++
		}
	}
	return free, true
}

// share is the default host share of one GPU.
func (m *model) share(pool, resource string, perGPU appliance.Amounts) int {
	if v, ok := perGPU[resource]; ok {
		return v
	}
	least := -1
	for _, n := range m.nodes {
		for _, r := range n.Rows {
			if n.PoolID == pool && n.Role == appliance.RoleHost && len(n.Devices) > 0 && r.Resource == resource {
				if s := r.Total / len(n.Devices); least < 0 || s < least {
					least = s
				}
			}
		}
	}
	return max(0, least)
}

// fits says whether one node can serve its part of the request, and how many
// free atoms would be left.
func (m *model) fits(n Node, r Request, profile string) (left int, ok bool) {
	if n.PoolID != r.PoolID || n.Role != appliance.RoleHost || !n.Schedulable || m.leased(n.ID) {
		return 0, false
	}
	for name, match := range r.Selector {
		value, has := n.Attributes[name]
		if name == AttributeHostname {
			value, has = n.Hostname, true
		}
		if name != appliance.MIGProfile && (!has || !match.Matches(value)) {
			return 0, false
		}
	}
	resource := n.Sharing.Resource()
	asked := r.Resources[resource] / r.Nodes
	free := m.free(n, profile)
	count := 0
	for _, atoms := range free {
		count += len(atoms)
	}
	able := count
	if resource == appliance.ResourceSlot && r.Binding != appliance.BindNode {
		able = len(free)
	}
	if able < asked {
		return 0, false
	}
	scalars := maps.Clone(r.Resources)
	if !slices.ContainsFunc(appliance.Scalars, func(s string) bool { _, named := scalars[s]; return named }) &&
		resource == appliance.ResourceGPU && asked > 0 && r.Binding != appliance.BindNode {
		for _, s := range []string{appliance.ResourceVCPU, appliance.ResourceMemoryGiB} {
			scalars[s] = m.share(r.PoolID, s, r.PerGPU) * asked * r.Nodes
		}
	}
	for _, s := range appliance.Scalars {
		if want := scalars[s] / r.Nodes; want > 0 {
			if have, is := m.freeRow(n, s); !is || have < want {
				return 0, false
			}
		}
	}
	if r.Binding == appliance.BindNode {
		count = 0
		for _, atoms := range m.free(n, "") {
			count += len(atoms)
		}
		sick := slices.ContainsFunc(n.Devices, func(d Device) bool { return !d.Healthy || d.Waits })
		return count - asked, !sick && len(m.on(n.ID)) == 0 && len(m.held[n.ID]) == 0
	}
	if want := scalars[appliance.ResourceVCPU] / r.Nodes; want > 0 {
		if have, exclusive := m.cpus(n, r.Binding == appliance.BindInstance); exclusive && have < want {
			return 0, false
		}
	}
	return count - asked, true
}

// linked counts the pairs of GPUs that share NVLink.
func linked(n Node, uuids []string) int {
	pairs := 0
	for _, d := range n.Devices {
		for _, peer := range d.NVLinkPeers {
			if slices.Contains(uuids, d.UUID) && slices.Contains(uuids, peer) {
				pairs++
			}
		}
	}
	return pairs / 2
}

// mostLinked is the best that any choice of count free GPUs could have.
func (m *model) mostLinked(n Node, count int) int {
	uuids := slices.Collect(maps.Keys(m.free(n, "")))
	best := 0
	for set := range 1 << len(uuids) {
		if bits.OnesCount(uint(set)) != count {
			continue
		}
		var chosen []string
		for i, uuid := range uuids {
			if set&(1<<i) != 0 {
				chosen = append(chosen, uuid)
			}
		}
		best = max(best, linked(n, chosen))
	}
	return best
}

var profileNames = []string{"1g.10gb", "3g.40gb"}

func drawNode(t *rapid.T, id string, sharing appliance.Sharing) Node {
	n := Node{
		ID: id, PoolID: rapid.SampledFrom([]string{"pool_a", "pool_a", "pool_a", "pool_b"}).Draw(t, "pool"),
		Hostname: rapid.SampledFrom([]string{"gpu-1", "gpu-2", "gpu-3", id}).Draw(t, "hostname"),
		Role:     rapid.SampledFrom([]appliance.NodeRole{"host", "host", "host", "host", "host", "dedicated"}).Draw(t, "role"),
		Control:  appliance.ControlPlatform, Sharing: sharing, Replicas: 3,
		Schedulable: rapid.IntRange(0, 5).Draw(t, "schedulable") > 0, Unschedulable: "cordoned",
		Attributes: map[string]string{"rack": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "rack")},
	}
	gpus := rapid.IntRange(0, 4).Draw(t, "gpus")
	joined := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "joined")
	for i := range gpus {
		d := Device{
			UUID: fmt.Sprintf("GPU-%s-%d", id, i), Index: i, Address: fmt.Sprintf("0000:%02x:00.0", i), NUMANode: i / 2,
			Healthy: rapid.IntRange(0, 5).Draw(t, "healthy") > 0,
		}
		if !d.Healthy {
			d.HealthReason = "Xid 79"
		}
		d.Waits = sharing == appliance.SharingMIG && rapid.IntRange(0, 5).Draw(t, "waits") == 0
		for j := range gpus {
			if j != i && j/joined == i/joined {
				d.NVLinkPeers = append(d.NVLinkPeers, fmt.Sprintf("GPU-%s-%d", id, j))
			}
		}
		if sharing == appliance.SharingMIG {
			for k := range rapid.IntRange(0, 3).Draw(t, "instances") {
				d.Instances = append(d.Instances, Instance{
					UUID: fmt.Sprintf("MIG-%s-%d-%d", id, i, k), Profile: rapid.SampledFrom(profileNames).Draw(t, "profile"),
				})
			}
		}
		n.Devices = append(n.Devices, d)
	}
	logical := 16
	if rapid.Bool().Draw(t, "topology") {
		n.Topology = &Topology{Isolated: rapid.SampledFrom([][]int{nil, {3, 7, 11, 15}}).Draw(t, "isolated")}
		for m := range 2 {
			numa := NUMANode{ID: m, MemoryGiB: 32}
			for c := range 4 {
				numa.Cores = append(numa.Cores, []int{m*4 + c, m*4 + c + 8})
			}
			n.Topology.NUMA = append(n.Topology.NUMA, numa)
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "rows") > 0 {
		n.Rows = []appliance.ResourceRow{
			{Resource: "vcpu", Total: logical - rapid.IntRange(0, 3).Draw(t, "reserve"), Overcommit: 1},
			{Resource: "memoryGiB", Total: rapid.IntRange(20, 60).Draw(t, "memory"), Overcommit: 1},
		}
		if rapid.IntRange(0, 3).Draw(t, "overcommitted") == 0 {
			n.Rows[0].Overcommit, n.Rows[0].Total = 2, 2*n.Rows[0].Total
		}
	}
	return n
}

func drawRequest(t *rapid.T, sharing appliance.Sharing) Request {
	r := Request{
		PoolID: rapid.SampledFrom([]string{"pool_a", "pool_a", "pool_a", "pool_b"}).Draw(t, "pool"),
		Nodes:  rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "nodes"), Resources: appliance.Amounts{}, Selector: appliance.Selector{},
		Binding: rapid.SampledFrom([]appliance.BindingKind{"hold", "hold", "hold", "instance", "node"}).Draw(t, "binding"),
	}
	if atoms := rapid.IntRange(0, 4).Draw(t, "atoms"); atoms > 0 {
		r.Resources[sharing.Resource()] = atoms * r.Nodes
	}
	if v := rapid.IntRange(0, 9).Draw(t, "vcpu"); v > 0 && rapid.Bool().Draw(t, "named") {
		r.Resources["vcpu"] = v * r.Nodes
		r.Resources["memoryGiB"] = rapid.IntRange(0, 20).Draw(t, "memory") * r.Nodes
	}
	if rapid.IntRange(0, 3).Draw(t, "select") == 0 {
		r.Selector["rack"] = appliance.Match{Equals: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "rack")}
	}
	if rapid.IntRange(0, 7).Draw(t, "byName") == 0 {
		r.Selector["hostname"] = appliance.Match{In: []string{"gpu-1", "gpu-3"}}
	}
	if sharing == appliance.SharingMIG {
		r.Selector["migProfile"] = appliance.Match{Equals: rapid.SampledFrom(profileNames).Draw(t, "profile")}
	}
	if rapid.Bool().Draw(t, "perGPU") {
		r.PerGPU = appliance.Amounts{"vcpu": rapid.IntRange(0, 4).Draw(t, "perVCPU")}
	}
	return r
}

// checkDecision holds Place to the model.
func (m *model) checkDecision(t *rapid.T, r Request, d Decision, placed bool) {
	profile := ""
	if p, ok := r.Selector["migProfile"]; ok && r.Resources[appliance.ResourceMIG] > 0 {
		profile = p.Equals
	}
	var lefts []int
	for _, n := range m.nodes {
		if left, ok := m.fits(n, r, profile); ok {
			lefts = append(lefts, left)
		}
	}
	asksNothing := r.Binding != appliance.BindNode && !slices.ContainsFunc(slices.Collect(maps.Values(r.Resources)), func(v int) bool { return v > 0 })
	if want := len(lefts) >= r.Nodes && !asksNothing; placed != want {
		t.Fatalf("Place(%+v) is %v; %d nodes fit, %d are asked", r, placed, len(lefts), r.Nodes)
	}
	if !placed {
		return
	}
	if len(d.Placements) != r.Nodes {
		t.Fatalf("Place(%+v) gives %d placements", r, len(d.Placements))
	}
	slices.Sort(lefts)
	var got []int
	seen := map[string]bool{}
	booked := appliance.Amounts{}
	for _, p := range d.Placements {
		n := m.nodes[p.NodeID]
		left, ok := m.fits(n, r, profile)
		if !ok || seen[p.NodeID] {
			t.Fatalf("Place(%+v) takes node %s, which does not fit or is taken twice", r, p.NodeID)
		}
		seen[p.NodeID] = true
		got = append(got, left)
		m.checkPlacement(t, r, n, p, profile)
		for name, v := range p.Amounts {
			booked[name] += v
		}
	}
	slices.Sort(got)
	if r.Resources[m.nodes[d.Placements[0].NodeID].Sharing.Resource()] > 0 && !slices.Equal(got, lefts[:r.Nodes]) {
		t.Fatalf("Place(%+v) leaves %v atoms over; the tightest nodes leave %v", r, got, lefts[:r.Nodes])
	}
	if diff := cmp.Diff(booked, d.Booked); diff != "" {
		t.Fatalf("Booked is not the sum of the placements (-sum +booked):\n%s", diff)
	}
}

// checkOrder holds what the shelves find to the ranks of all nodes, one by one.
func checkOrder(t *rapid.T, x *Index, r Request, d Decision, placed bool) {
	a := x.ask(r)
	if !placed {
		return
	}
	a.profile = a.profiles[0]
	var all []candidate
	for _, n := range x.nodes {
		if k, ok := a.rate(n); ok && n.pool.id == r.PoolID && (a.hostname == nil || a.hostname.Matches(n.hostname)) {
			all = append(all, candidate{n, k})
		}
	}
	slices.SortFunc(all, candidate.compare)
	var best, got []string
	for _, c := range all[:r.Nodes] {
		best = append(best, c.node.id)
	}
	for _, p := range d.Placements {
		got = append(got, p.NodeID)
	}
	slices.Sort(best)
	slices.Sort(got)
	if !slices.Equal(best, got) {
		t.Fatalf("Place(%+v) takes %v, the best by rank are %v", r, got, best)
	}
}

func (m *model) checkPlacement(t *rapid.T, r Request, n Node, p appliance.Placement, profile string) {
	free := m.free(n, profile)
	if r.Binding == appliance.BindNode {
		free = m.free(n, "")
	}
	resource := n.Sharing.Resource()
	perDevice := map[string]int{}
	for _, atom := range p.Atoms {
		ok := false
		for uuid, atoms := range free {
			if slices.Contains(atoms, atom) {
				ok = true
				perDevice[uuid]++
			}
		}
		if !ok {
			t.Fatalf("atom %s of node %s is not free", atom, n.ID)
		}
	}
	if devices := slices.Sorted(maps.Keys(perDevice)); !slices.Equal(devices, slices.Sorted(slices.Values(p.Devices))) {
		t.Fatalf("devices are %v, the atoms are of %v", p.Devices, devices)
	}
	want := r.Resources[resource] / r.Nodes
	if r.Binding == appliance.BindNode {
		want = 0
		for _, atoms := range free {
			want += len(atoms)
		}
	} else {
		if resource == appliance.ResourceSlot && len(p.Devices) != want {
			t.Fatalf("%d slots are on %d GPUs", want, len(p.Devices))
		}
		if resource == appliance.ResourceGPU && linked(n, p.Devices) != m.mostLinked(n, want) {
			t.Fatalf("GPUs %v of node %s share %d NVLink pairs, the best choice %d", p.Devices, n.ID, linked(n, p.Devices), m.mostLinked(n, want))
		}
	}
	if len(p.Atoms) != want || p.Amounts[resource] != want {
		t.Fatalf("%d atoms of node %s, %d wanted", len(p.Atoms), n.ID, want)
	}
	set, err := wire.ParseCPUList(p.CPUs)
	if err != nil {
		t.Fatal(err)
	}
	pinned := r.Binding == appliance.BindInstance || r.Binding == appliance.BindNode
	if free, exclusive := m.cpus(n, pinned); exclusive {
		if wantCPUs := min(p.Amounts["vcpu"], free); set.Count() != wantCPUs {
			t.Fatalf("%d CPUs for %d vcpu", set.Count(), wantCPUs)
		}
		if !pinned && slices.ContainsFunc(n.Topology.Isolated, set.Contains) {
			t.Fatalf("isolated CPUs of %s in a hold", p.CPUs)
		}
	} else if p.CPUs != "" {
		t.Fatalf("CPUs %s set aside where they are only counted", p.CPUs)
	}
}
