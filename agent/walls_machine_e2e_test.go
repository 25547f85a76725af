//go:build e2e

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// The tests named TestMachine… run as root in a virtual machine (packaging/vm/vm)
// with a kernel of its own: two memory nodes of two CPUs each, cgroup v2 with all
// its controllers, and nothing on it that could be harmed.
const machineVariable = "BC_INSIDE_MACHINE"

// TestWallsInAMachine runs the tests named TestMachine… there.
func TestWallsInAMachine(t *testing.T) {
	if os.Getenv(machineVariable) != "" || os.Getenv(insideVariable) != "" {
		t.Skip("this is the machine")
	}
	vm, err := filepath.Abs("../packaging/vm/vm")
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := exec.Command(vm, "doctor").CombinedOutput(); err != nil || len(missing) > 0 {
		t.Skipf("a virtual machine cannot be had here: %s", missing)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(words ...string) string {
		t.Helper()
		cmd := exec.Command(vm, append([]string{"-n", "walls"}, words...)...)
		cmd.Env = append(os.Environ(), "BC_VM_MEM_PER_NODE=1536", "BC_VM_IOMMU=none") // small, and nothing it lacks
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("vm %s: %v\n%s", strings.Join(words, " "), err, out)
		}
		return string(out)
	}
	if os.Getenv("BC_KEEP_MACHINE") == "" {
		_ = exec.Command(vm, "-n", "walls", "stop", "--now").Run() // what an interrupted test left
		run("start", "--cold")
		t.Cleanup(func() { run("stop", "--now") })
	}
	run("push", self, "/root/")
	out := run("run", "--", "env", machineVariable+"=1", "/root/"+filepath.Base(self), "-test.run=^TestMachine", "-test.v", "-test.timeout=10m")
	t.Log(out)
	if n := strings.Count(out, "--- PASS: TestMachine"); n < 4 || strings.Contains(out, "--- SKIP") {
		t.Errorf("%d tests passed in the machine, want 4", n)
	}
}

func newMachine(t *testing.T) *inside {
	t.Helper()
	if os.Getenv(machineVariable) == "" {
		t.Skip("runs in a virtual machine, see TestWallsInAMachine")
	}
	return raised(t)
}

// spread is what a service in a slice may use: CPUs and memory nodes, as the
// kernel tells each process.
func spread(t *testing.T, slice string) string {
	t.Helper()
	return mustRun(t, "systemd-run", "--quiet", "--wait", "--pipe", "--slice="+slice,
		"sed", "-n", "s/^\\(Cpus\\|Mems\\)_allowed_list:\\s*/\\1 /p", "/proc/self/status")
}

func hostBinding(id, cpus, nodes string, memoryGiB int) wire.Binding {
	return wire.Binding{ReservationID: id, TenantID: "acme", Kind: "hold", CPUs: cpus, NUMANodes: nodes, MemoryGiB: memoryGiB}
}

