package plan

import (
	"testing"

	"pgregory.net/rapid"
)

// The share is what the formula gives by hand.
func TestScatter(t *testing.T) {
	for name, c := range map[string]struct {
		nodes [][2]int64 // free, size
		want  float64
	}{
		"nothing":                        {nil, 0},
		"nothing free":                   {[][2]int64{{0, 8}, {0, 8}}, 0},
		"all free":                       {[][2]int64{{8, 8}, {8, 8}}, 0},
		"one box, partly booked":         {[][2]int64{{6, 8}}, 0},
		"half of each":                   {[][2]int64{{4, 8}, {4, 8}}, 0.5},
		"one of each of eight":           {[][2]int64{{1, 8}, {1, 8}, {1, 8}, {1, 8}, {1, 8}, {1, 8}, {1, 8}, {1, 8}}, 0.88},
		"whole nodes free beside a rest": {[][2]int64{{8, 8}, {0, 8}, {2, 8}}, 0},
		"sizes differ":                   {[][2]int64{{4, 4}, {2, 8}}, 0.44}, // 1 - (16+4)/36
		"a node of nothing":              {[][2]int64{{0, 0}, {3, 8}}, 0},
	} {
		var s scatter
		for _, n := range c.nodes {
			s.add(n[0], n[1])
		}
		if got := s.share(); got != c.want {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
}

// It is a share, and moving free units from a node to one that has as much free
// or more, and room for them, never raises it.
func TestScatterFallsWhereFreeGathers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.Int64Range(1, 16), 2, 6).Draw(t, "sizes")
		free := make([]int64, len(sizes))
		for i, size := range sizes {
			free[i] = rapid.Int64Range(0, size).Draw(t, "free")
		}
		share := func() float64 {
			var s scatter
			for i := range sizes {
				s.add(free[i], sizes[i])
			}
			return s.share()
		}
		before := share()
		from, to := rapid.IntRange(0, len(sizes)-1).Draw(t, "from"), rapid.IntRange(0, len(sizes)-1).Draw(t, "to")
		if before < 0 || before > 1 {
			t.Fatalf("%v of %v is scattered by %v", free, sizes, before)
		}
		if from == to || free[from] == 0 || free[to] < free[from] || free[to] == sizes[to] {
			return
		}
		free[from]--
		free[to]++
		if after := share(); after > before {
			t.Fatalf("%v of %v is scattered by %v, before by %v", free, sizes, after, before)
		}
	})
}
