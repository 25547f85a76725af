package hosttest

import (
	"path"
	"strconv"
)

// Available has programs use so much memory that this many KiB of the machine
// are left to be had, less what pools of huge pages take from then on.
func (m *Machine) Available(kib int) {
	m.edge.free["available"] = uint64(kib + m.edge.pooled())
	m.edge.account()
}

// pooled is what all pools of the machine hold, in KiB.
func (e *edge) pooled() int {
	sum := 0
	for _, dir := range e.root.Glob(pools + "/hugepages-*kB") {
		sum += e.number(dir+"/nr_hugepages") * pageKiB(dir)
	}
	return sum
}

// account writes what is available, if that is imitated.
func (e *edge) account() {
	total, ok := e.free["available"]
	if !ok {
		return
	}
	e.put("/proc/meminfo", "MemTotal:       "+strconv.Itoa(e.memory(pools))+" kB\nMemAvailable:   "+strconv.Itoa(int(total)-e.pooled())+" kB")
}

// pageKiB reads the size out of a pool's folder: hugepages-2048kB.
func pageKiB(dir string) int {
	name := path.Base(dir)
	n, _ := strconv.Atoi(name[len("hugepages-") : len(name)-len("kB")])
	return n
}
