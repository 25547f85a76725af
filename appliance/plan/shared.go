package plan

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// What like machines share is kept once: layouts, classes, topologies and shapes,
// each while a node holds it.

// layout holds where the node's GPUs are.
func (x *Index) layout(facts *Node, devices []Device) *shared[*layout] {
	var places []place
	if u := facts.Unpacked; u != nil && len(devices) > 0 && &devices[0] == &facts.Devices[0] { // they were in order
		places = u.places
	} else {
		places = layoutOf(devices)
	}
	x.key = appendLayoutKey(x.key[:0], places)
	return x.layouts.hold(x.key, func() *layout { return newLayout(places) })
}

// class holds the node's attributes. While many nodes are put, like ones come
// with one between them.
func (x *Index) class(facts *Node) *class {
	u := facts.Unpacked
	if u == nil || !x.filling {
		return x.newClass(facts.Attributes)
	}
	if l := &x.lastClass; l.held == nil || l.text != u.attributes {
		*l = lastClass{text: u.attributes, held: x.newClass(facts.Attributes)}
	} else {
		l.held.held++
	}
	return x.lastClass.held
}

// lastClass remembers the class of the node that was put last.
type lastClass struct {
	text string
	held *class
}

// newClass holds the attributes but for the hostname, which no two nodes share.
func (x *Index) newClass(given map[string]string) *class {
	names := make([]string, 0, len(given))
	for name := range given {
		if name != AttributeHostname {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	x.key = x.key[:0]
	for _, name := range names {
		x.key = append(append(x.key, name...), 0)
		x.key = strconv.AppendInt(x.key, int64(len(given[name])), 10)
		x.key = append(append(x.key, 0), given[name]...)
	}
	return x.classes.hold(x.key, func() attributes {
		made := attributes{number: x.classCount, of: make(map[string]string, len(names))}
		for _, name := range names {
			made.of[name] = given[name]
		}
		if last := len(x.freeClasses) - 1; last >= 0 {
			made.number, x.freeClasses = x.freeClasses[last], x.freeClasses[:last]
		} else {
			x.classCount++
		}
		return made
	})
}

// topology holds the node's topology, less the CPUs that its vcpu row leaves to
// the host. CPUs are set aside only while vcpu is not overcommitted.
func (x *Index) topology(facts *Node) *shared[topology] {
	if facts.Topology == nil {
		return nil
	}
	reserve := notExclusive
	for _, r := range facts.Rows {
		if r.Resource == appliance.ResourceVCPU && ratio(r) == 1 {
			reserve = max(0, facts.Topology.logical()-r.Total)
		}
	}
	if l := &x.last; l.facts != facts.Topology || l.reserve != reserve {
		key := strconv.AppendInt(facts.Topology.appendKey(nil), int64(reserve), 10)
		*l = lastTopology{facts: facts.Topology, reserve: reserve, key: key}
	}
	return x.topologies.hold(x.last.key, func() topology { return newTopology(facts.Topology.clone(), reserve) })
}

// lastTopology remembers the key of the topology that was put last: at a start
// like nodes come with one between them.
type lastTopology struct {
	facts   *Topology
	reserve int
	key     []byte
}

func (x *Index) checkTopology(facts *Node) error {
	if facts.Topology == nil || facts.Topology == x.last.facts { // which was checked
		return nil
	}
	var cpus, numa cpuBits
	for _, m := range facts.Topology.NUMA {
		if m.ID < 0 || m.ID >= wire.MaxCPU || numa.has(m.ID) || m.MemoryGiB < 0 {
			return fmt.Errorf("node %s: memory node %d stands twice in the topology, or is none", facts.ID, m.ID)
		}
		numa.add(m.ID)
		for _, core := range m.Cores {
			for _, cpu := range core {
				if cpu < 0 || cpu >= wire.MaxCPU || cpus.has(cpu) {
					return fmt.Errorf("node %s: CPU %d stands twice in the topology, or is none", facts.ID, cpu)
				}
				cpus.add(cpu)
			}
		}
	}
	for _, cpu := range facts.Topology.Isolated {
		if cpu < 0 || cpu >= wire.MaxCPU {
			return fmt.Errorf("node %s: isolated CPU %d is none", facts.ID, cpu)
		}
	}
	return nil
}

func (x *Index) letGo(n *node) {
	if x.classes.drop(n.class) {
		x.freeClasses = append(x.freeClasses, n.class.value.number)
	}
	x.layouts.drop(n.layout)
	x.topologies.drop(n.topology)
	x.shapes.drop(n.shape)
}

// table keeps one copy of what like machines share, while any holds it.
type table[T any] struct{ held map[string]*shared[T] }

type shared[T any] struct {
	key   string
	held  int
	value T
}

func (t *table[T]) hold(key []byte, make func() T) *shared[T] {
	s := t.held[string(key)]
	if s == nil {
		if t.held == nil {
			t.held = map[string]*shared[T]{}
		}
		s = &shared[T]{key: string(key), value: make()}
		t.held[s.key] = s
	}
	s.held++
	return s
}

// drop lets one go and tells whether it was the last hold.
func (t *table[T]) drop(s *shared[T]) bool {
	if s == nil {
		return false
	}
	if s.held--; s.held > 0 {
		return false
	}
	delete(t.held, s.key)
	return true
}
