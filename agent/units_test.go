package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/agent/wire"
)

// A unit that is no longer wanted is told as long as something of it is left, and
// as gone once nothing is, also over a restart of the agent in between.
func TestUnitThatIsBeingRemovedIsToldUntilItIsGone(t *testing.T) {
	n := newNode(nil, slog.New(slog.DiscardHandler), ledger{}, maxRetryFar)
	n.hash = "seen"
	told := func(kind wire.UnitKind) (s wire.UnitStatus) {
		n.owes.units = true
		for _, u := range n.heartbeat().Units {
			if u.Kind == kind {
				return u
			}
		}
		t.Fatalf("nothing is said of %s", kind)
		return s
	}
	n.spec.Units = wire.Units{IOMMU: &wire.IOMMU{Passthrough: true}}
	n.settle([]wire.UnitStatus{{Kind: wire.UnitIOMMU, State: wire.InSync}})
	n.spec.Units = wire.Units{}
	n.judge()
	if s := told(wire.UnitIOMMU); s.State != wire.InSync {
		t.Errorf("not compared yet: %+v", s)
	}
	left := wire.UnitStatus{Kind: wire.UnitIOMMU, State: wire.PendingReboot, Reason: "taken out of the policy; the next boot goes without iommu=pt"}
	n.settle([]wire.UnitStatus{left})
	if s := told(wire.UnitIOMMU); s != left {
		t.Errorf("before the boot: %+v", s)
	}
	n = newNode(nil, n.log, n.book, maxRetryFar) // the boot
	n.hash = "seen"
	n.judge()
	if s := told(wire.UnitIOMMU); s != left {
		t.Errorf("after the boot, before it is compared: %+v", s)
	}
	if !n.hear(wire.UnitStatus{Kind: wire.UnitIOMMU}) {
		t.Error("that nothing is left is no news")
	}
	if s := told(wire.UnitIOMMU); s.State != "" || len(n.book.Units) > 0 {
		t.Errorf("once it is gone: %+v, the book has %+v", s, n.book.Units)
	}
}

// What becomes of one unit after the other goes with a heartbeat soon, not with
// one for each; the end of the comparison is told at once.
func TestUnitsOfOneComparisonMakeNoStormOfHeartbeats(t *testing.T) {
	n := newNode(nil, slog.New(slog.DiscardHandler), ledger{}, maxRetryFar)
	n.hash, n.spec.Units = "seen", wire.Units{CPU: &wire.CPU{}, Hugepages: &wire.Hugepages{}}
	n.due = time.Now().Add(time.Minute)
	n.hear(wire.UnitStatus{Kind: wire.UnitHugepages, State: wire.InSync})
	soon := n.due
	if wait := time.Until(soon); wait > unitsPause || wait < unitsPause/2 {
		t.Errorf("the first is told in %v", wait)
	}
	if n.hear(wire.UnitStatus{Kind: wire.UnitCPU, State: wire.Failed}); !n.due.Equal(soon) {
		t.Errorf("the second is told %v after the first", n.due.Sub(soon))
	}
	if len(n.book.Units) != 2 || !n.owes.units {
		t.Errorf("to be told: %+v", n.book.Units)
	}
	if n.hear(wire.UnitStatus{Kind: wire.UnitCPU, State: wire.Failed}) {
		t.Error("the same once more is news")
	}
	n.settle([]wire.UnitStatus{{Kind: wire.UnitHugepages, State: wire.InSync}, {Kind: wire.UnitCPU, State: wire.InSync}})
	if wait := time.Until(n.due); wait > 0 {
		t.Errorf("the end is told in %v", wait)
	}
}

// A unit is told while the next one is still at work: here it reads a file that
// answers only when the test has seen the first.
func TestUnitIsToldWhileTheNextIsAtWork(t *testing.T) {
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	a := testAgent(t, socket, newTestGPUs(1))
	root, governor := governed(t)
	slow := filepath.Join(root.Dir(), filepath.Dir(governor), "energy_performance_preference")
	if err := unix.Mkfifo(slow, 0o644); err != nil {
		t.Fatal(err)
	}
	answer := func() { // to who waits for it, and nobody waits from now on
		if err := os.Rename(slow, slow+".answered"); err != nil {
			return
		}
		if fd, err := unix.Open(slow+".answered", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	}
	a.Root, a.ManageHost = root, true
	start(t, a)
	t.Cleanup(answer) // before the agent is waited for
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Units: wire.Units{Hugepages: &wire.Hugepages{SizeKiB: 2048, Count: 1}, CPU: &wire.CPU{Governor: "performance"}}})
	c.await(t, "the first unit told", func() bool {
		u := c.only().units
		return len(u) == 1 && u[0].Kind == wire.UnitHugepages && u[0].State == wire.NotApplicable && c.beats[len(c.beats)-1].Applied == 0
	})
	answer()
	c.await(t, "both units told", func() bool { return len(c.only().units) == 2 && c.beats[len(c.beats)-1].Applied == 1 })
	c.look(func() {
		if cpu := c.only().units[1]; cpu.Kind != wire.UnitCPU || cpu.State != wire.InSync {
			t.Errorf("%+v", cpu)
		}
	})
}
