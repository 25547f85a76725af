package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

// Library is the NVML library of this machine. It is opened when first asked,
// and again after it went away. A Library is safe for use by several
// goroutines; a process has one, because the first that is loaded stays.
type Library struct {
	path    string
	turn    chan struct{} // holds one token: whoever has it may call NVML
	binding               // of nvml.go, or of nocgo.go
}

// Open names the library to use, and loads nothing yet. An empty path means
// the system's libnvidia-ml.so.1.
func Open(path string) *Library {
	l := &Library{path: path, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	l.binding.start()
	return l
}

// Snapshot is what the machine's GPUs are at one time.
type Snapshot struct {
	Library wire.GPULibrary

	// GPUs is the whole list if, and only if, Known. A lost GPU stays in the
	// list with the facts of the last snapshot in which it answered.
	GPUs []wire.GPU

	// Notes are findings that belong to no listed GPU, for people.
	Notes []string

	// StaleLibrary says that the library file was replaced on disk while this
	// process holds the old one: only a new process can load the new one.
	StaleLibrary bool
}

// Known says whether GPUs is the list of this machine. If not, nothing is
// known: keep the list of before.
func (s Snapshot) Known() bool { return s.Library.State == wire.GPULibraryReady }

// Snapshot asks for the static facts of every GPU. When ctx ends first the
// library is [wire.GPULibraryFailed] with a reason that says how long it has
// been silent: a driver can hang in the kernel, and then every later call
// answers so at the end of its ctx, until the driver comes back.
func (l *Library) Snapshot(ctx context.Context) Snapshot {
	return inTurn(ctx, l, l.snapshot, func(why string) Snapshot {
		return Snapshot{Library: wire.GPULibrary{State: wire.GPULibraryFailed, Reason: why}}
	})
}

// Readings are what the GPUs measure at one time.
type Readings struct {
	Library wire.GPULibrary
	GPUs    []Reading // in order of index; empty unless the library is ready
}

// Reading is what one GPU measures. A pointer is nil where the board has no
// such reading or did not answer; Failures tells the two apart.
type Reading struct {
	UUID         string // empty when it did not say, and no Snapshot had its index
	Index        int
	Product      string // the NVML name as given
	Address      string // as the kernel writes it; empty when it did not say
	Health       wire.GPUHealth
	HealthReason string
	// Failures are the questions that got an error other than "not
	// supported", for people: "temperature: unknown error (NVML 999)".
	Failures []string

	TemperatureCelsius *int
	PowerMilliwatts    *int
	GPUUtilization     *int // per cent of the last sample period; nil in MIG mode
	MemoryUtilization  *int // per cent of the last sample period; nil in MIG mode
	MemoryUsedMiB      *int // without what the driver keeps for itself, where NVML tells
	MemoryFreeMiB      *int
	MemoryTotalMiB     *int
	SMClockMHz         *int
	MemoryClockMHz     *int
	ECC                *ECCCounts
	RetirementPending  *bool // pages to be retired at the next reset (before Ampere)
	Remap              *Remap
	Processes          *[]Process
	Instances          []InstanceReading // of a GPU in MIG mode
}

// InstanceReading is what one MIG device measures.
type InstanceReading struct {
	UUID           string
	GPUInstance    int
	MemoryUsedMiB  *int
	MemoryFreeMiB  *int
	MemoryTotalMiB *int
}

// ECCCounts are memory errors since the driver was loaded (volatile) and over
// the board's life (aggregate).
type ECCCounts struct {
	VolatileCorrected, VolatileUncorrected   uint64
	AggregateCorrected, AggregateUncorrected uint64
}

// Remap is the state of row remapping (Ampere and later).
type Remap struct {
	Corrected, Uncorrected int  // rows remapped for such errors
	Pending                bool // a remap waits for a reset
	Failed                 bool // a remap failed: the board is to be replaced
}

// Process is a process that holds a GPU.
type Process struct {
	PID           int
	Graphics      bool
	MemoryUsedMiB *int // nil: not known
	GPUInstance   int  // -1: the whole GPU
}

// Readings asks for every GPU's readings. It ends with ctx as Snapshot does.
func (l *Library) Readings(ctx context.Context) Readings {
	return inTurn(ctx, l, l.readings, func(why string) Readings {
		return Readings{Library: wire.GPULibrary{State: wire.GPULibraryFailed, Reason: why}}
	})
}

// Release lets go of the driver, so that a GPU can be reset or the driver
// unloaded. The next Snapshot or Readings takes it again.
func (l *Library) Release(ctx context.Context) error {
	return inTurn(ctx, l, l.release, func(why string) error {
		return fmt.Errorf("letting go of the GPU driver: %s", why)
	})
}

// Xid is an error that the driver reported of a GPU.
type Xid struct {
	UUID        string
	Code        int
	GPUInstance int // -1: the whole GPU, or not known
	At          time.Time
}

// FromApplication says whether the code is one that a faulty program causes on
// a healthy GPU. The list is the one that NVIDIA's Kubernetes device plugin
// does not count against a GPU's health (13, 31, 43, 45, 68, 109).
func (x Xid) FromApplication() bool {
	switch x.Code {
	case 13, 31, 43, 45, 68, 109:
		return true
	}
	return false
}

// Events reports Xid errors from now on. The channel is closed when ctx ends.
// While the library is not ready nothing comes; it goes on by itself once a
// Snapshot or Readings has found the library again.
func (l *Library) Events(ctx context.Context) <-chan Xid {
	out := make(chan Xid, 16)
	go func() {
		defer close(out)
		l.watch(ctx, out)
	}()
	return out
}

// inTurn runs ask with the one token, and answers late when ctx ends first.
// An ask that hangs keeps the token, so at most one goroutine ever hangs.
func inTurn[T any](ctx context.Context, l *Library, ask func() T, late func(why string) T) T {
	began := time.Now()
	silent := func() T {
		if errors.Is(ctx.Err(), context.Canceled) {
			return late("the question to the NVIDIA driver was given up before its answer")
		}
		return late(fmt.Sprintf("the NVIDIA driver has not answered for %s: look for Xid errors in \"dmesg\"; "+
			"if it stays silent, drain the machine and reboot it", time.Since(began).Round(time.Millisecond)))
	}
	select {
	case <-l.turn:
	case <-ctx.Done():
		return silent()
	}
	done := make(chan T, 1)
	go func() {
		answer := ask()
		l.turn <- struct{}{}
		done <- answer
	}()
	select {
	case answer := <-done:
		return answer
	case <-ctx.Done():
		return silent()
	}
}
