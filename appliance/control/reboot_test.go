package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// booted is a machine that its agent can reboot.
func booted(name, boot string) wire.Inventory {
	inv := machine(name, 64, 512, 8)
	inv.BootID, inv.Agent = boot, &wire.AgentFacts{Plans: true}
	return inv
}

func (f *fixture) reboot(node string, now bool) appliance.Node {
	f.t.Helper()
	n, err := f.c.RebootNode(context.Background(), operator, appliance.RebootNode{TenantID: f.own, NodeID: node, Now: now})
	f.must(err)
	return n
}

func (f *fixture) node(id string) appliance.Node {
	f.t.Helper()
	n, err := f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: id})
	f.must(err)
	return n
}

func (f *fixture) uncordon(id string) error {
	_, err := f.c.UncordonNode(context.Background(), operator, appliance.NodeRef{TenantID: f.own, NodeID: id})
	return err
}

// wants is the reboot that a node's agent is asked for.
func (f *fixture) wants(node string) *wire.Reboot {
	f.t.Helper()
	spec, _, _, err := f.c.Spec(context.Background(), f.asNode(node), node, 0)
	f.must(err)
	return spec.Reboot
}

// leave asks for leave as the node's agent does.
func (f *fixture) leave(node string, r *wire.Reboot, failed string) bool {
	f.t.Helper()
	out, err := f.c.GiveLeave(context.Background(), f.asNode(node), wire.RebootReport{NodeID: node, ID: r.ID, BootID: r.BootID, Failed: failed})
	f.must(err)
	return out.Go
}

// rebootEvents are the states that the events tell of, in order.
func (f *fixture) rebootEvents() (out []string) {
	f.t.Helper()
	page, err := f.c.ListEvents(context.Background(), operator, appliance.ListEvents{TenantID: f.own, Limit: 500})
	f.must(err)
	for _, e := range page.Items {
		if e.Type == appliance.EventNodeReboot {
			var data struct{ State string }
			f.must(json.Unmarshal(e.Data, &data))
			out = append(out, data.State)
		}
	}
	return out
}

func (f *fixture) is(what string, node string, state appliance.NodeState, reboot appliance.RebootState) {
	f.t.Helper()
	n := f.node(node)
	if n.State != state || n.Reboot == nil || n.Reboot.State != reboot {
		f.t.Fatalf("%s: the node is %s with reboot %+v, want %s and %s", what, n.State, n.Reboot, state, reboot)
	}
}

// A reboot waits for the bookings of its node, needs leave, is done when the
// node comes up in another boot, and lets the node go. Every step outlives a
// restart of the control plane, and none is made twice.
func TestARebootWaitsAndIsMadeOnce(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	id := f.join(p, booted("gpu-a", "boot-1"))
	other := f.join(p, booted("gpu-b", "boot-b"))
	r := f.reserve(p, 8)
	if at := r.Placements[0].NodeID; at != id {
		id, other = other, id
	}
	boot := f.node(id)
	if f.wants(id) != nil {
		t.Fatal("a reboot is wanted that nobody asked for")
	}

	first := f.reboot(id, false)
	f.is("asked for", id, appliance.NodeDraining, appliance.RebootWaiting)
	if held := f.node(id).Reboot.Reservations; len(held) != 1 || held[0].ReservationID != r.ID || held[0].TenantID != f.own {
		t.Errorf("it waits for %+v", held)
	}
	if again := f.reboot(id, false); again.Reboot.ID != first.Reboot.ID {
		t.Errorf("asked for again it is %s, and was %s", again.Reboot.ID, first.Reboot.ID)
	}
	f.restart()
	f.is("after a restart", id, appliance.NodeDraining, appliance.RebootWaiting)
	if f.wants(id) != nil {
		t.Error("the agent is asked while a booking is left")
	}
	stale := &wire.Reboot{ID: first.Reboot.ID, BootID: bootOf(t, f, id)}
	if f.leave(id, stale, "") {
		t.Error("leave is given while a booking is left")
	}

	before, _ := f.c.mem.generation(id)
	f.release(r)
	if after, _ := f.c.mem.generation(id); after <= before {
		t.Error("the release does not wake the agent")
	}
	f.is("with nothing booked", id, appliance.NodeDraining, appliance.RebootRequested)
	want := f.wants(id)
	if want == nil || want.ID != first.Reboot.ID || want.Now {
		t.Fatalf("the agent is asked for %+v", want)
	}
	if got := f.reserve(p, 8); got.Placements[0].NodeID == id {
		t.Error("a booking came onto the node")
	}
	for _, wrong := range []wire.Reboot{{ID: "reboot_0", BootID: want.BootID}, {ID: want.ID, BootID: "boot-0"}} {
		if f.leave(id, &wrong, "") {
			t.Errorf("leave is given for %+v", wrong)
		}
	}
	if f.leave(other, want, "") {
		t.Error("leave is given to another node")
	}
	for range 2 { // the answer may be lost
		if !f.leave(id, want, "") {
			t.Fatal("no leave is given, or not again in the same boot")
		}
	}
	f.restart()
	f.is("with leave", id, appliance.NodeDraining, appliance.RebootRebooting)
	if !f.leave(id, want, "") {
		t.Error("after a restart no leave is given in the same boot")
	}
	if code := appliance.CodeOf(f.uncordon(id)); code != appliance.InvalidState {
		t.Errorf("a node that is being rebooted is uncordoned: %q", code)
	}

	inv := booted(boot.Hostname, "boot-2")
	f.report(id, inv)
	f.is("in another boot", id, appliance.NodeReady, appliance.RebootDone)
	if f.wants(id) != nil || f.leave(id, want, "") || f.leave(id, &wire.Reboot{ID: want.ID, BootID: "boot-2"}, "") {
		t.Error("after it was done it is wanted, or leave is given")
	}
	f.report(id, inv)
	if got, want := fmt.Sprint(f.rebootEvents()), "[requested rebooting done]"; got != want {
		t.Errorf("the events tell %s, want %s", got, want)
	}
	f.verify()
}

