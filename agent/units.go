package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// startUnits compares the units with the machine if that is due, beside the
// loop: a new initramfs takes minutes. It answers how long nothing is due.
func (l *loop) startUnits(ctx context.Context) time.Duration {
	spec, known := l.node.wanted()
	if !known || l.applying {
		return idle
	}
	if wait := time.Until(l.applyAt); wait > 0 && spec.Generation == l.appliedTo {
		return wait
	}
	l.applying, l.applied, l.appliedTo = true, time.Now(), spec.Generation
	l.applyAt = l.applied.Add(applyEvery)
	l.working.Go(func() { l.results <- l.units.Sync(ctx, spec) })
	return idle
}

// runner applies the units of this machine.
func (a *Agent) runner() *unit.Runner {
	r := &unit.Runner{
		Machine: host.NewMachine(a.Root), Ledger: host.OpenLedger(a.StateDir), Manage: a.ManageHost,
		Services: a.Root.Real() && unit.UsesServices(a.StateDir), Now: time.Now, Log: a.Log,
	}
	r.GPUs, _ = a.GPUs.(*gpu.Library) // a recorded machine has none to set
	return r
}

// answerUnits answers each wanted unit, in order of application, and then those
// that this binary has no word for. A unit is answered when it has been compared
// with the machine for the first time; results are of the last comparison. A
// status of the same state keeps its time. The result is empty, not nil, when
// nothing is wanted.
func answerUnits(wanted wire.Units, results, before []wire.UnitStatus, now time.Time) []wire.UnitStatus {
	out := []wire.UnitStatus{}
	find := func(in []wire.UnitStatus, kind wire.UnitKind) (wire.UnitStatus, bool) {
		i := slices.IndexFunc(in, func(s wire.UnitStatus) bool { return s.Kind == kind })
		if i < 0 {
			return wire.UnitStatus{}, false
		}
		return in[i], true
	}
	for _, kind := range wanted.Wanted() {
		last, answered := find(before, kind)
		status, found := find(results, kind)
		if !found {
			if answered {
				out = append(out, last)
			}
			continue
		}
		if answered && last.State == status.State && last.Since.Before(status.Since) {
			status.Since = last.Since
		}
		out = append(out, status)
	}
	for _, name := range wanted.Unknown {
		status := wire.UnitStatus{
			Kind: wire.UnitKind(name), State: wire.Unsupported, Since: now,
			Reason: fmt.Sprintf("this agent has no unit %q: it is older than its control plane", name),
		}
		if last, answered := find(before, status.Kind); answered && last.State == status.State {
			status.Since = last.Since
		}
		out = append(out, status)
	}
	return out
}

// gone lists the kinds that are in before and not in now.
func gone(before, now []wire.UnitStatus) (kinds []wire.UnitKind) {
	for _, b := range before {
		if !slices.ContainsFunc(now, func(s wire.UnitStatus) bool { return s.Kind == b.Kind }) {
			kinds = append(kinds, b.Kind)
		}
	}
	return kinds
}

// withGone is what a heartbeat says of units: those that are wanted, and with
// an empty state those that are not. Every known kind is named, so that the
// control plane keeps no status of a unit from a time it no longer remembers.
func withGone(units []wire.UnitStatus, dropped []wire.UnitKind) []wire.UnitStatus {
	out := slices.Clone(units)
	for _, kind := range slices.Concat(wire.UnitKinds, dropped) {
		if !slices.ContainsFunc(out, func(s wire.UnitStatus) bool { return s.Kind == kind }) {
			out = append(out, wire.UnitStatus{Kind: kind})
		}
	}
	return out
}
