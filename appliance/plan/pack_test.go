package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

func TestPackedFactsAreTheFacts(t *testing.T) {
	var u Unpacker
	rapid.Check(t, func(t *rapid.T) {
		want := dgx(rapid.IntRange(0, 3).Draw(t, "node"), dgxTopology())
		for i := range want.Devices {
			if rapid.Bool().Draw(t, "sick") {
				want.Devices[i].Healthy, want.Devices[i].HealthReason = false, rapid.SampledFrom([]string{"", "lost"}).Draw(t, "why")
			}
			for j := range rapid.IntRange(0, 2).Draw(t, "parts") {
				want.Devices[i].Instances = append(want.Devices[i].Instances, Instance{UUID: want.Devices[i].UUID + string(rune('a'+j)), Profile: "1g.10gb"})
			}
		}
		want.Attributes = map[string]string{"rack": rapid.SampledFrom([]string{"1", "2", ""}).Draw(t, "rack"), AttributeHostname: want.Hostname}
		want.Schedulable = rapid.Bool().Draw(t, "schedulable")
		if !want.Schedulable {
			want.Unschedulable = "cordoned"
		}
		p, err := want.Pack()
		if err != nil {
			t.Fatal(err)
		}
		got := Node{ID: want.ID, PoolID: want.PoolID, Hostname: want.Hostname, Role: want.Role, Control: want.Control, Sharing: want.Sharing, Replicas: want.Replicas, Rows: want.Rows}
		if err := u.Unpack(p, &got); err != nil {
			t.Fatal(err)
		}
		delete(want.Attributes, AttributeHostname)                                                                                           // the index adds it
		apart := cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Node{}, "Unpacked"), cmpopts.IgnoreFields(Device{}, "NVLinkPeers")} // the index compares the peers
		if diff := cmp.Diff(want, got, apart); diff != "" {
			t.Fatal(diff)
		}
		// The index takes both for the same node.
		x := NewIndex()
		if _, err := x.PutNode(want); err != nil {
			t.Fatal(err)
		}
		y, err := Fill(func(y *Index) error { _, err := y.PutNode(got); return err })
		if err != nil {
			t.Fatal(err)
		}
		a, _ := x.Node(want.ID)
		b, _ := y.Node(want.ID)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Fatal(diff)
		}
		if want.Topology != nil && len(a.Devices[0].NVLinkPeers) == 0 {
			t.Fatal("the test's machine has no NVLink")
		}
	})
}

// A machine may come with MIG instances left on some of its GPUs. Where GPUs
// are booked as a whole, or as slots, they are no matter.
func TestMIGInstancesWhereGPUsAreBookedOtherwise(t *testing.T) {
	for _, sharing := range []appliance.Sharing{appliance.SharingExclusive, appliance.SharingTimeslice} {
		n := dgx(0, nil)
		n.Sharing, n.Replicas = sharing, 2
		n.Devices[3].Instances = []Instance{{UUID: "MIG-1", Profile: "1g.10gb"}, {UUID: "MIG-2", Profile: "2g.20gb"}}
		x := NewIndex()
		for range 2 { // again, as every report does
			if _, err := x.PutNode(n); err != nil {
				t.Fatal(err)
			}
		}
		if d, ok := x.Place(Request{PoolID: n.PoolID, Resources: appliance.Amounts{sharing.Resource(): 8}}); !ok || len(d.Placements[0].Atoms) != 8 {
			t.Errorf("%s: placed %t, on %d atoms", sharing, ok, len(d.Placements))
		}
		if got := x.MIGProfiles(n.PoolID); len(got) != 0 {
			t.Errorf("%s: profiles %v", sharing, got)
		}
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	}
}
