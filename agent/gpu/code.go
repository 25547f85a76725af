package gpu

import (
	"fmt"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
)

// code is an NVML return code, by the numbers of nvmlReturn_t in nvml.h.
type code int

const (
	success          code = 0
	uninitialized    code = 1
	notSupported     code = 3
	noPermission     code = 4
	notFound         code = 6
	driverNotLoaded  code = 9
	timedOut         code = 10
	irqIssue         code = 11
	libraryNotFound  code = 12
	functionNotFound code = 13
	gpuIsLost        code = 15
	resetRequired    code = 16
	operatingSystem  code = 17
	versionMismatch  code = 18
	inUse            code = 19
	noData           code = 21
	noRoom           code = 23
	gpuNotFound      code = 28
	unknownError     code = 999
)

var codeWords = map[code]string{
	uninitialized: "the library is not initialised", 2: "invalid argument", notSupported: "not supported",
	noPermission: "no permission", 5: "already initialised", notFound: "not found", 7: "too little room",
	8: "not enough external power", driverNotLoaded: "the kernel driver is not loaded", timedOut: "timed out",
	irqIssue: "the kernel found an interrupt problem", libraryNotFound: "a library is missing",
	functionNotFound: "the driver lacks the function", 14: "the board's infoROM is corrupted",
	gpuIsLost: "the GPU has fallen off the bus", resetRequired: "the GPU needs a reset",
	operatingSystem: "the operating system blocks the GPU", versionMismatch: "library and driver differ in version",
	inUse: "in use", 20: "out of memory", noData: "no data", 22: "not with ECC in a virtual GPU",
	noRoom: "insufficient resources", 24: "frequency not supported", 25: "struct version not known to the driver",
	26: "deprecated", 27: "not ready", gpuNotFound: "no such GPU", 29: "invalid state",
	30: "reset type not supported", unknownError: "unknown error",
}

func (c code) String() string {
	words := codeWords[c]
	if words == "" {
		words = "a code this program does not know"
	}
	return fmt.Sprintf("%s (NVML %d)", words, int(c))
}

// absent says whether the code means that the board or the driver has no such
// thing, which is no failure.
func (c code) absent() bool {
	switch c {
	case notSupported, functionNotFound, noData:
		return true
	}
	return false
}

// serious says whether the code, from any question, means that the GPU is not
// fit for work. The others, such as a missing permission, say nothing of it.
func (c code) serious() bool {
	switch c {
	case timedOut, irqIssue, resetRequired, operatingSystem, unknownError:
		return true
	}
	return false
}

// ofLibrary is what a code means when the library as a whole answers it.
func (c code) ofLibrary() wire.GPULibrary {
	state, reason := wire.GPULibraryFailed, ""
	switch c {
	case libraryNotFound:
		state = wire.GPULibraryMissing
		reason = "NVML misses a library of the NVIDIA driver: install the driver's packages again, whole and of one version"
	case driverNotLoaded:
		state = wire.GPULibraryNoDriver
		reason = "the NVIDIA kernel driver is not loaded: load it with \"modprobe nvidia\"; if that fails, \"dmesg\" says why"
	case versionMismatch:
		state = wire.GPULibraryMismatch
		reason = "the NVIDIA kernel driver and the NVML library differ in version, as after an upgrade: " +
			"reboot the machine, or unload the driver and load it again"
	case noPermission:
		state = wire.GPULibraryDenied
		reason = "no permission on the NVIDIA device nodes: run the agent as root, or mend the permissions of /dev/nvidiactl and /dev/nvidia*"
	default:
		reason = fmt.Sprintf("NVML does not answer: %s. Look for NVIDIA messages in \"dmesg\"; if none helps, reboot the machine", c)
	}
	return wire.GPULibrary{State: state, Reason: reason}
}

// failure is a question that a GPU did not answer.
type failure struct {
	what      string
	code      code
	essential bool // without the answer the GPU cannot be used
}

func (f failure) String() string { return f.what + ": " + f.code.String() }

// healthOf judges a GPU by the questions it did not answer and the state of
// its row remapping.
func healthOf(failures []failure, remap *Remap) (wire.GPUHealth, string) {
	for _, f := range failures {
		if f.code == gpuIsLost || f.code == gpuNotFound {
			return wire.GPULost, "the GPU has fallen off the bus: drain the machine and power it off and on; " +
				"if the GPU is lost again, check its seat, cables and cooling, or replace it"
		}
	}
	for _, f := range failures {
		if f.code == resetRequired {
			return wire.GPUUnhealthy, "the GPU needs a reset: when it is free, run \"nvidia-smi --gpu-reset\", or reboot the machine"
		}
	}
	var names []string
	for _, f := range failures {
		if f.essential || f.code.serious() {
			names = append(names, f.String())
		}
	}
	if len(names) > 0 {
		return wire.GPUUnhealthy, "the GPU does not answer for " + strings.Join(names, ", ") +
			": look for Xid errors in \"dmesg\", and reset the GPU when it is free"
	}
	if remap != nil && remap.Failed {
		return wire.GPUUnhealthy, "a memory row could not be remapped: the board has no spare rows left and is to be replaced"
	}
	return wire.GPUHealthy, ""
}
