package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// testGPUs stands for the GPU library at the edge of the process. What it
// answers can be changed at any time; a change is told as an Xid event.
type testGPUs struct {
	mu       sync.Mutex
	snapshot gpu.Snapshot
	readings gpu.Readings
	xids     chan gpu.Xid
}

func newTestGPUs(count int) *testGPUs {
	g := &testGPUs{xids: make(chan gpu.Xid, 16)}
	g.snapshot.Library = readyLibrary
	for i := range count {
		g.snapshot.GPUs = append(g.snapshot.GPUs, testGPU(i))
	}
	g.measure()
	return g
}

var readyLibrary = wire.GPULibrary{State: wire.GPULibraryReady, Driver: "535.161.08", CUDA: "12.2"}

func testGPU(i int) wire.GPU {
	return wire.GPU{
		UUID: "GPU-" + string(rune('a'+i)), Index: i, Minor: i, Address: "0000:1" + string(rune('0'+i)) + ":00.0",
		PCIID: "2330:10de", Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, Health: wire.GPUHealthy,
	}
}

// measure makes readings that fit the snapshot.
func (g *testGPUs) measure() {
	g.readings = gpu.Readings{Library: g.snapshot.Library, GPUs: recordedReadings(g.snapshot.GPUs)}
}

// change changes what the library answers and has the agent look at it.
func (g *testGPUs) change(f func(*gpu.Snapshot)) {
	g.mu.Lock()
	g.snapshot.GPUs = slices.Clone(g.snapshot.GPUs)
	f(&g.snapshot)
	g.measure()
	g.mu.Unlock()
	g.xids <- gpu.Xid{UUID: "GPU-a", Code: 79}
}

func (g *testGPUs) Snapshot(context.Context) gpu.Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.snapshot
	s.GPUs = slices.Clone(s.GPUs)
	return s
}

func (g *testGPUs) Readings(context.Context) gpu.Readings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.readings
}

func (g *testGPUs) Events(context.Context) <-chan gpu.Xid { return g.xids }

// testMachine is a root with as little as a machine needs to join.
func testMachine(t *testing.T, id string) *host.Root {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "machine")
	for name, content := range map[string]string{
		"etc/machine-id":                      strings.Repeat(id, 32)[:32] + "\n",
		"proc/sys/kernel/hostname":            "gpu-" + id + "\n",
		"proc/sys/kernel/random/boot_id":      "11111111-2222-4333-8444-555555555555\n",
		"proc/meminfo":                        "MemTotal:       1056784 kB\n",
		"sys/devices/system/cpu/online":       "0-3\n",
		"sys/devices/system/node/online":      "0\n",
		"sys/devices/system/node/node0/probe": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// testAgent is an agent of a machine with GPUs, over a socket where a control
// plane may listen or not.
func testAgent(t *testing.T, socket string, gpus GPUs) *Agent {
	return &Agent{
		Server: "unix:" + socket, StateDir: filepath.Join(t.TempDir(), "state"), Local: true,
		Root: testMachine(t, "a"), GPUs: gpus,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// start runs an agent until the test ends or stop is called.
func start(t *testing.T, a *Agent) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func devices(uuids ...string) (out []wire.Device) {
	for _, u := range uuids {
		out = append(out, wire.Device{UUID: u})
	}
	return out
}

// Two GPUs are booked, one is not there: the spec reaches the agent through the
// long poll, long before its next heartbeat is due, and is answered at once.
func TestSpecIsConfirmedAtOnce(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(2)))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })

	c.want(wire.NodeSpec{Bindings: []wire.Binding{
		{ReservationID: "res_1", Devices: devices("GPU-a", "GPU-b")},
		{ReservationID: "res_2", Devices: devices("GPU-z")},
		{ReservationID: "res_3", VCPU: 4},
	}})
	c.await(t, "the bindings answered", func() bool { return c.only().taken == 1 })
	want := []wire.BindingStatus{
		{ReservationID: "res_1", Unenforced: true, Note: leftAlone},
		{ReservationID: "res_2", Failed: "GPU-z is not in this machine"},
		{ReservationID: "res_3", Unenforced: true, Note: leftAlone},
	}
	c.checkBindings(t, want)
	c.look(func() {
		if len(c.hellos) != 1 || !c.hellos[0].Local || c.hellos[0].Hostname != "gpu-a" || len(c.hellos[0].Inventory.GPUs) != 2 {
			t.Errorf("hellos: %+v", c.hellos)
		}
	})

	c.want(wire.NodeSpec{})
	c.await(t, "the bindings gone", func() bool { return c.only().taken == 2 && len(c.only().bindings) == 0 })
}

