package unit

import (
	"fmt"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
)

// Plans answers, in order of application, what is left to be done for each unit
// that is wanted, and what would undo each that was applied here before and is
// not. Held are UUIDs of the GPUs that bookings hold. Nothing is changed, also
// of a runner that may.
func (r *Runner) Plans(units wire.Units, held []string) []wire.UnitPlan {
	out := []wire.UnitPlan{}
	for _, kind := range wire.UnitKinds {
		d := Desired{Units: only(units, kind), Held: held}
		gone := len(d.Units.Wanted()) == 0
		if gone && (r.known(kind) == nil || !r.touched(kind)) {
			continue
		}
		p, err := r.Preview(kind, d)
		if err != nil {
			p = Plan{State: wire.Failed, Reason: err.Error()}
		}
		w := p.Wire(kind)
		w.Gone = gone
		out = append(out, w)
	}
	for _, name := range units.Unknown {
		out = append(out, wire.UnitPlan{
			Kind: wire.UnitKind(name), State: wire.Unsupported, Steps: []wire.PlanStep{},
			Reason: fmt.Sprintf("this agent has no unit %q: it is older than its control plane", name),
		})
	}
	return out
}

// maxChange bounds the text of one change, in bytes: an edited file of a boot
// loader is as long as its machine has kernels.
const maxChange = 8 << 10

// Wire is the plan as it is told to others.
func (p Plan) Wire(kind wire.UnitKind) wire.UnitPlan {
	out := wire.UnitPlan{Kind: kind, State: p.State, Wanted: p.Wanted, Got: p.Got, Reason: p.Reason, Steps: []wire.PlanStep{}}
	add := func(steps []Step, later bool) {
		for _, s := range steps {
			change := s.Change.String()
			if len(change) > maxChange {
				change = strings.ToValidUTF8(change[:maxChange], "") + "…"
			}
			out.Steps = append(out.Steps, wire.PlanStep{Change: change, Needs: string(s.Needs), Undo: s.Undo, Later: later})
		}
	}
	add(p.Steps, false)
	add(p.Later, true)
	return out
}
