package agent

import (
	"context"

	"github.com/bettercompute/bc/agent/wire"
)

// startPlan makes the plan that the control plane asks for beside the loop, for
// looking at GPUs can take seconds, and sends it. Who asked waits: what cannot
// be sent at once is of no use later.
func (l *loop) startPlan(ctx context.Context, req wire.PlanRequest) {
	book := l.node.book
	report := wire.PlanReport{NodeID: book.NodeID, ID: req.ID}
	busy := l.planning
	l.planning = true
	l.working.Go(func() {
		if busy {
			report.Failed = "its agent is still making another plan; ask again"
		} else {
			report.Units, report.Note = l.units.Plans(req.Units, req.Held), l.agent.planNote()
			defer func() { l.planned <- struct{}{} }()
		}
		if err := l.node.link.plan(ctx, book.Credential, report); err != nil && ctx.Err() == nil {
			l.agent.Log.Warn("a plan was made and could not be told", "plan", req.ID, "err", err)
		}
	})
}

// planNote says what holds for a whole plan of this agent.
func (a *Agent) planNote() string {
	switch {
	case !a.Root.Real():
		return "this is a recorded machine, not a real one"
	case !a.ManageHost:
		return leftAlone + "; nothing of this is done"
	}
	return ""
}
