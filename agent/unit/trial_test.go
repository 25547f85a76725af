package unit_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

const (
	throughUnit = `{"iommu":{"passthrough":true}}`
	isolateUnit = `{"cpu":{"isolate":"2-3"}}`
	isolated23  = "isolcpus=domain,managed_irq,2-3"
	bothUnits   = `{"cpu":{"isolate":"2-3"},"iommu":{"passthrough":true}}`
	trialID     = "better-compute-trial"
	onLVM       = "22 1 254:1 / / rw,relatime - ext4 /dev/mapper/vg-root rw"
)

// boots reports whether the running kernel was booted with tokens.
func (b *bench) boots(tokens ...string) bool {
	return host.HasArguments(strings.Fields(b.cmdline()), tokens)
}

// trialFiles are where the trial's entry lies, by boot loader.
var trialFiles = map[string]string{"grub": host.GRUBCustom, "systemd-boot": "/efi/loader/entries/better-compute-trial.conf"}

func newTrial(t *testing.T, loader string) *bench {
	b := newBench(t, "debian-amd")
	if loader == "systemd-boot" {
		b.StartedBySystemdBoot()
	}
	return b
}

func onEachLoader(t *testing.T, test func(t *testing.T, loader string)) {
	for loader := range trialFiles {
		t.Run(loader, func(t *testing.T) {
			t.Parallel()
			test(t, loader)
		})
	}
}

func (b *bench) armed() bool {
	if b.BootLoader() == host.LoaderSystemdBoot {
		return b.NextBoot() == trialID+".conf" && b.Exists(trialFiles["systemd-boot"])
	}
	return b.NextBoot() == trialID && b.Exists(host.GRUBCustom)
}

// hasForGood reports whether all entries have the tokens.
func (b *bench) hasForGood(tokens ...string) bool {
	entries := b.BootEntries()
	return len(entries) > 0 && !slices.ContainsFunc(entries, func(e host.BootEntry) bool { return e.Lacks(tokens, nil) })
}

// bootUnit is what a static systemd unit does at boot, before the agent.
func (b *bench) bootUnit(t *testing.T, kind wire.UnitKind) wire.UnitStatus {
	t.Helper()
	status, _, err := b.Runner.Apply(context.Background(), kind)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func TestTrialBootsOnceAndIsWrittenOnceTheAgentIsUp(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		want := units(t, throughUnit)
		if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !strings.Contains(s.Reason, "the next boot tries iommu=pt") {
			t.Fatalf("%+v", s)
		}
		if !b.armed() || b.hasForGood("iommu=pt") || b.Exists(dropIn) {
			t.Fatal("something lasts before the trial")
		}
		b.Reboot()
		if b.NextBoot() != "" || !b.boots("iommu=pt") {
			t.Fatalf("%q boots next; the kernel runs with %s", b.NextBoot(), b.cmdline())
		}
		// What systemd runs before the agent sees the arguments, and confirms nothing.
		if s := b.bootUnit(t, wire.UnitIOMMU); s.State != wire.InSync || !strings.Contains(s.Reason, "once the agent is up") || b.hasForGood("iommu=pt") {
			t.Fatalf("%+v", s)
		}
		if s := one(t, b.sync(want)); s.State != wire.InSync || s.Reason != "" {
			t.Fatalf("%+v", s)
		}
		if !b.hasForGood("iommu=pt") || b.Exists(trialFiles[loader]) {
			t.Fatal("confirmed, the arguments do not last")
		}
		b.Ran()
		b.Reboot()
		if s := b.bootUnit(t, wire.UnitIOMMU); s.State != wire.InSync {
			t.Fatalf("at the boot after: %+v", s)
		}
		if s := one(t, b.sync(want)); s.State != wire.InSync || len(b.Ran()) > 0 || !b.boots("iommu=pt") {
			t.Errorf("at the boot after: %+v", s)
		}
	})
}