// A reservation's programs have its CPUs, its memory node and its memory, and
// the host's own programs, those of a login and of a machine have the others, also
// over a reload of systemd. When it ends they have all again.
func TestMachineCPUsAreFencedBothWays(t *testing.T) {
	in := newMachine(t)
	before := mustRun(t, "systemctl", "show", "-p", "AllowedCPUs,DropInPaths", "system.slice", "user.slice", "machine.slice")
	in.want([]wire.Binding{hostBinding("res_1", "2-3", "1", 1)}, nil)
	in.await(t, "up", isUp("res_1"))
	for _, when := range []string{"at first", "after daemon-reload"} {
		for slice, want := range map[string]string{
			sliceName("res_1"): "Cpus 2-3\nMems 1", "system.slice": "Cpus 0-1\nMems 0-1", "user.slice": "Cpus 0-1\nMems 0-1", "machine.slice": "Cpus 0-1\nMems 0-1",
		} {
			if got := spread(t, slice); got != want {
				t.Errorf("%s, in %s: %q, want %q", when, slice, got, want)
			}
		}
		mustRun(t, "systemctl", "daemon-reload")
	}
	// Memory that is written to beyond what is booked ends the program.
	for megabytes, want := range map[string]bool{"700": true, "1300": false} {
		_, err := command(t, "systemd-run", "--quiet", "--wait", "--pipe", "--slice="+sliceName("res_1"), "dd", "if=/dev/zero", "of=/dev/null", "bs="+megabytes+"M", "count=1")
		if (err == nil) != want {
			t.Errorf("a program that fills %s MiB of 1 GiB: %v", megabytes, err)
		}
	}

	// A second one, the first still there: the host keeps a core, and says so.
	in.want([]wire.Binding{hostBinding("res_1", "2-3", "1", 1), hostBinding("res_2", "0-1", "0", 1)}, nil)
	in.await(t, "both up", func(r wallReport) bool {
		return has(r, "res_2") && strings.Contains(r.states["res_2"].note, "the host's own services need CPUs 0-1 too")
	})
	if got := spread(t, "system.slice"); got != "Cpus 0-1\nMems 0-1" {
		t.Errorf("with all CPUs booked, in system.slice: %q", got)
	}

	// A restarted agent takes the fence for its own.
	in.stop()
	in.start(t)
	in.want([]wire.Binding{hostBinding("res_2", "0-1", "0", 1)}, nil)
	in.await(t, "the first gone", func(r wallReport) bool { return has(r, "res_2") && !has(r, "res_1") })
	if got := spread(t, "user.slice"); got != "Cpus 2-3\nMems 0-1" {
		t.Errorf("after the first ended, in user.slice: %q", got)
	}
	in.want(nil, nil)
	in.await(t, "all gone", func(r wallReport) bool { return len(r.states) == 0 && r.current })
	for _, slice := range fencedSlices {
		if got := spread(t, slice); got != "Cpus 0-3\nMems 0-1" {
			t.Errorf("after the last ended, in %s: %q", slice, got)
		}
	}
	mustRun(t, "systemctl", "daemon-reload") // until then systemd remembers the path of a file that is gone
	if after := mustRun(t, "systemctl", "show", "-p", "AllowedCPUs,DropInPaths", "system.slice", "user.slice", "machine.slice"); after != before {
		t.Errorf("systemd is left with\n%s\nbefore it had\n%s", after, before)
	}
	if got := spread(t, "system.slice"); got != "Cpus 0-3\nMems 0-1" {
		t.Errorf("after the last ended and daemon-reload, in system.slice: %q", got)
	}
	events, err := in.ledger.History()
	if err != nil || len(events) < 6 || events[0].Change != "keep system.slice to CPUs 0-1" || events[len(events)-1].Change != "let machine.slice use every CPU again" {
		t.Errorf("%v; the history tells of %+v", err, events)
	}
}

// A slice that the operator gave CPUs is left alone, before the fence and after.
func TestMachineOperatorsCPUsAreLeftAlone(t *testing.T) {
	in := newMachine(t)
	mustRun(t, "systemctl", "set-property", "--runtime", "user.slice", "AllowedCPUs=0-2")
	defer mustRun(t, "systemctl", "revert", "user.slice")
	in.want([]wire.Binding{hostBinding("res_1", "2-3", "", 0)}, nil)
	in.await(t, "up, and said", func(r wallReport) bool {
		return has(r, "res_1") && strings.Contains(r.states["res_1"].note, "user.slice is left as its operator set it (AllowedCPUs=0-2)")
	})
	for slice, want := range map[string]string{"user.slice": "Cpus 0-2", "system.slice": "Cpus 0-1"} {
		if got, _, _ := strings.Cut(spread(t, slice), "\n"); got != want {
			t.Errorf("in %s: %q, want %q", slice, got, want)
		}
	}
	// Set while the fence is up, it is the operator's from then on.
	mustRun(t, "systemctl", "set-property", "--runtime", "machine.slice", "AllowedCPUs=0-3")
	defer mustRun(t, "systemctl", "revert", "machine.slice")
	in.want([]wire.Binding{hostBinding("res_1", "3", "", 0)}, nil)
	in.await(t, "the other said too", func(r wallReport) bool {
		return strings.Contains(r.states["res_1"].note, "machine.slice is left as its operator set it")
	})
	in.want(nil, nil)
	in.await(t, "all gone", func(r wallReport) bool { return len(r.states) == 0 && r.current })
	for slice, want := range map[string]string{"user.slice": "Cpus 0-2", "machine.slice": "Cpus 0-3", "system.slice": "Cpus 0-3"} {
		if got, _, _ := strings.Cut(spread(t, slice), "\n"); got != want {
			t.Errorf("at the end, in %s: %q, want %q", slice, got, want)
		}
	}
}

