package unit

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// hugepages keeps pools of huge pages ("HugeTLB Pages", kernel admin guide).
// The kernel gives as many pages as it finds, without an error, so what counts
// is what is read back.
type hugepages struct{}

const (
	poolsDir = "/sys/kernel/mm/hugepages"
	nodesDir = "/sys/devices/system/node"
)

// What pools must leave for everything else. With less, the control plane's
// host starves behind pages that are all there.
const (
	hostFloorKiB = 2 << 20   // of the machine, used or not
	nodeFloorKiB = 512 << 10 // of each NUMA node, and together as much as of the machine
	freeFloorKiB = 512 << 10 // of what nothing uses yet when a pool grows, on all nodes together
)

// poolRetry is how often a pool that stayed short is asked for again: memory
// may have become free or contiguous.
const poolRetry = 5 * time.Minute

// pool is a pool of pages of one size, of the machine or of one node.
type pool struct {
	path                      string // of nr_hugepages
	nr, free, resv, surplus   int
	memoryKiB, otherPoolsKiB  int // of the machine or node; of pools of other sizes
	node                      int // -1: of the machine
	floorKiB, sizeKiB, wanted int
	availableKiB, sparedKiB   int // memory that nothing uses, -1: not told; and of it what stays so
}

// pages is the persistent pool: surplus pages go back by themselves.
func (p pool) pages() int { return p.nr - p.surplus }

// inUse is how far the pool can shrink. Of a node the kernel does not say how
// many are reserved.
func (p pool) inUse() int { return min(p.nr-p.free+p.resv, p.pages()) }

// most is how many pages leave the floor to the others.
func (p pool) most() int { return max(0, (p.memoryKiB-p.otherPoolsKiB-p.floorKiB)/p.sizeKiB) }

// growth is how far the pool can grow now: the kernel would give what other
// programs need in the next moment, too.
func (p pool) growth() int {
	if p.availableKiB < 0 {
		return p.wanted
	}
	return max(0, (p.availableKiB-p.sparedKiB)/p.sizeKiB)
}

func (p pool) where() string {
	if p.node < 0 {
		return "the machine"
	}
	return "node " + strconv.Itoa(p.node)
}

func sizeName(kib int) string {
	if kib >= wire.Hugepage1GiKiB {
		return fmt.Sprintf("%dGi", kib>>20)
	}
	return fmt.Sprintf("%dMi", kib>>10)
}

func (hugepages) Plan(s Scene) Plan {
	want := s.Want.Hugepages
	p := Plan{Wanted: wantedPages(want)}
	pools, problem := seePools(s.Machine.Root, want)
	if problem != "" {
		p.State, p.Reason = wire.Unsupported, problem
		if len(s.Machine.Glob(poolsDir+"/*")) == 0 {
			p.State = wire.NotApplicable
		}
		return p
	}
	p.Got = gotPages(want, pools)
	for _, q := range pools {
		if q.wanted > q.pages() && q.wanted > q.most() {
			p.State = wire.Failed
			p.Reason = fmt.Sprintf("%d pages of %s would leave %s less than the %d MiB that stay with the host: at most %d fit",
				q.wanted, sizeName(q.sizeKiB), q.where(), q.floorKiB>>10, q.most())
			return p
		}
	}
	p.Steps = undoPools(s, func(name string) bool {
		return slices.ContainsFunc(pools, func(q pool) bool { return q.path == name })
	})
	p.State = wire.InSync
	for _, q := range pools {
		planPool(s, q, &p)
	}
	planPageArguments(s, want, pools, &p)
	if p.State == wire.InSync || p.State == wire.Partial || p.State == wire.PendingReboot {
		p.Reason = join(p.Reason, sysctlPages(s.Machine.Root, want))
	}
	return p
}

