package plan

import (
	"math/bits"
	"sort"

	"github.com/bettercompute/bc/appliance"
)

// tally is what a node adds to the sums of its pool.
type tally struct {
	nodes, schedulable   int
	healthy, unhealthy   int
	freeNodes, freeGPUs  int
	releasing            int                  // atoms
	holding              [scalarCount + 1]int // nodes that have the resource
	total, booked, avail [scalarCount + 1]int64
}

// atomRow stands behind the scalars in the arrays of a tally.
const atomRow = scalarCount

func (n *node) tally() tally {
	t := tally{nodes: 1}
	if n.shape.value.schedulable {
		t.schedulable = 1
	}
	t.healthy = bits.OnesCount64(n.healthy)
	t.unhealthy = n.uuids.len() - t.healthy
	if n.shape.value.role != appliance.RoleHost {
		return t
	}
	if n.takes() && len(n.shares) == 0 && n.releasing == nil {
		t.freeNodes = 1
	}
	for i, present := range n.shape.value.present {
		if !present {
			continue
		}
		t.holding[i], t.total[i], t.booked[i] = 1, int64(n.total[i]), n.allocated[i]
		if n.takes() {
			t.avail[i] = int64(n.freeRow(i))
		}
	}
	if n.uuids.len()+len(n.strays) == 0 {
		return t
	}
	booked, free := len(n.strays)+int(n.bookedAtoms()), 0
	for i := range n.uuids.len() {
		free += bits.OnesCount64(n.freeAtoms(i))
		if n.takes() && n.booked[i]|n.releasingOf(i) == 0 && (n.healthy&^n.waits)&(1<<i) != 0 {
			t.freeGPUs++
		}
	}
	t.releasing = n.releasingAtoms()
	t.holding[atomRow], t.total[atomRow], t.booked[atomRow] = 1, int64(booked+free+t.releasing), int64(booked)
	if n.takes() {
		t.avail[atomRow] = int64(free)
	}
	return t
}

func (t *tally) add(o tally, sign int) {
	t.nodes += sign * o.nodes
	t.schedulable += sign * o.schedulable
	t.healthy += sign * o.healthy
	t.unhealthy += sign * o.unhealthy
	t.freeNodes += sign * o.freeNodes
	t.freeGPUs += sign * o.freeGPUs
	t.releasing += sign * o.releasing
	for i := range o.total {
		t.holding[i] += sign * o.holding[i]
		t.total[i] += int64(sign) * o.total[i]
		t.booked[i] += int64(sign) * o.booked[i]
		t.avail[i] += int64(sign) * o.avail[i]
	}
}

// Capacity sums what a pool has and says what really fits. The perGPU is
// policy.perGpu, since a GPU counts as one that can be taken only with its
// default host share.
//
// Only nodes of role host add resources. Total counts what is booked and what
// could be: free atoms of unhealthy GPUs, and of those that wait for another MIG
// layout, are no part of it. Available is what nodes that take bookings have
// free, so it is less than total minus allocated while nodes do not, and while
// some is Releasing: given back and not yet free. Largest is the most that Place
// would put on one node now, asked for alone. A pool without nodes has none of
// these, in maps that are not nil.
func (x *Index) Capacity(poolID string, perGPU appliance.Amounts) appliance.Capacity {
	c := appliance.Capacity{PoolID: poolID, Resources: map[string]appliance.Rollup{}, Largest: map[string]int{}}
	p := x.pools[poolID]
	if p == nil {
		return c
	}
	t := &p.tally
	c.Nodes = appliance.NodeCount{Total: t.nodes, Schedulable: t.schedulable}
	c.Devices = appliance.DeviceCount{Healthy: t.healthy, Unhealthy: t.unhealthy}
	c.Free = appliance.FreeCount{Nodes: t.freeNodes, GPUs: t.freeGPUs}
	scattered := p.scattered()
	for i := range t.total {
		if t.holding[i] == 0 {
			continue
		}
		resource := p.sharing.Resource()
		if i != atomRow {
			resource = appliance.Scalars[i]
		}
		rollup := appliance.Rollup{
			Total: int(t.total[i]), Allocated: int(t.booked[i]), Available: int(t.avail[i]), Fragmentation: scattered[i].share(),
		}
		if i == atomRow {
			rollup.Releasing = t.releasing
		}
		c.Resources[resource] = rollup
		c.Largest[resource] = x.largest(p, resource, perGPU)
	}
	return c
}

// largest is the most of one resource that one node can take now.
func (x *Index) largest(p *pool, resource string, perGPU appliance.Amounts) int {
	r := Request{PoolID: p.id, Resources: appliance.Amounts{}, PerGPU: perGPU}
	if i := scalarIndex(resource); i >= 0 {
		return x.most(r, resource, int(p.base.most(i)))
	}
	if resource != appliance.ResourceMIG {
		return x.most(r, resource, len(p.base.rows)-1)
	}
	most := 0
	for name, have := range p.profiles {
		r.Selector = appliance.Selector{appliance.MIGProfile: {Equals: name}}
		most = max(most, x.most(r, resource, len(have.shelf.rows)-1))
	}
	return most
}

// most is the largest amount up to limit with which the request fits. Less of a
// resource always fits where more of it does.
func (x *Index) most(r Request, resource string, limit int) int {
	asked := r.Resources
	fits := func(amount int) bool {
		r.Resources = appliance.Amounts{}
		for name, n := range asked {
			r.Resources[name] = n
		}
		r.Resources[resource] = amount
		_, ok := x.Place(r)
		return ok
	}
	if limit <= 0 {
		return 0
	}
	if fits(limit) {
		return limit
	}
	return sort.Search(limit-1, func(i int) bool { return !fits(i + 1) })
}

// most is the most of a counted resource that any node on the shelf has free.
func (s *shelf) most(i int) int32 {
	most := int32(0)
	for _, row := range s.rows {
		for _, cell := range row {
			for _, c := range cell.chunks {
				most = max(most, c.most[i])
			}
		}
	}
	return most
}
