//go:build cgo

package unit_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// gpuBench is a machine with GPUs: a recorded host, and NVML's own library over
// a state file. It needs a process of its own.
type gpuBench struct {
	*bench
	nvml  *gputest.Machine
	uuids []string
	held  []string
}

func newGPUBench(t *testing.T, nvml string) *gpuBench {
	t.Helper()
	b := &gpuBench{bench: newBench(t, "one-gpu"), nvml: gputest.State(t, nvml)}
	b.GPUs = gpu.Open(b.nvml.Library)
	for i := 0; b.nvml.Get(i, "uuid") != ""; i++ {
		b.uuids = append(b.uuids, b.nvml.Get(i, "uuid"))
	}
	return b
}

// installMPS has the driver's daemon and its systemd unit, which sets the
// compute mode of its GPU as the shipped one does.
func (b *gpuBench) installMPS() {
	b.Put("/usr/bin/nvidia-cuda-mps-control", "")
	for i, uuid := range b.uuids {
		service := "bc-mps@" + uuid + ".service"
		b.Install(service, func() error {
			b.nvml.Set(i, "compute-mode", "3")
			b.Active(service)
			return nil
		})
	}
}

func (b *gpuBench) sync(u wire.Units) []wire.UnitStatus {
	var devices []wire.Device
	for _, uuid := range b.held {
		devices = append(devices, wire.Device{UUID: uuid})
	}
	return b.Sync(context.Background(), wire.NodeSpec{
		Generation: 7 + int64(len(b.held)), Units: u, Bindings: []wire.Binding{{ReservationID: "res_1", Devices: devices}},
	})
}

func (b *gpuBench) preview(t *testing.T, u wire.Units) string {
	t.Helper()
	var text strings.Builder
	for _, kind := range u.Wanted() {
		p, err := b.Preview(kind, unit.Desired{Units: u, Held: b.held})
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(p.Lines())
	}
	return text.String()
}

// state is what the GPUs are, but for numbers that the driver gives instances.
func (b *gpuBench) gpuState(t *testing.T) []gpu.State {
	t.Helper()
	s := b.GPUs.States(t.Context())
	for _, g := range s.GPUs {
		if g.MIG != nil {
			for i := range g.MIG.Instances {
				g.MIG.Instances[i].ID = 0
			}
		}
	}
	return s.GPUs
}

// has are the profiles on one GPU, as they lie.
func (b *gpuBench) has(t *testing.T, index int) string {
	t.Helper()
	var out []string
	for _, i := range b.gpuState(t)[index].MIG.Instances {
		out = append(out, fmt.Sprintf("%s@%d", i.Profile, i.Start))
	}
	return strings.Join(out, " ")
}

// reboot is one of the host, with what it takes from the GPUs.
func (b *gpuBench) reboot() {
	for i := range b.uuids {
		b.nvml.Reset(i)
		b.nvml.Set(i, "compute-mode", "0")
	}
	b.nvml.Reload()
	b.Reboot()
}

func wantStatus(t *testing.T, got []wire.UnitStatus, state wire.UnitState, words ...string) {
	t.Helper()
	text := lines(got)
	if len(got) != 1 || got[0].State != state {
		t.Fatalf("got\n%swant %s", text, state)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the status does not say %q:\n%s", w, text)
		}
	}
}

// A case names GPUs as testdata/nvml knows them. Beyond its
// texts the same is proven of each as of the other units' cases.
func TestGPUUnits(t *testing.T) {
	files, err := filepath.Glob("testdata/gpu/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			if gputest.Alone(t) {
				runGPUCase(t, file)
			}
		})
	}
}