// planPageArguments has the next boot bring pages that this one could not: of
// 1 GiB there are rarely enough in one piece once a machine has run for a while.
// Arguments that are kept stay, so that every boot brings the pages.
func planPageArguments(s Scene, want *wire.Hugepages, pools []pool, p *Plan) {
	_, kept := s.Arguments[string(wire.UnitHugepages)]
	short := p.State == wire.Partial && !slices.ContainsFunc(pools, func(q pool) bool { return q.pages() > q.wanted })
	tried := len(p.Steps) == 0 || !slices.ContainsFunc(p.Steps, func(step Step) bool { return !step.Again })
	var tokens []string
	if want.SizeKiB == wire.Hugepage1GiKiB && want.Count > 0 && (kept || short && tried) {
		tokens = pageArguments(s.Machine.Root, want, pools)
	}
	a := planArguments(s, string(wire.UnitHugepages), tokens)
	p.Steps = append(p.Steps, a.steps...)
	switch {
	case len(tokens) == 0 || p.State == wire.Conflict:
	case a.state == wire.Failed && p.State == wire.InSync:
	case a.state != wire.InSync && (p.State == wire.Partial || a.state == wire.PendingReboot):
		if a.state == wire.PendingReboot || a.state == wire.Failed {
			p.State = a.state
		}
		p.Reason = strings.TrimPrefix(p.Reason+"; "+a.reason, "; ")
	}
	if len(tokens) > 0 && (a.state == wire.InSync || a.state == wire.PendingReboot) {
		p.Reason = join(p.Reason, crashKernelPages(s.Machine.Root))
	}
}

// pageArguments are the arguments for pages of 1 GiB. Nodes can be named from
// Linux 5.16 on; before, the kernel spreads the pages over all nodes.
func pageArguments(root *host.Root, want *wire.Hugepages, pools []pool) []string {
	pages := strconv.Itoa(want.Count)
	if pools[0].node >= 0 {
		pages = strconv.Itoa(want.Count * len(pools))
		if kernelAtLeast(root, 5, 16) {
			var nodes []string
			for _, q := range pools {
				nodes = append(nodes, fmt.Sprintf("%d:%d", q.node, want.Count))
			}
			pages = strings.Join(nodes, ",")
		}
	}
	return []string{"hugepagesz=1G", "hugepages=" + pages}
}

