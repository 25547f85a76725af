package unit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// gpuSharing lets several processes use a GPU at once. With timeslice the
// driver does that by itself in its default compute mode, and replicas are a
// matter of booking alone. With mps each GPU gets a daemon of its own, which
// is the only process that may use it: a systemd unit that sets and resets the
// compute mode with it, so that no death of the agent leaves a GPU closed.
type gpuSharing struct{ gpus *gpu.Library }

const (
	computeKey = "compute-mode"
	closed     = "exclusiveProcess" // the compute mode in which only the daemon may use a GPU
	daemonKey  = "mps"

	mpsControl = "/usr/bin/nvidia-cuda-mps-control"
	mpsDir     = "/etc/better-compute/mps/"

	// maxOldReplicas is what MPS serves on a GPU before Volta; NVIDIA's MPS
	// guide, "Volta MPS", has 16 before and more from then on.
	maxOldReplicas = 16
)

// mpsService is the systemd unit of a GPU's daemon, bc-mps@.service.
func mpsService(uuid string) string { return "bc-mps@" + uuid + ".service" }

// MPSPipes is the folder in which a GPU's daemon is reached, for its clients'
// CUDA_MPS_PIPE_DIRECTORY. It is there while the daemon's unit runs.
func MPSPipes(uuid string) string { return "/run/better-compute-mps/" + uuid }

// mpsSettings is where the daemon's unit reads what each client may take.
func mpsSettings(uuid string) string { return mpsDir + uuid + ".env" }

// mpsShare is that: an equal share of the GPU's threads and memory.
func mpsShare(g gpu.State, replicas int) string {
	return fmt.Sprintf("THREAD_PERCENTAGE=%d\nMEMORY_MIB=%d\n", max(1, 100/replicas), g.MemoryMiB/replicas)
}

// ofMPS says whether a process is part of MPS itself: the kernel cuts names
// after 15 bytes.
func ofMPS(name string) bool { return strings.Contains(name, "(nvidia-cuda-mps") }

func (u gpuSharing) Plan(s Scene) Plan {
	want := s.Want.GPUSharing
	p := Plan{Wanted: fmt.Sprintf("%s, %d replicas", want.Mode, want.Replicas)}
	if s.unanswered(&p) {
		return p
	}
	mps := want.Mode == "mps"
	if mps {
		if p.State, p.Reason = u.unable(s); p.State != "" {
			return p
		}
	}
	var all verdicts
	p.Steps, p.Later = u.undo(s, func(what string) bool { return mps || what == computeKey }, &all)
	var got []string
	for _, g := range s.compute() {
		got = append(got, u.has(s, g))
		if mps {
			u.planMPS(s, g, want.Replicas, &p, &all)
		} else {
			u.planTimeslice(s, g, &p, &all)
		}
	}
	s.silent(&all)
	p.Got = tally(got)
	all.sum(&p)
	return p
}

// unable says what is missing for MPS, with an empty state if nothing is.
func (u gpuSharing) unable(s Scene) (wire.UnitState, string) {
	g := s.compute()[0]
	switch {
	case !s.Machine.Exists(mpsControl):
		return wire.Unsupported, mpsControl + " is not installed: install the compute utilities of the NVIDIA driver"
	case !s.Machine.UnitInstalled(context.Background(), mpsService(g.UUID)):
		return wire.Unsupported, "systemd does not know bc-mps@.service: install the better-compute package"
	}
	return "", ""
}

func (u gpuSharing) has(s Scene, g gpu.State) string {
	text := "compute mode " + cmp.Or(g.ComputeMode, "not told")
	if s.Machine.UnitActive(context.Background(), mpsService(g.UUID)) {
		text += ", MPS daemon"
	}
	return text
}

// inMIG fills in the verdict of a GPU in MIG mode, whose compute mode cannot be
// set.
func inMIG(g gpu.State, all *verdicts) bool {
	switch {
	case g.MIG == nil || !g.MIG.Enabled:
		return false
	case !g.MIG.Pending:
		all.add(wire.PendingReboot, "the GPU leaves MIG mode when it is reset or the machine rebooted")
	default:
		all.add(wire.Unsupported, "a GPU in MIG mode cannot be shared in another way")
	}
	return true
}

func (u gpuSharing) planTimeslice(s Scene, g gpu.State, p *Plan, all *verdicts) {
	if inMIG(g, all) {
		return
	}
	if g.ComputeMode == "default" {
		all.add(wire.InSync, "")
		return
	}
	if u.running(s, g) {
		if _, ours := s.Prior.Values[gpuKey(g.UUID, daemonKey)]; !ours {
			all.add(wire.Conflict, fmt.Sprintf("someone else started %s; stop it to have the GPU shared by time slices", mpsService(g.UUID)))
		}
		return // undo has the daemon end first
	}
	all.add(wire.Partial, gpuName(g)+" has compute mode "+g.ComputeMode)
	p.Steps = append(p.Steps, Step{Change: u.setMode(g, "default", false), Undo: "back to " + g.ComputeMode})
}