func runGPUCase(t *testing.T, file string) {
	in, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, f := range in.Files {
		sections[f.Name] = strings.TrimSpace(string(f.Data))
	}
	b := newGPUBench(t, sections["nvml"])
	for line := range strings.Lines(sections["machine"]) {
		b.prepareGPU(t, strings.Fields(line))
	}
	want := units(t, sections["want.json"])
	files, gpus := b.Files(t), b.gpuState(t)
	got := map[string]string{"plan": b.preview(t, want)}
	if diff := cmp.Diff(gpus, b.gpuState(t), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("planning changed the GPUs: %s", diff)
	}
	statuses := lines(b.sync(want))
	got["status"] = statuses
	for _, kind := range want.Wanted() {
		if p, err := b.Preview(kind, unit.Desired{Units: want, Held: b.held}); err != nil || len(p.Steps) > 0 {
			t.Errorf("the plan after the first was applied is not empty: %v\n%s", err, p.Lines())
		}
	}
	if again := lines(b.sync(want)); again != statuses {
		t.Errorf("a second look says otherwise: %s", cmp.Diff(statuses, again))
	}
	got["ran"] = strings.Join(b.Ran(), "\n")

	b.sync(wire.Units{})
	if diff := cmp.Diff(gpus, b.gpuState(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("removed, the GPUs are not as before (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(files, b.Files(t)); diff != "" {
		t.Errorf("removed, the machine is not as before (-before +after):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(b.Ledger.Dir(), "*", "*.json")); err != nil || len(left) > 0 {
		t.Errorf("removed, the ledger still has %v %v", left, err)
	}
	b.Ran()
	if _, ok := sections["reset"]; ok {
		b.sync(want)
		b.reboot()
		b.now = b.now.Add(time.Minute)
		got["reset"] = lines(b.sync(want))
	}
	goldenOf(t, file, in, got, "plan", "status", "ran", "reset")
}

// prepareGPU makes a machine special, as a line of a case says.
func (b *gpuBench) prepareGPU(t *testing.T, words []string) {
	t.Helper()
	device := 0
	if len(words) > 1 {
		_, _ = fmt.Sscan(words[1], &device)
	}
	switch words[0] {
	case "set":
		b.nvml.Set(device, words[2], strings.Join(words[3:], " "))
	case "init":
		b.nvml.Fail(words[1])
	case "hold":
		b.held = append(b.held, b.uuids[device])
	case "put":
		b.Put(words[1], strings.Join(words[2:], " "))
	case "mps":
		b.installMPS()
	default:
		t.Fatalf("a case says %q", words)
	}
}

func TestPowerCapLostWithTheDriverIsSetAgain(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "dgx-h100")
	b.nvml.Set(5, "power-limit-mw", "650000")
	want := units(t, `{"gpu-settings":{"powerLimitWatts":450}}`)
	wantStatus(t, b.sync(want), wire.InSync, "got: 450 W")

	b.nvml.Reload()
	b.nvml.Set(gputest.Every, "power-limit-mw", "-")
	for i := range b.uuids {
		b.nvml.Set(i, "power-limit-mw", "-")
	}
	b.now = b.now.Add(30 * time.Second)
	wantStatus(t, b.sync(want), wire.InSync, "got: 450 W")
	if got := b.nvml.Get(5, "power-limit-mw"); got != "450000" {
		t.Errorf("after the driver came back the cap is %q mW", got)
	}

	b.nvml.Set(2, "persistence", "off")
	wantStatus(t, b.sync(want), wire.InSync, "start nvidia-persistenced")
	b.nvml.Set(6, "power-limit-mw", "500000") // by someone else
	b.sync(wire.Units{})
	for i, mw := range map[int]string{0: "700000", 5: "650000", 6: "500000"} {
		if got := b.nvml.Get(i, "power-limit-mw"); got != mw {
			t.Errorf("removed, GPU %d has %q mW, want %s", i, got, mw)
		}
	}
}

func TestFaultyGPUDoesNotKeepTheOthersFromTheirCap(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "l40s-4")
	const set = "error.nvmlDeviceSetPowerManagementLimit"
	b.nvml.Set(0, set, "unknown")
	want := units(t, `{"gpu-settings":{"powerLimitWatts":200}}`)
	wantStatus(t, b.sync(want), wire.Failed, b.uuids[0], "unknown error (NVML 999)")
	b.now = b.now.Add(time.Minute)
	wantStatus(t, b.sync(want), wire.Failed)
	caps := func(want ...string) {
		t.Helper()
		for i, mw := range want {
			if got := b.nvml.Get(i, "power-limit-mw"); got != mw {
				t.Errorf("GPU %d has %q mW, want %q", i, got, mw)
			}
		}
	}
	caps("", "200000", "200000", "200000")
	b.nvml.Set(0, set, "-")
	b.nvml.Lose(3)
	b.now = b.now.Add(time.Hour)
	wantStatus(t, b.sync(want), wire.Partial, "do not answer: 1")
	caps("200000")
	b.nvml.Find(3)
	b.nvml.Set(1, set, "unknown")
	b.sync(wire.Units{})
	b.sync(wire.Units{})
	caps("350000", "200000", "350000", "350000")
}

func TestECCThatARebootDidNotBringIsAFailure(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "l40s-4")
	want := units(t, `{"gpu-settings":{"ecc":false}}`)
	wantStatus(t, b.sync(want), wire.PendingReboot)
	b.Reboot() // and nothing reset the GPUs
	b.now = b.now.Add(time.Minute)
	wantStatus(t, b.sync(want), wire.Failed, "did not take ECC off up at the reboot")
}

