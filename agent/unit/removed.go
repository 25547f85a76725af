package unit

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// A unit that is taken out of the policy is undone at once, as far as that can be.
// What is left then waits for a boot, for GPUs or for memory to be free, and the
// unit has a status and a result like a wanted one until nothing of it is left.

// takenOut begins the reason of each status of a unit that is no longer wanted.
const takenOut = "taken out of the policy; "

// leaving is a status of a unit that is no longer wanted.
func leaving(s wire.UnitStatus) wire.UnitStatus {
	if s.State != "" && !strings.HasPrefix(s.Reason, takenOut) {
		s.Reason = takenOut + s.Reason
	}
	return s
}

// removal is the plan of a unit that is no longer wanted. The state is that of
// what is left when nothing can be done for it now, and empty if there are steps,
// or if nothing is left.
func removal(u Unit, s Scene, kind wire.UnitKind) Plan {
	p := Plan{Steps: u.Remove(s)}
	if len(p.Steps) > 0 || s.Prior.Empty() {
		return p
	}
	var all verdicts
	if s.Prior.Arguments != nil {
		all.add(argumentsLeft(s, kind))
	}
	for _, name := range sortedKeys(s.Prior.Values) {
		all.add(valueLeft(s, kind, name))
	}
	all.sum(&p)
	p.Reason = takenOut + p.Reason
	return p
}

func argumentsLeft(s Scene, kind wire.UnitKind) (wire.UnitState, string) {
	a := planArguments(s, string(kind), nil)
	if a.state != wire.PendingReboot {
		return failedOr(a.state), cmp.Or(a.reason, "its kernel arguments are not taken back yet; it is tried again")
	}
	var still []string
	for _, token := range s.Prior.Arguments.Old {
		if !slices.Contains(still, token) && slices.Contains(words(s, "/proc/cmdline"), token) {
			still = append(still, token)
		}
	}
	if len(still) == 0 {
		return a.state, a.reason
	}
	return a.state, "the next boot goes without " + strings.Join(still, " ") + ", which the running kernel still has"
}

// failedOr is a state that says that something is left.
func failedOr(state wire.UnitState) wire.UnitState {
	if state == wire.InSync || state == "" {
		return wire.Failed
	}
	return state
}

// valueLeft says why a noted value cannot be put back now.
func valueLeft(s Scene, kind wire.UnitKind, name string) (wire.UnitState, string) {
	if uuid, what, ok := ofGPU(name); ok {
		return gpuLeft(s, uuid, what)
	}
	if kind == wire.UnitHugepages && kernelPath(name) {
		q := seePool(s.Machine.Root, path.Dir(name))
		return wire.PendingIdle, fmt.Sprintf("%s of %s in %s are in use; they go when they are free", count(q.inUse(), "page"), sizeName(q.sizeKiB), path.Dir(name))
	}
	return wire.Failed, "not all could be put back yet; it is tried again"
}

func gpuLeft(s Scene, uuid, what string) (wire.UnitState, string) {
	var p Plan
	if s.unanswered(&p) {
		return failedOr(p.State), p.Reason
	}
	i := slices.IndexFunc(s.GPUs.GPUs, func(g gpu.State) bool { return g.UUID == uuid })
	if i < 0 {
		return wire.Failed, fmt.Sprintf("GPU %s is among the %d that do not answer", uuid, s.GPUs.Silent)
	}
	g := s.GPUs.GPUs[i]
	if who := s.users(g, ofMPS); who != "" {
		return wire.PendingIdle, fmt.Sprintf("%s is used by %s", gpuName(g), who)
	}
	return wire.Failed, fmt.Sprintf("%s: its %s could not be put back yet; it is tried again", gpuName(g), what)
}

// removed keeps the status of a unit of which something is left, and forgets one
// of which nothing is.
func (r *Runner) removed(name string, result Result, err error) (wire.UnitStatus, error) {
	var p host.Prior
	if left, loadErr := r.Ledger.Load(host.Priors, name, &p); err == nil && loadErr == nil && !left {
		return wire.UnitStatus{}, errors.Join(r.Ledger.Drop(host.Results, name), r.Ledger.Drop(host.Desired, name))
	}
	s := &result.Status
	s.State, s.Reason = failedOr(s.State), cmp.Or(s.Reason, "not all could be put back yet; it is tried again")
	*s = leaving(*s)
	return *s, r.Ledger.Save(host.Results, name, result)
}
