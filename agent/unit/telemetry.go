package unit

import (
	"fmt"

	"github.com/bettercompute/bc/agent/wire"
)

// telemetry changes nothing on a machine: the agent that runs there exports by
// itself, also one that does not manage its host. A [Runner] only plans it, for
// who asks what a policy would do; the agent says how it stands.
type telemetry struct{}

func (telemetry) Plan(s Scene) Plan {
	want := s.Want.Telemetry
	return Plan{
		State:  wire.InSync,
		Wanted: fmt.Sprintf("every %d s to %s", want.IntervalSeconds, want.OTLPEndpoint),
		Reason: "the running agent exports by itself; nothing on the machine changes",
	}
}

func (telemetry) Remove(Scene) []Step { return nil }
