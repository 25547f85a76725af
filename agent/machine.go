package agent

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// GPUs is where an agent finds its GPUs: a [gpu.Library] on a real machine, a
// [RecordedGPUs] on a recorded one.
type GPUs interface {
	Snapshot(context.Context) gpu.Snapshot
	Readings(context.Context) gpu.Readings
	Events(context.Context) <-chan gpu.Xid
}

// gpuTimeout is how long the GPU library may take. Opening it on a machine
// without persistence mode wakes every GPU, a second or two each.
const gpuTimeout = 25 * time.Second

// RecordedGPUs answers what the GPU library of a recorded machine answered.
// Recordings hold no measurements: every GPU reads recordedCelsius, and nothing
// else.
type RecordedGPUs struct{ inventory.GPUs }

// recordedCelsius is about what an idle data centre GPU reads.
const recordedCelsius = 35

// Snapshot answers the recorded library and GPUs.
func (r RecordedGPUs) Snapshot(context.Context) gpu.Snapshot {
	return gpu.Snapshot{Library: r.Library, GPUs: slices.Clone(r.Devices)}
}

// Readings answers a reading for each GPU of the recording.
func (r RecordedGPUs) Readings(context.Context) gpu.Readings {
	return gpu.Readings{Library: r.Library, GPUs: recordedReadings(r.Devices)}
}

// Events answers a channel on which nothing comes. It is closed when ctx ends.
func (r RecordedGPUs) Events(ctx context.Context) <-chan gpu.Xid {
	out := make(chan gpu.Xid)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func recordedReadings(gpus []wire.GPU) []gpu.Reading {
	out := make([]gpu.Reading, 0, len(gpus))
	for _, g := range gpus {
		if g.Health == wire.GPUMissing {
			continue
		}
		celsius, memory := recordedCelsius, g.MemoryMiB
		out = append(out, gpu.Reading{
			UUID: g.UUID, Index: g.Index, Product: g.Product, Address: g.Address, Health: g.Health, HealthReason: g.HealthReason,
			TemperatureCelsius: &celsius, MemoryTotalMiB: &memory,
		})
	}
	return out
}

// sighting is what one look at the machine found.
type sighting struct {
	inventory wire.Inventory // the GPUs known before are in it
	readings  gpu.Readings
	stale     bool // the GPU library in this process is no longer the machine's
}

// look reads the machine. The GPUs known before stay in the inventory.
func (a *Agent) look(ctx context.Context, known []wire.GPU) sighting {
	ctx, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	snapshot := a.GPUs.Snapshot(ctx)
	inv := inventory.Collect(a.Root, inventory.GPUs{Library: snapshot.Library, Devices: remember(snapshot, known)})
	inv.Notes = append(inv.Notes, snapshot.Notes...)
	if !a.Root.Real() {
		inv.Recorded = cmp.Or(a.Recorded, filepath.Base(a.Root.Dir()))
	}
	s := sighting{inventory: inv, readings: gpu.Readings{Library: snapshot.Library}, stale: snapshot.StaleLibrary}
	if snapshot.Known() {
		s.readings = a.GPUs.Readings(ctx)
	}
	return s
}

// remember merges the GPUs that were known before with those listed now. While
// the library does not answer, the known ones stay as they were. One that it no
// longer lists is missing, and goes on being lost if it was. A lost one keeps
// the facts from when it still answered.
func remember(now gpu.Snapshot, known []wire.GPU) []wire.GPU {
	if !now.Known() {
		return known
	}
	gpus := make([]wire.GPU, 0, len(now.GPUs))
	for _, g := range now.GPUs {
		if before := slices.IndexFunc(known, func(k wire.GPU) bool { return sameGPU(k, g) }); before >= 0 && g.Health == wire.GPULost {
			lost := known[before]
			lost.Health, lost.HealthReason = g.Health, g.HealthReason
			g = lost
		}
		if g.UUID != "" { // without an identity it cannot be booked, nor be told from another
			gpus = append(gpus, g)
		}
	}
	for _, k := range known {
		if slices.ContainsFunc(gpus, func(g wire.GPU) bool { return g.UUID == k.UUID }) {
			continue
		}
		if k.Health != wire.GPULost {
			k.Health, k.HealthReason = wire.GPUMissing, "NVML no longer lists it"
		}
		gpus = append(gpus, k)
	}
	slices.SortStableFunc(gpus, func(a, b wire.GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return gpus
}

// sameGPU tells by the UUID, and for a GPU that no longer says its own, by
// where it sits.
func sameGPU(known, now wire.GPU) bool {
	if now.UUID == "" {
		return now.Address != "" && now.Address == known.Address
	}
	return known.UUID == now.UUID
}

// FindGPUs answers where the GPUs of the machine at root are to be found. With
// a library's path it is that NVML library; without one it is the recording, if
// root has one, else the system's NVML library.
func FindGPUs(root *host.Root, library string) (GPUs, error) {
	if library == "" {
		recorded, found, err := inventory.RecordedGPUs(root)
		if err != nil {
			return nil, err
		}
		if found {
			return RecordedGPUs{recorded}, nil
		}
	}
	return gpu.Open(library), nil
}
