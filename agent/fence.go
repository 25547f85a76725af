package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// A wall keeps a reservation's work to its CPUs. The fence keeps the host's own
// work off them: as long as a reservation holds CPUs, these slices get all others.
// It lasts until the next boot at most, and is in the ledger as a unit's changes
// are. A slice whose CPUs the operator has set is the operator's: it is never
// touched, which is how one opts out.
var fencedSlices = []string{"system.slice", "user.slice", "machine.slice"}

// fenceUnit is the fence's name in the ledger and the history.
const fenceUnit = "fence"

// minFree is how many CPUs the host's own work has at least, as in the unit cpu.
const minFree = 2

// housekeeping are the CPUs that the host's own work is left with: all that are
// not booked. CPUs that are isolated stay among them, for a service pinned to one
// would lose it, but the scheduler spreads no work over them: of others there are
// minFree at least, whole cores. Where too few are left, the lowest booked ones are
// shared, and never none.
func housekeeping(t host.CPUTopology, booked wire.CPUSet) (keep, shared wire.CPUSet) {
	keep = t.Online.Minus(booked)
	usable := t.Online.Minus(t.Isolated)
	for _, cpu := range usable.CPUs() {
		if keep.Intersect(usable).Count() >= minFree {
			break
		}
		keep = keep.Union(t.Core(cpu).Intersect(usable))
	}
	if keep.IsEmpty() {
		keep = t.Online
	}
	return keep, keep.Intersect(booked)
}

// bookedCPUs are those of every wall that is up or coming down. Whose work is run
// by a cluster or a hypervisor is not in a slice of ours, perhaps in a fenced one.
func (w *walls) bookedCPUs() wire.CPUSet {
	var booked wire.CPUSet
	for _, id := range w.recorded() {
		r, found := w.record(id)
		if !found || !r.here() {
			continue
		}
		if cpus, err := wire.ParseCPUList(r.Slice.CPUs); err == nil {
			booked = booked.Union(cpus)
		}
	}
	return booked
}

// here reports whether the work of a reservation runs behind its wall.
func (wl *wall) here() bool { return wl.Kind == "" || wl.Kind == "hold" }

// fence brings the fence in line with the walls. It answers for people why the
// host's own work is not off every CPU that is booked, "" if it is.
func (w *walls) fence(ctx context.Context) string {
	booked, why := w.bookedCPUs(), ""
	want := ""
	if !booked.IsEmpty() && w.slices.FencesCPUs() {
		topology, ok := w.machine.CPUTopology()
		if !ok {
			return "the kernel does not say which CPUs are online"
		}
		keep, shared := housekeeping(topology, booked)
		if want = keep.String(); !shared.IsEmpty() {
			why = fmt.Sprintf("the host's own services need CPUs %s too", shared)
		}
	}
	if err := w.tryFence(ctx, want); err != nil {
		return strings.TrimPrefix(why+"; "+err.Error(), "; ")
	}
	return why
}

// fenceTry is how the last try to set the fence ended.
type fenceTry struct {
	cpus string
	at   time.Time
	err  error
}

// tryFence sets the fence, and again after a failure only as often as the walls
// are looked at anyway: each try is a line of the history.
func (w *walls) tryFence(ctx context.Context, cpus string) error {
	if last := w.fenced; last.err != nil && last.cpus == cpus && time.Since(last.at) < wallsEvery {
		return last.err
	}
	err := w.setFence(ctx, cpus)
	w.fenced = fenceTry{cpus, time.Now(), err}
	return err
}

// setFence keeps the slices to CPUs, or with "" lets them go. It answers what is
// not so, and goes on with the others.
func (w *walls) setFence(ctx context.Context, cpus string) error {
	j, err := host.OpenJournal(w.ledger, fenceUnit, 0, w.machine.BootID(), time.Now)
	if err != nil {
		return err
	}
	var amiss []string
	for _, name := range fencedSlices {
		f := host.Fence{Slices: w.slices, Slice: name, CPUs: cpus}
		for again := true; again; {
			why, change := w.planFence(ctx, f, j.Prior())
			if why != "" {
				amiss = append(amiss, why)
			}
			if change == nil {
				break
			}
			if err := host.Apply(ctx, w.machine, j, []host.Change{change}); err != nil {
				amiss = append(amiss, err.Error())
				break
			}
			w.log.Info("change", "unit", fenceUnit, "change", change.String())
			_, again = change.(host.Forget) // it is not ours any more: what now?
		}
	}
	if len(amiss) > 0 {
		return fmt.Errorf("%s", strings.Join(amiss, "; "))
	}
	return nil
}

// planFence is what to do about one slice, nil for nothing, and why it is not as
// it should be if that cannot be mended.
func (w *walls) planFence(ctx context.Context, f host.Fence, prior host.Prior) (why string, change host.Change) {
	v, ours := prior.Values[f.Key()]
	if ours && v.BootID != w.machine.BootID() {
		return "", host.Forget{Key: f.Key(), Why: "it ended with the boot before"}
	}
	if !ours && f.CPUs == "" {
		return "", nil
	}
	now, err := w.slices.AllowedCPUs(ctx, f.Slice)
	switch {
	case err != nil:
		return err.Error(), nil
	case now != "" && !ours:
		return fmt.Sprintf("%s is left as its operator set it (AllowedCPUs=%s)", f.Slice, now), nil
	case now != "" && !v.OurDoing(now):
		return "", host.Forget{Key: f.Key(), Why: "someone else set it to " + now}
	case f.CPUs != "" && now == f.CPUs && f.Stands():
		return "", nil
	}
	return "", f
}