func bootOf(t *testing.T, f *fixture, id string) string {
	t.Helper()
	return map[string]string{"gpu-a": "boot-1", "gpu-b": "boot-b"}[f.node(id).Hostname]
}

// What an operator does meanwhile, or the machine by itself, is not undone.
func TestARebootAndWhatHappensMeanwhile(t *testing.T) {
	type world struct {
		*fixture
		id   string
		held appliance.Reservation
	}
	for name, do := range map[string]func(t *testing.T, w world){
		"uncordoning withdraws one that waits": func(t *testing.T, w world) {
			w.reboot(w.id, false)
			w.must(w.uncordon(w.id))
			w.is("uncordoned", w.id, appliance.NodeReady, appliance.RebootWithdrawn)
			w.release(w.held)
			if w.wants(w.id) != nil {
				t.Error("it is wanted still")
			}
			w.reboot(w.id, false)
			w.is("asked for anew", w.id, appliance.NodeDraining, appliance.RebootRequested)
		},
		"uncordoning withdraws one that nobody hears of": func(t *testing.T, w world) {
			w.release(w.held)
			w.reboot(w.id, false)
			want := w.wants(w.id)
			w.leave(w.id, want, "")
			w.silence(w.id)
			w.must(w.uncordon(w.id))
			w.beat(w.id)
			if w.leave(w.id, want, "") {
				t.Error("leave is given for what was withdrawn")
			}
		},
		"a node that was cordoned before stays so": func(t *testing.T, w world) {
			_, err := w.c.CordonNode(t.Context(), operator, appliance.NodeRef{TenantID: w.own, NodeID: w.id})
			w.must(err)
			w.release(w.held)
			w.reboot(w.id, false)
			w.is("asked for", w.id, appliance.NodeCordoned, appliance.RebootRequested)
			if !w.leave(w.id, w.wants(w.id), "") {
				t.Error("no leave is given")
			}
			w.report(w.id, booted("gpu-a", "boot-2"))
			w.is("back", w.id, appliance.NodeCordoned, appliance.RebootDone)
		},
		"a node that is drained meanwhile stays so": func(t *testing.T, w world) {
			w.reboot(w.id, false)
			_, err := w.c.DrainNode(t.Context(), operator, appliance.NodeRef{TenantID: w.own, NodeID: w.id})
			w.must(err)
			w.report(w.id, booted("gpu-a", "boot-2"))
			w.is("back", w.id, appliance.NodeDraining, appliance.RebootDone)
		},
		"a machine that reboots by itself is not rebooted again": func(t *testing.T, w world) {
			w.reboot(w.id, false)
			w.report(w.id, booted("gpu-a", "boot-2"))
			w.is("back", w.id, appliance.NodeReady, appliance.RebootDone)
			w.release(w.held)
			if w.wants(w.id) != nil {
				t.Error("it is wanted still")
			}
		},
		"now does not wait, and reservations stay": func(t *testing.T, w world) {
			id := w.reboot(w.id, false).Reboot.ID
			n := w.reboot(w.id, true)
			if n.Reboot.ID != id || !n.Reboot.Now || n.Reboot.State != appliance.RebootRequested {
				t.Errorf("hurried on it is %+v", n.Reboot)
			}
			want := w.wants(w.id)
			if want == nil || !want.Now || !w.leave(w.id, want, "") {
				t.Fatalf("the agent is asked for %+v, or gets no leave", want)
			}
			w.report(w.id, booted("gpu-a", "boot-2"))
			w.is("back", w.id, appliance.NodeReady, appliance.RebootDone)
			if r := w.get(w.held); !r.State.Booked() {
				t.Errorf("the reservation is %s", r.State)
			}
		},
		"one that fails says why, and stays drained for whoever looks": func(t *testing.T, w world) {
			w.release(w.held)
			w.reboot(w.id, false)
			want := w.wants(w.id)
			if w.leave(w.id, want, "somebody holds an inhibitor") {
				t.Error("leave is given to who cannot")
			}
			w.is("failed", w.id, appliance.NodeDraining, appliance.RebootFailed)
			if why := w.node(w.id).Reboot.Message; why != "somebody holds an inhibitor" {
				t.Errorf("it says %q", why)
			}
			if w.wants(w.id) != nil || w.leave(w.id, want, "") {
				t.Error("it is wanted still")
			}
			w.report(w.id, booted("gpu-a", "boot-2")) // by hand
			w.is("back", w.id, appliance.NodeReady, appliance.RebootDone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.pool(appliance.SharingExclusive, "")
			id := f.join(p, booted("gpu-a", "boot-1"))
			do(t, world{f, id, f.reserve(p, 1)})
			f.verify()
		})
	}
}