func TestUnitsAreAnsweredHonestly(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(1)))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Units: wire.Units{
		CPU: &wire.CPU{Governor: "performance"}, Hugepages: &wire.Hugepages{SizeKiB: 2048, Count: 8},
	}})
	c.await(t, "two units answered", func() bool { return len(c.only().units) == 2 })
	var units []wire.UnitStatus
	c.look(func() { units = c.only().units })
	for i, kind := range []wire.UnitKind{wire.UnitHugepages, wire.UnitCPU} {
		u := units[i]
		if u.Kind != kind || u.State != wire.Unsupported || !strings.Contains(u.Reason, "--manage-host") || u.Since.IsZero() {
			t.Errorf("unit %d: %+v", i, u)
		}
	}
	before := units[1].Since
	c.want(wire.NodeSpec{Units: wire.Units{CPU: &wire.CPU{Governor: "powersave"}}})
	c.await(t, "one unit left", func() bool { return len(c.only().units) == 1 })
	c.look(func() { units = c.only().units })
	if u := units[0]; u.Kind != wire.UnitCPU || !u.Since.Equal(before) {
		t.Errorf("the unit that stayed says %+v, it was so since %v", u, before)
	}
	c.want(wire.NodeSpec{})
	c.await(t, "no unit left", func() bool { return c.only().taken == 3 && len(c.only().units) == 0 })
}

func TestUnknownUnitIsUnsupported(t *testing.T) {
	var units wire.Units
	if err := json.Unmarshal([]byte(`{"hugepages":{"sizeKiB":2048,"count":1},"fans":{"speed":3}}`), &units); err != nil {
		t.Fatal(err)
	}
	pages := wire.UnitStatus{Kind: "hugepages", State: wire.InSync, Since: testTime}
	got := answerUnits(units, []wire.UnitStatus{pages}, nil, testTime)
	want := []wire.UnitStatus{
		pages,
		{Kind: "fans", State: wire.Unsupported, Reason: `this agent has no unit "fans": it is older than its control plane`, Since: testTime},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	later := pages
	later.Since = testTime.Add(time.Minute)
	if got := answerUnits(units, []wire.UnitStatus{later}, got, testTime); !slices.Equal(got, want) {
		t.Errorf("compared again with the same end: %+v", got)
	}
	if got := answerUnits(wire.Units{}, nil, got, testTime); got == nil || len(got) != 0 {
		t.Errorf("with nothing wanted: %#v, want an empty list", got)
	}
}

// The control plane stops in the middle, and comes back with what it knew.
func TestServerRestartsInTheMiddle(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	stop := c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(2)))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices("GPU-a")}}})
	c.await(t, "the first binding", func() bool { return c.only().taken == 1 })

	stop()
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_2", Devices: devices("GPU-b")}}})
	c.serve(t, socket)
	c.await(t, "the second binding", func() bool {
		return c.only().taken == 2 && slices.Equal(c.only().confirmed(), []string{"res_2"})
	})
	c.look(func() {
		if len(c.nodes) != 1 || len(c.hellos) != 1 {
			t.Errorf("%d nodes by %d hellos, want one of each: a session outlives the server", len(c.nodes), len(c.hellos))
		}
	})
}

// The control plane no longer knows the credential: the machine joins again
// under its machine id and goes on.
func TestLostCredential(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	a := testAgent(t, socket, newTestGPUs(1))
	start(t, a)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices("GPU-a")}}})
	c.await(t, "the binding", func() bool { return c.only().taken == 1 })

	c.change(func() { c.only().credential, c.only().bindings = "bcn_other", nil })
	c.await(t, "the binding under a new credential", func() bool {
		return c.only().credential == "bcn_other+" && slices.Equal(c.only().confirmed(), []string{"res_1"})
	})
	c.look(func() {
		if len(c.nodes) != 1 {
			t.Errorf("%d nodes, want the one", len(c.nodes))
		}
	})
}

func TestRemovedNodeJoinsAnewWithoutItsSpec(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(1)))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices("GPU-a")}}})
	c.await(t, "the binding", func() bool { return c.only().taken == 1 })
	c.change(func() {
		c.only().gone = true
		c.only().want(wire.NodeSpec{}) // has it send a heartbeat
	})
	c.await(t, "a new node with nothing in force", func() bool {
		n := c.only()
		return n != nil && len(c.hellos) == 2 && n.beats > 0 && n.taken == 0 && len(n.bindings) == 0
	})
	c.look(func() {
		if second := c.hellos[1]; second.NodeID != "" {
			t.Errorf("the second hello is of %q, want a new machine's", second.NodeID)
		}
	})
}

