package plan

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

// An index that is filled at once is the one that grew: the same facts and
// sums, every node in its place, and the same decisions.
func TestAFilledIndexIsTheOneThatGrew(t *testing.T) {
	grown := fleet(t, 60, func(i int, n *Node) { n.Schedulable = i%7 != 0 })
	fill(t, grown, 0.6)
	ids := slices.Sorted(maps.Keys(grown.nodes))
	filled, err := Fill(func(x *Index) error {
		for _, id := range ids {
			facts, _ := grown.Node(id)
			if _, err := x.PutNode(facts); err != nil {
				return err
			}
		}
		for _, id := range slices.Sorted(maps.Keys(grown.bookings)) {
			b, _ := grown.Booking(id)
			if err := x.Book(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := filled.Check(); err != nil {
		t.Fatal(err)
	}
	booked := 0
	for _, id := range ids {
		want, _ := grown.Node(id)
		got, _ := filled.Node(id)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-grown +filled):\n%s", id, diff)
		}
		if diff := cmp.Diff(grown.Shares(id), filled.Shares(id)); diff != "" {
			t.Fatalf("shares of %s (-grown +filled):\n%s", id, diff)
		}
		booked += len(filled.Shares(id))
	}
	if booked == 0 {
		t.Fatal("nothing is booked")
	}
	for gpus := range 9 {
		r := Request{PoolID: "pool_01k5c00000000000000000000", Resources: appliance.Amounts{"gpu": max(gpus, 1)}}
		a, placedA := grown.Place(r)
		b, placedB := filled.Place(r)
		if placedA != placedB || placedA && a.Placements[0].NodeID != b.Placements[0].NodeID {
			t.Errorf("%d GPUs: grown places %t %v, filled %t %v", gpus, placedA, a.Placements, placedB, b.Placements)
		}
	}
}

func TestWhatCannotBeFilledIsNoIndex(t *testing.T) {
	n := dgx(0, nil)
	b := Booking{ReservationID: "res_1", PoolID: n.PoolID, Placements: []appliance.Placement{{
		NodeID: n.ID, Devices: []string{n.Devices[0].UUID}, Atoms: []string{n.Devices[0].UUID}, Amounts: appliance.Amounts{"gpu": 1},
	}}}
	for name, again := range map[string]func(x *Index) error{
		"a node twice":  func(x *Index) error { _, err := x.PutNode(n); return err },
		"an atom twice": func(x *Index) error { b.ReservationID = "res_2"; return x.Book(b) },
	} {
		x, err := Fill(func(x *Index) error {
			if _, err := x.PutNode(n); err != nil {
				t.Fatal(err)
			}
			b.ReservationID = "res_1"
			if err := x.Book(b); err != nil {
				t.Fatal(err)
			}
			return again(x)
		})
		if err == nil || x != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