func kernelAtLeast(root *host.Root, major, minor int) bool {
	release, _ := root.String("/proc/sys/kernel/osrelease")
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// planPool adds to the plan what one pool lacks.
func planPool(s Scene, q pool, p *Plan) {
	v, noted := s.Prior.Values[q.path]
	have := q.pages()
	left := noted && v.Known && v.Got == strconv.Itoa(have)
	// Of a node with too few places for its own pages, the kernel takes those that
	// its arguments ask for from another node (seen with Linux 6.1).
	_, kept := s.Arguments[string(wire.UnitHugepages)]
	byBoot := kept && v.BootID != s.BootID
	set := func(pages int) {
		p.Steps = append(p.Steps, Step{
			Change: host.SetPool{Path: q.path, Pages: pages}, Again: left,
			Undo: "back to the pages that were there before",
		})
	}
	switch {
	case have < q.wanted:
		p.State = wire.Partial
		here := left && v.BootID == s.BootID
		target := min(q.wanted, have+q.growth())
		asked, _ := strconv.Atoi(v.Wrote)
		tried := here && asked > have && asked >= target
		switch {
		case tried:
			p.Reason = "the kernel found no more memory in one piece; it is asked again every 5 minutes"
		case target < q.wanted:
			p.Reason = fmt.Sprintf("%s has %d MiB of memory that nothing uses, of which %d stay free: more pages come when more is free",
				q.where(), q.availableKiB>>10, q.sparedKiB>>10)
		}
		// A pool that was cut short is not asked for again for each few pages.
		worth := target > have && (!here || target == q.wanted || target-have > q.wanted/64)
		if worth && (!tried || s.Now.Sub(v.At) >= poolRetry) {
			set(target)
		}
	case have > q.wanted && noted && v.Known && v.Wrote == strconv.Itoa(q.wanted) && !left && !byBoot:
		p.Reason = join(p.Reason, fmt.Sprintf("someone else added %d pages on %s", have-q.wanted, q.where()))
		if have > q.most() {
			p.State = wire.Conflict
			p.Reason += fmt.Sprintf(": less than %d MiB stay with the host", q.floorKiB>>10)
		}
	case have > q.wanted:
		target := max(q.wanted, q.inUse())
		if target > q.wanted {
			p.State, p.Reason = wire.Partial, join(p.Reason, fmt.Sprintf("%d pages on %s are in use; they go when they are free", target, q.where()))
		}
		if target < have {
			set(target)
		}
	}
}

func (hugepages) Remove(s Scene) []Step {
	return append(undoPools(s, func(string) bool { return false }), planArguments(s, string(wire.UnitHugepages), nil).steps...)
}

// withBooted are the noted values, with the pages that the arguments of the unit
// brought at a boot since counted as the unit's.
func withBooted(s Scene) map[string]host.Value {
	values := maps.Clone(s.Prior.Values)
	for name, v := range values {
		now, ok := s.Machine.Setting(name)
		if ok && v.BootID != s.BootID && broughtBy(s.Arguments[string(wire.UnitHugepages)].Lasting(), name, now) {
			v.Got, v.Known = now, true
			values[name] = v
		}
	}
	return values
}

// broughtBy reports whether arguments ask for just so many pages in a pool.
func broughtBy(tokens []string, name, pages string) bool {
	for _, t := range tokens {
		list, _ := strings.CutPrefix(t, "hugepages=")
		for part := range strings.SplitSeq(list, ",") {
			node, n, named := strings.Cut(part, ":")
			if named && n == pages && strings.HasPrefix(name, nodesDir+"/node"+node+"/") || part == pages && strings.HasPrefix(name, poolsDir) {
				return true
			}
		}
	}
	return false
}

// undoPools is undoKernel for pools, which shrink no further than their use.
func undoPools(s Scene, keep func(string) bool) []Step {
	s.Prior.Values = withBooted(s)
	var steps []Step
	for _, step := range undoKernel(s, keep) {
		r, ok := step.Change.(host.Restore)
		if !ok {
			steps = append(steps, step)
			continue
		}
		before, _ := strconv.Atoi(r.Value)
		for _, name := range r.Paths {
			q := seePool(s.Machine.Root, path.Dir(name))
			switch target := max(before, q.inUse()); {
			case target == before:
				steps = append(steps, Step{Change: host.Restore{Paths: []string{name}, Value: r.Value}})
			case target < q.pages(): // the rest goes when its pages are free
				steps = append(steps, Step{Change: host.SetPool{Path: name, Pages: target}, Again: true})
			}
		}
	}
	return steps
}

// seePools lists the pools that are to be sized: one of the machine, or with
// perNuma one of each node that has both memory and CPUs. Nodes without CPUs
// are a GPU's or a memory expander's.
func seePools(root *host.Root, want *wire.Hugepages) (pools []pool, problem string) {
	dir := fmt.Sprintf("hugepages-%dkB", want.SizeKiB)
	var sizes []string
	for _, name := range root.Glob(poolsDir + "/hugepages-*kB") {
		if kib, ok := poolSize(name); ok {
			sizes = append(sizes, sizeName(kib))
		}
	}
	switch {
	case len(sizes) == 0:
		return nil, "this kernel has no huge pages"
	case !root.IsDir(path.Join(poolsDir, dir)):
		return nil, fmt.Sprintf("this kernel has no pages of %s, only of %s", sizeName(want.SizeKiB), strings.Join(sizes, ", "))
	}
	meminfo, _ := root.ReadHead("/proc/meminfo", 8<<10)
	nodes := memoryNodes(root)
	if !want.PerNUMA || len(nodes) == 0 {
		q := seePool(root, path.Join(poolsDir, dir))
		q.node, q.wanted, q.floorKiB, q.sparedKiB = -1, want.Count, hostFloorKiB, freeFloorKiB
		q.memoryKiB, q.otherPoolsKiB = memTotalKiB(string(meminfo)), otherPoolsKiB(root, poolsDir, want.SizeKiB)
		q.availableKiB = availableKiB(string(meminfo))
		return []pool{q}, ""
	}
	for _, id := range nodes {
		node := path.Join(nodesDir, "node"+strconv.Itoa(id))
		q := seePool(root, path.Join(node, "hugepages", dir))
		info, _ := root.ReadHead(node+"/meminfo", 8<<10)
		q.node, q.wanted, q.floorKiB, q.sparedKiB = id, want.Count, max(nodeFloorKiB, hostFloorKiB/len(nodes)), freeFloorKiB/len(nodes)
		q.memoryKiB, q.otherPoolsKiB = memTotalKiB(string(info)), otherPoolsKiB(root, node+"/hugepages", want.SizeKiB)
		q.availableKiB = availableKiB(string(info))
		pools = append(pools, q)
	}
	return pools, ""
}

func seePool(root *host.Root, dir string) pool {
	read := func(name string) int {
		n, _ := root.Int(path.Join(dir, name)) // resv_hugepages is not there for a node
		return int(n)
	}
	kib, _ := poolSize(dir)
	return pool{
		path: path.Join(dir, "nr_hugepages"), sizeKiB: kib, node: -1,
		nr: read("nr_hugepages"), free: read("free_hugepages"), resv: read("resv_hugepages"), surplus: read("surplus_hugepages"),
	}
}

// poolSize reads the size out of a folder's name: hugepages-2048kB.
func poolSize(dir string) (kib int, ok bool) {
	name, _ := strings.CutPrefix(path.Base(dir), "hugepages-")
	kib, err := strconv.Atoi(strings.TrimSuffix(name, "kB"))
	return kib, err == nil && kib > 0
}

func otherPoolsKiB(root *host.Root, dir string, sizeKiB int) int {
	sum := 0
	for _, name := range root.Glob(dir + "/hugepages-*kB") {
		if q := seePool(root, name); q.sizeKiB != sizeKiB {
			sum += q.nr * q.sizeKiB
		}
	}
	return sum
}

// memoryNodes lists the nodes with memory and CPUs. Kernels without NUMA have
// none.
func memoryNodes(root *host.Root) []int {
	memory, ok := root.CPUs(nodesDir + "/has_memory")
	cpus, ok2 := root.CPUs(nodesDir + "/has_cpu")
	if ok && ok2 {
		return memory.Intersect(cpus).CPUs()
	}
	var nodes []int
	online, _ := root.CPUs(nodesDir + "/online")
	for _, id := range online.CPUs() {
		node := nodesDir + "/node" + strconv.Itoa(id)
		list, _ := root.CPUs(node + "/cpulist")
		info, _ := root.ReadHead(node+"/meminfo", 4<<10)
		if !list.IsEmpty() && memTotalKiB(string(info)) > 0 {
			nodes = append(nodes, id)
		}
	}
	return nodes
}

func memTotalKiB(meminfo string) int {
	n, _ := memoryLine(meminfo, "MemTotal:")
	return n
}

// memoryLine reads a line of /proc/meminfo, or of a node's, in KiB.
func memoryLine(meminfo, name string) (kib int, ok bool) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if i := slices.Index(f, name); i >= 0 && i+1 < len(f) {
			n, err := strconv.Atoi(f[i+1])
			return n, err == nil
		}
	}
	return 0, false
}

// availableKiB is the memory that can be had without taking it from a program:
// MemAvailable, or of a node, which has no such line, what is free, cached or
// can be reclaimed (proc(5)). It is -1 if the kernel does not tell.
func availableKiB(meminfo string) int {
	if n, ok := memoryLine(meminfo, "MemAvailable:"); ok {
		return n
	}
	if _, node := memoryLine(meminfo, "Inactive(file):"); !node {
		return -1
	}
	sum := 0
	for _, name := range []string{"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"} {
		n, _ := memoryLine(meminfo, name)
		sum += n
	}
	return sum
}

func wantedPages(want *wire.Hugepages) string {
	text := count(want.Count, "page") + " of " + sizeName(want.SizeKiB)
	if want.PerNUMA {
		text += " on each NUMA node"
	}
	return text
}

func gotPages(want *wire.Hugepages, pools []pool) string {
	if len(pools) == 1 && pools[0].node < 0 {
		return count(pools[0].pages(), "page") + " of " + sizeName(want.SizeKiB)
	}
	var parts []string
	for _, q := range pools {
		parts = append(parts, fmt.Sprintf("node %d: %d", q.node, q.pages()))
	}
	return strings.Join(parts, ", ") + " pages of " + sizeName(want.SizeKiB)
}