func TestDriverThatGoesAwayIsNoReasonToForget(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "l40s-4")
	want := units(t, `{"gpu-settings":{"powerLimitWatts":200}}`)
	wantStatus(t, b.sync(want), wire.InSync)
	b.nvml.Fail("driver_not_loaded")
	b.nvml.Die("driver_not_loaded")
	wantStatus(t, b.sync(want), wire.Failed, "cannot be set")
	b.sync(wire.Units{})
	b.nvml.Reload()
	b.nvml.Lose(1) // its cap cannot be restored yet, either
	b.sync(wire.Units{})
	if b.nvml.Get(0, "power-limit-mw") != "350000" || b.nvml.Get(1, "power-limit-mw") != "200000" {
		t.Error("the GPU that answers does not have its cap back, or the lost one has")
	}
	b.nvml.Find(1)
	b.sync(wire.Units{})
	if got := b.nvml.Get(1, "power-limit-mw"); got != "350000" {
		t.Errorf("the GPU that came back has %s mW", got)
	}
}

func TestLayoutWaitsForEachGPUAndThenIsMade(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	b.held = b.uuids[:1]
	b.nvml.Set(1, "process.4711", "compute 100 9 0")
	b.Put("/proc/4711/comm", "python3")
	before := b.has(t, 0)
	want := units(t, `{"mig-layout":{"layout":"7g.80gb"}}`)
	want.MIGLayout.Hold = []string{b.uuids[2]}
	wantStatus(t, b.sync(want), wire.PendingIdle, "a booking", "process 4711 (python3)")
	for i := range b.uuids {
		if waits := b.has(t, i) == before; waits != (i < 3) {
			t.Errorf("GPU %d has %s", i, b.has(t, i))
		}
	}
	b.held, want.MIGLayout.Hold = nil, nil
	b.nvml.Set(1, "process.4711", "-")
	wantStatus(t, b.sync(want), wire.InSync, "got: 7g.80gb")
	for i := range b.uuids {
		if got := b.has(t, i); got != "7g.80gb@0" {
			t.Errorf("GPU %d has %s", i, got)
		}
	}
	b.held = b.uuids[3:4]
	wantStatus(t, b.sync(wire.Units{}), wire.PendingIdle, "taken out of the policy; GPU ", " is used by a booking")
	if b.has(t, 2) != before || b.has(t, 3) == before {
		t.Errorf("removed with GPU 3 booked: GPU 2 has %s, GPU 3 has %s", b.has(t, 2), b.has(t, 3))
	}
	b.held = nil
	b.sync(wire.Units{})
	if b.has(t, 3) != before {
		t.Errorf("GPU 3, now free, has %s", b.has(t, 3))
	}
}

