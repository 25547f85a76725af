package plan

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
)

// hostShare is the part of a machine that goes with a placement: lists as the
// kernel writes them.
type hostShare struct{ cpus, memoryNodes string }

// hasCPUs tells whether so many CPUs can be set aside on the node. Isolated
// CPUs are only for those who pin their threads: the kernel's scheduler moves
// nobody onto them.
func (n *node) hasCPUs(count int32, pinned bool) bool {
	if count <= 0 || n.topology == nil || !n.topology.value.exclusive {
		return true
	}
	return n.canSetAside(pinned) >= int(count)
}

func (n *node) canSetAside(pinned bool) int {
	free := 0
	for i := range n.topology.value.numa {
		free += n.topology.value.numa[i].freeCPUs(n.cpus, pinned)
	}
	return free
}

// hasCPUsNear tells whether the memory nodes of the GPUs have so many CPUs.
func (n *node) hasCPUsNear(devices uint64, count int32, pinned bool) bool {
	if count <= 0 || n.topology == nil || !n.topology.value.exclusive {
		return true
	}
	t := &n.topology.value
	gpus := n.gpusByNUMA(devices)
	known := false
	for i := range t.numa {
		if gpus[i] > 0 {
			known = true
			count -= int32(t.numa[i].freeCPUs(n.cpus, pinned))
		}
	}
	return !known || count <= 0
}

// gpusByNUMA counts the GPUs on each memory node of the topology.
func (n *node) gpusByNUMA(devices uint64) []int {
	t := &n.topology.value
	gpus := make([]int, len(t.numa))
	for m := devices; m != 0; m &= m - 1 {
		id := n.layout.value.devices[bits.TrailingZeros64(m)].numa
		for i := range t.numa {
			if t.numa[i].id == id {
				gpus[i]++
			}
		}
	}
	return gpus
}

// hostShare chooses CPUs and memory nodes to go with the GPUs of a placement.
//
// CPUs come from the memory nodes of the GPUs, from each in proportion to its
// GPUs, and only then from others; without GPUs, from the memory node that they
// fill best. They are whole cores. Of an odd count the last CPU is one hardware
// thread: of a core that is split already, else of a fresh one, whose other
// thread is left for the next odd count. CPUs are not set aside, only counted,
// while the vcpu row is overcommitted.
//
// Memory nodes are those of the CPUs and of the GPUs, and more if what is free
// there is too little.
func (n *node) hostShare(devices uint64, scalars *[scalarCount]int32, pinned bool) hostShare {
	if n.topology == nil {
		return hostShare{}
	}
	t := &n.topology.value
	gpus := n.gpusByNUMA(devices)
	used := make([]bool, len(t.numa))
	for i := range gpus {
		used[i] = gpus[i] > 0
	}
	var out hostShare
	count := int(scalars[vcpuIndex])
	if count > 0 && t.exclusive {
		p := picker{n: n, taken: slices.Clone(n.cpus), pinned: pinned, from: used}
		order := p.order(gpus, count)
		p.inProportion(gpus, order, count)
		for _, i := range order {
			p.take(i, count-len(p.picked))
		}
		out.cpus = wire.NewCPUSet(p.picked...).String()
	}
	out.memoryNodes = n.memoryNodes(used, memoryMiB(scalars))
	return out
}

// memoryNodes widens the memory nodes in use until they have need MiB free. It
// is empty if nothing ties the placement to a memory node.
func (n *node) memoryNodes(used []bool, need int64) string {
	if !slices.Contains(used, true) {
		return ""
	}
	var ids []int
	free := int64(0)
	add := func(i int) {
		m := &n.topology.value.numa[i]
		ids = append(ids, m.id)
		free += m.memoryMiB
		if n.memoryMiB != nil {
			free -= n.memoryMiB[i]
		}
	}
	for i, is := range used {
		if is {
			add(i)
		}
	}
	for i, is := range used {
		if !is && free < need {
			add(i)
		}
	}
	return wire.NewCPUSet(ids...).String()
}

// picker takes free CPUs of a node one by one.
type picker struct {
	n      *node
	taken  cpuBits
	pinned bool
	picked []int
	from   []bool // the memory nodes that CPUs were taken from
}

// order says from which memory nodes to take: those with GPUs first, most GPUs
// first; then, if pinned, those with most isolated CPUs free; then the one that
// count fills best; then those with most CPUs free.
func (p *picker) order(gpus []int, count int) []int {
	numa := p.n.topology.value.numa
	free := make([]int, len(numa))
	out := make([]int, len(numa))
	for i := range numa {
		free[i], out[i] = numa[i].freeCPUs(p.taken, p.pinned), i
	}
	slices.SortStableFunc(out, func(a, b int) int {
		if gpus[a] != gpus[b] {
			return gpus[b] - gpus[a]
		}
		if p.pinned {
			isolatedA, isolatedB := numa[a].isolated.countFree(p.taken), numa[b].isolated.countFree(p.taken)
			if isolatedA != isolatedB {
				return isolatedB - isolatedA
			}
		}
		switch fitsA, fitsB := free[a] >= count, free[b] >= count; {
		case fitsA && fitsB:
			return cmp.Compare(free[a], free[b])
		case fitsA:
			return -1
		case fitsB:
			return 1
		}
		return cmp.Compare(free[b], free[a])
	})
	return out
}

// inProportion takes whole cores for GPUs on several memory nodes from each by
// its number of GPUs. What it leaves over is taken in order.
func (p *picker) inProportion(gpus, order []int, count int) {
	all, on := 0, 0
	for _, n := range gpus {
		all += n
		on += min(n, 1)
	}
	if on < 2 {
		return
	}
	for _, i := range order {
		cores := p.n.topology.value.numa[i].cores
		if gpus[i] == 0 || len(cores) == 0 {
			continue
		}
		part := count * gpus[i] / all
		p.take(i, part-part%len(cores[len(cores)-1]))
	}
}

// take takes up to count CPUs of one memory node.
func (p *picker) take(i, count int) {
	if count <= 0 {
		return
	}
	m := &p.n.topology.value.numa[i]
	before := len(p.picked)
	if p.pinned {
		p.takeOf(m, m.isolated, count)
	}
	p.takeOf(m, m.shared, count-(len(p.picked)-before))
	p.from[i] = p.from[i] || len(p.picked) > before
}

func (p *picker) takeOf(m *numaCPUs, set cpuBits, count int) {
	pass := func(fits func(free, size int) bool) {
		for _, core := range m.cores {
			if count == 0 {
				return
			}
			free := 0
			for _, cpu := range core {
				if set.has(cpu) && !p.taken.has(cpu) {
					free++
				}
			}
			if free == 0 || !fits(free, len(core)) {
				continue
			}
			for _, cpu := range core {
				if count > 0 && set.has(cpu) && !p.taken.has(cpu) {
					p.picked = append(p.picked, cpu)
					p.taken.add(cpu)
					count--
				}
			}
		}
	}
	pass(func(free, size int) bool { return free == size && size <= count })
	pass(func(free, size int) bool { return free < size })
	pass(func(free, size int) bool { return true })
}
