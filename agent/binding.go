package agent

import (
	"fmt"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
)

// confirm answers for each wanted binding whether it is in force here. It is
// when all its devices are present and healthy; a failed one names the device.
//
// While the GPU library does not answer, nothing can be said of devices anew: a
// binding that was in force stays so, any other has to wait.
//
// No binding is walled in by this agent, and each says so.
func confirm(wanted []wire.Binding, inv *wire.Inventory, before []wire.BindingStatus) []wire.BindingStatus {
	out := make([]wire.BindingStatus, 0, len(wanted))
	for _, b := range wanted {
		status := wire.BindingStatus{ReservationID: b.ReservationID, Unenforced: true}
		reason := devicesAmiss(b.Devices, inv.GPUs)
		if reason == "" && len(b.Devices) > 0 && inv.GPULibrary.State != wire.GPULibraryReady && !slices.Contains(before, status) {
			reason = fmt.Sprintf("%s cannot be checked: %s", b.Devices[0].UUID, libraryAmiss(inv.GPULibrary))
		}
		if reason != "" {
			status = wire.BindingStatus{ReservationID: b.ReservationID, Failed: reason}
		}
		out = append(out, status)
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
