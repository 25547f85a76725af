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
		{"debian-amd", "grub-editenv"}, {"debian-amd", "update-grub"}, {"rhel-intel", "grubby"}, {"systemd-boot", "kernel-install"},
	} {
		for _, breaks := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s breaks=%v", c.tool, breaks), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, c.machine)
				if c.tool == "update-grub" {
					b.Put("/proc/self/mountinfo", onLVM)
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
		{"debian-amd", "grub-editenv"}, {"debian-amd", "update-grub"}, {"rhel-intel", "grubby"}, {"systemd-boot", "kernel-install"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			t.Parallel()
			setUp := func() *bench {
				b := newBench(t, c.machine)
				if c.tool == "update-grub" {
					b.Put("/proc/self/mountinfo", onLVM)
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