func TestMachineWithoutPoolAsksAgain(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.noPool = "no pool takes H100"
	c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(1)))
	c.await(t, "two hellos", func() bool { return len(c.hellos) >= 2 })
	c.change(func() { c.noPool = "" })
	c.await(t, "a heartbeat", func() bool { return len(c.beats) > 0 })
}

// The agent restarts while the control plane is away. What was wanted last is in
// force from its start, and is reported when the server is back, without a
// second join.
func TestSpecOutlivesAgentWithServerAway(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	stopServer := c.serve(t, socket)
	gpus := newTestGPUs(2)
	a := testAgent(t, socket, gpus)
	stop := start(t, a)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices("GPU-a")}}})
	c.await(t, "the binding", func() bool { return c.only().taken == 1 })
	stopServer()
	stop()

	ready := make(chan struct{})
	a.Notify = func(state string) {
		if state == "READY=1" {
			close(ready)
		}
	}
	stop = start(t, a)
	<-ready
	stop()
	book := readBook(t, a.StateDir)
	if len(book.Bindings) != 1 || book.Bindings[0].Failed != "" {
		t.Errorf("in force without the server: %+v", book.Bindings)
	}

	a.Notify = nil
	gpus.change(func(s *gpu.Snapshot) { s.GPUs[0].Health, s.GPUs[0].HealthReason = wire.GPULost, "fallen off the bus" })
	start(t, a)
	c.change(func() { c.only().bindings = nil })
	c.serve(t, socket)
	c.await(t, "the lost GPU", func() bool {
		b := c.only().bindings
		return len(b) == 1 && strings.HasPrefix(b[0].Failed, "GPU-a (0000:10:00.0) is lost")
	})
	c.look(func() {
		if last := c.hellos[len(c.hellos)-1]; last.NodeID != "node_1" || len(c.nodes) != 1 {
			t.Errorf("the agent came back as %q of %d nodes", last.NodeID, len(c.nodes))
		}
	})
}

func readBook(t *testing.T, dir string) ledger {
	t.Helper()
	book, err := (&ledgerFile{dir: dir}).read()
	if err != nil {
		t.Fatal(err)
	}
	return book
}

func TestTornLedgerFallsBack(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	a := testAgent(t, socket, newTestGPUs(1))
	stop := start(t, a)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices("GPU-a")}}})
	c.await(t, "the binding", func() bool { return c.only().taken == 1 })
	stop()

	name := filepath.Join(a.StateDir, ledgerName)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	c.change(func() { c.only().bindings = nil })
	start(t, a)
	c.await(t, "the binding once more", func() bool { return slices.Equal(c.only().confirmed(), []string{"res_1"}) })
	c.look(func() {
		if last := c.hellos[len(c.hellos)-1]; len(c.nodes) != 1 || len(c.hellos) != 2 || last.NodeID != "node_1" {
			t.Errorf("%d nodes after %d hellos, the last by %q: want the backup's node", len(c.nodes), len(c.hellos), last.NodeID)
		}
	})
}

// NVML stops answering and comes back: the GPUs stay in the inventory, what was
// in force stays so, and nothing new is confirmed meanwhile.
func TestLibraryDiesAndComesBack(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	gpus := newTestGPUs(2)
	a := testAgent(t, socket, gpus)
	start(t, a)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	first := wire.Binding{ReservationID: "res_1", Devices: devices("GPU-a")}
	second := wire.Binding{ReservationID: "res_2", Devices: devices("GPU-b")}
	c.want(wire.NodeSpec{Bindings: []wire.Binding{first}})
	c.await(t, "the first binding", func() bool { return c.only().taken == 1 })

	gone := wire.GPULibrary{State: wire.GPULibraryNoDriver, Reason: "the NVIDIA kernel driver is not loaded"}
	gpus.change(func(s *gpu.Snapshot) { s.Library, s.GPUs = gone, nil })
	c.await(t, "the library's state", func() bool { return c.only().inventory.GPULibrary.State == wire.GPULibraryNoDriver })
	c.look(func() {
		if got := c.only().inventory.GPUs; len(got) != 2 || got[0].Health != wire.GPUHealthy {
			t.Errorf("the inventory without NVML has %+v", got)
		}
	})
	c.want(wire.NodeSpec{Bindings: []wire.Binding{first, second}})
	c.await(t, "both bindings answered", func() bool { return c.only().taken == 2 })
	want := []wire.BindingStatus{
		{ReservationID: "res_1", Unenforced: true, Note: leftAlone},
		{ReservationID: "res_2", Failed: "GPU-b cannot be checked: the NVIDIA kernel driver is not loaded"},
	}
	c.checkBindings(t, want)
	gpus.change(func(s *gpu.Snapshot) {
		s.Library, s.GPUs = readyLibrary, []wire.GPU{testGPU(0), testGPU(1)}
	})
	c.await(t, "both in force", func() bool { return slices.Equal(c.only().confirmed(), []string{"res_1", "res_2"}) })
}