func TestInstancesComeBackAfterAReboot(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	b.sync(units(t, `{"mig-layout":{"layout":"all-3g.40gb"}}`))
	b.held = b.uuids // all booked since
	b.sync(units(t, `{"mig-layout":{"layout":"all-3g.40gb"}}`))
	before := b.devices(t)
	b.reboot()
	if got := b.has(t, 4); got != "" {
		t.Fatalf("the reboot left %s", got)
	}
	// What the unit's static service runs, with no control plane in sight.
	status, ran, err := b.Apply(t.Context(), wire.UnitMIGLayout)
	if err != nil || !ran || status.State != wire.InSync {
		t.Fatalf("%v %v %v", status, ran, err)
	}
	if got := b.has(t, 4); got != "3g.40gb@0 3g.40gb@4" {
		t.Errorf("GPU 4 has %s", got)
	}
	if diff := cmp.Diff(before, b.devices(t)); diff != "" {
		t.Errorf("they came back as others: %s", diff)
	}
}

// devices are the UUIDs of all MIG devices, by which they are booked.
func (b *gpuBench) devices(t *testing.T) (uuids []string) {
	t.Helper()
	for _, g := range b.GPUs.Snapshot(t.Context()).GPUs {
		for _, i := range g.MIG.Instances {
			uuids = append(uuids, i.UUID)
		}
	}
	slices.Sort(uuids)
	return uuids
}

func TestLayoutThatWasThereAlreadyComesBackForItsBookings(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	want := units(t, `{"mig-layout":{"layout":"all-1g.10gb"}}`)
	before := b.devices(t)
	wantStatus(t, b.sync(want), wire.InSync)
	if diff := cmp.Diff(before, b.devices(t)); diff != "" {
		t.Fatalf("instances that were right were made anew: %s", diff)
	}
	b.held = b.uuids
	b.reboot()
	wantStatus(t, b.sync(want), wire.InSync)
	if diff := cmp.Diff(before, b.devices(t)); diff != "" {
		t.Errorf("they came back as others: %s", diff)
	}
}

func TestGPUThatCannotBeCutIsLeftEmptyAndTheOthersAreCut(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	b.nvml.Set(2, "error.nvmlDeviceCreateGpuInstanceWithPlacement", "insufficient_resources")
	want := units(t, `{"mig-layout":{"layout":"3g.40gb,4x1g.10gb"}}`)
	made := "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 3g.40gb@4"
	failed := b.sync(want)
	wantStatus(t, failed, wire.Failed, b.nvml.Get(2, "pci"), "insufficient resources", "left without instances")
	for i := range b.uuids {
		if got := b.has(t, i); got != made && i != 2 || got != "" && i == 2 {
			t.Errorf("GPU %d has %s", i, got)
		}
	}
	b.nvml.Set(2, "error.nvmlDeviceCreateGpuInstanceWithPlacement", "-")
	if again := b.sync(want); lines(again) != lines(failed) {
		t.Errorf("it was tried again at once: %s", lines(again))
	}
	b.now = b.now.Add(6 * time.Minute)
	wantStatus(t, b.sync(want), wire.InSync)
	if got := b.has(t, 2); got != made {
		t.Errorf("GPU 2 has %s", got)
	}
}

