//go:build e2e

package packaging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// These tests install the packages in dist/ on throw-away Debian machines
// with systemd as PID 1 (vm/ct), beside the real calculator. Each starts from a
// clean one.

// packages is a folder with what the machines install: old and new of ours, and
// the calculator, as .deb and .rpm. The .rpm of the calculator holds Debian's
// program, and system.rpm stands for what a Debian has no .rpm of.
var packages string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		defer func() { os.RemoveAll(packages) }()
		return m.Run()
	}())
}

// prepared fills packages for the first test that asks.
var prepared = sync.OnceValues(prepare)

// prepare fills packages, or says why it cannot be done here.
func prepare() (string, error) {
	if os.Geteuid() != 0 {
		return "it needs root", nil
	}
	if missing := output("vm/ct", "doctor"); missing != "" {
		return missing, nil
	}
	var err error
	if packages, err = os.MkdirTemp("", "bc-packages-"); err != nil {
		return "", err
	}
	for _, kind := range []string{"deb", "rpm"} {
		built, _ := filepath.Glob("../dist/better-compute*." + kind)
		if len(built) != 1 {
			return "", fmt.Errorf("dist/ has %d .%s, want 1: make package", len(built), kind)
		}
		if err := command("cp", built[0], packages+"/old."+kind); err != nil {
			return "", err
		}
	}
	if err := calculatorDeb(); err != nil {
		return "the calculator's package cannot be had: " + err.Error(), nil
	}
	if err := command("dpkg-deb", "-x", packages+"/bc.deb", packages+"/bc"); err != nil {
		return "", err
	}
	glibc := regexp.MustCompile(`libc6 \(>= ([0-9.]+)\)`).FindStringSubmatch(output("dpkg-deb", "-f", packages+"/old.deb", "Depends"))
	if glibc == nil {
		return "", errors.New("the .deb depends on no libc6")
	}
	os.Setenv("GLIBC", glibc[1])
	os.Setenv("PACKAGE_VERSION", "999")
	pack := func(kind, config, name string) error {
		cmd := exec.Command("go", "tool", "-modfile=.tools.mod", "nfpm", "package", "--packager", kind, "--config", config, "--target", packages+"/"+name)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nfpm: %w: %s", err, out)
		}
		return nil
	}
	system, calculator := packages+"/system.yaml", packages+"/bc.yaml"
	return "", errors.Join(
		os.WriteFile(system, []byte("name: system\narch: amd64\nversion: 1.0.0\nprovides: [systemd = 252, glibc = 2.36, /bin/sh]\n"), 0o644),
		os.WriteFile(calculator, []byte("name: bc\narch: amd64\nversion: 1.0.0\ncontents: [{src: "+packages+"/bc/usr/bin/bc, dst: /usr/bin/bc}]\n"), 0o644),
		pack("deb", "packaging/nfpm.yaml", "new.deb"),
		pack("rpm", "packaging/nfpm.yaml", "new.rpm"),
		pack("rpm", system, "system.rpm"),
		pack("rpm", calculator, "bc.rpm"),
	)
}

// cache is where vm/ct keeps images and machines.
func cache() string {
	if dir := os.Getenv("BC_VM_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "bc-vm")
}

// calculatorDeb fetches Debian's package once and keeps it with the images.
func calculatorDeb() error {
	dir := filepath.Join(cache(), "debs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kept, _ := filepath.Glob(dir + "/bc_*.deb")
	if len(kept) == 0 {
		cmd := exec.Command("apt-get", "download", "-q", "bc")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get download bc: %w: %s", err, out)
		}
		if kept, _ = filepath.Glob(dir + "/bc_*.deb"); len(kept) == 0 {
			return errors.New("apt-get download bc left nothing")
		}
	}
	return command("cp", kept[len(kept)-1], packages+"/bc.deb")
}

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).Output()
	return strings.TrimSpace(string(out))
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// machine is a running Debian.
type machine struct {
	t    *testing.T
	tool string // vm/ct or vm/vm, which have the same commands
	name string
	env  []string
}

const debian11, debian12 = "bullseye", "bookworm"

