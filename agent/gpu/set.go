package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/bettercompute/bc/agent/wire"
)

// What a refused change comes down to. A [*SetError] wraps at most one of them.
var (
	ErrLibrary       = errors.New("NVML is not ready")
	ErrNotSupported  = errors.New("not supported by the board or its driver")
	ErrInUse         = errors.New("the GPU is in use")
	ErrResetRequired = errors.New("the GPU needs a reset")
	ErrOutOfRange    = errors.New("out of the board's range")
	ErrNoRoom        = errors.New("no room for the instance")
	ErrNoPermission  = errors.New("no permission")
	ErrNoGPU         = errors.New("no such GPU")
)

// SetError is why a change of one GPU was not made, or perhaps was not: after
// a timeout nobody knows.
type SetError struct {
	UUID  string
	Doing string // "setting the power limit to 900000 mW"
	Why   string // for people: what the driver said and what helps
	kind  error  // one of the Err values above, nil for other failures
}

func (e *SetError) Error() string { return e.UUID + ": " + e.Doing + ": " + e.Why }

func (e *SetError) Unwrap() error { return e.kind }

// States are the GPUs as the setters see them.
type States struct {
	Library wire.GPULibrary
	GPUs    []State // those that say who they are; empty unless the library is ready
	Silent  int     // GPUs that do not say who they are: lost ones
}

// State is one GPU as the setters see it: with exact numbers and with GPU
// instances that have no compute instance, which are no MIG devices and so are
// in no inventory.
type State struct {
	UUID         string
	Index        int
	Minor        int // N of /dev/nvidiaN, -1: not known
	Address      string
	Product      string
	MemoryMiB    int
	Architecture string
	Compute      string // compute capability: 9.0
	Display      bool   // never booked, and so never set

	Power       *PowerLimits  // nil: the board has no power cap
	ECC         *wire.ECCInfo // nil: no ECC
	MIG         *MIGState     // nil: no MIG
	ComputeMode string        // default, exclusiveProcess, prohibited; "": not told
	Persistence *bool         // nil: not told

	// Processes hold the GPU or an instance of it; nil: the driver does not tell.
	Processes *[]Process
	// Failures are questions that got an error other than "not supported",
	// as in [Reading].
	Failures []string
}

// PowerLimits are a GPU's power cap and its board's range, in milliwatts as
// NVML gives them. Enforced is below Limit while something else, such as the
// machine's management controller, caps lower.
type PowerLimits struct {
	Limit, Enforced, Default, Min, Max int
}

// MIGState is the MIG mode, now and after the next reset, the GPU instances in
// order of their place, and the names of the profiles that the device offers.
type MIGState struct {
	Enabled, Pending bool
	Instances        []GPUInstance
	Profiles         []string // nil: the driver does not name them
}

// GPUInstance is one GPU instance at its place.
type GPUInstance struct {
	ID      int
	Profile string // as the device names it: 1g.10gb+me
	Start   int    // first memory slice
	Size    int    // memory slices
	// Compute counts the compute instances in it. Whole says that it is one
	// that takes all of the GPU instance.
	Compute int
	Whole   bool
}

// States asks for every GPU's state. It ends with ctx as Snapshot does.
func (l *Library) States(ctx context.Context) States {
	return inTurn(ctx, l, l.states, func(why string) States {
		return States{Library: wire.GPULibrary{State: wire.GPULibraryFailed, Reason: why}}
	})
}

// StateOf asks for one GPU's state.
func (l *Library) StateOf(ctx context.Context, uuid string) (State, error) {
	type answer struct {
		state State
		err   *SetError
	}
	a := inTurn(ctx, l, func() answer {
		s, err := l.stateOf(uuid)
		return answer{s, err}
	}, func(why string) answer { return answer{err: &SetError{Why: why, kind: ErrLibrary}} })
	if a.err != nil {
		a.err.UUID, a.err.Doing = uuid, "asking for its state"
		return State{}, a.err
	}
	return a.state, nil
}

