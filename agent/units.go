package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

// answerUnits answers each wanted unit, in order of application, and then those
// that this binary has no word for. A status that says what it said before
// keeps its time. The result is empty, not nil, when nothing is wanted.
//
// This version changes no host, so every answer is Unsupported.
func answerUnits(wanted wire.Units, manageHost bool, before []wire.UnitStatus, now time.Time) []wire.UnitStatus {
	out := []wire.UnitStatus{}
	answer := func(kind wire.UnitKind, reason string) {
		status := wire.UnitStatus{Kind: kind, State: wire.Unsupported, Reason: reason, Since: now}
		if i := slices.IndexFunc(before, func(s wire.UnitStatus) bool { return s.Kind == kind && s.State == status.State }); i >= 0 {
			status.Since = before[i].Since
		}
		out = append(out, status)
	}
	for _, kind := range wanted.Wanted() {
		if manageHost {
			answer(kind, "this version of the agent does not change hosts")
		} else {
			answer(kind, "this agent leaves the host as it is: it runs without --manage-host")
		}
	}
	for _, name := range wanted.Unknown {
		answer(wire.UnitKind(name), fmt.Sprintf("this agent has no unit %q: it is older than its control plane", name))
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
