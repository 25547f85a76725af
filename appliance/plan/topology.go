package plan

import (
	"math"
	"math/bits"
	"slices"
	"strconv"

	"github.com/bettercompute/bc/agent/wire"
)

// Topology is where a machine's CPUs and memory are.
type Topology struct {
	NUMA     []NUMANode `json:"numa"`
	Isolated []int      `json:"isolated,omitempty"` // CPUs isolated from the scheduler
}

// NUMANode is one memory node that has CPUs.
type NUMANode struct {
	ID        int     `json:"id"`
	MemoryGiB int     `json:"memoryGiB"`
	Cores     [][]int `json:"cores"` // each core's CPUs, hardware threads together
}

// TopologyFrom reads the online CPUs and their memory nodes from an inventory.
// It is nil if the inventory does not say, or says what is no cpulist. Memory
// nodes without CPUs, such as a GPU's own memory, are left out.
func TopologyFrom(inv wire.Inventory) *Topology {
	isolated, err := wire.ParseCPUList(inv.CPU.Isolated)
	if err != nil {
		return nil
	}
	online, err := wire.ParseCPUList(inv.CPU.Online)
	if err != nil {
		return nil
	}
	var cores []wire.CPUSet
	for _, list := range inv.CPU.Siblings {
		core, err := wire.ParseCPUList(list)
		if err != nil {
			return nil
		}
		if !online.IsEmpty() {
			core = core.Intersect(online)
		}
		cores = append(cores, core)
	}
	t := &Topology{Isolated: isolated.CPUs()}
	for _, m := range inv.NUMA {
		cpus, err := wire.ParseCPUList(m.CPUs)
		if err != nil {
			return nil
		}
		if !online.IsEmpty() {
			cpus = cpus.Intersect(online)
		}
		if cpus.IsEmpty() {
			continue
		}
		node := NUMANode{ID: m.ID, MemoryGiB: int(m.MemoryKiB >> 20)}
		for _, core := range cores {
			if here := core.Intersect(cpus); !here.IsEmpty() {
				node.Cores = append(node.Cores, here.CPUs())
				cpus = cpus.Minus(here)
			}
		}
		for _, cpu := range cpus.CPUs() { // siblings not known
			node.Cores = append(node.Cores, []int{cpu})
		}
		t.NUMA = append(t.NUMA, node)
	}
	if len(t.NUMA) == 0 {
		return nil
	}
	return t
}

// appendKey writes what sets one topology apart from another.
func (t *Topology) appendKey(b []byte) []byte {
	for _, m := range t.NUMA {
		b = strconv.AppendInt(append(b, 'n'), int64(m.ID), 10)
		b = strconv.AppendInt(append(b, 'm'), int64(m.MemoryGiB), 10)
		for _, core := range m.Cores {
			b = append(b, 'c')
			for _, cpu := range core {
				b = strconv.AppendInt(append(b, ' '), int64(cpu), 10)
			}
		}
	}
	b = append(b, 'i')
	for _, cpu := range t.Isolated {
		b = strconv.AppendInt(append(b, ' '), int64(cpu), 10)
	}
	return b
}

func (t *Topology) clone() *Topology {
	c := &Topology{Isolated: slices.Clone(t.Isolated), NUMA: slices.Clone(t.NUMA)}
	for i, m := range c.NUMA {
		c.NUMA[i].Cores = make([][]int, len(m.Cores))
		for j, core := range m.Cores {
			c.NUMA[i].Cores[j] = slices.Clone(core)
		}
	}
	return c
}

// cpuBits is a set of CPUs by number.
type cpuBits []uint64

func (b cpuBits) has(cpu int) bool { return cpu>>6 < len(b) && b[cpu>>6]&(1<<(cpu&63)) != 0 }

func (b *cpuBits) add(cpu int) {
	for cpu>>6 >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[cpu>>6] |= 1 << (cpu & 63)
}

// addAll and dropAll take the members of a set in and out.
func (b *cpuBits) addAll(set wire.CPUSet) {
	words := set.Words()
	for len(words) > len(*b) {
		*b = append(*b, 0)
	}
	for i, w := range words {
		(*b)[i] |= w
	}
}

func (b cpuBits) dropAll(set wire.CPUSet) {
	for i, w := range set.Words() {
		b[i] &^= w
	}
}

// common is the lowest CPU that is in both, -1 if none is.
func (b cpuBits) common(set wire.CPUSet) int {
	for i, w := range set.Words() {
		if i < len(b) && b[i]&w != 0 {
			return i<<6 + bits.TrailingZeros64(b[i]&w)
		}
	}
	return -1
}

// countFree counts the members that are not in taken.
func (b cpuBits) countFree(taken cpuBits) int {
	n := 0
	for i, w := range b {
		if i < len(taken) {
			w &^= taken[i]
		}
		n += bits.OnesCount64(w)
	}
	return n
}

// topology is a Topology as the placer uses it, with the CPUs that may be
// handed out. Machines that are alike share one.
type topology struct {
	facts     *Topology
	exclusive bool       // CPUs are set aside, not only counted
	numa      []numaCPUs // in order of id
}

// numaCPUs are the CPUs of one memory node that may be handed out.
type numaCPUs struct {
	id        int
	memoryMiB int64
	cores     [][]int // in order of the first CPU; those kept for the host left out
	shared    cpuBits // not isolated
	isolated  cpuBits
}

// newTopology leaves the first reserve CPUs of the lowest memory node out, then
// those of the next: they are the host's own. With a reserve of notExclusive no
// CPUs are set aside.
func newTopology(facts *Topology, reserve int) topology {
	var isolated cpuBits
	for _, cpu := range facts.Isolated {
		isolated.add(cpu)
	}
	t := topology{facts: facts, exclusive: reserve != notExclusive}
	nodes := slices.Clone(facts.NUMA)
	slices.SortFunc(nodes, func(a, b NUMANode) int { return a.ID - b.ID })
	for _, m := range nodes {
		out := numaCPUs{id: m.ID, memoryMiB: int64(m.MemoryGiB) << 10}
		cores := make([][]int, 0, len(m.Cores))
		for _, core := range m.Cores {
			if len(core) > 0 {
				cores = append(cores, slices.Sorted(slices.Values(core)))
			}
		}
		slices.SortFunc(cores, func(a, b []int) int { return a[0] - b[0] })
		for _, core := range cores {
			kept := min(reserve, len(core))
			reserve -= kept
			if core = core[kept:]; len(core) == 0 {
				continue
			}
			out.cores = append(out.cores, core)
			for _, cpu := range core {
				if isolated.has(cpu) {
					out.isolated.add(cpu)
				} else {
					out.shared.add(cpu)
				}
			}
		}
		t.numa = append(t.numa, out)
	}
	return t
}

func (t *Topology) logical() int {
	n := 0
	for _, m := range t.NUMA {
		for _, core := range m.Cores {
			n += len(core)
		}
	}
	return n
}

const notExclusive = math.MaxInt

// freeCPUs counts what a request can still be given on one memory node: the
// isolated CPUs only if it pins its threads.
func (m *numaCPUs) freeCPUs(taken cpuBits, pinned bool) int {
	n := m.shared.countFree(taken)
	if pinned {
		n += m.isolated.countFree(taken)
	}
	return n
}
