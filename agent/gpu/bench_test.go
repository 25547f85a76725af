//go:build cgo

package gpu

import (
	"testing"

	"github.com/bettercompute/bc/agent/gpu/gputest"
)

// The cost of our side of a discovery: the library of testdata answers from
// memory, where a driver takes its own time.
func BenchmarkSnapshotOfEightGPUs(b *testing.B) {
	m := gputest.State(b, "h100-mig")
	l := Open(m.Library)
	for b.Loop() {
		if s := l.Snapshot(b.Context()); len(s.GPUs) != 8 {
			b.Fatal(s.Library.Reason)
		}
	}
}
