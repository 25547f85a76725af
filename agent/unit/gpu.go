package unit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// gpuTimeout is how long one question to the GPU driver may take. Waking every
// GPU of a machine without persistence mode takes a second or two each.
const gpuTimeout = 25 * time.Second

// usesGPUs says whether a unit looks at GPUs.
func usesGPUs(kind wire.UnitKind) bool {
	return kind == wire.UnitMIGLayout || kind == wire.UnitGPUSettings || kind == wire.UnitGPUSharing
}

// look asks for the GPUs. An agent without an NVML library, such as that of a
// recorded machine, has none to set.
func look(gpus *gpu.Library) gpu.States {
	if gpus == nil {
		return gpu.States{Library: wire.GPULibrary{State: wire.GPULibraryNoCGO, Reason: "the GPUs of this machine are recorded ones"}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), gpuTimeout)
	defer cancel()
	return gpus.States(ctx)
}

// compute are the GPUs that can be booked.
func (s Scene) compute() []gpu.State {
	return slices.DeleteFunc(slices.Clone(s.GPUs.GPUs), func(g gpu.State) bool { return g.Display })
}

// unanswered fills in the plan of a machine whose GPUs cannot be set. It
// reports false if there are some that can.
func (s Scene) unanswered(p *Plan) bool {
	lib := s.GPUs.Library
	p.Reason = lib.Reason
	switch lib.State {
	case wire.GPULibraryReady:
		if len(s.compute()) > 0 {
			p.Reason = ""
			return false
		}
		p.State, p.Reason = wire.NotApplicable, "this machine has no GPU that computes"
		if s.GPUs.Silent > 0 {
			p.State, p.Reason = wire.Failed, "no GPU of this machine answers"
		}
	case wire.GPULibraryMissing, wire.GPULibraryNoDriver:
		p.State = wire.NotApplicable
		if address := nvidiaGPU(s.Machine.Root); address != "" {
			p.State, p.Reason = wire.Failed, "the GPU at "+address+" cannot be set: "+lib.Reason
		}
	case wire.GPULibraryMismatch:
		p.State = wire.PendingReboot
	case wire.GPULibraryNoCGO:
		p.State = wire.Unsupported
	default:
		p.State = wire.Failed
	}
	return true
}

// nvidiaGPU is the PCI address of an NVIDIA GPU, "" without one.
func nvidiaGPU(root *host.Root) string {
	for _, dir := range root.Glob("/sys/bus/pci/devices/*") {
		vendor, _ := root.String(dir + "/vendor")
		class, _ := root.String(dir + "/class")
		if vendor == "0x10de" && (strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")) {
			return dir[strings.LastIndexByte(dir, '/')+1:]
		}
	}
	return ""
}

// users says in words what holds a GPU now: a booking, or processes but for
// those with a name of which except is true. It is "" for one that is free.
func (s Scene) users(g gpu.State, except func(name string) bool) string {
	var who []string
	if slices.Contains(s.Held, g.UUID) {
		who = append(who, "a booking")
	}
	if g.Processes == nil {
		return strings.Join(append(who, "perhaps processes: the driver does not tell"), ", ")
	}
	for _, process := range *g.Processes {
		name := processName(s.Machine.Root, process.PID)
		if except == nil || !except(name) {
			who = append(who, name)
		}
	}
	return strings.Join(who, ", ")
}

func processName(root *host.Root, pid int) string {
	name, ok := root.String(fmt.Sprintf("/proc/%d/comm", pid))
	if !ok {
		return fmt.Sprintf("process %d", pid)
	}
	return fmt.Sprintf("process %d (%s)", pid, name)
}

// opened lists the processes that have a GPU's device node open, which NVML
// does not count as its users and which yet keep it from changing its mode:
// monitors such as dcgm and nvsm.
func opened(root *host.Root, minorPath string) []string {
	var who []string
	for _, fds := range root.Glob("/proc/[0-9]*/fd") {
		names, _ := root.ReadDir(fds) // of a process that has ended meanwhile
		for _, fd := range names {
			if target, err := root.Readlink(fds + "/" + fd); err == nil && target == minorPath {
				var pid int
				if _, err := fmt.Sscanf(fds, "/proc/%d/fd", &pid); err == nil {
					who = append(who, processName(root, pid))
				}
				break
			}
		}
	}
	return who
}

// gpuName is how people find a GPU.
func gpuName(g gpu.State) string { return "GPU " + cmp.Or(g.Address, g.UUID) }

// gpuKey is where a value of a GPU is noted. UUIDs have no slash.
func gpuKey(uuid, what string) string { return "gpu/" + uuid + "/" + what }

