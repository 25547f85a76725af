package unit_test

import (
	"context"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
)

const (
	loaderDir = "/efi/loader/entries/"
	kernel18  = loaderDir + "aaa-6.1.0-18-amd64.conf"
	kernel9   = loaderDir + "aaa-6.1.0-9-amd64.conf"
)

// The trial's entry is the default one with other arguments, and nothing by which
// systemd-boot could take it for the default.
func TestEntryOnTrialIsACopyOfTheDefault(t *testing.T) {
	b := newTrial(t, "systemd-boot")
	b.sync(units(t, throughUnit))
	text, _ := b.String(trialFiles["systemd-boot"])
	_, got, _ := strings.Cut(text, "\n") // without the agent's header
	want := `title Kernel arguments on trial (Better Compute)
version 6.1.0-18-amd64
machine-id aaa
linux /aaa/6.1.0-18-amd64/linux
initrd /aaa/6.1.0-18-amd64/initrd.img
options root=LABEL=root ro quiet iommu=pt`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What systemd-boot boots by default: the firmware's setting, then loader.conf's,
// then the order of the boot loader specification.
func TestSystemdBootDefault(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*bench)
		want string // version
	}{
		"newest":      {func(b *bench) { b.Machine.Remove("/efi/loader/loader.conf") }, "6.1.0-18-amd64"},
		"loader.conf": {func(b *bench) { b.Put("/efi/loader/loader.conf", "timeout 3\ndefault\taaa-6.1.0-9*") }, "6.1.0-9-amd64"},
		"firmware":    {func(b *bench) { b.SetVariable("LoaderEntryDefault", "AAA-6.1.0-9-amd64.conf") }, "6.1.0-9-amd64"},
		"entries of a partition of their own": {func(b *bench) {
			for _, file := range []string{kernel18, kernel9} {
				text, _ := b.String(file)
				b.Machine.Remove(file)
				b.Put("/boot/loader/entries/"+path.Base(file), text)
			}
			b.Put("/efi/loader/loader.conf", "default aaa-6.1.0-9*")
		}, "6.1.0-9-amd64"},
		"stale firmware": {func(b *bench) { b.SetVariable("LoaderEntryDefault", "gone.conf") }, "6.1.0-18-amd64"},
		"saved": {func(b *bench) {
			b.Put("/efi/loader/loader.conf", "default @saved")
			b.SetVariable("LoaderEntryLastBooted", "aaa-6.1.0-9-amd64.conf")
		}, "6.1.0-9-amd64"},
		"no tries left": {func(b *bench) {
			b.Machine.Remove("/efi/loader/loader.conf")
			text, _ := b.String(kernel18)
			b.Machine.Remove(kernel18)
			b.Put(strings.TrimSuffix(kernel18, ".conf")+"+0-3.conf", text)
		}, "6.1.0-9-amd64"},
		"sort-key": {func(b *bench) {
			b.Machine.Remove("/efi/loader/loader.conf")
			b.edit(kernel9, "sort-key debian", "sort-key a")
		}, "6.1.0-9-amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTrial(t, "systemd-boot")
			c.make(b)
			lines, err := b.LoaderDefault()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				if l.Key == "version" && l.Value != c.want {
					t.Errorf("%s is the default", l.Value)
				}
			}
		})
	}
}