func (u gpuSharing) planMPS(s Scene, g gpu.State, replicas int, p *Plan, all *verdicts) {
	if inMIG(g, all) {
		return
	}
	if major, _, _ := strings.Cut(g.Compute, "."); replicas > maxOldReplicas {
		if n, err := strconv.Atoi(major); err == nil && n < 7 {
			all.add(wire.Failed, fmt.Sprintf("MPS serves at most %d replicas on a %s, which is older than Volta", maxOldReplicas, g.Product))
			return
		}
	}
	share, file := mpsShare(g, replicas), mpsSettings(g.UUID)
	now, err := s.Machine.ReadManaged(file)
	if err != nil || now.Exists && !now.Ours {
		all.add(wire.Conflict, file+" was changed by someone else; move it away to have it written again")
		return
	}
	var steps []Step
	if now.Content != share {
		steps = append(steps, Step{Change: host.WriteManaged{Path: file, Content: share}, Undo: "remove it"})
	}
	v, started := s.Prior.Values[gpuKey(g.UUID, daemonKey)]
	again := started && v.Got == share // it ran with this share, and was lost
	up := again && u.running(s, g) && v.BootID == s.BootID
	switch {
	case !up:
		steps = append(steps, Step{
			Change: mpsDaemon{gpus: u.gpus, gpu: g, share: share}, Needs: NeedsIdleGPU, Undo: "stop it when the GPU is free",
		})
	case g.ComputeMode != closed:
		steps = append(steps, Step{Change: u.setMode(g, closed, false), Undo: "back to " + g.ComputeMode})
	}
	switch who := s.users(g, ofMPS); {
	case len(steps) == 0:
		all.add(wire.InSync, "")
	case !up && !again && who != "":
		p.Later = append(p.Later, steps...)
		all.add(wire.PendingIdle, fmt.Sprintf("%s is used by %s", gpuName(g), who))
	default:
		p.Steps = append(p.Steps, steps...)
		all.add(wire.Partial, gpuName(g)+" has "+u.has(s, g))
	}
}

func (u gpuSharing) running(s Scene, g gpu.State) bool {
	return s.Machine.UnitActive(context.Background(), mpsService(g.UUID))
}

func (u gpuSharing) Remove(s Scene) []Step {
	var all verdicts
	steps, _ := u.undo(s, func(string) bool { return false }, &all)
	return steps
}

// undo ends the daemons that are not kept, and then restores the compute modes
// that are not. The daemon of a GPU that is in use ends later, and its compute
// mode with it.
func (u gpuSharing) undo(s Scene, keep func(what string) bool, all *verdicts) (steps, later []Step) {
	waits := make(map[string]bool)
	for _, key := range sortedKeys(s.Prior.Values) {
		uuid, what, _ := ofGPU(key)
		i := slices.IndexFunc(s.GPUs.GPUs, func(g gpu.State) bool { return g.UUID == uuid })
		gone := i < 0 && s.GPUs.Library.State == wire.GPULibraryReady && s.GPUs.Silent == 0
		if what != daemonKey || keep(what) || i < 0 && !gone {
			continue
		}
		g, who := gpu.State{UUID: uuid}, ""
		if !gone {
			g = s.GPUs.GPUs[i]
			who = s.users(g, ofMPS)
		}
		stop := []Step{
			{Change: mpsDaemon{gpus: u.gpus, gpu: g}, Needs: NeedsIdleGPU},
			{Change: host.RemoveManaged{Path: mpsSettings(uuid)}},
		}
		if who != "" {
			waits[uuid] = true
			later = append(later, stop...)
			all.add(wire.PendingIdle, fmt.Sprintf("%s is used by %s", gpuName(g), who))
			continue
		}
		steps = append(steps, stop...)
	}
	modes := s.undoGPUs(
		func(what string) bool { return what == daemonKey || keep(what) },
		func(g gpu.State, _ string) string { return g.ComputeMode },
		func(g gpu.State, _ string, v host.Value, _ string) (Step, bool) {
			return Step{Change: u.setMode(g, v.Before, true)}, !waits[g.UUID]
		})
	return slices.Concat(steps, modes), later
}

func (u gpuSharing) setMode(g gpu.State, mode string, restore bool) gpuChange {
	return gpuChange{
		gpus: u.gpus, gpu: g, what: computeKey, words: "the compute mode to " + mode, restore: restore,
		from: g.ComputeMode, to: mode,
		set:  func(ctx context.Context, uuid string) error { return u.gpus.SetComputeMode(ctx, uuid, mode) },
		read: func(g gpu.State) string { return g.ComputeMode },
	}
}

// mpsDaemon starts a GPU's MPS daemon anew, or ends it where there is no share
// for its clients. Its unit closes the GPU to others before it starts, and opens
// it when it ends, however it ends.
type mpsDaemon struct {
	gpus  *gpu.Library
	gpu   gpu.State
	share string
}

func (c mpsDaemon) String() string {
	if c.share == "" {
		return gpuName(c.gpu) + ": stop " + mpsService(c.gpu.UUID)
	}
	return gpuName(c.gpu) + ": start " + mpsService(c.gpu.UUID)
}

// Apply waits until the daemon answers, or is gone.
func (c mpsDaemon) Apply(ctx context.Context, m *host.Machine, j *host.Journal) error {
	key, service := gpuKey(c.gpu.UUID, daemonKey), mpsService(c.gpu.UUID)
	if c.share == "" {
		if err := m.StopUnit(ctx, service); err != nil {
			return err
		}
		if m.UnitActive(ctx, service) {
			return errors.New(service + " is still active after it was stopped; see systemctl status " + service)
		}
		return j.Forget(key)
	}
	mode := gpuKey(c.gpu.UUID, computeKey)
	if err := errors.Join(j.Before(mode, c.gpu.ComputeMode, false, closed), j.Before(key, "", true, c.share)); err != nil {
		return err
	}
	if err := m.RestartUnit(ctx, service); err != nil {
		return err
	}
	now, err := stateOfGPU(ctx, c.gpus, c.gpu.UUID)
	if err != nil {
		return err
	}
	if err := j.After(mode, now.ComputeMode); err != nil {
		return err
	}
	if !m.UnitActive(ctx, service) || now.ComputeMode != closed {
		return fmt.Errorf("%s did not stay up, or not with the GPU closed to others (compute mode %s); see journalctl -u %s",
			service, now.ComputeMode, service)
	}
	return j.After(key, c.share)
}
