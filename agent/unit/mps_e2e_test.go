//go:build e2e && cgo

package unit_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// The unit bc-mps@.service runs here under real systemd, in a container
// (packaging/vm/ct), with the agent that starts and stops it. Stand-ins for the
// driver's programs are scripts: nvidia-smi sets the compute mode in the state
// file that the NVML library of testdata/nvml shows.
const insideVariable = "BC_INSIDE_CONTAINER"

const nvmlDir = "/root/nvml"

const nvidiaSMI = `#!/bin/sh
# nvidia-smi -i UUID -c MODE
case $4 in EXCLUSIVE_PROCESS) mode=3 ;; DEFAULT) mode=0 ;; *) exit 2 ;; esac
state=/root/nvml/nvml.state
exec 9>$state.lock
flock 9
device=$(sed -n "s/^device \([0-9]*\) uuid $2\$/\1/p" $state)
[ -n "$device" ] || exit 6
{ grep -v "^device $device compute-mode " $state; echo "device $device compute-mode $mode"; } >$state.smi
mv $state.smi $state
`

// The daemon takes a while until it listens, as the real one does.
const mpsControl = `#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" != -f ]; then
  [ -p $pipe ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
  cat >$pipe
  exit
fi
[ -e /root/broken ] && exit 3
sleep 0.7
mkfifo $pipe
exec 3<>$pipe
echo "devices $CUDA_VISIBLE_DEVICES" >>$CUDA_MPS_LOG_DIRECTORY/heard
while read -r line <&3; do
  [ "$line" = quit ] && exit 0
  echo "$line" >>$CUDA_MPS_LOG_DIRECTORY/heard
done
`

func TestMPSUnderSystemd(t *testing.T) {
	if os.Getenv(insideVariable) != "" {
		t.Skip("this is the container")
	}
	if os.Geteuid() != 0 {
		t.Skip("a container with systemd needs root")
	}
	ct, err := filepath.Abs("../../packaging/vm/ct")
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := exec.Command(ct, "doctor").CombinedOutput(); err != nil || len(missing) > 0 {
		t.Skipf("a container with systemd cannot be had here: %s", missing)
	}
	m := gputest.State(t, "l40s-4")
	m.SetMachine("devices", "2")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(words ...string) string {
		t.Helper()
		out, err := exec.Command(ct, append([]string{"-n", "mps"}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ct %s: %v\n%s", strings.Join(words, " "), err, out)
		}
		return string(out)
	}
	_ = exec.Command(ct, "-n", "mps", "stop", "--now").Run() // what an interrupted test left
	run("start")
	t.Cleanup(func() { run("stop", "--now") })
	run("run", "mkdir", "-p", nvmlDir)
	run("push", m.Library, nvmlDir)
	run("push", m.Path, nvmlDir)
	run("push", self, "/root")
	run("push", write("nvidia-smi", nvidiaSMI), "/usr/bin")
	run("push", write("nvidia-cuda-mps-control", mpsControl), "/usr/bin")
	run("push", "../../packaging/systemd/bc-mps@.service", "/etc/systemd/system")
	run("run", "systemctl", "daemon-reload")
	out := run("run", "env", insideVariable+"=1", "/root/"+filepath.Base(self), "-test.run=^TestInsideMPS$", "-test.v", "-test.timeout=3m")
	if !strings.Contains(out, "--- PASS: TestInsideMPS") {
		t.Error(out)
	}
}

func systemctl(t *testing.T, words ...string) string {
	t.Helper()
	out, _ := exec.Command("systemctl", words...).CombinedOutput() // is-active fails for one that is not
	return strings.TrimSpace(string(out))
}

func TestInsideMPS(t *testing.T) {
	if os.Getenv(insideVariable) == "" {
		t.Skip("runs inside a container, see TestMPSUnderSystemd")
	}
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	r := &unit.Runner{
		Machine: host.NewMachine(root), Ledger: host.OpenLedger(t.TempDir()), GPUs: gpu.Open(nvmlDir + "/libnvidia-ml.so.1"),
		Manage: true, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
	sync := func(text string) []wire.UnitStatus {
		return r.Sync(t.Context(), wire.NodeSpec{Generation: 1, Units: units(t, text)})
	}
	modes := func(want string) {
		t.Helper()
		for _, g := range r.GPUs.States(t.Context()).GPUs {
			if g.ComputeMode != want {
				t.Errorf("GPU %s has compute mode %s, want %s", g.UUID, g.ComputeMode, want)
			}
		}
	}
	uuid := r.GPUs.States(t.Context()).GPUs[0].UUID
	service := "bc-mps@" + uuid + ".service"

	wantStatus(t, sync(`{"gpu-sharing":{"mode":"mps","replicas":10}}`), wire.InSync, "MPS daemon")
	modes("exclusiveProcess")
	heard, _ := root.String("/var/log/better-compute-mps/" + uuid + "/heard")
	want := "devices " + uuid + "\nset_default_active_thread_percentage 10\nset_default_device_pinned_mem_limit 0 4606M"
	if heard != want {
		t.Errorf("the daemon heard %q, want %q", heard, want)
	}

	// A daemon that dies is started again, with its limits.
	systemctl(t, "kill", "--kill-whom=main", "--signal=KILL", service)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) { // systemctl tells of no restart
		if systemctl(t, "show", "--property=NRestarts,ActiveState", service) == "NRestarts=1\nActiveState=active" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(systemctl(t, "status", service))
		}
	}
	modes("exclusiveProcess")
	if heard, _ := root.String("/var/log/better-compute-mps/" + uuid + "/heard"); heard != want+"\n"+want {
		t.Errorf("the daemon that came back heard %q", heard)
	}
	wantStatus(t, sync(`{"gpu-sharing":{"mode":"mps","replicas":10}}`), wire.InSync)

	// Nothing of it is left when it is no longer wanted.
	sync(`{}`)
	modes("default")
	if state := systemctl(t, "is-active", service); state != "inactive" {
		t.Errorf("removed, its unit is %s", state)
	}
	if left := root.Glob("/etc/better-compute/mps/*"); len(left) > 0 || len(r.Ledger.Units(host.Priors)) > 0 {
		t.Errorf("removed, %v is left", left)
	}

	// A daemon that does not start leaves the GPU open.
	if err := os.WriteFile("/root/broken", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, sync(`{"gpu-sharing":{"mode":"mps","replicas":10}}`), wire.Failed, service)
	systemctl(t, "stop", "bc-mps@*.service") // systemd goes on trying
	modes("default")
}
