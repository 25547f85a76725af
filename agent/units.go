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
	l.working.Go(func() {
		all := l.units.Sync(ctx, spec)
		l.results <- unitNews{all: all, ended: true}
	})
	return idle
}

// unitNews is what a comparison of units with the machine has found: how one
// unit stands, or, when it has ended, how all do.
type unitNews struct {
	one   wire.UnitStatus
	all   []wire.UnitStatus
	ended bool
}

// newsAtOnce is room for all that one comparison says, so that none waits for the
// loop, which may be waiting for the control plane. The next begins when the loop
// has taken the last of it.
var newsAtOnce = len(wire.UnitKinds) + 1

// hear takes in what a comparison of units has found. Where that is news, the
// machine may have more to give, or less.
func (l *loop) hear(news unitNews) {
	changed := false
	if news.ended {
		l.applying, l.node.applied = false, l.appliedTo
		changed = l.node.settle(news.all)
	} else {
		changed = l.node.hear(news.one)
	}
	if changed {
		l.lookSoon()
	}
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

// compared are the statuses that a comparison of units with the machine gave.
func compared(all []wire.UnitStatus) []wire.UnitStatus {
	return slices.DeleteFunc(slices.Clone(all), func(s wire.UnitStatus) bool {
		return s.Kind == wire.UnitTelemetry || !slices.Contains(wire.UnitKinds, s.Kind)
	})
}

// withOne are statuses with that of one unit in place of its last; one with an
// empty state has none.
func withOne(all []wire.UnitStatus, one wire.UnitStatus) []wire.UnitStatus {
	out := slices.Clone(all)
	i := slices.IndexFunc(out, func(s wire.UnitStatus) bool { return s.Kind == one.Kind })
	switch {
	case one.State == "" && i >= 0:
		return slices.Delete(out, i, i+1)
	case one.State == "":
		return out
	case i >= 0:
		out[i] = one
		return out
	}
	return append(out, one)
}

// answerUnits answers, in order of application, each wanted unit and each other of
// which something is left on the machine, and then the wanted ones that this binary
// has no word for. A unit is answered when it has been compared with the machine
// for the first time, and one that is no longer wanted until a comparison found
// nothing left of it: results are the last of each. A status of the same state
// keeps its time. The result is empty, not nil, when there is nothing to say.
func answerUnits(wanted wire.Units, results, before []wire.UnitStatus, now time.Time) []wire.UnitStatus {
	out := []wire.UnitStatus{}
	find := func(in []wire.UnitStatus, kind wire.UnitKind) (wire.UnitStatus, bool) {
		i := slices.IndexFunc(in, func(s wire.UnitStatus) bool { return s.Kind == kind })
		if i < 0 {
			return wire.UnitStatus{}, false
		}
		return in[i], true
	}
	kinds := wanted.Wanted()
	for _, kind := range wire.UnitKinds {
		last, answered := find(before, kind)
		status, found := find(results, kind)
		switch {
		case !found && answered && slices.Contains(kinds, kind):
			out = append(out, last)
		case found:
			if answered && last.State == status.State && last.Since.Before(status.Since) {
				status.Since = last.Since
			}
			out = append(out, status)
		}
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

// withGone is what a heartbeat says of units: those that are answered, and with
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