// A machine that does not come up with new arguments comes up with the old ones
// at the boot after. The unit says so, in which boot, and it is not tried again.
func TestMachineThatDoesNotComeUpIsBackAtTheNextBoot(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		want := units(t, throughUnit)
		before := b.cmdline()
		b.sync(want)
		b.BootHangs()
		b.Reboot()
		if b.cmdline() != before {
			t.Fatalf("the boot after has %s", b.cmdline())
		}
		s := b.bootUnit(t, wire.UnitIOMMU)
		for _, part := range []string{"did not come up with iommu=pt", "as boot boot-3", "nothing was written for good", "out of the policy and in again"} {
			if s.State != wire.Failed || !strings.Contains(s.Reason, part) {
				t.Errorf("it does not say %q: %+v", part, s)
			}
		}
		if b.Exists(trialFiles[loader]) || b.hasForGood("iommu=pt") || b.Exists(dropIn) {
			t.Error("something of the trial is left")
		}
		said := s.Reason
		for range 3 { // not tried again: not by the agent, not later, not by further boots
			b.Ran()
			b.now = b.now.Add(time.Hour)
			if s := one(t, b.sync(want)); s.State != wire.Failed || s.Reason != said || len(b.Ran()) > 0 || b.armed() {
				t.Fatalf("%+v", s)
			}
			b.Reboot()
		}
		// Taken out and put in again, it is.
		b.sync(wire.Units{})
		if left := b.Ledger.Units(host.Priors); len(left) > 0 {
			t.Errorf("the ledger still knows of %v", left)
		}
		if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !b.armed() {
			t.Errorf("put in again: %+v", s)
		}
	})
}

// The machine booted with the arguments, and the agent never came up: that is no
// confirmation either.
func TestBootThatTheAgentDoesNotReachConfirmsNothing(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		want := units(t, throughUnit)
		b.sync(want)
		b.Reboot()
		b.bootUnit(t, wire.UnitIOMMU)
		b.Reboot()
		if b.boots("iommu=pt") {
			t.Fatal("the second boot has the arguments too")
		}
		if s := one(t, b.sync(want)); s.State != wire.Failed || b.hasForGood("iommu=pt") {
			t.Errorf("%+v", s)
		}
	})
}

// All units that wait for a boot are tried by one: in order, and each is
// confirmed, or all fail, with what was tried together.
func TestUnitsShareOneTrial(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		want := units(t, bothUnits)
		b.sync(want)
		b.Reboot()
		if !b.boots(isolated23, "iommu=pt") {
			t.Fatalf("the kernel runs with %s", b.cmdline())
		}
		for _, s := range b.sync(want) {
			if s.State != wire.InSync {
				t.Errorf("%+v", s)
			}
		}
		if !b.hasForGood(isolated23, "iommu=pt") || b.Exists(trialFiles[loader]) {
			t.Error("confirmed, the arguments do not last")
		}

		b = newTrial(t, loader)
		b.sync(want)
		b.BootHangs()
		b.Reboot()
		for _, s := range b.sync(want) {
			if s.State != wire.Failed || !strings.Contains(s.Reason, "tried together with") {
				t.Errorf("%+v", s)
			}
		}
		if b.Exists(trialFiles[loader]) || b.Exists(dropIn) {
			t.Error("something of the trial is left")
		}
	})
}

// A unit that is tried puts nobody else's confirmed arguments at risk.
func TestFailedTrialLeavesWhatWasConfirmed(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		b.confirmed(units(t, throughUnit))
		want := units(t, bothUnits)
		b.sync(want)
		if !b.hasForGood("iommu=pt") || b.hasForGood(isolated23) {
			t.Fatal("while armed, the entries are not as they were")
		}
		b.BootHangs()
		b.Reboot()
		states := map[wire.UnitKind]wire.UnitState{}
		for _, s := range b.sync(want) {
			states[s.Kind] = s.State
		}
		if diff := cmp.Diff(map[wire.UnitKind]wire.UnitState{wire.UnitCPU: wire.Failed, wire.UnitIOMMU: wire.InSync}, states); diff != "" {
			t.Error(diff)
		}
		if !b.boots("iommu=pt") || !b.hasForGood("iommu=pt") {
			t.Error("the confirmed arguments are gone")
		}
	})
}