// boot starts a clean machine, which ends with the test. /packages is there.
func boot(t *testing.T, suite string) *machine {
	t.Helper()
	why, err := prepared()
	if err != nil {
		t.Fatal(err)
	}
	if why != "" {
		t.Skip("the packages are not installed: ", why)
	}
	m := &machine{t: t, tool: "vm/ct", name: fmt.Sprintf("packages-%d", os.Getpid()), env: append(os.Environ(), "BC_VM_SUITE="+suite, "BC_CT_PACKAGES=libreadline8")}
	t.Cleanup(func() {
		if out, err := m.harness("stop", "--now"); err != nil {
			t.Errorf("stop: %v\n%s", err, out)
		}
		if !t.Failed() { // else it is left to look at
			os.RemoveAll(filepath.Join(cache(), "run", "ct-"+m.name))
		}
	})
	if out, err := m.harness("start", "--bind-ro="+packages+":/packages"); err != nil {
		t.Fatalf("start: %v\n%s", err, out)
	}
	return m
}

func (m *machine) harness(args ...string) (string, error) {
	cmd := exec.Command(m.tool, append([]string{"-n", m.name}, args...)...)
	cmd.Env = m.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// try runs a script and gives what it prints.
func (m *machine) try(script string) (string, error) {
	return m.harness("run", "bash", "--norc", "-euo", "pipefail", "-c", "export DEBIAN_FRONTEND=noninteractive; "+script)
}

// sh runs a script that must succeed.
func (m *machine) sh(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// is runs a script that must print want.
func (m *machine) is(want, script string) {
	m.t.Helper()
	if got := m.sh(script); got != want {
		m.t.Errorf("%s: got %q, want %q", script, got, want)
	}
}

// comes waits until a script succeeds.
func (m *machine) comes(script string) {
	m.t.Helper()
	m.sh("for i in $(seq 600); do if " + script + "; then exit; fi; sleep 0.1; done; echo does not come; exit 1")
}

// call is a method of the HTTP interface, and gives a field of its answer.
func (m *machine) call(method, in, field string) string {
	m.t.Helper()
	var answer map[string]any
	out := m.sh("better-compute api " + method + " '" + in + "'")
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		m.t.Fatalf("%s: %v: %s", method, err, out)
	}
	return fmt.Sprint(answer[field])
}

func (m *machine) servicesRun() {
	m.t.Helper()
	m.is("active\nactive", "systemctl is-active better-compute bcd")
	m.is("enabled\nenabled", "systemctl is-enabled better-compute bcd")
	m.is("running", "systemctl is-system-running")
	if out := m.sh("better-compute status"); !strings.Contains(out, "is ready") {
		m.t.Errorf("status: %s", out)
	}
}

const two64 = "18446744073709551616"

// sums fails the test if a sum goes wrong at any moment until its answer is
// called.
func (m *machine) sums() (end func()) {
	m.t.Helper()
	m.sh(`rm -f /run/sums.*
		systemd-run -q --unit=sums bash -c '
			while :; do out=$(echo 2^64 | bc 2>&1); [ "$out" = ` + two64 + ` ] || echo "$out" >>/run/sums.wrong; echo >>/run/sums.done; done'`)
	return func() {
		m.t.Helper()
		m.comes("[ $(wc -l </run/sums.done) -ge 50 ]")
		m.sh("systemctl stop sums")
		m.is("", "! [ -e /run/sums.wrong ] || sort /run/sums.wrong | uniq -c")
	}
}

// ours checks that a person who types bc gets Better Compute.
func (m *machine) ours() {
	m.t.Helper()
	if out := m.sh("bc pools list -o json"); !strings.HasPrefix(out, "{") {
		m.t.Errorf("bc pools list: %s", out)
	}
}

func (m *machine) noDiversion() {
	m.t.Helper()
	m.is("", "dpkg-divert --list better-compute")
	m.is("", "ls -d /usr/bin/bc.* 2>/dev/null || true")
}

func TestWholeLife(t *testing.T) {
	for _, suite := range []string{debian12, debian11} {
		t.Run(suite, func(t *testing.T) { wholeLife(boot(t, suite)) })
	}
}

func wholeLife(m *machine) {
	m.sh("dpkg -i /packages/old.deb")
	m.servicesRun()
	m.is("root 755\nroot 700\nbetter-compute 700\nbetter-compute 755\nbetter-compute 666",
		"cd /var/lib/better-compute; stat -c '%U %a' . agent server /run/better-compute /run/better-compute/api.sock")
	m.is("better-compute\nroot", `for u in better-compute bcd; do stat -c %U /proc/$(systemctl show -P MainPID $u 2>/dev/null || systemctl show --value -p MainPID $u); done`)
	if out, err := m.try("runuser -u nobody -- better-compute api tenants.list '{}'"); err == nil {
		m.t.Errorf("a user without a key is let in: %s", out)
	}

	// Something to lose.
	site := m.call("system.status", "{}", "siteId")
	pool := m.call("pools.create", `{"tenantId":"local","siteId":"`+site+`","class":"metal-host","gpuModel":"H100","name":"kept"}`, "id")
	m.sh("systemd-run -q --unit=machines better-compute simulate --pool " + pool + " --nodes 2")
	m.comes(`better-compute api system.status | grep -q '"schedulable":2'`)
	booked := m.call("reservations.create", `{"tenantId":"local","poolId":"`+pool+`","resources":{"gpu":4},"duration":"8h"}`, "id")
	ref := `{"tenantId":"local","reservationId":"` + booked + `"}`
	m.comes("better-compute api reservations.get '" + ref + `' | grep -q '"state":"active"'`)
	kept := func() {
		m.t.Helper()
		if got := m.call("reservations.get", ref, "state"); got != "active" {
			m.t.Errorf("the reservation is %s, want active", got)
		}
	}
	m.sh(`sed -i 's/^#level = "info"/level = "debug"/' /etc/better-compute/appliance.toml`)

	pids := m.sh("systemctl show --value -p MainPID better-compute bcd")
	m.sh("dpkg -i /packages/old.deb") // the same again
	m.servicesRun()
	kept()
	m.sh("dpkg --force-confold -i /packages/new.deb")
	m.servicesRun()
	kept()
	if now := m.sh("systemctl show --value -p MainPID better-compute bcd"); now == pids {
		m.t.Errorf("the upgrade left the old processes running: %s", now)
	}
	m.is(`level = "debug"`, "grep ^level /etc/better-compute/appliance.toml")

	m.sh("systemctl kill -s KILL better-compute bcd")
	m.comes("systemctl is-active -q better-compute && systemctl is-active -q bcd")
	kept()

	m.sh("systemctl disable -q --now better-compute; dpkg --force-confold -i /packages/new.deb")
	m.is("inactive disabled", "echo $(systemctl is-active better-compute) $(systemctl is-enabled better-compute)")
	m.sh("systemctl enable -q --now better-compute")

	m.sh("systemctl stop machines; dpkg -r better-compute")
	m.is("", "systemctl list-units --no-legend 'better-compute*' 'bcd*'; ls /usr/bin/better-compute /usr/bin/bc 2>/dev/null || true")
	m.sh("dpkg --force-confold -i /packages/new.deb")
	m.servicesRun()
	if got := m.call("pools.get", `{"tenantId":"local","poolId":"`+pool+`"}`, "name"); got != "kept" {
		m.t.Errorf("after remove and install the pool is %q", got)
	}

	m.sh("dpkg -P better-compute")
	m.is("", "find / -xdev ! -path '/proc/*' ! -path '/var/log/*' ! -path '/packages/*' "+
		`\( -name '*better-compute*' -o -name 'bcd*' -o -user better-compute \) ! -path '*/systemd-private-*' 2>/dev/null`)
	m.noDiversion()
	m.sh("dpkg -i /packages/new.deb")
	m.servicesRun()
	if got := m.call("system.status", "{}", "pools"); got != "0" {
		m.t.Errorf("after purge and install there are %s pools", got)
	}
}

func TestHardening(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/old.deb")
	m.sh("systemd-analyze security --no-pager --threshold=20 better-compute.service")
	m.sh("systemd-analyze verify --man=no --recursive-errors=no better-compute.service bcd.service")
	m.is("Seccomp:\t2\nNoNewPrivs:\t1\nCapBnd:\t0000000000000000",
		`f=/proc/$(systemctl show --value -p MainPID better-compute)/status; for k in Seccomp NoNewPrivs CapBnd; do grep "^$k:" $f; done`)
}

func TestCalculatorBefore(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/bc.deb")
	end := m.sums()
	m.sh("dpkg -i /packages/old.deb")
	m.ours()
	m.sh("dpkg -i /packages/bc.deb; dpkg -i /packages/new.deb; dpkg -i /packages/new.deb")
	m.ours()
	m.is("1.07.1", "bc --version | sed -n '1s/bc //p'")
	m.is("42", "echo '6*7' >/tmp/status; bc -q /tmp/status </dev/null")
	m.sh("dpkg -r better-compute")
	m.sh("dpkg -i /packages/old.deb")
	m.sh("dpkg -P better-compute")
	end()
	m.noDiversion()
	m.is("", "dpkg -V bc | grep -v /usr/share/ || true")
}

func TestCalculatorAfter(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/old.deb")
	m.ours()
	m.sh("dpkg -i /packages/bc.deb")
	end := m.sums()
	m.ours()
	m.sh("dpkg -i /packages/bc.deb")
	m.sh("dpkg -r better-compute")
	end()
	m.noDiversion()
	m.is("", "dpkg -V bc | grep -v /usr/share/ || true")
}

func TestCalculatorTogetherAndGoneFirst(t *testing.T) {
	for _, order := range []string{"bc old", "old bc"} {
		t.Run(order, func(t *testing.T) {
			m := boot(t, debian12)
			m.sh("cd /packages; dpkg -i " + strings.ReplaceAll(order, " ", ".deb ") + ".deb")
			m.is(two64, "echo 2^64 | bc")
			m.ours()
			m.sh("dpkg -P bc")
			m.ours()
			m.sh("dpkg -P better-compute")
			m.noDiversion()
			m.is("", "ls /usr/bin/bc 2>/dev/null || true")
		})
	}
}

func TestCalculatorNever(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/old.deb")
	m.ours()
	out, err := m.try("echo 1+1 | bc")
	if err == nil || !strings.Contains(out, "the calculator is not installed") {
		t.Errorf("echo 1+1 | bc: %q, %v", out, err)
	}
	m.sh("dpkg -P better-compute")
	m.noDiversion()
	m.is("", "ls /usr/bin/bc 2>/dev/null || true")
}

// The scripts may be killed between any two steps, and are run again then.
func TestNameIsTakenAfterACrash(t *testing.T) {
	for name, left := range map[string]string{
		"second name":   "ln /usr/bin/bc /usr/bin/bc.calculator",
		"and diversion": "ln /usr/bin/bc /usr/bin/bc.calculator; dpkg-divert --package better-compute --no-rename --divert /usr/bin/bc.calculator --add /usr/bin/bc",
		"and our link":  "ln /usr/bin/bc /usr/bin/bc.calculator; ln -s better-compute /usr/bin/bc.better-compute; dpkg-divert --package better-compute --no-rename --divert /usr/bin/bc.calculator --add /usr/bin/bc",
	} {
		t.Run(name, func(t *testing.T) {
			m := boot(t, debian12)
			m.sh("dpkg -i /packages/bc.deb; " + left)
			end := m.sums()
			m.sh("dpkg -i /packages/old.deb")
			m.ours()
			// As prerm leaves it when it is killed before it removes the diversion.
			m.sh("mv -T /usr/bin/bc.calculator /usr/bin/bc; dpkg -r better-compute")
			end()
			m.noDiversion()
			m.is("", "dpkg -V bc | grep -v /usr/share/ || true")
		})
	}
}

func TestABcPutThereByHandStays(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/old.deb; rm /usr/bin/bc; printf '#!/bin/sh\necho mine\n' >/usr/bin/bc; chmod +x /usr/bin/bc")
	if out := m.sh("dpkg -i /packages/new.deb"); !strings.Contains(out, "stays as it is") {
		t.Errorf("nothing is said of it:\n%s", out)
	}
	m.is("mine", "bc")
	m.sh("dpkg -P better-compute")
	m.is("mine", "bc")
}

// A service that cannot start does not fail the installation, which says where
// to look; it runs as soon as the fault is mended.
func TestAServiceThatDoesNotStart(t *testing.T) {
	m := boot(t, debian12)
	m.sh("dpkg -i /packages/old.deb; sed -i '/^.server.$/a nonsense = 1' /etc/better-compute/appliance.toml")
	if out := m.sh("dpkg --force-confold -i /packages/new.deb"); !strings.Contains(out, "journalctl -u better-compute.service says why") {
		t.Errorf("nothing is said of it:\n%s", out)
	}
	m.comes("journalctl -u better-compute.service | grep 'nonsense: unknown key' >/dev/null")
	m.is("active", "systemctl is-active bcd")
	m.sh("sed -i '/^nonsense/d' /etc/better-compute/appliance.toml")
	m.comes("systemctl is-active -q better-compute")
	m.servicesRun()
}

func TestWithoutPermissionToStart(t *testing.T) {
	m := boot(t, debian12)
	m.sh("printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; dpkg -i /packages/old.deb")
	m.is("inactive\ninactive", "systemctl is-active better-compute bcd || true")
	m.is("enabled\nenabled", "systemctl is-enabled better-compute bcd")
}

func TestWhereSystemdDoesNotRun(t *testing.T) {
	m := boot(t, debian12)
	m.sh("mount --bind / /mnt; mount -t tmpfs none /mnt/run; mount --bind /packages /mnt/packages; mount -t tmpfs none /mnt/proc")
	m.sh("chroot /mnt dpkg -i /packages/bc.deb /packages/old.deb")
	m.is(two64, "echo 2^64 | chroot /mnt bc") // without /proc as well
	m.sh("chroot /mnt dpkg -P better-compute")
	m.noDiversion()
}

func TestRPM(t *testing.T) {
	m := boot(t, debian12)
	m.sh("rpm -i /packages/system.rpm /packages/bc.rpm")
	end := m.sums()
	login := func(script string) string { return "bash -lc '" + script + "'" }
	// Debian's own presets enable everything; RHEL's disable what none names.
	m.sh("mkdir -p /etc/systemd/system-preset; echo 'disable *' >/etc/systemd/system-preset/99-default.preset")
	m.sh("rpm -i /packages/old.rpm")
	m.servicesRun()
	m.is("", "rpm -V better-compute bc")
	m.is("/usr/libexec/better-compute/bc", login("command -v bc"))
	m.is("/usr/bin/bc", "command -v bc")
	if out := m.sh(login("bc pools list -o json")); !strings.HasPrefix(out, "{") {
		t.Errorf("bc pools list in a login shell: %s", out)
	}
	m.is(two64, login("echo 2^64 | bc"))

	site := m.call("system.status", "{}", "siteId")
	pool := m.call("pools.create", `{"tenantId":"local","siteId":"`+site+`","class":"metal-host","gpuModel":"H100","name":"kept"}`, "id")
	pids := m.sh("systemctl show --value -p MainPID better-compute bcd")
	m.sh("rpm -U --replacepkgs /packages/old.rpm")
	m.sh("rpm -U /packages/new.rpm")
	m.servicesRun()
	if now := m.sh("systemctl show --value -p MainPID better-compute bcd"); now == pids {
		t.Errorf("the upgrade left the old processes running: %s", now)
	}
	m.call("pools.get", `{"tenantId":"local","poolId":"`+pool+`"}`, "id")
	m.sh("systemctl disable -q --now better-compute; rpm -U --oldpackage /packages/old.rpm")
	m.is("inactive disabled", "echo $(systemctl is-active better-compute) $(systemctl is-enabled better-compute)")
	m.sh("rpm -e better-compute")
	end()
	m.is("", "rpm -V bc; systemctl list-units --no-legend 'better-compute*' 'bcd*'; ls -d /usr/libexec/better-compute 2>/dev/null || true")
	m.sh("rpm -i /packages/new.rpm")
	m.servicesRun()
	m.call("pools.get", `{"tenantId":"local","poolId":"`+pool+`"}`, "id")
}

func TestCheckersOfPackages(t *testing.T) {
	deb, _ := filepath.Glob("../dist/*.deb")
	tool(t, "lintian", "--allow-root", "--fail-on", "error,warning", deb[0])
	rpm, _ := filepath.Glob("../dist/*.rpm")
	args := []string{"--config", "rpm/rpmlint.toml", rpm[0]}
	tool(t, "rpmlint", args...)
	if out := output("rpmlint", args...); !strings.Contains(out, " 0 errors, 0 warnings") { // it exits 0 with warnings
		t.Errorf("rpmlint:\n%s", out)
	}
}