// until waits for something to be so in the state file.
func (b *gpuBench) until(t *testing.T, so func(state string) bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(b.nvml.Path), unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	for events := make([]byte, 4096); ; { // the process has a time limit
		text, err := os.ReadFile(b.nvml.Path)
		if err != nil {
			t.Fatal(err)
		}
		if so(string(text)) {
			return
		}
		if _, err := unix.Read(fd, events); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

// firstMade says whether GPU 0 has got its first instance of a new layout.
func firstMade(state string) bool {
	return slices.ContainsFunc(strings.Split(state, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "device 0 gi.") && strings.HasSuffix(line, " 9 4")
	})
}

func TestFailureHalfWayLeavesNoHalfLayout(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	b.nvml.SetMachine("devices", "1")
	b.nvml.SetMachine("delay-ms", "2") // so that there is a way to be half-way on
	want := units(t, `{"mig-layout":{"layout":"3g.40gb,4x1g.10gb"}}`)
	done := make(chan []wire.UnitStatus, 1)
	go func() { done <- b.sync(want) }()
	b.until(t, firstMade)
	b.nvml.Set(0, "error.nvmlDeviceCreateGpuInstanceWithPlacement", "insufficient_resources")
	statuses := <-done
	wantStatus(t, statuses, wire.Failed, "creating 1g.10gb")
	if got := b.has(t, 0); got != "" {
		t.Errorf("GPU 0 keeps half of it: %s", got)
	}
}

// cutSoFar is how many of 3g.40gb and four 1g.10gb GPU 0 has got in place of its
// seven 1g.10gb, -1 while any of those is left.
func cutSoFar(state string) int {
	instances := map[string]string{} // the last line of each counts
	for line := range strings.Lines(state) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "device" && f[1] == "0" && strings.HasPrefix(f[2], "gi.") {
			instances[f[2]] = f[3]
		}
	}
	large, small := 0, 0
	for _, profile := range instances {
		switch profile {
		case "9":
			large++
		case "19":
			small++
		}
	}
	if large == 0 && small > 0 {
		return -1
	}
	return large + small
}

func TestKilledHalfWayTheNextRunEndsIt(t *testing.T) {
	if state := os.Getenv("BC_UNIT_CHILD"); state != "" {
		b := newBench(t, "one-gpu")
		b.Ledger = host.OpenLedger(state)
		b.GPUs = gpu.Open(os.Getenv("BC_UNIT_LIBRARY"))
		b.sync(units(t, os.Getenv("BC_UNIT_WANT")))
		return
	}
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "h100-mig")
	b.nvml.SetMachine("devices", "1")
	before := b.has(t, 0)
	const text = `{"mig-layout":{"layout":"3g.40gb,4x1g.10gb"}}`
	halfWay := 0
	for made := range 5 { // and the next one is not
		name := fmt.Sprintf("killed with %d of 5", made)
		b.nvml.SetMachine("delay-ms", "5")
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), "BC_UNIT_CHILD="+b.state, "BC_UNIT_LIBRARY="+b.nvml.Library, "BC_UNIT_WANT="+text)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		b.until(t, func(state string) bool { return cutSoFar(state) >= made })
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait()
		b.nvml.SetMachine("delay-ms", "0")
		switch n := strings.Count(b.has(t, 0), "@"); {
		case n < made:
			t.Fatalf("%s: the kill came too early: %s", name, b.has(t, 0))
		case n < 5:
			halfWay++ // a busy machine may kill too late
		}
		wantStatus(t, b.sync(units(t, text)), wire.InSync)
		if got := b.has(t, 0); got != "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 3g.40gb@4" {
			t.Errorf("%s: GPU 0 has %s", name, got)
		}
		b.sync(wire.Units{})
		if got := b.has(t, 0); got != before {
			t.Errorf("%s: removed, GPU 0 has %s, not what it had before the kill", name, got)
		}
	}
	if halfWay < 2 {
		t.Errorf("%d of 5 kills came half-way", halfWay)
	}
}