func TestWantedChangesWhileArmed(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		before := b.Files(t)
		b.sync(units(t, isolateUnit))
		changed := units(t, `{"cpu":{"isolate":"4-5"}}`)
		if s := one(t, b.sync(changed)); s.State != wire.PendingReboot || !b.armed() {
			t.Fatalf("%+v", s)
		}
		text, _ := b.String(trialFiles[loader])
		if !strings.Contains(text, "isolcpus=domain,managed_irq,4-5") || strings.Contains(text, isolated23) {
			t.Errorf("the trial is %s", text)
		}
		// One of two is taken out: the other stays armed, alone.
		b.sync(units(t, `{"cpu":{"isolate":"4-5"},"iommu":{"passthrough":true}}`))
		b.sync(units(t, throughUnit))
		text, _ = b.String(trialFiles[loader])
		if !b.armed() || !strings.Contains(text, "iommu=pt") || strings.Contains(text, "isolcpus") {
			t.Errorf("armed %v, the trial is %s", b.armed(), text)
		}
		// Emptied: as if nothing had been.
		b.sync(wire.Units{})
		if diff := cmp.Diff(before, b.Files(t)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		if left := b.Ledger.Units(host.Priors); len(left) > 0 {
			t.Errorf("the ledger still knows of %v", left)
		}
	})
}

// Confirmed arguments that change stay in force until the new ones have booted.
func TestChangeOfConfirmedArgumentsIsTriedBesideThem(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		b.confirmed(units(t, isolateUnit))
		want := units(t, `{"cpu":{"isolate":"4-5"}}`)
		b.sync(want)
		if !b.hasForGood(isolated23) {
			t.Fatal("the old arguments went before the new ones booted")
		}
		b.BootHangs()
		b.Reboot()
		if !b.boots(isolated23) {
			t.Fatalf("the boot after has %s", b.cmdline())
		}
		if s := one(t, b.sync(want)); s.State != wire.Failed || !b.hasForGood(isolated23) {
			t.Fatalf("%+v", s)
		}
		// Back to what was confirmed needs no trial.
		if s := one(t, b.sync(units(t, isolateUnit))); s.State != wire.InSync || b.armed() {
			t.Errorf("%+v", s)
		}
		// A trial that passes takes their place.
		b.confirmed(want)
		if !b.hasForGood("isolcpus=domain,managed_irq,4-5") || strings.Contains(b.lastingText(), isolated23) {
			t.Errorf("the entries have %s", b.lastingText())
		}
	})
}

func (b *bench) lastingText() string { text, _ := b.String(host.GRUBConfig); return text }

// An operator who takes everything back, as before the package is removed, leaves
// no trial behind.
func TestRestoreDisarms(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		before := b.Files(t)
		b.sync(units(t, bothUnits))
		for _, kind := range []wire.UnitKind{wire.UnitIOMMU, wire.UnitCPU} {
			if _, _, err := b.Runner.Remove(context.Background(), kind); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, b.Files(t)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
}

// The package is removed, nothing else: the trial goes, and an agent that comes
// back after other boots does not take them for failures.
func TestDisarmedTrialIsNoFailure(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		want := units(t, bothUnits)
		before := b.Files(t)
		b.sync(want)
		tried, err := b.Disarm(context.Background())
		if err != nil || !slices.Equal(tried, []wire.UnitKind{wire.UnitCPU, wire.UnitIOMMU}) {
			t.Fatalf("%v %v", tried, err)
		}
		if diff := cmp.Diff(before, b.Files(t)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		b.Reboot()
		for _, s := range b.sync(want) {
			if s.State != wire.PendingReboot || !b.armed() {
				t.Errorf("%+v", s)
			}
		}
	})
}

