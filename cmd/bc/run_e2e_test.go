//go:build e2e

package main_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/gpu/gputest"
)

// container is a throw-away Debian with systemd as PID 1 on which the product
// runs over an NVML library of four GPUs, whose device nodes are stand-ins:
// character devices of the kernel that a closed device policy does not allow.
type container struct{ ct string }

func startContainer(t *testing.T) container {
	t.Helper()
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
	dir := t.TempDir()
	program := filepath.Join(dir, "bc")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	c := container{ct}
	c.do("stop", "--now") // what an interrupted test left
	if _, out := c.do("start"); c.status(t, "is-system-running") != "running" {
		t.Fatal(out)
	}
	t.Cleanup(func() { c.do("stop", "--now") })
	for _, file := range []string{program, m.Library, m.Path} {
		if code, out := c.do("push", file, "/root/"); code != 0 {
			t.Fatal(out)
		}
	}
	c.must(t, "bash", "-euc", `cd /dev
		mknod nvidia0 c 10 229; mknod nvidia1 c 10 200; mknod nvidia2 c 10 183; mknod nvidia3 c 10 258
		mknod nvidiactl c 1 11; mknod nvidia-uvm c 10 235; mknod nvidia-uvm-tools c 10 237; chmod 666 nvidia*
		useradd --create-home alice; chmod 755 /root; ln -s /root/bc /usr/local/bin/bc
		systemd-run --quiet --unit=product bc up --manage-host --state-dir /root/state --nvml-library /root/`+filepath.Base(m.Library)+`
		export BC_SERVER=unix:/root/state/api.sock
		for i in {1..100}; do bc nodes list -o json 2>/dev/null | grep -q '"ready"' && exit; sleep 0.2; done
		bc nodes list -o json; journalctl -u product --no-pager; exit 1`)
	return c
}

// do runs a command of ct and answers its exit status and output.
func (c container) do(words ...string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, c.ct, append([]string{"-n", "run"}, words...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode(), strings.TrimSpace(out.String())
	case err != nil:
		return -1, err.Error()
	}
	return 0, strings.TrimSpace(out.String())
}

// run runs a program in the container, as root with the product's address.
func (c container) run(words ...string) (int, string) {
	return c.do(append([]string{"run", "env", "BC_SERVER=unix:/root/state/api.sock", "BC_TENANT=local"}, words...)...)
}

func (c container) must(t *testing.T, words ...string) string {
	t.Helper()
	code, out := c.run(words...)
	if code != 0 {
		t.Fatalf("%s: exit status %d\n%s", strings.Join(words, " "), code, out)
	}
	return out
}

func (c container) status(t *testing.T, what string) string {
	t.Helper()
	_, out := c.run("systemctl", what)
	return out
}

// tell says where a command is and what it can open.
const tell = `echo "sees $(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c GPU-)"
	echo "in $(sed -n 's|^0::||p' /proc/self/cgroup | cut -d/ -f2,3 | sed 's/res_[^.]*/ID/')"
	n=0; for d in /dev/nvidia[0-9]; do if (exec 3<$d) 2>/dev/null; then n=$((n+1)); fi; done; echo "opens $n"; `

func TestRunUnderSystemd(t *testing.T) {
	c := startContainer(t)
	if _, out := c.run("bash", "-c", tell); !strings.Contains(out, "opens 4") {
		t.Fatalf("without a wall: %s: the stand-ins prove nothing", out)
	}

	t.Run("reserves, runs, passes the status on and releases", func(t *testing.T) {
		code, out := c.run("bc", "run", "--gpus", "2", "--for", "1h", "--", "bash", "-c", tell+"exit 7")
		if code != 7 {
			t.Errorf("exit status %d, want 7", code)
		}
		for _, want := range []string{"sees 2", "in bc.slice/bc-ID.slice", "opens 2", "is released"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
		if out := c.must(t, "bc", "reservations", "list", "-o", "name"); out != "" {
			t.Errorf("still booked: %s", out)
		}
	})

	t.Run("runs in a reservation that is there, as the caller of sudo", func(t *testing.T) {
		c.must(t, "bc", "reservations", "create", "--gpus", "1", "--name", "mine", "--wait")
		code, out := c.run("env", "SUDO_UID=1000", "SUDO_USER=alice", "bc", "run", "-r", "mine", "--", "bash", "-c", tell+"echo I am $(id -un) $(id -Gn) at $HOME, ${SUDO_UID-none}")
		for _, want := range []string{"sees 1", "in bc.slice/bc-ID.slice", "opens 1", "I am alice alice at /home/alice, none"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("exit status %d; %q is not in\n%s", code, want, out)
			}
		}
		id := c.must(t, "bc", "reservations", "list", "-o", "name")
		if code, out := c.run("env", "BC_SERVER=unix:/nowhere", "bc", "run", "-r", id, "--", "echo", "there"); code != 0 || out != "there" {
			t.Errorf("by its id, without a control plane: %d, %s", code, out)
		}
		c.must(t, "bc", "reservations", "release", "mine")
		c.must(t, "bash", "-c", `for i in {1..100}; do test -e /sys/fs/cgroup/bc.slice/bc-res_*.slice || exit 0; sleep 0.1; done; exit 1`)
		if code, out := c.run("bc", "run", "-r", id, "--", "true"); code != 4 || !strings.Contains(out, "is ended, not active") {
			t.Errorf("after the release: exit status %d, %s", code, out)
		}
	})

	t.Run("passes signals on and releases", func(t *testing.T) {
		code, out := c.run("bash", "-c", `bc run --gpus 1 -- bash -c 'trap "exit 9" TERM; touch /root/trapped; while :; do sleep 0.1; done' & run=$!
			until test -e /root/trapped; do sleep 0.1; done; kill -TERM $run; wait $run`)
		if code != 9 || !strings.Contains(out, "is released") {
			t.Errorf("exit status %d, want 9\n%s", code, out)
		}
		if out := c.must(t, "bc", "reservations", "list", "-o", "name"); out != "" {
			t.Errorf("still booked: %s", out)
		}
	})

	t.Run("refuses a caller who is not root", func(t *testing.T) {
		code, out := c.run("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "bc", "run", "--gpus", "1", "--", "true")
		if code != 5 || !strings.Contains(out, "sudo bc run") {
			t.Errorf("exit status %d, %s", code, out)
		}
	})

	t.Run("says when there is no such program", func(t *testing.T) {
		code, out := c.run("bc", "run", "--gpus", "1", "--", "no-such-program")
		if code != 127 || !strings.Contains(out, "no-such-program: executable file not found") || !strings.Contains(out, "is released") {
			t.Errorf("exit status %d, %s", code, out)
		}
	})
}
