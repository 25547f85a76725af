package unit_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// What the system's disks and the default route hang on keeps its options, down
// to the last of what is stacked there. What hangs beside it may have some.
func TestOptionsOfWhatAMachineBootsAndIsReachedByAreRefused(t *testing.T) {
	b := newBench(t, "lifelines")
	before := b.Files(t)
	for _, c := range []struct{ module, options, want string }{
		{"dm_mod", "stats_current_allocated_bytes=1", "drives the disk of /"},
		{"raid1", "max_queued_requests=1", "drives the disk of /"},
		{"nvme", "poll_queues=4", "drives the disk of /"},
		{"nvme-core", "io_timeout=1", "drives the disk of /"},
		{"nvme_auth", "x=1", "drives the disk of /"},
		{"ext4", "x=1", "drives the file system of /"},
		{"xfs", "x=1", "drives the file system of /boot"},
		{"ahci", "mobile_lpm_policy=3", "drives the disk of /boot/efi"},
		{"libahci", "skip_host_reset=1", "drives the disk of /boot/efi"},
		{"sd_mod", "x=1", "drives the disk of /boot/efi"},
		{"8021q", "x=1", "drives the network interface bond0.7"},
		{"bonding", "max_bonds=0", "drives the network interface bond0.7"},
		{"ixgbe", "max_vfs=63", "drives the network interface bond0.7"},
		{"vfio-pci", "ids=10de:2330,8086:1563", "take 0000:02:00.0 (8086:1563), which drives the network interface bond0.7"},
		{"vfio_pci", "disable_vga=1 ids=144D:A80A:ffff:1", "take 0000:01:00.0 (144d:a80a), which drives the disk of /"},
		{"nvidia-drm", "modeset=0", "screen"},
		{"nvidia_drm", "fbdev=1", "screen"},
		{"megaraid_sas", "msix_disable=1", ""}, // of a disk with data only
		{"btrfs", "x=1", ""},
		{"mlx5_core", "prof_sel=2", ""}, // of a network beside
		{"pcieport", "x=1", ""},
		{"vfio_pci", "ids=10de:2330,1000:10e2", ""},
		{"nvidia_drm", "x=1", ""},
		{"loop", "max_loop=64", ""},
	} {
		want := wire.Units{KernelModules: &wire.KernelModules{Load: []string{"loop"}, Options: map[string]string{c.module: c.options}}}
		s := one(t, b.sync(want))
		switch {
		case c.want == "" && s.State == wire.Failed:
			t.Errorf("%s %s is refused: %s", c.module, c.options, s.Reason)
		case c.want != "" && (s.State != wire.Failed || !strings.Contains(s.Reason, c.want)):
			t.Errorf("%s %s: %s, %s; want a refusal that says %q", c.module, c.options, s.State, s.Reason, c.want)
		}
		if c.want != "" {
			if diff := cmp.Diff(before, b.Files(t)); diff != "" {
				t.Fatalf("%s %s is refused and the machine changed (-before +after):\n%s", c.module, c.options, diff)
			}
		}
		b.sync(wire.Units{})
		b.Ran()
	}
	b.Machine.Remove("/sys/devices/pci0000:00/0000:05:00.0/boot_vga")
	headless := wire.Units{KernelModules: &wire.KernelModules{Options: map[string]string{"nvidia_drm": "modeset=1"}}}
	if s := one(t, b.sync(headless)); s.State == wire.Failed {
		t.Errorf("without a screen: %s", s.Reason)
	}
	b.sync(wire.Units{})
	b.Put("/sys/devices/pci0000:00/0000:05:00.0/drm/card0/card0-DP-1/status", "connected")
	for link, to := range map[string]string{
		"/sys/class/drm/card0-DP-1":                                        "../../devices/pci0000:00/0000:05:00.0/drm/card0/card0-DP-1",
		"/sys/devices/pci0000:00/0000:05:00.0/drm/card0/card0-DP-1/device": "../../card0",
		"/sys/devices/pci0000:00/0000:05:00.0/drm/card0/device":            "../../../0000:05:00.0",
	} {
		name := filepath.Join(b.Dir(), link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	if s := one(t, b.sync(headless)); s.State != wire.Failed || !strings.Contains(s.Reason, "card0-DP-1") {
		t.Errorf("with a screen on an output: %+v", s)
	}
}

// Without a default route, as before the network is up, every port that is up
// counts. An IPv6 route is one, too.
func TestEveryPortThatIsUpCountsWithoutADefaultRoute(t *testing.T) {
	refused := func(b *bench, module string) bool {
		t.Helper()
		s := one(t, b.sync(wire.Units{KernelModules: &wire.KernelModules{Options: map[string]string{module: "x=1"}}}))
		b.sync(wire.Units{})
		return s.State == wire.Failed
	}
	b := newBench(t, "lifelines")
	b.Machine.Remove("/proc/net/route")
	if !refused(b, "ixgbe") || !refused(b, "mlx5_core") {
		t.Error("without a route a port that is up may be cut off")
	}
	b.Put("/proc/net/ipv6_route", "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003 storage0")
	if refused(b, "ixgbe") || !refused(b, "mlx5_core") {
		t.Error("the IPv6 default route is not followed")
	}
}

// A module that is refused holds up no other, and the reason says what the
// machine's own state makes of the kernel's answer.
func TestRefusedModuleHoldsUpNoOther(t *testing.T) {
	const secureBoot = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	for _, c := range []struct {
		name, says string
		prepare    func(*bench)
		want       string
		not        string
	}{
		{"Secure Boot", "Key was rejected by service", func(b *bench) { b.raw(t, secureBoot, "\x06\x00\x00\x00\x01") }, "Secure Boot is on, and no key", ""},
		{"sig_enforce", "Key was rejected by service", func(b *bench) { b.Put("/sys/module/module/parameters/sig_enforce", "Y") }, "signed modules only (module.sig_enforce), and no key", "Secure Boot is on"},
		{"no key", "Required key not available", func(b *bench) {}, "This kernel checks signatures, and no key", "Secure Boot is on"},
		{"lockdown", "Operation not permitted", func(b *bench) { b.Put("/sys/kernel/security/lockdown", "none [integrity] confidentiality") }, "locked down (integrity), and no key", ""},
		{"lockdown off", "Operation not permitted", func(b *bench) { b.Put("/sys/kernel/security/lockdown", "[none] integrity confidentiality") }, "Operation not permitted", "mokutil"},
		{"modules_disabled", "Operation not permitted", func(b *bench) { b.Put("/proc/sys/kernel/modules_disabled", "1") }, "kernel.modules_disabled", "mokutil"},
		{"another kernel's", "Exec format error", func(b *bench) {}, "built for another kernel: install the one for 6.1.0-18-amd64", "mokutil"},
		{"something else", "No such device", func(b *bench) {}, "No such device", "mokutil"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "debian-amd")
			c.prepare(b)
			b.FailsFor("modprobe", "vfio_pci", "modprobe: ERROR: could not insert 'vfio_pci': "+c.says)
			want := units(t, `{"kernel-modules":{"load":["vfio_pci","vfio"]}}`)
			s := one(t, b.sync(want))
			if s.State != wire.Failed || !strings.Contains(s.Reason, c.want) || c.not != "" && strings.Contains(s.Reason, c.not) {
				t.Errorf("%+v", s)
			}
			if ran := b.Ran(); !slices.Equal(ran, []string{"modprobe -- vfio_pci", "modprobe -- vfio"}) {
				t.Errorf("ran %q", ran)
			}
			if s := one(t, b.sync(want)); s.State != wire.Failed || len(b.Ran()) > 0 {
				t.Errorf("it is tried again at once: %+v", s)
			}
		})
	}
}

// No program of the agent's unloads or rebinds a driver.
func TestAgentCannotUnloadAModule(t *testing.T) {
	for program := range host.Programs {
		if slices.Contains([]string{"rmmod", "kmod", "driverctl", "sh", "bash", "systemctl"}, program) {
			t.Errorf("the agent may run %s", program)
		}
	}
	b := newBench(t, "debian-amd")
	for _, u := range []string{
		`{"kernel-modules":{"load":["vfio_pci"],"options":{"loop":"max_loop=64"}}}`,
		`{"kernel-modules":{"load":["loop"]}}`, `{}`,
	} {
		b.sync(units(t, u))
		for _, ran := range b.Ran() {
			if !strings.HasPrefix(ran, "modprobe -- ") && !strings.HasPrefix(ran, "update-initramfs -u ") {
				t.Errorf("%s ran %q", u, ran)
			}
		}
	}
}

// raw writes a file without a newline at its end.
func (b *bench) raw(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(b.Dir(), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}