// Where systemd-boot cannot boot an entry just once, or nobody can say that the
// trial's would not become the default, the arguments are written as ever.
func TestNoTrialWhereSystemdBootCannot(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*bench)
		why  string
	}{
		"another loader": {func(b *bench) { b.SetVariable("LoaderFeatures", "") }, "did not start this machine"},
		"old":            {func(b *bench) { b.SetVariable("LoaderFeatures", "\x7f\x00\x00") }, "sort-key (systemd 251)"},
		"read-only variables": {func(b *bench) {
			b.edit("/proc/self/mountinfo", "efivars rw,nosuid", "efivars ro,nosuid")
		}, "variables cannot be written"},
		"no variables": {func(b *bench) { b.Put("/proc/self/mountinfo", onLVM) }, "variables cannot be written"},
		"no sort-key": {func(b *bench) {
			b.edit(kernel18, "sort-key debian", "")
			b.edit(kernel9, "sort-key debian", "")
		}, "has no sort-key"},
		"bootctl": {func(b *bench) { b.Machine.Remove("/usr/bin/bootctl") }, "bootctl cannot be run here"},
		"foreign": {func(b *bench) { b.Put(trialFiles["systemd-boot"], "title mine\nlinux /mine") }, "someone else's"},
		"another system": {func(b *bench) {
			b.SetVariable("LoaderEntries", "aaa-6.1.0-18-amd64.conf\x00auto-windows")
			b.SetVariable("LoaderEntryDefault", "auto-windows")
		}, "auto-windows by default"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTrial(t, "systemd-boot")
			c.make(b)
			s := one(t, b.sync(units(t, throughUnit)))
			if s.State != wire.PendingReboot || !strings.Contains(s.Reason, "at its console") || !strings.Contains(s.Reason, c.why) {
				t.Errorf("%+v", s)
			}
			if !b.hasForGood("iommu=pt") || b.NextBoot() != "" {
				t.Error("the arguments were not written")
			}
		})
	}
}

// An operator who chose what to boot next goes first, as with
// systemctl reboot --boot-loader-entry=.
func TestTrialWaitsForSetOneshot(t *testing.T) {
	b := newTrial(t, "systemd-boot")
	want := units(t, throughUnit)
	b.sync(want)
	b.SetVariable("LoaderEntryOneShot", "aaa-6.1.0-9-amd64.conf")
	for range 2 {
		if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !strings.Contains(s.Reason, "someone else") || b.armed() {
			t.Fatalf("%+v", s)
		}
	}
	b.Reboot()
	if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !b.armed() {
		t.Fatalf("%+v", s)
	}
	b.Reboot()
	if s := one(t, b.sync(want)); s.State != wire.InSync {
		t.Errorf("%+v", s)
	}
}

// A partition for booting that cannot be written, or is full: nothing is armed,
// and the unit says why.
func TestBootPartitionThatTakesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*bench)
		says string
	}{
		"read-only": {func(b *bench) { b.ReadOnly("/efi/loader/entries") }, "read-only file system"},
		"full":      {func(b *bench) { b.Full("/efi", 1<<20) }, "/efi has 1024 KiB left"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTrial(t, "systemd-boot")
			before := b.Files(t)
			c.make(b)
			if s := one(t, b.sync(units(t, throughUnit))); s.State != wire.Failed || !strings.Contains(s.Reason, c.says) {
				t.Errorf("%+v", s)
			}
			if diff := cmp.Diff(before, b.Files(t)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// The process dies at each moment of arming, and the machine is booted before the
// next one is there. What was not tried has not failed: it is tried, and comes up.
func TestBootWhileArmingWasCutShort(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		want := units(t, bothUnits)
		for moment := 1; ; moment++ {
			b := newTrial(t, loader)
			if !b.dying(moment, func() { b.sync(want) }) {
				break
			}
			for boots := 0; ; boots++ {
				b.Reboot()
				waits := false
				for _, s := range b.sync(want) {
					waits = waits || s.State == wire.PendingReboot
					if s.State == wire.Failed || waits && boots > 2 {
						t.Fatalf("died at moment %d, boot %d: %+v", moment, boots, s)
					}
				}
				if !waits {
					break
				}
			}
			if !b.boots(isolated23, "iommu=pt") || b.armed() {
				t.Fatalf("died at moment %d: the kernel runs with %s", moment, b.cmdline())
			}
		}
	})
}

// The package is removed after a process died between telling the boot loader and
// noting that: the trial goes all the same.
func TestDisarmOfWhatNobodySawArmed(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		want := units(t, throughUnit)
		still := newTrial(t, loader)
		still.DieAt(0)
		still.sync(want)
		b := newTrial(t, loader)
		before := b.Files(t)
		if !b.dying(2*still.Effects(), func() { b.sync(want) }) || !b.armed() {
			t.Fatal("the process did not die with the trial armed")
		}
		if _, err := b.Disarm(context.Background()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, b.Files(t)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
}
