//go:build e2e

package agent

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// The tests of this file run as root on a throw-away Debian with systemd as
// PID 1 (packaging/vm/ct), which has cgroup v2 with its device filters and without
// its cpuset and memory controllers. Stand-ins for GPUs are character devices of
// the kernel that a closed policy does not allow by itself.
const insideVariable = "BC_INSIDE_CONTAINER"

var standIns = map[string]uint64{
	"/dev/nvidia0":          unix.Mkdev(1, 11),   // kmsg
	"/dev/nvidia1":          unix.Mkdev(10, 200), // tun
	"/dev/nvidiactl":        unix.Mkdev(10, 229), // fuse
	"/dev/nvidia-uvm":       unix.Mkdev(10, 235), // autofs
	"/dev/nvidia-uvm-tools": unix.Mkdev(10, 237), // loop-control
}

// TestWallsUnderSystemd runs the tests named TestInside… in the container.
func TestWallsUnderSystemd(t *testing.T) {
	if os.Getenv(insideVariable) != "" {
		t.Skip("this is the container")
	}
	if os.Geteuid() != 0 {
		t.Skip("a container with systemd needs root")
	}
	ct, err := filepath.Abs("../packaging/vm/ct")
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := exec.Command(ct, "doctor").CombinedOutput(); err != nil || len(missing) > 0 {
		t.Skipf("a container with systemd cannot be had here: %s", missing)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(words ...string) string {
		t.Helper()
		out, err := exec.Command(ct, append([]string{"-n", "walls"}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ct %s: %v\n%s", strings.Join(words, " "), err, out)
		}
		return string(out)
	}
	_ = exec.Command(ct, "-n", "walls", "stop", "--now").Run() // what an interrupted test left
	run("start")
	t.Cleanup(func() { run("stop", "--now") })
	run("push", self, "/root/")
	out := run("run", "env", insideVariable+"=1", "/root/"+filepath.Base(self), "-test.run=^TestInside", "-test.v", "-test.timeout=5m")
	t.Log(out)
	if n := strings.Count(out, "--- PASS: TestInside"); n < 5 {
		t.Errorf("%d tests passed inside, want 5", n)
	}
}

// inside is a machine with walls that run as an agent's do.
type inside struct {
	*walls
	ledger *host.Ledger
	stop   func()
}

func newInside(t *testing.T) *inside {
	t.Helper()
	if os.Getenv(insideVariable) == "" {
		t.Skip("runs inside a container, see TestWallsUnderSystemd")
	}
	for name, number := range standIns {
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(number)); err != nil && err != unix.EEXIST {
			t.Fatal(name, err)
		}
	}
	return raised(t)
}

func raised(t *testing.T) *inside {
	in := &inside{ledger: host.OpenLedger(t.TempDir())}
	in.start(t)
	t.Cleanup(func() {
		in.want(nil, nil)
		in.await(t, "everything torn down", func(r wallReport) bool { return len(r.states) == 0 && r.current })
		in.stop()
	})
	return in
}

// start starts the walls anew, as an agent that was restarted would.
func (in *inside) start(t *testing.T) {
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	in.walls = newWalls(root, in.ledger, slog.New(slog.DiscardHandler))
	in.grace = time.Second
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); in.run(ctx) }()
	in.stop = func() { cancel(); <-done }
}

// await waits for reports until one is as it should be.
func (in *inside) await(t *testing.T, what string, ok func(wallReport) bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !ok(in.state()) {
		select {
		case <-in.changed:
		case <-late:
			t.Fatalf("not within 20 s: %s; it is %+v", what, in.state())
		}
	}
}

func isUp(id string) func(wallReport) bool {
	return func(r wallReport) bool { return has(r, id) && r.states[id].String() == "up" }
}

func has(r wallReport, id string) bool { _, ok := r.states[id]; return ok }

func gpuBinding(id string, gpus ...string) wire.Binding {
	return wire.Binding{ReservationID: id, TenantID: "acme", Kind: "hold", Devices: devices(gpus...)}
}

var twoGPUs = []wire.GPU{{UUID: "GPU-a", Minor: 0}, {UUID: "GPU-b", Minor: 1}}

