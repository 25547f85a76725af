package unit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
)

// A program of the boot loader that fails, or is killed half way, leaves nothing
// behind: its files, the drop-in and the line for new kernels are as they were.
func TestFailingBootLoaderToolIsRolledBack(t *testing.T) {
	for _, c := range []struct{ machine, tool string }{
		{"debian-amd", "grub-editenv"}, {"debian-amd", "update-grub"}, {"rhel-intel", "grubby"}, {"systemd-boot", "kernel-install"}, {"debian-amd", "bootctl"},
	} {
		for _, breaks := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s breaks=%v", c.tool, breaks), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, c.machine)
				if c.tool == "update-grub" {
					b.Put("/proc/self/mountinfo", onLVM)
				}
				if c.tool == "bootctl" {
					b.StartedBySystemdBoot()
				}
				before := b.Files(t)
				const said = "write error: No space left on device"
				if breaks {
					b.Breaks(c.tool, said)
				} else {
					b.Fails(c.tool, said)
				}
				want := units(t, throughUnit)
				s := one(t, b.sync(want))
				if s.State != wire.Failed || !strings.Contains(s.Reason, said) {
					t.Errorf("%+v", s)
				}
				if diff := cmp.Diff(before, b.Files(t)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
				// A boot meanwhile is no proof against arguments that were never written.
				b.Reboot()
				b.Works(c.tool)
				b.now = b.now.Add(time.Hour)
				if s := one(t, b.sync(want)); s.State != wire.PendingReboot {
					t.Errorf("once it works: %+v", s)
				}
				b.Reboot()
				if s := one(t, b.sync(want)); s.State != wire.InSync {
					t.Errorf("booted: %+v", s)
				}
			})
		}
	}
}

// The agent dies with the tool, half way: the next agent first puts back what is
// damaged, and goes on.
func TestAgentThatDiesWithTheToolIsRecovered(t *testing.T) {
	for _, c := range []struct{ machine, tool string }{
		{"debian-amd", "grub-editenv"}, {"debian-amd", "update-grub"}, {"rhel-intel", "grubby"}, {"systemd-boot", "kernel-install"}, {"debian-amd", "bootctl"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			t.Parallel()
			setUp := func() *bench {
				b := newBench(t, c.machine)
				if c.tool == "update-grub" {
					b.Put("/proc/self/mountinfo", onLVM)
				}
				if c.tool == "bootctl" {
					b.StartedBySystemdBoot()
				}
				return b
			}
			want := units(t, throughUnit)
			still := setUp()
			statuses := lines(still.sync(want))
			b := setUp()
			b.DieIn(c.tool)
			if !b.dying(0, func() { b.sync(want) }) {
				t.Fatal("the process lived")
			}
			b.Works(c.tool)
			if diff := cmp.Diff(statuses, lines(b.sync(want))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(still.Files(t), b.Files(t)); diff != "" {
				t.Errorf("(-without +with a death):\n%s", diff)
			}
		})
	}
}

// An update-grub that someone else ran since the agent died is theirs.
func TestRecoveryKeepsWhatOthersMadeSince(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/proc/self/mountinfo", onLVM)
	want := units(t, throughUnit)
	b.DieIn("update-grub")
	b.dying(0, func() { b.sync(want) })
	b.Works("update-grub")
	b.Put("/etc/default/grub", "GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet splash\"")
	if err := b.Machine.Run(context.Background(), "update-grub"); err != nil {
		t.Fatal(err)
	}
	b.sync(wire.Units{})
	if !b.hasForGood("splash") || b.hasForGood("iommu=pt") {
		t.Errorf("the entries have %s", b.lastingText())
	}
}

// update-grub ends well, and something behind the drop-in sets the arguments
// anew: that is a failure with nothing left behind.
func TestToolThatSucceedsWithoutEffectIsRolledBack(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/proc/self/mountinfo", onLVM)
	b.Put("/etc/default/grub.d/zzz-cloud.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=\"console=tty0\"")
	before := b.Files(t)
	if s := one(t, b.sync(units(t, throughUnit))); s.State != wire.Failed || !strings.Contains(s.Reason, "something else decides") {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(before, b.Files(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// The machine came up with the arguments, and they cannot be written for good
// yet: that it came up stays known, over boots too.
func TestPassedTrialThatCannotBeWrittenYet(t *testing.T) {
	for name, c := range map[string]struct {
		breaks, works func(*bench)
		says          string
	}{
		"update-grub": {
			func(b *bench) { b.Breaks("update-grub", "No space left on device") },
			func(b *bench) { b.Works("update-grub") }, "No space left on device",
		},
		"full": {func(b *bench) { b.Full("/boot", 1<<20) }, func(b *bench) { b.Full("/boot", 1<<30) }, "remove an old kernel"},
		"edited": {
			func(b *bench) { b.Put(dropIn, "mine") },
			func(b *bench) { b.Machine.Remove(dropIn) }, "someone else",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "debian-amd")
			want := units(t, throughUnit)
			b.sync(want)
			b.Reboot()
			c.breaks(b)
			text := b.lastingText()
			for range 2 {
				if s := one(t, b.sync(want)); s.State != wire.Failed && s.State != wire.Conflict || !strings.Contains(s.Reason, c.says) {
					t.Errorf("%+v", s)
				}
				if b.lastingText() != text {
					t.Error("grub.cfg is not as it was")
				}
				b.now = b.now.Add(time.Hour)
			}
			b.Reboot() // without the arguments, which were not written
			c.works(b)
			b.now = b.now.Add(time.Hour)
			if s := one(t, b.sync(want)); s.State != wire.PendingReboot || !b.hasForGood("iommu=pt") {
				t.Fatalf("once it works: %+v", s)
			}
			b.Reboot()
			if s := one(t, b.sync(want)); s.State != wire.InSync || !b.boots("iommu=pt") {
				t.Errorf("%+v", s)
			}
		})
	}
}

// Boot files that cannot be put back yet keep no other unit from its work.
func TestRecoveryThatFailsStopsOnlyItsUnit(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/proc/self/mountinfo", onLVM)
	want := units(t, `{"iommu":{"passthrough":true},"cpu":{"governor":"performance"}}`)
	b.DieIn("update-grub")
	b.dying(0, func() { b.sync(want) })
	b.Works("update-grub")
	b.ReadOnly("/boot")
	b.now = b.now.Add(time.Hour)
	for _, s := range b.sync(want) {
		if good := s.Kind == wire.UnitCPU; good != (s.State == wire.InSync) || !good && s.State != wire.Failed {
			t.Errorf("%+v", s)
		}
	}
}
