package control

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// Whatever of the stored sums is not what the bookings sum to, the start names
// it and serves nothing.
func TestAStateThatDoesNotAddUpIsNotServed(t *testing.T) {
	for _, c := range []struct{ change, says string }{
		{`UPDATE quotas SET used = used + 1 WHERE resource = 'gpu'`, "live bookings sum to"},
		{`DELETE FROM quotas WHERE resource = 'gpu'`, "without a quota row"},
		{`DELETE FROM atoms WHERE atom = (SELECT min(atom) FROM atoms)`, "is not held"},
		{`INSERT INTO atoms (node_id, atom, reservation_id) SELECT node_id, 'GPU-stray', reservation_id FROM atoms LIMIT 1`, "does not book it"},
		{`UPDATE atoms SET reservation_id = 'res_other' WHERE atom = (SELECT min(atom) FROM atoms)`, "held by res_other"},
		{`UPDATE node_ledgers SET resources = replace(resources, '"allocated":', '"allocated":1')`, "allocated, its bookings sum to"},
		{`UPDATE reservations SET hold = NULL WHERE id = (SELECT min(id) FROM reservations)`, "is not what the reservation says"},
		{`UPDATE reservations SET hold = replace(hold, 'hold' || char(9) || 'gpu=2', 'hold' || char(9) || 'gpu=1')`, "is not what the reservation says"},
		{`DELETE FROM events WHERE seq = (SELECT max(seq) - 2 FROM events)`, "events are missing"},
	} {
		f := newFixture(t)
		pool := f.pool(appliance.SharingExclusive, "")
		f.join(pool, machine("a", 64, 512, 8))
		f.reserve(pool, 2)
		f.reserve(pool, 1)
		f.restart() // what adds up is served
		f.must(f.c.Store.Write(context.Background(), func(tx *store.Tx) error {
			r, err := tx.Exec(c.change)
			if err == nil && r.Changed == 0 {
				t.Errorf("%s: changed nothing", c.change)
			}
			return err
		}))
		again := &Control{Store: f.c.Store, IAM: iam.New(), Settings: f.c.Settings, Now: f.now}
		err := again.Start(context.Background())
		if err == nil || !strings.Contains(err.Error(), "does not add up") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: start says %v", c.change, err)
		}
	}
}

// What cannot be read is said at once, whichever of the readers meets it, and
// serves nothing.
func TestAStateThatCannotBeReadIsNotServed(t *testing.T) {
	for _, c := range []struct{ change, says string }{
		{`DELETE FROM node_ledgers WHERE node_id = (SELECT max(node_id) FROM node_ledgers)`, "no row of its counters"},
		{`UPDATE node_facts SET own = '{' WHERE node_id = (SELECT min(node_id) FROM node_facts)`, "the facts of node"},
		{`UPDATE reservations SET hold = hold || char(10) || 'node_x' WHERE id = (SELECT min(id) FROM reservations)`, "the hold of reservation"},
		{`UPDATE reservations SET hold = hold || char(10) || 'node_x' || char(9) || char(9) || char(9) || char(9) || char(9)`, "is not in the index"},
		{`DROP TABLE atoms`, "no such table"},
	} {
		f := newFixture(t)
		pool := f.pool(appliance.SharingExclusive, "")
		for _, name := range []string{"a", "b", "c"} {
			f.join(pool, machine(name, 64, 512, 8))
			f.reserve(pool, 8)
		}
		f.must(f.c.Store.Write(context.Background(), func(tx *store.Tx) error {
			_, err := tx.Exec(c.change)
			return err
		}))
		again := &Control{Store: f.c.Store, IAM: iam.New(), Settings: f.c.Settings, Now: f.now}
		if err := again.Start(context.Background()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: start says %v", c.change, err)
		}
	}
}

// More nodes and bookings than go to the index at once are all there.
func TestAStateOfManyBatchesIsLoadedWhole(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	const nodes = 2*loadBatch + 1
	for i := range nodes {
		f.join(pool, machine(fmt.Sprintf("m%03d", i), 64, 512, 8))
		f.reserve(pool, 8)
	}
	f.restart()
	booked := 0
	for id := range f.c.mem.nodes {
		booked += len(f.c.mem.index.Shares(id))
	}
	if len(f.c.mem.nodes) != nodes || booked != nodes {
		t.Errorf("%d nodes with %d bookings after a restart, want %d of each", len(f.c.mem.nodes), booked, nodes)
	}
}

// A machine may call its GPUs what it likes: a start reads the names in lines of
// tabs and commas.
func TestNamesOfGPUsAreLoadedAsTheyAre(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	inv := machine("a", 64, 512, 8)
	for i, name := range []string{"GPU\none", "GPU\ttwo", "GPU,three", "=", `GPU"four\`, "\n", "GPU\n", "res\tres\nres"} {
		inv.GPUs[i].UUID = name
	}
	node := f.join(pool, inv)
	f.reserve(pool, 8)
	before := f.c.mem.index.Shares(node)
	f.restart()
	if after := f.c.mem.index.Shares(node); len(before) != 1 || !reflect.DeepEqual(before, after) {
		t.Errorf("after a restart the bookings are %+v, they were %+v", after, before)
	}
}