// Taken back after the trial's boot and before it is confirmed, the arguments go
// with the next boot by themselves.
func TestRestoreBetweenBootAndConfirmation(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		b := newTrial(t, loader)
		b.sync(units(t, throughUnit))
		b.Reboot()
		b.sync(wire.Units{})
		if b.Exists(trialFiles[loader]) || b.hasForGood("iommu=pt") {
			t.Fatal("something of the trial is left")
		}
		b.Reboot()
		b.sync(wire.Units{})
		if left := b.Ledger.Units(host.Priors); b.boots("iommu=pt") || len(left) > 0 {
			t.Errorf("the kernel runs with %s, the ledger knows of %v", b.cmdline(), left)
		}
	})
}

// Where GRUB cannot boot an entry just once, the arguments are written as ever,
// and the unit says that there is no way back.
func TestNoTrialWhereGRUBCannot(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*bench)
		why  string
	}{
		"LVM":   {func(b *bench) { b.Put("/proc/self/mountinfo", onLVM) }, "RAID, LVM or encryption"},
		"btrfs": {func(b *bench) { b.Put("/proc/self/mountinfo", "22 1 0:30 / / rw - btrfs /dev/sda2 rw") }, "which is on btrfs"},
		"boot": {func(b *bench) {
			b.Put("/proc/self/mountinfo", "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n23 22 9:0 / /boot rw - ext4 /dev/md0 rw")
		}, "RAID, LVM or encryption"},
		"mounts": {func(b *bench) { b.Machine.Remove("/proc/self/mountinfo") }, "it cannot be told"},
		"custom": {func(b *bench) { b.Put(host.GRUBCustom, "menuentry 'mine' {\n}") }, "custom.cfg is someone else's"},
		"41":     {func(b *bench) { b.edit(host.GRUBConfig, "custom.cfg", "other.cfg") }, ""},
		"header": {func(b *bench) { b.edit(host.GRUBConfig, "save_env next_entry", "true") }, ""},
		"other":  {func(b *bench) { b.edit(host.GRUBConfig, `default="0"`, `default="Windows"`) }, ""},
		"tool":   {func(b *bench) { b.Machine.Remove("/usr/bin/grub-editenv") }, "grub-editenv"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "debian-amd")
			c.make(b)
			want := units(t, throughUnit)
			s := one(t, b.sync(want))
			if s.State != wire.PendingReboot || !strings.Contains(s.Reason, "at its console") || !strings.Contains(s.Reason, c.why) {
				t.Errorf("%+v", s)
			}
			if !b.hasForGood("iommu=pt") || b.NextBoot() != "" {
				t.Error("the arguments were not written")
			}
			b.Reboot()
			if s := one(t, b.sync(want)); s.State != wire.InSync {
				t.Errorf("%+v", s)
			}
		})
	}
}

func (b *bench) edit(file, old, new string) {
	text, _ := b.String(file)
	b.Put(file, strings.ReplaceAll(text, old, new))
}

// Should GRUB not be able to write although it looked so, the trial's own entry
// boots the old arguments, not the new ones for ever.
func TestTrialThatGRUBCannotForgetBootsTheOldArguments(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.GRUBCannotWrite()
	want := units(t, throughUnit)
	before := b.cmdline()
	b.sync(want)
	b.Reboot()
	if b.cmdline() != before {
		t.Fatalf("the kernel runs with %s", b.cmdline())
	}
	if s := one(t, b.sync(want)); s.State != wire.Failed || b.NextBoot() != "" || b.Exists(host.GRUBCustom) {
		t.Errorf("%+v, next %q", s, b.NextBoot())
	}
}

// A new kernel between arming and the boot: the copy follows the default entry.
func TestTrialFollowsTheDefaultEntry(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, throughUnit)
	b.sync(want)
	b.edit(host.GRUBConfig, "6.1.0-18", "6.1.0-21")
	if s := one(t, b.sync(want)); s.State != wire.PendingReboot {
		t.Fatalf("%+v", s)
	}
	b.Reboot()
	if !b.boots("iommu=pt") || !strings.Contains(b.cmdline(), "6.1.0-21") {
		t.Errorf("the kernel runs with %s", b.cmdline())
	}
}

