//go:build cgo

package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bettercompute/bc/agent/wire"
)

// systemLibrary is what the dynamic linker finds in the system's own folders.
const systemLibrary = "libnvidia-ml.so.1"

// required are the functions without which a library is of no use. All others
// are looked up before each kind of call.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3",
}

// loaded is the library that this process has. go-nvml binds functions for the
// whole process at their first call, so a second library would never be asked.
var loaded struct {
	sync.Mutex
	path string
}

// binding is the cgo side of a Library. The token of the Library guards it,
// but for use, opened and changed, which the event watcher shares.
type binding struct {
	nvml    nvml.Interface
	file    *dl.DynamicLibrary // non-nil once loaded, and then for good
	symbols map[string]bool
	memory  memory

	use     sync.RWMutex  // read: a call of the watcher runs; write: nvmlInit and nvmlShutdown
	opened  bool          // nvmlInit succeeded and nothing has gone wrong since
	changed chan struct{} // closed and replaced when opened changes
}

func (b *binding) start() { b.changed = make(chan struct{}) }

// ready loads and initialises the library if it is not, and answers its state.
func (l *Library) ready() wire.GPULibrary {
	if l.opened {
		return wire.GPULibrary{State: wire.GPULibraryReady}
	}
	if lib := l.load(); lib.State != wire.GPULibraryReady {
		return lib
	}
	l.use.Lock()
	defer l.use.Unlock()
	if c := code(l.nvml.Init()); c != success {
		return c.ofLibrary()
	}
	l.set(true)
	return wire.GPULibrary{State: wire.GPULibraryReady}
}

// set changes opened and wakes the watcher. The caller holds use.
func (b *binding) set(opened bool) {
	b.opened = opened
	close(b.changed)
	b.changed = make(chan struct{})
}

// load opens the library file and checks that it is an NVML at all, because a
// missing function ends the process.
func (l *Library) load() wire.GPULibrary {
	if l.file != nil {
		return wire.GPULibrary{State: wire.GPULibraryReady}
	}
	name := l.path
	if name == "" {
		name = systemLibrary
	}
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path != "" && loaded.path != name {
		return failed("this process has loaded %s and can load no second NVML library: restart it to use %s", loaded.path, name)
	}
	file := dl.New(name, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := file.Open(); err != nil {
		return missing(l.path, err)
	}
	for _, symbol := range required {
		if file.Lookup(symbol) != nil {
			_ = file.Close()
			return failed("%s is not an NVML library of a driver since R384: it lacks %s", name, symbol)
		}
	}
	loaded.path = name
	l.file, l.symbols = file, map[string]bool{}
	l.nvml = nvml.New(nvml.WithLibraryPath(name))
	return wire.GPULibrary{State: wire.GPULibraryReady}
}

func failed(format string, args ...any) wire.GPULibrary {
	return wire.GPULibrary{State: wire.GPULibraryFailed, Reason: fmt.Sprintf(format, args...)}
}

// missing tells a library that is not there from one that cannot be loaded.
func missing(path string, err error) wire.GPULibrary {
	if path == "" {
		if strings.HasPrefix(err.Error(), systemLibrary+": cannot open") {
			return wire.GPULibrary{State: wire.GPULibraryMissing, Reason: systemLibrary + " is not on this machine: " +
				"install the NVIDIA driver; it is found without a restart"}
		}
		return failed("the NVML library cannot be loaded: %v. Install the NVIDIA driver's packages again", err)
	}
	if _, statErr := os.Stat(path); errors.Is(statErr, fs.ErrNotExist) {
		return wire.GPULibrary{State: wire.GPULibraryMissing, Reason: "there is no NVML library at " + path +
			": install the driver there, or set another path; it is found without a restart"}
	}
	return failed("the NVML library %s cannot be loaded: %v", path, err)
}

// has says whether the library has a function.
func (b *binding) has(symbol string) bool {
	found, known := b.symbols[symbol]
	if !known {
		found = b.file.Lookup(symbol) == nil
		b.symbols[symbol] = found
	}
	return found
}

// oneOf answers the first that the library has, or the first of all: go-nvml
// calls the newest version of a function that there is.
func (b *binding) oneOf(symbols ...string) string {
	for _, s := range symbols {
		if b.has(s) {
			return s
		}
	}
	return symbols[0]
}

// drop gives up what nvmlInit gave, so that the next question starts anew.
func (l *Library) drop() {
	l.use.Lock()
	defer l.use.Unlock()
	if l.opened {
		_ = l.nvml.Shutdown() // a driver that died cannot shut down
		l.set(false)
	}
}

func (l *Library) release() error {
	l.drop()
	return nil
}

// handle is one GPU of the list, or why it gave no handle.
type handle struct {
	index  int
	device nvml.Device
	code   code
}

// handles lists the GPUs. A library that fails is opened once more, since a
// driver that was loaded again wants that; then its failure is the answer.
func (l *Library) handles() ([]handle, wire.GPULibrary) {
	var lib wire.GPULibrary
	for range 2 {
		if lib = l.ready(); lib.State != wire.GPULibraryReady {
			return nil, lib
		}
		list, c := l.list()
		if c == success {
			return list, lib
		}
		lib = c.ofLibrary()
		l.drop()
	}
	return nil, lib
}

// list answers a code when the library as a whole fails: when it cannot count,
// or when no GPU gives a handle for a reason other than being lost.
func (l *Library) list() ([]handle, code) {
	n, ret := l.nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, code(ret)
	}
	var list []handle
	alive, why := n == 0, success
	for i := range n {
		d, ret := l.nvml.DeviceGetHandleByIndex(i)
		c := code(ret)
		switch {
		case c == uninitialized:
			return nil, c
		case c == success || c == gpuIsLost:
			alive = true
		case why == success:
			why = c
		}
		list = append(list, handle{i, d, c})
	}
	if !alive {
		return nil, why
	}
	return list, success
}

