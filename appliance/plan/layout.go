package plan

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"sync"
)

// layout is where the GPUs of a machine are: index, address, memory node and
// NVLink. Machines that are alike share one. Sets of GPUs are words whose bit i
// is the i-th device in order.
type layout struct {
	devices []place
	links   []uint64 // GPUs joined by NVLink, directly or through others; only sets of two and more
	numa    []uint64 // GPUs of the same memory node

	mu     sync.Mutex
	chosen map[wanted]choice // answers of choose, which reads may fill side by side
}

type place struct {
	index   int
	address string
	numa    int
	peers   uint64
}

type wanted struct {
	from, with uint64
	count      int
}

// choice is the best set of GPUs for a request and how good it is: the lower
// the cost, the better.
type choice struct {
	devices uint64
	cost    uint64
}

func layoutOf(devices []Device) []place {
	places := make([]place, len(devices))
	for i := range devices {
		d := &devices[i]
		places[i] = place{index: d.Index, address: d.Address, numa: d.NUMANode}
		for _, peer := range d.NVLinkPeers {
			j := slices.IndexFunc(devices, func(o Device) bool { return o.UUID == peer })
			if j >= 0 && j != i {
				places[i].peers |= 1 << j
			}
		}
	}
	return places
}

func appendLayoutKey(b []byte, places []place) []byte {
	for _, p := range places {
		b = strconv.AppendInt(b, int64(p.index), 10)
		b = append(append(append(b, ' '), p.address...), ' ')
		b = strconv.AppendInt(b, int64(p.numa), 10)
		b = strconv.AppendUint(append(b, ' '), p.peers, 16)
		b = append(b, '\n')
	}
	return b
}

func newLayout(places []place) *layout {
	l := &layout{devices: places, chosen: map[wanted]choice{}}
	byNUMA := map[int]int{}
	for i, p := range places {
		at, ok := byNUMA[p.numa]
		if !ok {
			at = len(l.numa)
			byNUMA[p.numa] = at
			l.numa = append(l.numa, 0)
		}
		l.numa[at] |= 1 << i
	}
	var seen uint64
	for i := range places {
		if seen&(1<<i) != 0 {
			continue
		}
		group := l.linkedTo(i)
		seen |= group
		if bits.OnesCount64(group) > 1 {
			l.links = append(l.links, group)
		}
	}
	return l
}

// linkedTo is the set of GPUs that NVLink joins with the i-th one.
func (l *layout) linkedTo(i int) uint64 {
	group := uint64(1) << i
	for {
		grown := group
		for j, p := range l.devices {
			if group&(1<<j) != 0 {
				grown |= p.peers
			} else if p.peers&group != 0 {
				grown |= 1 << j
			}
		}
		if grown == group {
			return group
		}
		group = grown
	}
}

// choose picks count GPUs out of from, to stand beside the GPUs with. The best
// set has, in this order: the most pairs that share NVLink; the fewest memory
// nodes; the fewest free GPUs left in the NVLink groups that it breaks into, so
// that whole groups stay free; the same for memory nodes; the lowest positions.
// There must be count GPUs in from.
func (l *layout) choose(from, with uint64, count int) choice {
	if count == 0 {
		return choice{cost: l.cost(from, with)}
	}
	if count == bits.OnesCount64(from) {
		return choice{devices: from, cost: l.cost(from, from|with)}
	}
	key := wanted{from, with, count}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.chosen[key]; ok {
		return c
	}
	var c choice
	if combinations(bits.OnesCount64(from), count) <= maxCombinations {
		c = l.tryAll(from, with, count)
	} else {
		c = l.grow(from, with, count)
	}
	if len(l.chosen) >= maxChosen {
		clear(l.chosen)
	}
	l.chosen[key] = c
	return c
}

const (
	maxCombinations = 13000   // all 8 of 16 GPUs are 12,870
	maxChosen       = 1 << 12 // of 8 GPUs there are 256 sets and 8 counts
)

func combinations(n, k int) int {
	k = min(k, n-k)
	c := 1
	for i := 1; i <= k; i++ {
		c = c * (n - k + i) / i
		if c > maxCombinations {
			return c
		}
	}
	return c
}

// tryAll looks at every set of count GPUs, in ascending order of the set's word.
func (l *layout) tryAll(from, with uint64, count int) choice {
	var positions [maxDevices]uint64
	n := 0
	for m := from; m != 0; m &= m - 1 {
		positions[n] = m & -m
		n++
	}
	best := choice{cost: math.MaxUint64}
	last := uint64(1)<<count - 1
	for pick := last; pick != 0 && bits.Len64(pick) <= n; {
		var set uint64
		for m := pick; m != 0; m &= m - 1 {
			set |= positions[bits.TrailingZeros64(m)]
		}
		if cost := l.cost(from, set|with); cost < best.cost {
			best = choice{set, cost}
		}
		low := pick & -pick // the next word with as many bits
		high := pick + low
		pick = high | ((pick^high)/low)>>2
	}
	return best
}

// grow starts from each GPU in turn and adds the one that costs least.
func (l *layout) grow(from, with uint64, count int) choice {
	best := choice{cost: math.MaxUint64}
	for start := from; start != 0; start &= start - 1 {
		set := start & -start
		for bits.OnesCount64(set) < count {
			next := choice{cost: math.MaxUint64}
			for m := from &^ set; m != 0; m &= m - 1 {
				if cost := l.cost(from, set|m&-m|with); cost < next.cost {
					next = choice{m & -m, cost}
				}
			}
			set |= next.devices
		}
		if cost := l.cost(from, set|with); cost < best.cost || cost == best.cost && set < best.devices {
			best = choice{set, cost}
		}
	}
	return best
}

// cost compares sets of the same size taken from the free GPUs: pairs without
// NVLink, then memory nodes, then free GPUs left behind in broken NVLink groups
// and in broken memory nodes. Each takes 16 bits; the largest, the pairs of 64
// GPUs, is 2,016.
func (l *layout) cost(free, set uint64) uint64 {
	var unlinked, numa, groupLeft, numaLeft uint64
	for m := set; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		unlinked += uint64(bits.OnesCount64(set &^ l.devices[i].peers &^ (1 << i)))
	}
	for _, group := range l.links {
		if group&set != 0 {
			groupLeft += uint64(bits.OnesCount64(group & free &^ set))
		}
	}
	for _, node := range l.numa {
		if node&set != 0 {
			numa++
			numaLeft += uint64(bits.OnesCount64(node & free &^ set))
		}
	}
	return unlinked/2<<48 | numa<<32 | groupLeft<<16 | numaLeft
}