// Of grub-reboot, saved defaults and submenus.
func TestTrialCopiesWhatGRUBWouldBoot(t *testing.T) {
	for name, chosen := range map[string]string{
		"saved": "saved", "id": "gnulinux-simple-1", "title": "Debian GNU/Linux", "path": "gnulinux-advanced-1>gnulinux-6-advanced-1", "numbers": "1>0",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "debian-amd")
			b.Put("/etc/default/grub", "GRUB_DEFAULT="+chosen+"\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"")
			run := func(argv ...string) {
				if err := b.Machine.Run(context.Background(), argv...); err != nil {
					t.Fatal(err)
				}
			}
			run("update-grub")
			run("grub-editenv", host.GRUBEnvironment, "set", "saved_entry=gnulinux-advanced-1>gnulinux-6-advanced-1")
			want := units(t, throughUnit)
			if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !b.armed() {
				t.Fatalf("%+v", s)
			}
			b.Reboot()
			if s := one(t, b.sync(want)); s.State != wire.InSync || !b.boots("iommu=pt") {
				t.Errorf("%+v", s)
			}
			env, _ := b.String(host.GRUBEnvironment)
			if !strings.Contains(env, "saved_entry=gnulinux-advanced-1>") {
				t.Error("the saved default was changed")
			}
		})
	}
}

// An operator who told GRUB what to boot next goes first.
func TestTrialWaitsForGrubReboot(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, throughUnit)
	theirs := func() {
		t.Helper()
		if err := b.Machine.Run(context.Background(), "grub-editenv", host.GRUBEnvironment, "set", "next_entry=gnulinux-6-recovery-1"); err != nil {
			t.Fatal(err)
		}
	}
	b.sync(want) // armed first, and then overwritten
	theirs()
	for range 2 {
		if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !strings.Contains(s.Reason, "someone else") || b.NextBoot() != "gnulinux-6-recovery-1" {
			t.Fatalf("%+v, next %q", s, b.NextBoot())
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

// The static units apply what the agent wants; the agent being up is what they
// are told, and only in this boot.
func TestServiceConfirmsWhenTheAgentIsUp(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Services = true
	apply := func() error {
		_, _, err := (&unit.Runner{Machine: b.Machine.Machine, Ledger: b.Ledger, Manage: true, Now: b.Now, Log: b.Log}).Apply(context.Background(), wire.UnitIOMMU)
		return err
	}
	b.Install("bc-iommu.service", apply)
	want := units(t, throughUnit)
	b.sync(want)
	b.Reboot()
	if err := apply(); err != nil || b.hasForGood("iommu=pt") {
		t.Fatalf("at boot: %v, for good %v", err, b.hasForGood("iommu=pt"))
	}
	if s := one(t, b.sync(want)); s.State != wire.InSync || !b.hasForGood("iommu=pt") {
		t.Errorf("%+v", s)
	}
}

// The process dies at each moment of arming, of confirming, of finding that the
// trial failed, and of taking the arguments back: the next one brings the machine
// to where it would be.
func TestDyingAtEachStepOfATrial(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		want := units(t, bothUnits)
		for name, c := range map[string]struct {
			before func(*bench)
			do     wire.Units
		}{
			"arm":     {func(*bench) {}, want},
			"confirm": {func(b *bench) { b.sync(want); b.Reboot() }, want},
			"fail":    {func(b *bench) { b.sync(want); b.BootHangs(); b.Reboot() }, want},
			"disarm":  {func(b *bench) { b.sync(want) }, wire.Units{}},
			"change":  {func(b *bench) { b.sync(want) }, units(t, `{"cpu":{"isolate":"4-5"},"iommu":{"passthrough":true}}`)},
			"remove":  {func(b *bench) { b.confirmed(want) }, wire.Units{}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				still := newTrial(t, loader)
				c.before(still)
				still.DieAt(0)
				statuses, effects := lines(still.sync(c.do)), still.Effects()
				after := still.Files(t)
				if effects == 0 {
					t.Fatal("nothing is done")
				}
				for moment := 1; moment <= 2*effects; moment++ {
					b := newTrial(t, loader)
					c.before(b)
					if !b.dying(moment, func() { b.sync(c.do) }) {
						t.Fatalf("the process lived through moment %d of %d", moment, 2*effects)
					}
					b.now = b.now.Add(time.Second)
					if diff := cmp.Diff(statuses, lines(b.sync(c.do))); diff != "" {
						t.Fatalf("died at moment %d:\n%s", moment, diff)
					}
					if diff := cmp.Diff(after, b.Files(t)); diff != "" {
						t.Fatalf("died at moment %d, the machine (-without +with a death):\n%s", moment, diff)
					}
				}
			})
		}
	})
}

