package inventory

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

const nodeDir = "/sys/devices/system/node"

// memoryKiB is the memory the kernel manages: what is installed less what the
// firmware and the kernel's own image took at boot.
func memoryKiB(root *host.Root) uint64 {
	data, _ := root.ReadHead("/proc/meminfo", 4<<10)
	return memTotal(string(data))
}

// memTotal reads the MemTotal line of /proc/meminfo, or of a node's meminfo,
// where "Node 0" stands before it.
func memTotal(meminfo string) uint64 {
	for line := range strings.Lines(meminfo) {
		_, value, ok := strings.Cut(line, "MemTotal:")
		if !ok {
			continue
		}
		if f := strings.Fields(value); len(f) > 0 {
			n, _ := strconv.ParseUint(f[0], 10, 64)
			return n
		}
	}
	return 0
}

// hugepages reads the pools in a directory, smallest pages first.
func hugepages(root *host.Root, dir string) []wire.HugepagePool {
	pools := []wire.HugepagePool{}
	names, _ := root.ReadDir(dir)
	for _, name := range names {
		size, ok := strings.CutSuffix(strings.TrimPrefix(name, "hugepages-"), "kB")
		if !ok {
			continue
		}
		sizeKiB, ok := number(size)
		if !ok {
			continue
		}
		pools = append(pools, wire.HugepagePool{
			SizeKiB: sizeKiB,
			Total:   count(root, path.Join(dir, name, "nr_hugepages")),
			Free:    count(root, path.Join(dir, name, "free_hugepages")),
			Surplus: count(root, path.Join(dir, name, "surplus_hugepages")),
		})
	}
	slices.SortFunc(pools, func(a, b wire.HugepagePool) int { return a.SizeKiB - b.SizeKiB })
	return pools
}

func count(root *host.Root, name string) int {
	n, ok := root.Int(name)
	if !ok || n < 0 || n > 1<<31-1 {
		return 0
	}
	return int(n)
}

// number reads a whole number from 0 to 2^31-1.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil
}

// collectNUMA lists the online memory nodes. A kernel without NUMA is one
// node with everything.
func collectNUMA(root *host.Root, online wire.CPUSet, memory uint64, pools []wire.HugepagePool) []wire.NUMANode {
	ids, ok := root.CPUs(nodeDir + "/online") // the same format as a cpulist
	if !ok || ids.IsEmpty() {
		ids = nodeIDs(root)
	}
	if ids.IsEmpty() {
		return []wire.NUMANode{{CPUs: online.String(), MemoryKiB: memory, Distances: []int{10}, Hugepages: slices.Clone(pools)}}
	}
	nodes := []wire.NUMANode{}
	for _, id := range ids.CPUs() {
		dir := path.Join(nodeDir, "node"+strconv.Itoa(id))
		cpus, _ := root.CPUs(dir + "/cpulist")
		meminfo, _ := root.ReadHead(dir+"/meminfo", 4<<10)
		node := wire.NUMANode{
			ID:        id,
			CPUs:      cpus.Intersect(online).String(),
			MemoryKiB: memTotal(string(meminfo)),
			Hugepages: hugepages(root, dir+"/hugepages"),
		}
		distances, _ := root.String(dir + "/distance")
		for d := range strings.FieldsSeq(distances) {
			if n, ok := number(d); ok {
				node.Distances = append(node.Distances, n)
			}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func nodeIDs(root *host.Root) wire.CPUSet {
	var ids []int
	for _, dir := range root.Glob(nodeDir + "/node[0-9]*") {
		if n, ok := number(strings.TrimPrefix(path.Base(dir), "node")); ok {
			ids = append(ids, n)
		}
	}
	return wire.NewCPUSet(ids...)
}