// SetPowerLimitMilliwatts caps a GPU's power. The cap holds at once and is lost
// when the GPU is reset or its driver unloaded. It refuses what is outside the
// board's range with [ErrOutOfRange] and both ends of the range, and boards
// without a cap with [ErrNotSupported]; it never sets another limit.
func (l *Library) SetPowerLimitMilliwatts(ctx context.Context, uuid string, milliwatts int) error {
	return l.change(ctx, uuid, fmt.Sprintf("setting the power limit to %d mW", milliwatts),
		func(s *setter) *SetError { return s.power(milliwatts) })
}

// SetECC turns ECC on or off from the next reset on; until then it is pending.
func (l *Library) SetECC(ctx context.Context, uuid string, on bool) error {
	return l.change(ctx, uuid, "turning ECC "+onOff(on), func(s *setter) *SetError { return s.ecc(on) })
}

// SetMIGMode turns MIG on or off. Nil means that the mode is in force. With
// [ErrInUse] and [ErrResetRequired] (before Hopper) it is pending: the driver
// takes it up at the next reset, and until then the GPU stays as it is. A
// switch may change the GPU's minor number.
func (l *Library) SetMIGMode(ctx context.Context, uuid string, on bool) error {
	return l.change(ctx, uuid, "turning MIG mode "+onOff(on), func(s *setter) *SetError { return s.migMode(on) })
}

// CreateMIG makes one GPU instance of a profile, named as the device names it,
// at a place in memory slices, and one compute instance that takes all of it. A
// GPU instance whose compute instance fails is destroyed again. It refuses a
// taken place with [ErrNoRoom].
func (l *Library) CreateMIG(ctx context.Context, uuid string, at wire.MIGPlacement) error {
	return l.change(ctx, uuid, fmt.Sprintf("creating %s at slice %d", at.Profile, at.Start),
		func(s *setter) *SetError { return s.create(at) })
}

// DestroyMIG destroys all compute and GPU instances of a GPU. It stops at the
// first that does not go, with [ErrInUse] if a process is in it; those before
// it are gone.
func (l *Library) DestroyMIG(ctx context.Context, uuid string) error {
	return l.change(ctx, uuid, "destroying its GPU instances", func(s *setter) *SetError { return s.destroy() })
}

// SetComputeMode sets who may use a GPU: default (anyone), exclusiveProcess
// (one process) or prohibited (none). It is lost with the driver. In MIG mode
// it is [ErrNotSupported].
func (l *Library) SetComputeMode(ctx context.Context, uuid, mode string) error {
	return l.change(ctx, uuid, "setting the compute mode to "+mode, func(s *setter) *SetError { return s.computeMode(mode) })
}

// SetPersistence keeps the driver loaded on an idle GPU, or lets it go.
func (l *Library) SetPersistence(ctx context.Context, uuid string, on bool) error {
	return l.change(ctx, uuid, "turning persistence mode "+onOff(on), func(s *setter) *SetError { return s.persistence(on) })
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// change runs one setter in turn. When ctx ends first, the change may yet be
// made once the driver answers.
func (l *Library) change(ctx context.Context, uuid, doing string, set func(*setter) *SetError) error {
	late := func(why string) *SetError { return &SetError{Why: why, kind: ErrLibrary} }
	err := inTurn(ctx, l, func() *SetError { return l.changeOne(uuid, set) }, late)
	if err == nil {
		return nil
	}
	err.UUID, err.Doing = uuid, doing
	return err
}

// refused is a change that NVML answered with a code.
func refused(c code) *SetError {
	kind, help := error(nil), ""
	switch c {
	case success:
		return nil
	case notSupported, functionNotFound:
		kind = ErrNotSupported
	case inUse:
		kind, help = ErrInUse, "end what uses it, or wait until it ends"
	case resetRequired:
		kind, help = ErrResetRequired, "it takes the change up when it is reset or the machine rebooted"
	case noRoom:
		kind = ErrNoRoom
	case noPermission:
		kind, help = ErrNoPermission, "run the agent as root, outside of a container"
	case gpuIsLost, gpuNotFound:
		kind, help = ErrNoGPU, "drain the machine and power it off and on"
	}
	why := c.String()
	if help != "" {
		why += "; " + help
	}
	return &SetError{Why: why, kind: kind}
}
