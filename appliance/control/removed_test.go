package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// The credential of a node that was removed is answered that it was, also after
// a restart, so that its agent puts the machine back; one that is not known at
// all is answered as anybody's is, which is no reason for that.
func TestARemovedNodesCredentialIsToldSo(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	pool := f.pool(appliance.SharingExclusive, "")
	inv := machine("a", 64, 512, 8)
	w, err := f.c.Hello(ctx, operator, wire.Hello{MachineID: inv.MachineID, Hostname: inv.Hostname, PoolID: pool, Inventory: inv, InventoryHash: "1"})
	f.must(err)
	if who, err := f.c.Authenticate(ctx, w.Credential); err != nil || who.ID != w.NodeID {
		t.Fatalf("before it is removed: %+v, %v", who, err)
	}
	_, err = f.c.RemoveNode(ctx, operator, appliance.NodeRef{TenantID: f.own, NodeID: w.NodeID})
	f.must(err)
	for _, when := range []string{"at once", "after a restart"} {
		_, err := f.c.Authenticate(ctx, w.Credential)
		var refusal *appliance.Error
		if !errors.As(err, &refusal) || refusal.Code != appliance.NotFound || refusal.Reason != wire.ReasonNodeRemoved || !strings.Contains(refusal.Message, inv.Hostname) {
			t.Errorf("%s: %v", when, err)
		}
		last := w.Credential[len(w.Credential)-1]
		unknown := w.Credential[:len(w.Credential)-1] + map[bool]string{true: "b", false: "a"}[last == 'a']
		if _, err := f.c.Authenticate(ctx, unknown); appliance.CodeOf(err) != appliance.Unauthenticated {
			t.Errorf("%s, one that is not known: %v", when, err)
		}
		f.restart()
	}
}

// A machine that lost its credential is given another by the local operator:
// from then on whoever has the old one is nobody. Until the new one is durable
// the old one holds.
func TestAReplacedCredentialIsOfNoUse(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	pool := f.pool(appliance.SharingExclusive, "")
	inv := machine("a", 64, 512, 8)
	hello := func() (wire.Welcome, error) {
		return f.c.Hello(ctx, operator, wire.Hello{MachineID: inv.MachineID, Hostname: inv.Hostname, PoolID: pool, Inventory: inv, InventoryHash: "1"})
	}
	var lost wire.Welcome
	for failed := false; !failed; { // together does its best to have both in one commit
		var err error
		lost, err = hello()
		f.must(err)
		failed = f.together(true, func() error { _, err := hello(); return err })[0] != nil
	}
	if who, err := f.c.Authenticate(ctx, lost.Credential); err != nil || who.ID != lost.NodeID {
		t.Errorf("after a replacement that came to nothing: %+v, %v", who, err)
	}
	given, err := hello()
	f.must(err)
	if given.NodeID != lost.NodeID {
		t.Fatalf("the machine became another node: %s, %s", lost.NodeID, given.NodeID)
	}
	for _, when := range []string{"at once", "after a restart"} {
		if _, err := f.c.Authenticate(ctx, lost.Credential); appliance.CodeOf(err) != appliance.Unauthenticated {
			t.Errorf("%s the old credential is answered %v", when, err)
		}
		if who, err := f.c.Authenticate(ctx, given.Credential); err != nil || who.ID != lost.NodeID {
			t.Errorf("%s the new one: %+v, %v", when, who, err)
		}
		f.restart()
	}
}
