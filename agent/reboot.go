package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// rebootPatience is how long a machine may take to stop this agent once its
// reboot has begun. systemd gives a unit 90 s to stop, and the agent's own goes
// among the last.
const rebootPatience = 10 * time.Minute

// rebootRetry is the pause after a reboot could not be asked leave for.
const rebootRetry = 10 * time.Second

// rebooting is how far this process has come with a reboot.
type rebooting struct {
	restart func(context.Context) error // nil: it cannot be
	why     string                      // that it cannot
	id      string                      // of the last one that was begun or refused
	begun   time.Time                   // zero: it was refused
	next    time.Time                   // not before
	boot    string                      // of a machine that only seems to reboot; empty: its first
}

// rebootDue answers the reboot that is wanted of the boot that the machine is
// in, once nothing is in its way: no binding in force or coming down, no unit
// half applied. Leave is still to be asked for.
func (n *node) rebootDue(now time.Time) (wire.Reboot, bool) {
	r := n.spec.Reboot
	if r == nil || !n.joined || r.BootID == "" || r.BootID != n.inv.BootID || now.Before(n.reboots.next) {
		return wire.Reboot{}, false
	}
	if n.reboots.id == r.ID {
		return *r, !n.reboots.begun.IsZero() && now.Sub(n.reboots.begun) > rebootPatience
	}
	if n.reboots.restart == nil {
		return *r, true // to say so
	}
	settled := n.bare || n.applied == n.spec.Generation
	return *r, settled && (r.Now || len(n.spec.Bindings)+len(n.book.Bindings) == 0)
}

// reboot asks for leave and has the machine rebooted. The control plane keeps
// that it gave leave before it answers, so what happens then is no surprise to it.
func (n *node) reboot(ctx context.Context, r wire.Reboot) {
	report := wire.RebootReport{NodeID: n.book.NodeID, ID: r.ID, BootID: r.BootID}
	switch {
	case n.reboots.restart == nil:
		report.Failed = n.reboots.why
	case n.reboots.id == r.ID:
		report.Failed = "the machine is still up " + rebootPatience.String() + " after its shutdown began; see systemctl list-jobs"
	default:
		reply, err := n.link.reboot(ctx, n.book.Credential, report)
		if err != nil || !reply.Go {
			n.reboots.next = time.Now().Add(rebootRetry)
			return
		}
		n.log.Warn("the machine is rebooted, as was asked of the control plane", "reboot", r.ID)
		if err = n.reboots.restart(ctx); err == nil {
			n.reboots.id, n.reboots.begun = r.ID, time.Now()
			return
		}
		report.Failed = err.Error()
	}
	n.log.Warn("the machine is not rebooted", "reboot", r.ID, "why", report.Failed)
	if _, err := n.link.reboot(ctx, n.book.Credential, report); err != nil {
		n.reboots.next = time.Now().Add(rebootRetry)
		return
	}
	n.reboots.id, n.reboots.begun = r.ID, time.Time{}
}

// rebootIfDue answers how long nothing is due.
func (n *node) rebootIfDue(ctx context.Context) time.Duration {
	if r, due := n.rebootDue(time.Now()); due {
		n.reboot(ctx, r)
	}
	if wait := time.Until(n.reboots.next); wait > 0 {
		return wait
	}
	return idle
}

// canReboot settles how this machine is rebooted, and what its agent can be
// asked for. A recorded machine only seems to reboot.
func (a *Agent) canReboot(n *node) {
	n.facts = &wire.AgentFacts{Plans: true}
	switch {
	case !a.Root.Real():
		n.reboots.restart = n.seemToReboot
	case !a.ManageHost:
		n.reboots.why = leftAlone
	default:
		m := host.NewMachine(a.Root)
		if err := m.CanReboot(); err != nil {
			n.reboots.why = err.Error()
		} else {
			n.reboots.restart = m.Reboot
		}
	}
	n.facts.NoReboot = n.reboots.why
}

// seemToReboot gives a machine that is not a real one another boot id, and
// changes nothing else.
func (n *node) seemToReboot(context.Context) error {
	var b [16]byte
	rand.Read(b[:]) // never fails
	n.reboots.boot = fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	n.inv.BootID = n.reboots.boot
	n.hash, n.owes.inventory = inventory.Hash(n.inv), true
	n.hurry()
	return nil
}