// ofGPU takes apart what gpuKey put together.
func ofGPU(key string) (uuid, what string, ok bool) {
	rest, ok := strings.CutPrefix(key, "gpu/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// verdicts gathers how each GPU stands into how the unit stands.
type verdicts struct {
	states  map[wire.UnitState]int
	reasons map[wire.UnitState][]string
}

// worst orders the states by what a person must hear of first.
var worst = []wire.UnitState{
	wire.Failed, wire.Conflict, wire.PendingReboot, wire.PendingIdle, wire.Partial, wire.Unsupported, wire.NotApplicable, wire.InSync,
}

func (v *verdicts) add(state wire.UnitState, reason string) {
	if v.states == nil {
		v.states, v.reasons = make(map[wire.UnitState]int), make(map[wire.UnitState][]string)
	}
	v.states[state]++
	if reason != "" {
		v.reasons[state] = append(v.reasons[state], reason)
	}
}

// silent adds the GPUs that do not say who they are.
func (s Scene) silent(all *verdicts) {
	if n := s.GPUs.Silent; n > 0 {
		all.add(wire.Partial, fmt.Sprintf("GPUs that do not answer: %d", n))
	}
}

// failedLast puts the changes that failed when they were last made after the
// others: the first failure stops, and one faulty GPU must not stop all.
func (s Scene) failedLast(steps []Step) []Step {
	rank := func(step Step) int {
		c, ok := step.Change.(gpuChange)
		if v, noted := s.Prior.Values[gpuKey(c.gpu.UUID, c.what)]; ok && noted && !v.Known {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return rank(a) - rank(b) })
	return steps
}

// maxReasons bounds the reasons in a status.
const maxReasons = 4

// sum sets the plan's state and reason. What only some GPUs do not have is
// Partial: the others have it.
func (v *verdicts) sum(p *Plan) {
	p.State = wire.InSync
	for _, state := range worst {
		if v.states[state] == 0 {
			continue
		}
		reasons := slices.Compact(slices.Clone(v.reasons[state]))
		if len(reasons) > maxReasons {
			reasons = append(reasons[:maxReasons:maxReasons], fmt.Sprintf("and %d more", len(reasons)-maxReasons))
		}
		p.State, p.Reason = state, strings.Join(reasons, "; ")
		if (state == wire.NotApplicable || state == wire.Unsupported) && v.states[wire.InSync] > 0 {
			p.State = wire.Partial
		}
		return
	}
}

// tally counts equal texts: "7 of 8: 450 W, 1 of 8: 700 W", or the text alone
// if all are equal.
func tally(texts []string) string {
	count := make(map[string]int)
	var order []string
	for _, t := range texts {
		if count[t]++; count[t] == 1 {
			order = append(order, t)
		}
	}
	if len(order) == 1 {
		return order[0]
	}
	var parts []string
	for _, t := range order {
		parts = append(parts, fmt.Sprintf("%d of %d: %s", count[t], len(texts), t))
	}
	return strings.Join(parts, "; ")
}

// gpuChange sets one value of one GPU, and reads it back.
type gpuChange struct {
	gpus    *gpu.Library
	gpu     gpu.State
	what    string // of the key
	words   string // the value for people: "the power limit to 450 W"
	from    string // what stood there when the change was planned
	to      string
	restore bool // the value is the one from before: forget it afterwards
	set     func(ctx context.Context, uuid string) error
	read    func(gpu.State) string
}

func (c gpuChange) String() string {
	verb := "set"
	if c.restore {
		verb = "restore"
	}
	return gpuName(c.gpu) + ": " + verb + " " + c.words
}

// Apply is an error if the GPU says another value afterwards.
func (c gpuChange) Apply(ctx context.Context, _ *host.Machine, j *host.Journal) error {
	key := gpuKey(c.gpu.UUID, c.what)
	if err := j.Before(key, c.from, false, c.to); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	if err := c.set(ctx, c.gpu.UUID); err != nil {
		return err
	}
	now, err := stateOfGPU(ctx, c.gpus, c.gpu.UUID)
	if err != nil {
		return err
	}
	got := c.read(now)
	if err := j.After(key, got); err != nil {
		return err
	}
	if got != c.to {
		return fmt.Errorf("%s: it took %q for its %s and says %q", gpuName(c.gpu), c.to, c.what, got)
	}
	if c.restore {
		return j.Forget(key)
	}
	return nil
}

func stateOfGPU(ctx context.Context, gpus *gpu.Library, uuid string) (gpu.State, error) {
	ctx, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	return gpus.StateOf(ctx, uuid)
}

// undoGPUs lists what gives up the noted values of GPUs that are not kept, with
// the same rules as undoKernel. Nothing is given up while the driver does not
// answer, or for a GPU that may be one of the silent ones.
func (s Scene) undoGPUs(keep func(what string) bool, read func(g gpu.State, what string) string,
	restore func(g gpu.State, what string, v host.Value, now string) (Step, bool),
) []Step {
	if s.GPUs.Library.State != wire.GPULibraryReady {
		return nil
	}
	var steps []Step
	for _, key := range sortedKeys(s.Prior.Values) {
		uuid, what, ok := ofGPU(key)
		if !ok || keep(what) {
			continue
		}
		v := s.Prior.Values[key]
		i := slices.IndexFunc(s.GPUs.GPUs, func(g gpu.State) bool { return g.UUID == uuid })
		if i < 0 {
			if s.GPUs.Silent == 0 {
				steps = append(steps, Step{Change: host.Forget{Key: key, Why: "the GPU is gone"}})
			}
			continue
		}
		now := read(s.GPUs.GPUs[i], what)
		switch {
		case now == v.Before:
			steps = append(steps, Step{Change: host.Forget{Key: key, Why: "it is as it was"}})
		case !v.OurDoing(now):
			steps = append(steps, Step{Change: host.Forget{Key: key, Why: "someone else set it to " + now}})
		default:
			if step, can := restore(s.GPUs.GPUs[i], what, v, now); can {
				steps = append(steps, step)
			}
		}
	}
	return s.failedLast(steps)
}

// unread is why a GPU does not tell something, "" if the board has no such
// thing.
func unread(g gpu.State, question string) string {
	for _, f := range g.Failures {
		if strings.HasPrefix(f, question) {
			return gpuName(g) + " does not tell its " + f
		}
	}
	return ""
}
