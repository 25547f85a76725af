package unit

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// Unit is one config unit. Both methods look and never change anything.
//
// A plan is made again after it was applied. It then has no steps left, and
// its state says how things are: that is what applied means. A prefix of a
// plan is harmless, for planning again goes on from there.
type Unit interface {
	// Plan compares what is wanted with what is there. The wanted unit is valid
	// by its own Validate.
	Plan(Scene) Plan
	// Remove lists what puts the machine back as it was before the unit: the
	// values noted in Prior, with what others have changed since left alone. It
	// is empty, and Prior too, once that is done.
	Remove(Scene) []Step
}

// Scene is all that a unit may look at.
type Scene struct {
	Machine *host.Machine // to be read
	Want    wire.Units    // of which a unit looks at its own
	Held    []string      // UUIDs of the GPUs that a booking holds
	GPUs    gpu.States    // of units that look at GPUs
	Prior   host.Prior    // what the unit found and wrote
	// Unsettled is a unit that is still to change the machine, of a unit that
	// comes after all others.
	Unsettled *wire.UnitStatus
	// Arguments are the kernel arguments that all units keep, by their name.
	Arguments map[string]host.Arguments
	BootID    string
	// Up says that the agent has come up since the machine was booted, which
	// confirms arguments on trial. What runs early at boot does not.
	Up  bool
	Now time.Time
}

// Plan is what is left to be done for a unit, and how it stands.
type Plan struct {
	Steps []Step // to be made now, in order; the first failure stops
	Later []Step // that wait for what they need
	// How the unit stands as the machine is, before any step.
	State  wire.UnitState
	Reason string // for people; no full stop at the end
	Wanted string
	Got    string
}

// Step is one change, with what it needs and how it is undone.
type Step struct {
	Change host.Change
	Needs  Need
	Undo   string // for people
	// Again says that this was tried before and may do more now: it does not
	// mean that somebody undid it.
	Again bool
}

// Need says what a step waits for, or what its effect does.
type Need string

// What steps need.
const (
	NeedsNothing Need = ""
	NeedsIdleGPU Need = "idle GPU" // the step waits
	NeedsReboot  Need = "reboot"   // the step is made, its effect waits
)

// String is the step as a plan shows it.
func (s Step) String() string {
	if s.Needs == NeedsNothing {
		return s.Change.String()
	}
	line, rest, more := strings.Cut(s.Change.String(), "\n")
	line = strings.TrimSuffix(line, ":") + " (needs " + string(s.Needs) + ")"
	if more {
		line += ":\n" + rest
	}
	return line
}

func changes(steps []Step) []host.Change {
	var out []host.Change
	for _, s := range steps {
		out = append(out, s.Change)
	}
	return out
}

// Lines is the plan for people, a line or more for each step.
func (p Plan) Lines() string {
	var b strings.Builder
	for _, s := range p.Steps {
		b.WriteString(s.String() + "\n")
	}
	for _, s := range p.Later {
		b.WriteString("later: " + s.String() + "\n")
	}
	return b.String()
}

// KindOf finds the unit of a name.
func KindOf(name string) (wire.UnitKind, bool) {
	kind := wire.UnitKind(name)
	return kind, slices.Contains(wire.UnitKinds, kind)
}

// Service is the systemd unit that applies a unit at boot.
func Service(kind wire.UnitKind) string { return "bc-" + string(kind) + ".service" }

// known gives the units that this binary can apply.
func (r *Runner) known(kind wire.UnitKind) Unit {
	switch kind {
	case wire.UnitKernelModules:
		return kernelModules{}
	case wire.UnitHugepages:
		return hugepages{}
	case wire.UnitCPU:
		return cpu{}
	case wire.UnitIOMMU:
		return iommu{}
	case wire.UnitMIGLayout:
		return migLayout{r.GPUs}
	case wire.UnitGPUSettings:
		return gpuSettings{r.GPUs}
	case wire.UnitGPUSharing:
		return gpuSharing{r.GPUs}
	case wire.UnitK8sJoin:
		return k8sJoin{}
	case wire.UnitTelemetry:
		return telemetry{}
	}
	return nil
}

// only is the one unit of units, alone.
func only(units wire.Units, kind wire.UnitKind) wire.Units {
	var u wire.Units
	take(&u, units, kind)
	return u
}

// take puts one unit of units into u.
func take(u *wire.Units, units wire.Units, kind wire.UnitKind) {
	switch kind {
	case wire.UnitKernelModules:
		u.KernelModules = units.KernelModules
	case wire.UnitHugepages:
		u.Hugepages = units.Hugepages
	case wire.UnitCPU:
		u.CPU = units.CPU
	case wire.UnitIOMMU:
		u.IOMMU = units.IOMMU
	case wire.UnitMIGLayout:
		u.MIGLayout = units.MIGLayout
	case wire.UnitGPUSettings:
		u.GPUSettings = units.GPUSettings
	case wire.UnitGPUSharing:
		u.GPUSharing = units.GPUSharing
	case wire.UnitK8sJoin:
		u.K8sJoin = units.K8sJoin
	case wire.UnitTelemetry:
		u.Telemetry = units.Telemetry
	}
}

// undoKernel lists what gives up the kernel values that are noted and not kept:
// a value that the unit left is restored, one that someone else set since, or
// that is gone, is left alone.
func undoKernel(s Scene, keep func(path string) bool) []Step {
	restore, forget := map[string][]string{}, map[string][]string{} // paths by value, and by reason
	for _, name := range sortedKeys(s.Prior.Values) {
		v := s.Prior.Values[name]
		if keep(name) || !kernelPath(name) {
			continue
		}
		now, ok := s.Machine.Setting(name)
		switch {
		case !ok:
			forget["it is gone"] = append(forget["it is gone"], name)
		case now == v.Before:
			forget["it is as it was"] = append(forget["it is as it was"], name)
		case !v.OurDoing(now):
			why := "someone else set it to " + now
			forget[why] = append(forget[why], name)
		default:
			restore[v.Before] = append(restore[v.Before], name)
		}
	}
	var steps []Step
	for _, why := range sortedKeys(forget) {
		steps = append(steps, Step{Change: host.ForgetEach{Paths: forget[why], Why: why}})
	}
	for _, value := range sortedKeys(restore) {
		steps = append(steps, Step{Change: host.Restore{Paths: restore[value], Value: value}})
	}
	return steps
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func kernelPath(name string) bool {
	return strings.HasPrefix(name, "/sys/") || strings.HasPrefix(name, "/proc/")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
