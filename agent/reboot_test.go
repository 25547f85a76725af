package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// rebootNode is a node that has joined, on a machine that counts its reboots.
type rebootNode struct {
	*node
	t     *testing.T
	c     *fakeControl
	inv   wire.Inventory
	boots int
	fails error
}

func newRebootNode(t *testing.T) *rebootNode {
	t.Helper()
	c, socket := newControl(), socketPath(t)
	c.serve(t, socket)
	l, err := dial("unix:"+socket, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &rebootNode{t: t, c: c, inv: inventory.Personalise(recorded(t, "l40s-4"), "reboot", 0)}
	r.inv.Recorded = ""
	r.start(l, ledger{})
	return r
}

// start is a process of the agent.
func (r *rebootNode) start(l *link, book ledger) {
	r.node = newNode(l, slog.New(slog.DiscardHandler), book, maxRetryLocal)
	r.facts = &wire.AgentFacts{}
	r.reboots.restart = func(context.Context) error { r.boots++; return r.fails }
	r.see(sighting{inventory: r.inv, readings: gpu.Readings{Library: r.inv.GPULibrary}})
	r.run()
}

// run talks with the control plane until there is nothing left to say.
func (r *rebootNode) run() {
	for range 3 {
		r.hurry()
		r.step(r.t.Context())
		r.applied = r.spec.Generation // no unit is wanted
		r.rebootIfDue(r.t.Context())
	}
}

// want has a reboot of the present boot wanted.
func (r *rebootNode) want(id string, bindings ...wire.Binding) {
	r.c.want(wire.NodeSpec{Bindings: bindings, Reboot: &wire.Reboot{ID: id, BootID: r.node.inv.BootID}})
	r.run()
}

func (r *rebootNode) check(what string, boots, asked int) {
	r.t.Helper()
	r.c.look(func() {
		if r.boots != boots || len(r.c.leave) != asked {
			r.t.Errorf("%s: %d reboots and leave asked for %d times, want %d and %d: %+v", what, r.boots, len(r.c.leave), boots, asked, r.c.leave)
		}
	})
}

// A reboot is made once for each request and boot, whatever comes twice.
func TestARebootIsMadeOnceInItsBoot(t *testing.T) {
	r := newRebootNode(t)
	r.check("with nothing wanted", 0, 0)
	r.want("reboot_1")
	r.check("when it is wanted", 1, 1)
	r.want("reboot_1")
	r.check("when it is delivered again", 1, 1)

	// The process ends before its machine does. What it kept is wanted still,
	// and leave is needed anew.
	r.start(r.link, r.book)
	r.check("by another process in the same boot", 2, 2)

	r.inv.BootID = "another"
	r.start(r.link, r.book)
	r.check("after the boot", 2, 2)
	r.c.look(func() {
		if r.c.only().inventory.BootID != "another" {
			t.Errorf("the boot is told as %s", r.c.only().inventory.BootID)
		}
	})
	r.c.want(wire.NodeSpec{Reboot: &wire.Reboot{ID: "reboot_2"}})
	r.run()
	r.check("for no boot at all", 2, 2)
}

func TestARebootWaitsForItsTurn(t *testing.T) {
	t.Run("until no binding is left", func(t *testing.T) {
		r := newRebootNode(t)
		r.want("reboot_1", wire.Binding{ReservationID: "res_1"})
		r.check("with a binding", 0, 0)
		r.want("reboot_1")
		r.check("without", 1, 1)
	})
	t.Run("unless it is to be now", func(t *testing.T) {
		r := newRebootNode(t)
		r.c.want(wire.NodeSpec{
			Bindings: []wire.Binding{{ReservationID: "res_1"}}, Reboot: &wire.Reboot{ID: "reboot_1", BootID: r.inv.BootID, Now: true},
		})
		r.run()
		r.check("with a binding", 1, 1)
	})
	t.Run("until no unit is being applied", func(t *testing.T) {
		r := newRebootNode(t)
		r.c.want(wire.NodeSpec{Reboot: &wire.Reboot{ID: "reboot_1", BootID: r.inv.BootID}})
		r.hurry()
		r.step(t.Context())
		r.applied = r.spec.Generation - 1
		r.rebootIfDue(t.Context())
		r.check("half applied", 0, 0)
	})
	t.Run("for leave", func(t *testing.T) {
		r := newRebootNode(t)
		r.c.change(func() { r.c.refused = true })
		r.want("reboot_1")
		r.check("without leave", 0, 1)
		if wait := r.rebootIfDue(t.Context()); wait <= 0 || wait > rebootRetry {
			t.Errorf("leave is asked for again in %v", wait)
		}
		r.c.change(func() { r.c.refused = false })
		r.reboots.next = r.reboots.next.Add(-rebootRetry)
		r.run()
		r.check("with leave", 1, 2)
	})
}

// What cannot be is told once, with its reason, and never tried.
func TestARebootThatCannotBeIsTold(t *testing.T) {
	last := func(r *rebootNode) (text string) {
		r.c.look(func() { text = fmt.Sprint(r.c.leave[len(r.c.leave)-1].Failed) })
		return text
	}
	t.Run("where the host is left as it is", func(t *testing.T) {
		r := newRebootNode(t)
		r.reboots.restart, r.reboots.why = nil, leftAlone
		r.want("reboot_1", wire.Binding{ReservationID: "res_1"})
		r.check("unmanaged", 0, 1)
		if text := last(r); text != leftAlone {
			t.Errorf("it is told %q", text)
		}
	})
	t.Run("where it is refused", func(t *testing.T) {
		r := newRebootNode(t)
		r.fails = errors.New("somebody holds an inhibitor")
		r.want("reboot_1")
		r.check("refused", 1, 2)
		if text := last(r); !strings.Contains(text, "inhibitor") {
			t.Errorf("it is told %q", text)
		}
	})
	t.Run("where the machine stays up", func(t *testing.T) {
		r := newRebootNode(t)
		r.want("reboot_1")
		r.reboots.begun = r.reboots.begun.Add(-rebootPatience)
		r.run()
		r.check("long after", 1, 2)
		if text := last(r); !strings.Contains(text, "still up") {
			t.Errorf("it is told %q", text)
		}
	})
}

// A simulated machine reboots by having another boot id, once.
func TestASimulatedMachineSeemsToReboot(t *testing.T) {
	r := newRebootNode(t)
	r.reboots.restart = r.seemToReboot
	before := r.inv.BootID
	r.want("reboot_1")
	r.see(sighting{inventory: r.inv, readings: gpu.Readings{Library: r.inv.GPULibrary}})
	r.run()
	r.check("simulated", 0, 1)
	r.c.look(func() {
		if now := r.c.only().inventory.BootID; now == before || len(now) != len(before) {
			t.Errorf("the boot id is %q, and was %q", now, before)
		}
	})
}
