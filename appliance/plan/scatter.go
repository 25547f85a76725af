package plan

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

// scatter says how far what is free of one resource lies apart.
type scatter struct {
	free, squares float64       // sums of what each node has free, and of its square
	sizes         map[int64]int // how many nodes there are by what they have in all
	size          int64         // of the last nodes added, a run of like ones,
	run           int           // which is not in sizes yet
}

func (s *scatter) add(free, size int64) {
	s.free += float64(free)
	s.squares += float64(free) * float64(free)
	if size != s.size {
		s.endRun()
	}
	s.size, s.run = size, s.run+1
}

func (s *scatter) endRun() {
	if s.sizes == nil {
		s.sizes = map[int64]int{}
	}
	s.sizes[s.size] += s.run
	s.run = 0
}

// share is 0 if what is free could not lie in larger pieces, and is nearer to 1
// the smaller the pieces are: 1 - sum(free²) / sum(ideal²), where ideal is the
// same amount on as few of the largest nodes as can hold it. It is rounded to
// hundredths. Where nothing is free it is 0.
func (s *scatter) share() float64 {
	s.endRun()
	left, ideal := s.free, 0.0
	for _, size := range slices.Backward(slices.Sorted(maps.Keys(s.sizes))) {
		whole := min(float64(s.sizes[size]), math.Floor(left/float64(max(size, 1))))
		ideal += whole * float64(size) * float64(size)
		left -= whole * float64(size)
		if int(whole) < s.sizes[size] { // the rest is on one node more
			ideal += left * left
			break
		}
	}
	if ideal == 0 {
		return 0
	}
	return math.Round(100*max(0, 1-s.squares/ideal)) / 100
}

// scattered looks at the nodes of a pool that take bookings.
func (p *pool) scattered() [scalarCount + 1]scatter {
	var out [scalarCount + 1]scatter
	for _, row := range p.base.rows {
		for _, cell := range row {
			for _, c := range cell.chunks {
				for _, e := range c.entries {
					for i, free := range e.free {
						if free >= 0 {
							out[i].add(int64(free), max(int64(free), int64(e.node.total[i])))
						}
					}
					if cell.sign.gpus {
						free := int64(cell.sign.free)
						out[atomRow].add(free, free+e.node.bookedAtoms())
					}
				}
			}
		}
	}
	return out
}

// bookedAtoms counts those on GPUs that the node has.
func (n *node) bookedAtoms() int64 {
	booked := 0
	for i := range n.uuids.len() {
		booked += bits.OnesCount64(n.booked[i])
	}
	return int64(booked)
}