// command runs a program of the container to its end.
func command(t *testing.T, words ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func mustRun(t *testing.T, words ...string) string {
	t.Helper()
	out, err := command(t, words...)
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(words, " "), err, out)
	}
	return out
}

// tryAll is a script of its own, for systemd would take its dollar signs.
const tryAll = `for d in /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools; do
	if (exec 3<>$d) 2>/dev/null; then printf '%s ' ${d#/dev/}; fi
done
if mknod /root/escape c 10 200 2>/dev/null; then rm /root/escape; printf 'mknod '; fi
`

// opens lists the stand-ins that a service in a slice can open, and mknod if it
// can make one.
func opens(t *testing.T, slice string) string {
	t.Helper()
	if err := os.WriteFile("/root/try", []byte(tryAll), 0o600); err != nil {
		t.Fatal(err)
	}
	return mustRun(t, "systemd-run", "--quiet", "--wait", "--pipe", "--slice="+slice, "bash", "/root/try")
}

const (
	onlyFirst  = "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools"
	onlySecond = "nvidia1 nvidiactl nvidia-uvm nvidia-uvm-tools"
)

// A service in the slice opens the booked device and not its neighbour, and
// can make none; that stays so over a reload of systemd and a restart of the
// agent, and follows a changed binding.
func TestInsideOnlyBookedDevicesOpen(t *testing.T) {
	in := newInside(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up", isUp("res_1"))
	slice := sliceName("res_1")
	if got := opens(t, slice); got != onlyFirst {
		t.Fatalf("opens %q", got)
	}
	if got := opens(t, "system.slice"); got != "nvidia0 nvidia1 nvidiactl nvidia-uvm nvidia-uvm-tools mknod" {
		t.Fatalf("without a wall it opens %q: the stand-ins prove nothing", got)
	}
	id := mustRun(t, "systemctl", "show", "-p", "InvocationID", slice)

	mustRun(t, "systemctl", "daemon-reload")
	if got := opens(t, slice); got != onlyFirst {
		t.Errorf("after daemon-reload it opens %q", got)
	}
	if got := mustRun(t, "systemctl", "show", "--value", "-p", "NeedDaemonReload", slice); got != "no" {
		t.Errorf("systemd wants a reload: %s", got)
	}

	in.stop()
	in.start(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up again", isUp("res_1"))
	if got := mustRun(t, "systemctl", "show", "-p", "InvocationID", slice); got != id {
		t.Errorf("a restarted agent made the slice anew: %s, before %s", got, id)
	}

	in.want([]wire.Binding{gpuBinding("res_1", "GPU-b")}, twoGPUs)
	for deadline := time.Now().Add(20 * time.Second); opens(t, slice) != onlySecond; {
		if time.Now().After(deadline) {
			t.Fatalf("after the binding changed it opens %q", opens(t, slice))
		}
	}
	mustRun(t, "systemctl", "daemon-reload")
	if got := opens(t, slice); got != onlySecond {
		t.Errorf("after the change and daemon-reload it opens %q", got)
	}
}

// A wall that somebody opened is closed again when the walls are next looked at.
func TestInsideAnOpenedWallIsClosed(t *testing.T) {
	in := newInside(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up", isUp("res_1"))
	slice := sliceName("res_1")
	mustRun(t, "systemctl", "set-property", "--runtime", slice, "DeviceAllow=/dev/nvidia1 rw")
	if got := opens(t, slice); !strings.HasPrefix(got, "nvidia0 nvidia1 ") {
		t.Fatalf("the wall was not opened: %q", got)
	}
	in.stop()
	in.start(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up again", isUp("res_1"))
	if got := opens(t, slice); got != onlyFirst {
		t.Errorf("mended, it opens %q", got)
	}
}

// A wall that somebody stopped is raised again, also when a unit that failed
// in it keeps its name taken.
func TestInsideAStoppedWallIsRaised(t *testing.T) {
	in := newInside(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up", isUp("res_1"))
	slice := sliceName("res_1")
	if _, err := command(t, "systemd-run", "--quiet", "--wait", "--slice="+slice, "--unit=broken", "false"); err == nil {
		t.Fatal("false succeeded")
	}
	defer func() { _, _ = command(t, "systemctl", "reset-failed", "broken.service") }()
	mustRun(t, "systemctl", "stop", slice)
	in.stop()
	in.start(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up again", isUp("res_1"))
	if got := opens(t, slice); got != onlyFirst {
		t.Errorf("raised again, it opens %q", got)
	}
}

// The container has no cpuset and no memory controller, and systemd does not
// say so. The binding is not called enforced.
func TestInsideWhatIsNotInForceIsSaid(t *testing.T) {
	in := newInside(t)
	b := gpuBinding("res_1", "GPU-a")
	b.CPUs, b.MemoryGiB = "0", 1
	in.want([]wire.Binding{b}, twoGPUs)
	in.await(t, "up", func(r wallReport) bool { return has(r, "res_1") })
	s, _ := in.state().status("res_1")
	if s.Failed != "" || !s.Unenforced || !strings.Contains(s.Note, "CPUs are not limited") || !strings.Contains(s.Note, "memory is not limited") || strings.Contains(s.Note, "device") {
		t.Errorf("%+v", s)
	}
}

// A wall comes down in order: no new starts, SIGTERM, SIGKILL, then it waits for
// a process outside that still holds the device. Until then the device's next
// reservation has to wait.
func TestInsideTeardownWaitsForTheLastHolder(t *testing.T) {
	in := newInside(t)
	in.want([]wire.Binding{gpuBinding("res_1", "GPU-a")}, twoGPUs)
	in.await(t, "up", isUp("res_1"))
	slice := sliceName("res_1")
	if _, err := os.Stat(cdiFile("res_1")); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "systemd-run", "--quiet", "--slice="+slice, "--unit=stubborn",
		"--property=Type=notify", "--property=NotifyAccess=all", "bash", "-c", "trap '' TERM; systemd-notify --ready; while :; do sleep 1; done")
	holder := exec.Command("systemd-run", "--quiet", "--scope", "--slice=user.slice", "sleep", "300")
	device, err := os.OpenFile("/dev/nvidia0", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	holder.Stdin = device
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	device.Close()
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })

	began := time.Now()
	in.want([]wire.Binding{gpuBinding("res_2", "GPU-a"), gpuBinding("res_3", "GPU-b")}, twoGPUs)
	in.await(t, "the neighbour up beside it", isUp("res_3"))
	if s := in.state().states["res_1"]; !s.ending {
		t.Errorf("a service that ignores SIGTERM runs, and its wall is %s", s)
	}
	if _, err := os.Stat(cdiFile("res_1")); err == nil {
		t.Error("containers can still be given the devices")
	}
	in.await(t, "held from outside", func(r wallReport) bool {
		s := r.states["res_1"]
		return strings.Contains(s.held, "/dev/nvidia0 is held by ") && len(s.by) == 1 && !s.since.IsZero() &&
			s.by[0] == wire.Holder{PID: holder.Process.Pid, Command: "sleep", User: "root", Device: "/dev/nvidia0"}
	})
	if took := time.Since(began); took < in.grace {
		t.Errorf("the service was killed after %v, before its %v were over", took, in.grace)
	}
	if out, _ := command(t, "systemctl", "is-active", "stubborn.service"); out == "active" {
		t.Error("the service still runs")
	}
	in.await(t, "the next to wait", func(r wallReport) bool {
		return strings.Contains(r.states["res_2"].failed, "GPU-a is not free yet: reservation res_1 is ending")
	})

	// What was being taken down goes on so after a restart of the agent.
	in.stop()
	in.start(t)
	in.want([]wire.Binding{gpuBinding("res_2", "GPU-a"), gpuBinding("res_3", "GPU-b")}, twoGPUs)
	in.await(t, "held after a restart", func(r wallReport) bool { return strings.Contains(r.states["res_1"].held, "/dev/nvidia0") })

	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	in.await(t, "gone", func(r wallReport) bool { return !has(r, "res_1") })
	in.await(t, "the next up", isUp("res_2"))
	for _, left := range []string{cdiFile("res_1"), recordFile("res_1"), "/run/systemd/system.control/" + slice + ".d", "/sys/fs/cgroup/bc.slice/" + slice} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left", left)
		}
	}
	if out, _ := command(t, "systemctl", "is-active", slice); out == "active" {
		t.Errorf("%s is still active", slice)
	}
}