// Power goes while a confirmation is written: the machine has proven the
// arguments, so they are written in the end.
func TestPowerCutWhileConfirming(t *testing.T) {
	onEachLoader(t, func(t *testing.T, loader string) {
		want := units(t, throughUnit)
		for moment := 1; ; moment++ {
			b := newTrial(t, loader)
			b.sync(want)
			b.Reboot()
			if !b.dying(moment, func() { b.sync(want) }) {
				break
			}
			b.Reboot()
			for range 2 {
				s := one(t, b.sync(want))
				if s.State == wire.InSync {
					break
				}
				if s.State != wire.PendingReboot {
					t.Fatalf("cut at moment %d: %+v", moment, s)
				}
				b.Reboot()
			}
			if !b.boots("iommu=pt") || !b.hasForGood("iommu=pt") || b.Exists(trialFiles[loader]) {
				t.Fatalf("cut at moment %d: the kernel runs with %s", moment, b.cmdline())
			}
		}
	})
}

// What Debian 12's own grub-mkconfig writes, with a saved default in a submenu:
// the trial's entry is a copy of that one, and GRUB's files are otherwise untouched.
func TestTrialOfARealMenu(t *testing.T) {
	b := newBench(t, "debian-amd")
	text, err := os.ReadFile("testdata/grub/debian-12.cfg")
	if err != nil {
		t.Fatal(err)
	}
	b.Put(host.GRUBConfig, string(text))
	saved := "saved_entry=gnulinux-advanced-" + noUUID + ">gnulinux-6.1.0-18-amd64-advanced-" + noUUID
	if err := b.Machine.Run(context.Background(), "grub-editenv", host.GRUBEnvironment, "set", saved); err != nil {
		t.Fatal(err)
	}
	if s := one(t, b.sync(units(t, throughUnit))); s.State != wire.PendingReboot || !b.armed() {
		t.Fatalf("%+v", s)
	}
	if now, _ := b.ReadFile(host.GRUBConfig); string(now) != string(text) {
		t.Error("grub.cfg was touched")
	}
	_, got, _ := strings.Cut(b.custom(), "\n") // without the agent's header
	const file = "testdata/grub/debian-12.trial"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-%s +got):\n%s", file, diff)
	}
}

const noUUID = "00000000-0000-0000-0000-000000000000"

func (b *bench) custom() string { data, _ := b.ReadFile(host.GRUBCustom); return string(data) }

// What is given up is named once, also where a change of confirmed arguments
// was on trial when the policy was emptied.
func TestGivenUpArgumentsAreNamedOnce(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.confirmed(units(t, isolateUnit))
	b.sync(units(t, `{"cpu":{"isolate":"4-5"}}`))
	b.BootHangs()
	b.Reboot()
	b.sync(units(t, `{"cpu":{"isolate":"4-5"}}`))
	b.sync(wire.Units{})
	events, err := b.Ledger.History()
	if err != nil {
		t.Fatal(err)
	}
	given := 0
	for _, e := range events {
		tokens, found := strings.CutPrefix(e.Change, "note that kernel arguments are given up: ")
		if !found {
			continue
		}
		given++
		if words := strings.Fields(tokens); len(words) != len(slices.Compact(slices.Sorted(slices.Values(words)))) {
			t.Errorf("%s", e.Change)
		}
	}
	if given == 0 {
		t.Error("nothing was given up")
	}
}