// snapshot implements Snapshot; the caller has the token.
func (l *Library) snapshot() Snapshot {
	list, lib := l.handles()
	if lib.State != wire.GPULibraryReady {
		s := Snapshot{Library: lib}
		if lib.State == wire.GPULibraryMismatch && replacedOnDisk() {
			s.StaleLibrary = true
			s.Library.Reason += ". This process still holds the library from before: restart the agent first"
		}
		return s
	}
	s := Snapshot{Library: l.versions()}
	linked := map[string]links{}
	var silent []handle
	var answered []string
	for _, h := range list {
		p := l.probe(h)
		g := p.facts(h.index)
		if p.code == uninitialized {
			l.drop() // the driver went away between two questions
			return Snapshot{Library: p.code.ofLibrary()}
		}
		if g.UUID == "" {
			h.code = p.failures[0].code
			silent = append(silent, h)
			continue
		}
		if p.gone || p.lacksEssential() {
			g = l.memory.complete(g)
		}
		s.GPUs = append(s.GPUs, g)
		answered = append(answered, g.UUID)
		linked[g.UUID] = p.links()
		for _, f := range p.failures {
			if !f.essential && !f.code.serious() {
				s.Notes = append(s.Notes, fmt.Sprintf("GPU %s (%s) does not tell its %s", g.Address, g.UUID, f))
			}
		}
	}
	joinPeers(s.GPUs, linked)
	for _, h := range silent {
		l.addSilent(&s, h, len(list), answered)
	}
	if len(list) > 0 && len(s.GPUs) == 0 {
		// GPUs are there and none can be told from another: that is no list.
		return Snapshot{Library: silent[0].code.ofLibrary(), Notes: s.Notes}
	}
	l.memory.keep(len(list), s.GPUs)
	return s
}

// addSilent puts a GPU that does not say who it is into the list, with what it
// said last.
func (l *Library) addSilent(s *Snapshot, h handle, count int, answered []string) {
	g, ok := l.memory.recall(h.index, count, answered)
	if !ok {
		s.Notes = append(s.Notes, fmt.Sprintf("GPU %d does not say which one it is, so it is not in the list: %s", h.index, h.code))
		return
	}
	g.Health, g.HealthReason = healthOf([]failure{{"its identity", h.code, true}}, nil)
	s.GPUs = append(s.GPUs, g)
	slices.SortFunc(s.GPUs, func(a, b wire.GPU) int { return a.Index - b.Index })
}

func (l *Library) versions() wire.GPULibrary {
	lib := wire.GPULibrary{State: wire.GPULibraryReady}
	if l.has("nvmlSystemGetDriverVersion") {
		if v, ret := l.nvml.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			lib.Driver = text(v)
		}
	}
	if l.has("nvmlSystemGetNVMLVersion") {
		if v, ret := l.nvml.SystemGetNVMLVersion(); ret == nvml.SUCCESS {
			lib.Version = text(v)
		}
	}
	if l.has("nvmlSystemGetCudaDriverVersion_v2") {
		if v, ret := l.nvml.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS && v > 0 {
			lib.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	return lib
}

// replacedOnDisk says whether the library that this process mapped is no longer
// the file of that name.
func replacedOnDisk() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "libnvidia-ml") && strings.HasSuffix(strings.TrimSpace(line), "(deleted)") {
			return true
		}
	}
	return false
}
