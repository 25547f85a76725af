package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
)

// confirm answers for each wanted binding whether it is in force here, and for
// each that is coming down what it waits for. A binding is in force when all its
// devices are present and healthy and its wall is up; a failed one names the
// device. One whose wall is not decided yet stays as it was before, and if it is
// new it is left out.
//
// While the GPU library does not answer, nothing can be said of devices anew: a
// binding that was in force stays so, any other has to wait.
func confirm(wanted []wire.Binding, inv *wire.Inventory, before []wire.BindingStatus, walls wallReport) []wire.BindingStatus {
	out := make([]wire.BindingStatus, 0, len(wanted))
	for _, b := range wanted {
		was := slices.IndexFunc(before, func(s wire.BindingStatus) bool { return s.ReservationID == b.ReservationID })
		inForce := was >= 0 && before[was].Failed == "" && !before[was].Ending
		reason := devicesAmiss(b.Devices, inv.GPUs)
		if reason == "" && len(b.Devices) > 0 && inv.GPULibrary.State != wire.GPULibraryReady && !inForce {
			reason = fmt.Sprintf("%s cannot be checked: %s", b.Devices[0].UUID, libraryAmiss(inv.GPULibrary))
		}
		if reason != "" {
			out = append(out, wire.BindingStatus{ReservationID: b.ReservationID, Failed: reason})
		} else if status, decided := walls.status(b.ReservationID); decided {
			out = append(out, status)
		} else if was >= 0 {
			out = append(out, before[was])
		}
	}
	return append(out, walls.ending(wanted)...)
}

// status is what the walls make of a binding whose devices are well. It
// reports false while that is not decided.
func (r wallReport) status(reservation string) (wire.BindingStatus, bool) {
	status := wire.BindingStatus{ReservationID: reservation}
	if r.refusal != "" {
		status.Unenforced, status.Note = true, r.refusal
		return status, true
	}
	s, ok := r.states[reservation]
	if !ok || s.ending {
		return status, false
	}
	status.Failed = s.failed
	if s.failed == "" {
		status.Unenforced = s.lacks != ""
		status.Note = cmp.Or(s.lacks, s.note)
	}
	return status, true
}

// ending are the bindings that are not wanted and not gone, by reservation.
func (r wallReport) ending(wanted []wire.Binding) []wire.BindingStatus {
	var out []wire.BindingStatus
	for _, id := range slices.Sorted(maps.Keys(r.states)) {
		if s := r.states[id]; s.ending && !slices.ContainsFunc(wanted, func(b wire.Binding) bool { return b.ReservationID == id }) {
			out = append(out, wire.BindingStatus{ReservationID: id, Ending: true, EndingSince: s.since, Note: s.held, Holders: s.by})
		}
	}
	return out
}

// devicesAmiss names the first device that cannot be given away, "" if all can.
func devicesAmiss(devices []wire.Device, gpus []wire.GPU) string {
	for _, d := range devices {
		i := slices.IndexFunc(gpus, func(g wire.GPU) bool { return g.UUID == d.UUID })
		if i < 0 {
			return d.UUID + " is not in this machine"
		}
		g := &gpus[i]
		if g.Health != wire.GPUHealthy {
			return deviceName(g) + " is " + healthText(g)
		}
		if d.Instance == "" {
			continue
		}
		if g.MIG == nil || !slices.ContainsFunc(g.MIG.Instances, func(m wire.MIGInstance) bool { return m.UUID == d.Instance }) {
			return fmt.Sprintf("%s has no MIG instance %s", deviceName(g), d.Instance)
		}
	}
	return ""
}

// deviceName names a GPU for people: by its identity and by where it sits.
func deviceName(g *wire.GPU) string {
	if g.Address == "" {
		return g.UUID
	}
	return g.UUID + " (" + g.Address + ")"
}

func healthText(g *wire.GPU) string {
	if g.HealthReason == "" {
		return string(g.Health)
	}
	return string(g.Health) + ": " + g.HealthReason
}

func libraryAmiss(l wire.GPULibrary) string {
	if l.Reason == "" {
		return "the GPU library is " + string(l.State)
	}
	return l.Reason
}