// mapHuge asks for huge pages of 2Mi as a program does, and says if it got them.
func mapHuge(t *testing.T, slice string, pages int) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return mustRun(t, "systemd-run", "--quiet", "--wait", "--pipe", "--slice="+slice,
		"--setenv="+hugeVariable+"="+fmt.Sprint(pages), self)
}

// A reservation gets the huge pages that it has booked and not one more, and
// one that has booked none gets none; the agent mends what somebody changed.
func TestMachineHugePagesAreLimited(t *testing.T) {
	in := newMachine(t)
	const pool = "/proc/sys/vm/nr_hugepages"
	if err := os.WriteFile(pool, []byte("40"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(pool, []byte("0"), 0)
	some, none := hostBinding("res_1", "2", "", 0), hostBinding("res_2", "3", "", 0)
	some.Hugepages2Mi = 16
	in.want([]wire.Binding{some, none}, nil)
	in.await(t, "up", func(r wallReport) bool { return isUp("res_1")(r) && isUp("res_2")(r) })
	check := func(when string) {
		t.Helper()
		for _, c := range []struct {
			slice string
			pages int
			want  string
		}{
			{sliceName("res_1"), 16, "got them"}, {sliceName("res_1"), 17, "cannot allocate memory"},
			{sliceName("res_2"), 1, "cannot allocate memory"}, {"system.slice", 17, "got them"},
		} {
			if got := mapHuge(t, c.slice, c.pages); got != c.want {
				t.Errorf("%s, %d pages in %s: %q, want %q", when, c.pages, c.slice, got, c.want)
			}
		}
	}
	check("at first")
	mustRun(t, "systemctl", "daemon-reload")
	mustRun(t, "systemctl", "set-property", "--runtime", sliceName("res_1"), "MemoryMax=1G")
	check("after systemd wrote to the cgroup")

	file := "/sys/fs/cgroup/bc.slice/" + sliceName("res_2") + "/hugetlb.2MB.rsvd.max"
	if err := os.WriteFile(file, []byte("max"), 0); err != nil {
		t.Fatal(err)
	}
	in.stop()
	in.start(t)
	in.want([]wire.Binding{some, none}, nil)
	in.await(t, "up again", func(r wallReport) bool { return isUp("res_1")(r) && isUp("res_2")(r) })
	check("after a limit was lifted and the agent came again")
}

// What restores a machine whose agent is gone takes the walls down with what
// runs behind them, and the fence.
func TestMachineRestoredWithoutAnAgent(t *testing.T) {
	in := newMachine(t)
	in.want([]wire.Binding{hostBinding("res_1", "2-3", "1", 1)}, nil)
	in.await(t, "up", isUp("res_1"))
	mustRun(t, "systemd-run", "--quiet", "--unit=left", "--slice="+sliceName("res_1"), "sleep", "600")
	in.stop()
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := RemoveWalls(t.Context(), root, in.ledger, func(string, string) {}); err != nil {
		t.Error(err)
	}
	if out, _ := command(t, "systemctl", "is-active", "left.service", sliceName("res_1")); strings.Contains(out, "\nactive") || strings.HasPrefix(out, "active") {
		t.Errorf("after %v it still runs: %s", time.Since(began), out)
	}
	if got := spread(t, "system.slice"); got != "Cpus 0-3\nMems 0-1" {
		t.Errorf("in system.slice: %q", got)
	}
	if left, _ := filepath.Glob(recordDir + "/*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	in.start(t) // for the cleanup
}
