//go:build e2e

package packaging_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/gpu/gputest"
)

// The tests of the machine_ files boot a Debian 12 of their own in a virtual
// machine (vm/vm): its own kernel, boot loader, two NUMA nodes, cpufreq and
// IOMMU. The package is installed on it as a person would, with two stand-ins
// for GPUs: NVML is testdata/nvml, and the device nodes are character devices
// of the kernel that no closed device policy allows by itself.

// Emulation on a machine that others use is slow: limits are for noticing that
// nothing goes on any more, not for being fast.
const (
	bootLimit = 15 * time.Minute // of one boot
	stepLimit = 10 * time.Minute // of one thing that is waited for
)

// bootMachine starts a clean machine by its firmware and boot loader, with the
// package and the stand-ins on it, and nothing installed.
func bootMachine(t *testing.T, name string) *machine {
	t.Helper()
	if missing := output("vm/vm", "doctor"); missing != "" {
		t.Skip("no virtual machine can be had here: ", missing)
	}
	built, _ := filepath.Glob("../dist/better-compute*.deb")
	if len(built) != 1 {
		t.Fatalf("dist/ has %d .deb, want 1: make package", len(built))
	}
	stand := gputest.State(t, "l40s-4")
	stand.SetMachine("devices", "2")
	for i, address := range []string{"0000:21:00.0", "0000:41:00.0"} { // the stand-ins of vm, one a node
		stand.Set(i, "pci", address)
		stand.Set(i, "numa", strconv.Itoa(i))
	}

	m := &machine{t: t, tool: "vm/vm", name: name, env: append(os.Environ(),
		"BC_VM_MEM_PER_NODE=6144", fmt.Sprintf("BC_VM_BOOT_LIMIT=%d", int(bootLimit.Seconds())))}
	_, _ = m.harness("stop", "--now") // what an interrupted test left
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := m.try("journalctl -b --no-pager -o short-monotonic -u 'bc-*' -u bcd -u better-compute | tail -n 60")
			t.Log(out)
			log, _ := m.harness("log")
			t.Log(log[max(0, len(log)-2000):])
		}
		if out, err := m.harness("stop", "--now"); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
		}
	})
	began := time.Now()
	if out, err := m.harness("start", "--cold"); err != nil {
		if os.Geteuid() != 0 && strings.Contains(out, "needs root") {
			t.Skip("the image is not there yet, and building it needs root")
		}
		t.Fatalf("start: %v\n%s", err, out)
	}
	m.note("boot", "%s; %s; in %s", m.sh("uname -srv"), m.sh(". /etc/os-release; echo $PRETTY_NAME"), since(began))
	m.sh("mkdir -p /root/bc")
	for _, file := range []string{built[0], stand.Library, stand.Path, "testdata/machine/gpu-stand-ins.service", "testdata/machine/state"} {
		if out, err := m.harness("push", file, "/root/bc/"); err != nil {
			t.Fatalf("push %s: %v\n%s", file, err, out)
		}
	}
	m.sh(`cd /root/bc; cp gpu-stand-ins.service /etc/systemd/system; systemctl enable -q --now gpu-stand-ins
		mkdir /usr/local/lib/nvml; cp libnvidia-ml.so.1 ` + filepath.Base(stand.Path) + ` /usr/local/lib/nvml`)
	return m
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }

// note writes what was measured where the record of docs/e2e.md is made from.
func (m *machine) note(step, format string, args ...any) {
	m.t.Logf("RECORD %s: %s", step, fmt.Sprintf(format, args...))
}

// within waits until a script succeeds, for as long as something may take on a
// slow machine.
func (m *machine) within(limit time.Duration, script string) {
	m.t.Helper()
	out, err := m.try(fmt.Sprintf("end=$((SECONDS + %d)); until (%s) >/tmp/within 2>&1; do if ((SECONDS > end)); then cat /tmp/within; exit 1; fi; sleep 1; done", int(limit.Seconds()), script))
	if err != nil {
		m.t.Fatalf("not within %v: %s\n%s", limit, script, out)
	}
}

// reboot reboots as an operator does, and waits.
func (m *machine) reboot(how ...string) {
	m.t.Helper()
	began := time.Now()
	if out, err := m.harness(append([]string{"reboot"}, how...)...); err != nil {
		m.t.Fatalf("reboot: %v\n%s", err, out)
	}
	m.note("reboot", "%s", since(began))
}

// unitStatus is how a config unit stands, as nodes.get answers.
type unitStatus struct{ Kind, State, Reason, Wanted, Got string }

// node is the machine as its control plane knows it.
type node struct {
	ID, State  string
	Conditions []struct {
		Type, Reason, Message string
		Status                bool
	}
	Units []unitStatus
}

func (m *machine) node() node {
	m.t.Helper()
	var n node
	out := m.sh("bc nodes get " + hostname + " -o json")
	if err := json.Unmarshal([]byte(out), &n); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return n
}

const hostname = "bcvm"

// units waits until the config units stand as wanted, kind: state, and until
// there are no others.
func (m *machine) units(want map[string]string) map[string]unitStatus {
	m.t.Helper()
	began := time.Now()
	for {
		got := map[string]unitStatus{}
		fits := true
		for _, u := range m.node().Units {
			got[u.Kind] = u
			fits = fits && want[u.Kind] == u.State
		}
		if fits && len(got) == len(want) {
			for kind, u := range got {
				m.note("unit "+kind, "%s after %s; wanted %s; got %s; %s", u.State, since(began), u.Wanted, u.Got, u.Reason)
			}
			return got
		}
		if time.Since(began) > stepLimit {
			m.t.Fatalf("the units are not %v within %v, but %+v", want, stepLimit, got)
		}
		time.Sleep(2 * time.Second)
	}
}

// fact reads something of the machine that must be as wanted, and records it.
func (m *machine) fact(want, script string) {
	m.t.Helper()
	got := m.sh(script)
	if got != want {
		m.t.Errorf("%s:\ngot  %q\nwant %q", script, got, want)
	}
	m.note("fact", "`%s` says `%s`", script, strings.ReplaceAll(got, "\n", " "))
}

// policy changes fields of the pool's policy: FIELD=VALUE, or FIELD to take it
// out.
func (m *machine) policy(fields ...string) {
	m.t.Helper()
	command := "bc pools update l40s --yes"
	for _, f := range fields {
		flag := " --set "
		if !strings.Contains(f, "=") {
			flag = " --unset "
		}
		command += flag + "'" + f + "'"
	}
	m.sh(command)
	m.note("policy", "`%s`", strings.Join(fields, "`, `"))
}