func TestGPUFoundInUseIsTriedAgain(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "dgx-h100")
	b.held = b.uuids[1:]
	// A monitor that NVML does not list as a process.
	b.nvml.Set(0, "error.nvmlDeviceSetMigMode", "in_use")
	b.Put("/proc/812/comm", "nv-hostengine")
	if err := os.MkdirAll(filepath.Join(b.Dir(), "proc/812/fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/nvidia0", filepath.Join(b.Dir(), "proc/812/fd/9")); err != nil {
		t.Fatal(err)
	}
	want := units(t, `{"mig-layout":{"layout":"all-1g.10gb"}}`)
	wantStatus(t, b.sync(want), wire.PendingIdle, "process 812 (nv-hostengine)")
	b.nvml.Set(0, "error.nvmlDeviceSetMigMode", "-")
	b.now = b.now.Add(30 * time.Second)
	b.sync(want)
	if got := strings.Count(b.has(t, 0), "1g.10gb@"); got != 7 {
		t.Errorf("GPU 0 has %s", b.has(t, 0))
	}
}

func TestModeThatARebootDidNotBringIsAFailure(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "dgx-a100")
	want := units(t, `{"mig-layout":{"layout":"all-1g.10gb"}}`)
	wantStatus(t, b.sync(want), wire.PendingReboot)
	b.Reboot() // and nothing reset the GPUs
	b.now = b.now.Add(time.Minute)
	wantStatus(t, b.sync(want), wire.Failed, "did not take its MIG mode up at the reboot")
}

func TestMPSDaemonFollowsItsReplicasAndItsGPU(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	b := newGPUBench(t, "l40s-4")
	b.installMPS()
	b.held = b.uuids[1:]
	ten, five := units(t, `{"gpu-sharing":{"mode":"mps","replicas":10}}`), units(t, `{"gpu-sharing":{"mode":"mps","replicas":5}}`)
	start := "systemctl restart bc-mps@" + b.uuids[0] + ".service"
	ran := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, b.Ran(), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	}
	b.sync(ten)
	ran(start)
	// The daemon's own server is no user; a client is.
	b.nvml.Set(0, "process.900", "compute 30")
	b.Put("/proc/900/comm", "nvidia-cuda-mps")
	b.sync(five)
	ran(start)
	b.nvml.Set(0, "process.901", "compute 30")
	b.Put("/proc/901/comm", "train")
	wantStatus(t, b.sync(ten), wire.PendingIdle, "process 901 (train)")
	ran()
	if file, _ := b.String("/etc/better-compute/mps/" + b.uuids[0] + ".env"); !strings.Contains(file, "THREAD_PERCENTAGE=20\nMEMORY_MIB=9213") {
		t.Errorf("a GPU in use got another share: %s", file)
	}
	// The daemon of a GPU at work dies, and comes back with the same share.
	b.sync(five)
	if err := b.StopUnit(t.Context(), "bc-mps@"+b.uuids[0]+".service"); err != nil {
		t.Fatal(err)
	}
	b.Ran()
	b.sync(five)
	ran(start)
	// Someone opens the GPU beside its daemon.
	b.nvml.Set(0, "compute-mode", "0")
	b.sync(five)
	if got := b.nvml.Get(0, "compute-mode"); got != "3" {
		t.Errorf("compute mode %s beside a daemon", got)
	}
	ran()
	// No longer wanted, it stays for its client, and so does the compute mode.
	b.sync(wire.Units{})
	ran()
	if got := b.nvml.Get(0, "compute-mode"); got != "3" {
		t.Errorf("compute mode %s beside a daemon that still runs", got)
	}
	// To time slices, when the client has ended.
	b.sync(units(t, `{"gpu-sharing":{"mode":"timeslice","replicas":4}}`))
	ran()
	b.nvml.Set(0, "process.901", "-")
	b.held = nil
	wantStatus(t, b.sync(units(t, `{"gpu-sharing":{"mode":"timeslice","replicas":4}}`)), wire.InSync, "compute mode default")
	ran("systemctl stop bc-mps@" + b.uuids[0] + ".service")
}
