package hosttest

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	pools = "/sys/kernel/mm/hugepages"
	nodes = "/sys/devices/system/node"
)

// usedKiB is what a machine or a node uses outside its pools.
const usedKiB = 256 << 10

// kernel is a write to a file of /proc or /sys.
func (e *edge) kernel(name, value string) error {
	if !e.root.Exists(name) {
		return &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	}
	invalid := &fs.PathError{Op: "write", Path: name, Err: syscall.EINVAL}
	switch path.Base(name) {
	case "nr_hugepages":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return invalid
		}
		e.resize(path.Dir(name), n)
		e.account()
		return nil
	case "scaling_governor":
		offered, _ := e.root.String(path.Join(path.Dir(name), "scaling_available_governors"))
		if !slices.Contains(strings.Fields(offered), value) {
			return invalid
		}
		e.governed(path.Dir(name), value)
	case preference:
		if err := e.prefer(name, value); err != nil {
			return err
		}
	case "compact_memory":
		return nil
	}
	return e.Edge.WriteKernel(name, value)
}

func (e *edge) number(name string) int {
	n, _ := e.root.Int(name)
	return int(n)
}

// poolNodes lists the pools of nodes with memory for a pool of the machine.
func (e *edge) poolNodes(dir string) []string {
	var out []string
	for _, node := range e.root.Glob(nodes + "/node[0-9]*/hugepages/" + path.Base(dir)) {
		if e.memory(node) > 0 {
			out = append(out, node)
		}
	}
	return out
}

// memory is what there is for pools in a node, or in the machine, in KiB.
func (e *edge) memory(dir string) int {
	file := "/proc/meminfo"
	if strings.HasPrefix(dir, nodes) {
		file = path.Join(path.Dir(path.Dir(dir)), "meminfo")
	}
	text, _ := e.root.String(file)
	_, rest, ok := strings.Cut(text, "MemTotal:")
	if !ok {
		return 0
	}
	total, _ := strconv.Atoi(strings.Fields(rest)[0])
	return total
}

// resize changes a pool as the kernel does: it grows as far as there is memory,
// and pages in use that should go become surplus.
func (e *edge) resize(dir string, n int) {
	if strings.HasPrefix(dir, nodes) {
		e.resizeOne(dir, n)
		e.sum(path.Join(pools, path.Base(dir)))
		return
	}
	all := e.poolNodes(dir)
	if len(all) == 0 {
		e.resizeOne(dir, n)
		return
	}
	sizes, most := make([]int, len(all)), make([]int, len(all))
	sum := 0
	for i, node := range all {
		sizes[i], most[i] = e.number(node+"/nr_hugepages")-e.number(node+"/surplus_hugepages"), e.most(node)
		sum += sizes[i]
	}
	for moved := true; moved && sum != n; {
		moved = false
		for i := range all {
			step := 1
			if sum > n {
				step = -1
			}
			if sum == n || sizes[i]+step < 0 || step > 0 && sizes[i]+step > most[i] {
				continue
			}
			sizes[i], sum, moved = sizes[i]+step, sum+step, true
		}
	}
	for i, node := range all {
		e.resizeOne(node, sizes[i])
	}
	e.sum(dir)
}

// most is how large a pool can get.
func (e *edge) most(dir string) int {
	size, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(path.Base(dir), "hugepages-"), "kB"))
	left := e.memory(dir) - usedKiB
	for _, other := range e.root.Glob(path.Dir(dir) + "/hugepages-*kB") {
		if other != dir {
			kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(path.Base(other), "hugepages-"), "kB"))
			left -= kib * e.number(other+"/nr_hugepages")
		}
	}
	for _, bound := range []string{"fragmented ", "holes "} {
		if cap, ok := e.free[bound+dir]; ok {
			left = min(left, int(cap)*size)
		}
	}
	return max(0, left/size)
}

// Fragment lets a pool grow no further than so many pages until the next boot,
// as where memory is free but in pieces.
func (m *Machine) Fragment(dir string, pages int) { m.edge.free["fragmented "+dir] = uint64(pages) }

// Holes lets a pool grow no further than so many pages, at any boot: a node has
// less memory in pieces of 1 GiB than it has memory.
func (m *Machine) Holes(dir string, pages int) { m.edge.free["holes "+dir] = uint64(pages) }

// Defragment takes Fragment back.
func (m *Machine) Defragment(dir string) { delete(m.edge.free, "fragmented "+dir) }

func (e *edge) resizeOne(dir string, n int) {
	nr, free, surplus := e.number(dir+"/nr_hugepages"), e.number(dir+"/free_hugepages"), e.number(dir+"/surplus_hugepages")
	used := nr - free
	if n > nr-surplus {
		taken := min(surplus, n-(nr-surplus))
		surplus -= taken
		grown := max(0, min(n-(nr-surplus), e.most(dir)-nr))
		nr, free = nr+grown, free+grown
	} else {
		freed := min(free, max(0, nr-surplus-max(n, used)))
		nr, free = nr-freed, free-freed
		surplus += max(0, nr-surplus-n)
	}
	e.put(dir+"/nr_hugepages", strconv.Itoa(nr))
	e.put(dir+"/free_hugepages", strconv.Itoa(free))
	e.put(dir+"/surplus_hugepages", strconv.Itoa(surplus))
}

func (e *edge) sum(dir string) {
	for _, name := range []string{"nr_hugepages", "free_hugepages", "surplus_hugepages"} {
		sum := 0
		for _, node := range e.poolNodes(dir) {
			sum += e.number(path.Join(node, name))
		}
		e.put(path.Join(dir, name), strconv.Itoa(sum))
	}
}

// Use takes pages of a pool, as a process that maps them does.
func (m *Machine) Use(dir string, pages int) {
	e := m.edge
	e.put(dir+"/free_hugepages", strconv.Itoa(e.number(dir+"/nr_hugepages")-pages))
	if strings.HasPrefix(dir, nodes) {
		e.sum(path.Join(pools, path.Base(dir)))
	}
}

// BootHangs starts the machine anew, and it does not come up: the boot loader
// did its part, and the kernel that it started says nothing. Somebody has to
// start it again.
func (m *Machine) BootHangs() {
	m.edge.boot++
	m.edge.nextArguments()
}

// Reboot starts the machine anew: kernel values are those of a fresh boot, and
// the kernel arguments are those of the entry that boots.
func (m *Machine) Reboot() {
	e := m.edge
	e.boot++
	e.put("/proc/sys/kernel/random/boot_id", fmt.Sprintf("boot-%d", e.boot))
	for key := range e.free {
		if strings.HasPrefix(key, "fragmented ") {
			delete(e.free, key)
		}
	}
	for _, dir := range append(e.root.Glob(nodes+"/node[0-9]*/hugepages/*"), e.root.Glob(pools+"/*")...) {
		for _, name := range []string{"nr_hugepages", "free_hugepages", "surplus_hugepages"} {
			e.put(path.Join(dir, name), "0")
		}
	}
	e.bootWith(e.nextArguments())
}