func TestLostDeviceFailsItsBindingAlone(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	gpus := newTestGPUs(3)
	start(t, testAgent(t, socket, gpus))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Bindings: []wire.Binding{
		{ReservationID: "res_1", Devices: devices("GPU-a")},
		{ReservationID: "res_2", Devices: devices("GPU-b")},
		{ReservationID: "res_3", Devices: devices("GPU-c")},
	}})
	c.await(t, "the bindings", func() bool { return len(c.only().confirmed()) == 3 })
	gpus.change(func(s *gpu.Snapshot) {
		s.GPUs[1].Health, s.GPUs[1].HealthReason = wire.GPULost, "fallen off the bus"
		s.GPUs = s.GPUs[:2] // and the third is gone without a word
	})
	c.await(t, "two failures", func() bool { return slices.Equal(c.only().confirmed(), []string{"res_1"}) })
	want := []wire.BindingStatus{
		{ReservationID: "res_1", Unenforced: true, Note: leftAlone},
		{ReservationID: "res_2", Failed: "GPU-b (0000:11:00.0) is lost: fallen off the bus"},
		{ReservationID: "res_3", Failed: "GPU-c (0000:12:00.0) is missing: NVML no longer lists it"},
	}
	c.checkBindings(t, want)
}

func TestQuietHeartbeatStaysUnder1KiB(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	start(t, testAgent(t, socket, newTestGPUs(8)))
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	var bindings []wire.Binding
	for i := range 8 {
		bindings = append(bindings, wire.Binding{ReservationID: "res_" + string(rune('1'+i)), Devices: devices("GPU-" + string(rune('a'+i)))})
	}
	c.change(func() { c.only().retrySeconds = 1 })
	c.want(wire.NodeSpec{Bindings: bindings})
	c.await(t, "a quiet heartbeat", func() bool { return c.biggest > 0 && c.only().taken == 1 })
	c.look(func() {
		if c.biggest > 1024 {
			t.Errorf("the request of a quiet heartbeat has %d bytes, head and body; 1024 are allowed", c.biggest)
		}
		t.Logf("%d bytes", c.biggest)
	})
}

// Only a new process can load a library that was replaced on disk.
func TestStaleLibraryEndsTheAgent(t *testing.T) {
	gpus := newTestGPUs(1)
	gpus.snapshot.Library = wire.GPULibrary{State: wire.GPULibraryMismatch}
	gpus.snapshot.StaleLibrary = true
	a := testAgent(t, socketPath(t), gpus)
	if err := a.Run(t.Context()); !errors.Is(err, ErrStaleLibrary) {
		t.Errorf("Run: %v", err)
	}
}

func (c *fakeControl) checkBindings(t *testing.T, want []wire.BindingStatus) {
	t.Helper()
	c.look(func() {
		if diff := cmp.Diff(want, c.only().bindings); diff != "" {
			t.Error(diff)
		}
	})
}

// An agent that may change its host applies what its NodeSpec wants, to the
// machine below its root, and puts it back when nothing is wanted any more.
func TestManagedHostIsHeldToItsSpec(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	a := testAgent(t, socket, newTestGPUs(1))
	root, governor := governed(t)
	a.Root, a.ManageHost = root, true
	start(t, a)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Units: wire.Units{CPU: &wire.CPU{Governor: "performance"}}})
	c.await(t, "the unit in force", func() bool { return len(c.only().units) == 1 && c.only().units[0].State == wire.InSync })
	if now, _ := root.String(governor); now != "performance" {
		t.Errorf("the governor is %s", now)
	}
	c.want(wire.NodeSpec{})
	c.await(t, "the unit gone", func() bool { return c.only().taken == 2 && len(c.only().units) == 0 })
	if now, _ := root.String(governor); now != "powersave" {
		t.Errorf("the unit is said to be gone, and the governor is %s", now)
	}
}
