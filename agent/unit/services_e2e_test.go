//go:build e2e

package unit_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// The tests of this file run on a throw-away Debian with systemd as PID 1
// (packaging/vm/ct), with the program and its static units installed. The
// container cannot write to the kernel, so files stand in for cpufreq and for
// the pools of huge pages; the service below puts them there at each boot, as a
// kernel would.
const (
	insideServices = "BC_UNIT_INSIDE_CONTAINER"
	standIns       = `[Unit]
DefaultDependencies=no
After=local-fs.target
Before=bc-kernel-modules.service bc-hugepages.service sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'cp -r /root/fresh/. /run/fake/ && mount --bind /run/fake/cpu /sys/devices/system/cpu && mount --bind /run/fake/hugepages /sys/kernel/mm/hugepages && mount --bind /run/fake/node /sys/devices/system/node'
RuntimeDirectory=fake
[Install]
WantedBy=sysinit.target
`
)

func TestServicesUnderSystemd(t *testing.T) {
	if os.Getenv(insideServices) != "" {
		t.Skip("this is the container")
	}
	if os.Geteuid() != 0 {
		t.Skip("a container with systemd needs root")
	}
	vm, err := filepath.Abs("../../packaging/vm/ct")
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := exec.Command(vm, "doctor").CombinedOutput(); err != nil || len(missing) > 0 {
		t.Skipf("a container with systemd cannot be had here: %s", missing)
	}
	ct := func(words ...string) string {
		t.Helper()
		out, err := exec.Command(vm, append([]string{"-n", "units"}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ct %s: %v\n%s", strings.Join(words, " "), err, out)
		}
		return string(out)
	}
	sh := func(script string) string { t.Helper(); return ct("run", "--", "sh", "-ec", script) }
	_ = exec.Command(vm, "-n", "units", "stop", "--now").Run() // what an interrupted test left

	stage := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(stage, "better-compute"), "../../cmd/bc")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	fresh := map[string]string{
		"cpu/present": "0-1", "cpu/online": "0-1",
		"cpu/cpufreq/policy0/affected_cpus": "0 1", "cpu/cpufreq/policy0/scaling_driver": "acpi-cpufreq",
		"cpu/cpufreq/policy0/scaling_governor": "schedutil", "cpu/cpufreq/policy0/scaling_available_governors": "performance schedutil",
		"hugepages/hugepages-2048kB/nr_hugepages": "0", "hugepages/hugepages-2048kB/free_hugepages": "8", // all that there will be
		"hugepages/hugepages-2048kB/surplus_hugepages": "0", "node/online": "0",
	}
	for name, text := range fresh {
		file := filepath.Join(stage, "fresh", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(stage, "stand-ins.service"), []byte(standIns), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ct("start")
	t.Cleanup(func() { ct("stop", "--now") })
	for _, file := range []string{self, filepath.Join(stage, "better-compute"), filepath.Join(stage, "fresh"), filepath.Join(stage, "stand-ins.service"), "../../packaging/systemd"} {
		ct("push", file, "/root/")
	}
	sh(`mv /root/better-compute /usr/bin && ln -s better-compute /usr/bin/bcd
		d=/usr/lib/systemd/system; cp /root/systemd/bc-*.service $d; cp /root/stand-ins.service /etc/systemd/system
		mkdir -p $d/sysinit.target.wants $d/multi-user.target.wants
		for u in kernel-modules hugepages; do ln -s ../bc-$u.service $d/sysinit.target.wants; done
		for u in cpu iommu mig-layout gpu-settings gpu-sharing; do ln -s ../bc-$u.service $d/multi-user.target.wants; done
		systemctl daemon-reload && systemctl enable --now stand-ins`)

	out := ct("run", "env", insideServices+"=1", "/root/"+filepath.Base(self), "-test.run=^TestInsideServices$", "-test.v", "-test.timeout=3m")
	t.Log(out)
	if !strings.Contains(out, "--- PASS: TestInsideServices") {
		t.Fatal("nothing passed inside")
	}

	// A boot without any agent and control plane brings the same machine.
	id := strings.TrimSpace(ct("boot-id"))
	_ = exec.Command(vm, "-n", "units", "run", "systemctl", "reboot").Run() // the connection ends with the machine
	for try := 1; ; try++ {                                                 // the harness gives up on a machine that is going down
		out, err := exec.Command(vm, "-n", "units", "wait", id).CombinedOutput()
		if err == nil {
			break
		}
		if try == 20 {
			t.Fatalf("no boot follows: %v\n%s", err, out)
		}
		time.Sleep(500 * time.Millisecond)
	}
	got := sh(`cat /sys/devices/system/cpu/cpufreq/policy0/scaling_governor /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
		systemctl is-active bc-cpu bc-hugepages; systemctl --no-legend list-units --state=failed`)
	if want := "performance\n8\nactive\nactive\n"; got != want {
		t.Errorf("after the boot: %q, want %q\n%s", got, want, sh("journalctl -b --no-pager -u 'bc-*' -u stand-ins"))
	}
	// One that was never wanted is skipped, and that is no failure.
	if got := sh(`systemctl show -p ConditionResult -p Result bc-mig-layout`); got != "ConditionResult=no\nResult=success\n" && got != "Result=success\nConditionResult=no\n" {
		t.Errorf("bc-mig-layout: %q", got)
	}
}

func TestInsideServices(t *testing.T) {
	if os.Getenv(insideServices) == "" {
		t.Skip("runs in the container of TestServicesUnderSystemd")
	}
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	r := &unit.Runner{
		Machine: host.NewMachine(root), Ledger: host.OpenLedger(unit.InstalledStateDir), Manage: true, Services: true,
		Now: time.Now, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	sync := func(u wire.Units) []wire.UnitStatus {
		return r.Sync(context.Background(), wire.NodeSpec{Generation: 3, Units: u})
	}
	const governor = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
	want := wire.Units{CPU: &wire.CPU{Governor: "performance"}, Hugepages: &wire.Hugepages{SizeKiB: 2048, Count: 8}}
	for _, s := range sync(want) {
		if s.State != wire.InSync || s.Reason != "" {
			t.Errorf("%+v", s)
		}
	}
	if !r.Machine.UnitActive(context.Background(), "bc-cpu.service") {
		t.Error("systemd says that bc-cpu.service is not active")
	}
	if err := os.WriteFile(governor, []byte("schedutil\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s := sync(want)[1]; s.State != wire.InSync {
		t.Errorf("after drift: %+v", s)
	}
	if now, _ := root.String(governor); now != "performance" {
		t.Errorf("after drift the governor is %s", now)
	}

	// What fails in the unit is its status here, and systemd shows it too.
	many := wire.Units{CPU: want.CPU, Hugepages: &wire.Hugepages{SizeKiB: 2048, Count: wire.MaxHugepages}}
	if s := sync(many)[0]; s.State != wire.Failed || !strings.Contains(s.Reason, "at most") {
		t.Errorf("more pages than there is memory: %+v", s)
	}
	out, _ := exec.Command("systemctl", "status", "--no-pager", "bc-hugepages").CombinedOutput() // 3: it failed
	if !strings.Contains(string(out), "at most") {
		t.Errorf("systemctl status bc-hugepages:\n%s", out)
	}

	sync(wire.Units{})
	if now, _ := root.String(governor); !strings.HasPrefix(now, "schedutil\n") { // a file keeps the rest of a longer text
		t.Errorf("removed, the governor is %s", now)
	}
	for _, s := range sync(want) { // for the boot that follows
		if s.State != wire.InSync {
			t.Errorf("%+v", s)
		}
	}
}
