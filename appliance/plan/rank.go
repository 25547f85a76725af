package plan

import (
	"slices"
)

// rank orders nodes that fit: the lower the better, from left to right.
type rank [4 + scalarCount]int64

func (r rank) compare(o rank) int { return slices.Compare(r[:], o[:]) }

// rate ranks one node; false if it does not fit.
func (a *ask) rate(n *node) (rank, bool) {
	e := n.entry()
	if !n.takes() || !a.matches(&e) || !covers(&e.free, &a.least) || !a.fits(n) {
		return rank{}, false
	}
	sg := n.sign()
	if a.resource == "" && !a.whole {
		return a.rateHost(sg, &e), true
	}
	if a.profile != "" && !a.whole {
		sg = n.profileSign(a.profile)
	}
	if sg.free < a.atoms {
		return rank{}, false
	}
	cost, ok := a.cost(sg)
	if !ok {
		return rank{}, false
	}
	r := rank{int64(sg.free), int64(cost)}
	if !a.isNear(n) {
		r[2] = 1
	}
	return r, true
}

// What a request for host resources alone does to the GPUs of a node, in its
// rank. Zero: it has none.
const (
	keepsShare  = 1
	spoilsShare = 2
)

// rateHost ranks a node for host resources alone.
func (a *ask) rateHost(sg sign, e *entry) rank {
	var r rank
	if sg.gpus {
		r[0] = keepsShare
		if need, ok := a.keeping(sg.free); !ok || !covers(&e.free, &need) {
			r[0] = spoilsShare
		}
		r[1] = int64(sg.free)
	}
	for i, v := range a.scalars {
		if v > 0 {
			r[2+i] = int64(e.free[i] - v)
		}
	}
	return r
}

// share is the smallest share of vcpu (0) or memoryGiB (1) that any GPU host of
// the pool can give to each of its GPUs, rounded down; 0 if none has the row.
func (p *pool) share(i int) int32 {
	least := int32(-1)
	for share := range p.shares[i] {
		if least < 0 || share < least {
			least = share
		}
	}
	return max(0, least)
}

type candidate struct {
	node *node
	rank rank
}

func (c candidate) compare(o candidate) int {
	if d := c.rank.compare(o.rank); d != 0 {
		return d
	}
	return compareNodes(c.node, o.node)
}

func (a *ask) nodesOf(best []candidate) []*node {
	slices.SortFunc(best, candidate.compare)
	var out []*node
	for _, c := range best[:min(a.nodes, len(best))] {
		out = append(out, c.node)
	}
	return out
}

// findNamed looks only at the nodes whose hostname the selector takes.
func (a *ask) findNamed() []*node {
	var best []candidate
	a.eachNamed(func(n *node) {
		if r, ok := a.rate(n); ok {
			best = append(best, candidate{n, r})
		}
	})
	return a.nodesOf(best)
}

func (a *ask) eachNamed(f func(*node)) {
	m := a.hostname
	if m.Min != nil || m.Max != nil {
		for _, c := range a.pool.all.chunks {
			for _, e := range c.entries {
				if m.Matches(e.node.hostname) {
					f(e.node)
				}
			}
		}
		return
	}
	names := m.In
	if names == nil {
		names = []string{m.Equals}
	}
	for i, name := range names {
		if !slices.Contains(names[:i], name) {
			a.pool.eachCalled(name, f)
		}
	}
}

// eachCalled visits the nodes of one hostname.
func (p *pool) eachCalled(hostname string, f func(*node)) {
	first := &entry{node: &node{hostname: hostname}}
	at := p.all.find(first)
	for ; at < len(p.all.chunks); at++ {
		c := p.all.chunks[at]
		for _, e := range c.entries[p.all.findIn(c, first):] {
			if e.node.hostname != hostname {
				return
			}
			f(e.node)
		}
	}
}