// What cannot be rebooted is refused at once, with what to do, and nothing changes.
func TestARebootThatCannotBeIsRefused(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	unmanaged, old, boots := booted("unmanaged", "b"), booted("old", "b"), booted("boots", "")
	unmanaged.Agent.NoReboot, old.Agent = "it leaves the host as it is", nil
	silent := f.join(p, booted("silent", "b"))
	f.silence(silent)
	for id, reason := range map[string]string{
		f.join(p, unmanaged): "agent-cannot", f.join(p, old): "agent-too-old", f.join(p, boots): "agent-cannot", silent: "unreachable",
	} {
		before := f.node(id)
		for _, dry := range []bool{false, true} {
			_, err := f.c.RebootNode(t.Context(), operator, appliance.RebootNode{TenantID: f.own, NodeID: id, DryRun: dry})
			var e *appliance.Error
			if !errors.As(err, &e) || e.Code != appliance.InvalidState || e.Reason != reason {
				t.Errorf("%s: %v, want the reason %s", before.Hostname, err, reason)
			}
		}
		if after := f.node(id); after.State != before.State || after.Reboot != nil {
			t.Errorf("%s is %s with reboot %+v", after.Hostname, after.State, after.Reboot)
		}
	}
	if events := f.rebootEvents(); len(events) != 0 {
		t.Errorf("refusals are told as %v", events)
	}
}

// A dry run answers what would be, and is none.
func TestADryRunReboots(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	id := f.join(p, booted("gpu-a", "boot-1"))
	r := f.reserve(p, 1)
	n, err := f.c.RebootNode(t.Context(), operator, appliance.RebootNode{TenantID: f.own, NodeID: id, DryRun: true, Now: true})
	f.must(err)
	if n.State != appliance.NodeReady || n.Reboot == nil || !n.Reboot.Now || len(n.Reboot.Reservations) != 1 || n.Reboot.Reservations[0].ReservationID != r.ID {
		t.Errorf("a dry run shows %s with %+v", n.State, n.Reboot)
	}
	if n := f.node(id); n.Reboot != nil || f.wants(id) != nil {
		t.Errorf("after a dry run there is %+v", n.Reboot)
	}
}

// A node's agent never gets a generation with what was wanted before it, though
// memory is ahead of the disk while a commit is being made.
func TestAGenerationBringsWhatItStandsFor(t *testing.T) {
	f := newFixture(t)
	p := f.pool(appliance.SharingExclusive, "")
	id := f.join(p, booted("gpu-a", "boot-1"))
	before, _, _, err := f.c.Spec(t.Context(), f.asNode(id), id, 0)
	f.must(err)
	f.must(f.c.Store.Write(t.Context(), func(tx *store.Tx) error {
		rec, err := tx.Node(id)
		if err != nil {
			return err
		}
		r := store.Reboot{Reboot: appliance.Reboot{ID: "reboot_1", State: appliance.RebootRequested}, BootID: "boot-1"}
		if err := f.c.putReboot(tx, system("test"), rec, r, ""); err != nil {
			return err
		}
		_, newer, _, err := f.c.Spec(t.Context(), f.asNode(id), id, before.Generation)
		if newer {
			t.Error("a generation is answered before its commit")
		}
		return err
	}))
	after, newer, _, err := f.c.Spec(t.Context(), f.asNode(id), id, before.Generation)
	f.must(err)
	if !newer || after.Generation <= before.Generation || after.Reboot == nil {
		t.Errorf("after the commit generation %d comes with %+v", after.Generation, after.Reboot)
	}
}
