package store

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bettercompute/bc/appliance"
)

// bookings are reservations of every kind that a hold is written of.
func bookings() []appliance.Reservation {
	end := appliance.AtMillis(1_900_000_000_000)
	on := func(node string, confirmed bool, amounts appliance.Amounts, atoms ...string) appliance.Placement {
		return appliance.Placement{NodeID: node, Devices: atoms, Atoms: atoms, CPUs: "1-14,113-125", NUMANodes: "0", Amounts: amounts, Confirmed: confirmed}
	}
	slot := on("node_1", true, appliance.Amounts{"gpu.slot": 2}, "GPU-a#0", "GPU-a#1")
	slot.Devices = []string{"GPU-a"}
	all := []appliance.Reservation{
		{State: appliance.Placed, Binding: appliance.BindHold, Resources: appliance.Amounts{"gpu": 2},
			Placements: []appliance.Placement{on("node_1", false, appliance.Amounts{"gpu": 2, "vcpu": 27, "memoryGiB": 250}, "GPU-a", "GPU-b")}},
		{State: appliance.Active, Binding: appliance.BindNode, Resources: appliance.Amounts{}, ExpiresAt: &end,
			Placements: []appliance.Placement{on("node_1", true, appliance.Amounts{}), on("node_2", false, appliance.Amounts{"gpu": 1}, "GPU-c")}},
		{State: appliance.Active, Binding: appliance.BindHold, Resources: appliance.Amounts{"gpu.slot": 2}, Placements: []appliance.Placement{slot}},
		{State: appliance.Placed, Binding: appliance.BindHold, Resources: appliance.Amounts{"vcpu": 3},
			Placements: []appliance.Placement{{NodeID: "node_3", Devices: []string{}, Atoms: []string{}, Amounts: appliance.Amounts{"vcpu": 3}}}},
		{State: appliance.Placed, Binding: appliance.BindHold, Resources: appliance.Amounts{"gpu": 1}, // what the form cannot say
			Placements: []appliance.Placement{on("node_1", false, appliance.Amounts{"gpu": 1}, "GPU-with,comma")}},
	}
	for i := range all {
		all[i].ID, all[i].TenantID, all[i].PoolID, all[i].Nodes = fmt.Sprintf("res_%d", i), "acme", "pool_1", 1
		all[i].Message, all[i].Name = "placed,\tin words", "a name"
	}
	return all
}

// readHeld is what a start reads.
func readHeld(t *testing.T, s *Store) (held []appliance.Reservation, stray []string) {
	t.Helper()
	err := s.ReadApart(t.Context(),
		func(tx *Tx) error {
			return tx.HeldReservations(func(r *appliance.Reservation) error { held = append(held, *r); return nil })
		},
		func(tx *Tx) (err error) { stray, err = tx.StrayHolds(); return err })
	if err != nil {
		t.Fatal(err)
	}
	return held, stray
}

// needed leaves of a reservation what a start has to know.
func needed(all []appliance.Reservation) []appliance.Reservation {
	var out []appliance.Reservation
	for _, r := range all {
		placements := slices.Clone(r.Placements)
		for i := range placements {
			placements[i].Confirmed = false
		}
		out = append(out, appliance.Reservation{ID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, Binding: r.Binding,
			Resources: r.Resources, Placements: placements, ExpiresAt: r.ExpiresAt})
	}
	return out
}

func TestAHoldSaysWhatAStartHasToKnow(t *testing.T) {
	s := openTest(t, Options{migrations: embedded})
	all := bookings()
	err := s.Write(t.Context(), func(tx *Tx) error {
		for i, r := range all {
			if err := tx.InsertReservation(Claim{Reservation: r, Queue: int64(i + 1)}); err != nil {
				return err
			}
		}
		ended := all[0]
		ended.ID, ended.State = "res_ended", appliance.Ended
		pending := all[0]
		pending.ID, pending.State = "res_pending", appliance.Pending
		for i, r := range []appliance.Reservation{ended, pending} {
			if err := tx.InsertReservation(Claim{Reservation: r, Queue: int64(100 + i)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	held, stray := readHeld(t, s)
	if diff := cmp.Diff(needed(all), needed(held), cmpopts.EquateEmpty()); diff != "" || len(stray) > 0 {
		t.Errorf("stray %v (-booked +read):\n%s", stray, diff)
	}

	// A change of the reservation is one of its hold.
	all[0].State, all[0].Placements[0].Confirmed = appliance.Active, true
	soon := appliance.AtMillis(1_800_000_000_000)
	all[2].ExpiresAt = &soon
	all[3].Resources = appliance.Amounts{"vcpu": 4}
	err = s.Write(t.Context(), func(tx *Tx) error {
		if ok, err := tx.UpdateReservation(Claim{Reservation: all[0]}, appliance.Placed); err != nil || !ok {
			return fmt.Errorf("confirm: %t, %w", ok, err)
		}
		if ok, err := tx.UpdateReservation(Claim{Reservation: all[0]}, appliance.Placed); err != nil || ok {
			return fmt.Errorf("confirm what is active: %t, %w", ok, err)
		}
		for _, r := range all[2:4] {
			if ok, err := tx.UpdateReservation(Claim{Reservation: r}, r.State); err != nil || !ok {
				return fmt.Errorf("change %s: %t, %w", r.ID, ok, err)
			}
		}
		over := all[1]
		over.State = appliance.Ended
		if ok, err := tx.UpdateReservation(Claim{Reservation: over}, appliance.Active); err != nil || !ok {
			return fmt.Errorf("end: %t, %w", ok, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	left := append(all[:1:1], all[2:]...)
	held, stray = readHeld(t, s)
	if diff := cmp.Diff(needed(left), needed(held), cmpopts.EquateEmpty()); diff != "" || len(stray) > 0 {
		t.Errorf("stray %v (-booked +read):\n%s", stray, diff)
	}
}

// A file of schema 4 has no holds: the migration writes those that the program
// would have written.
func TestHoldsOfAnOlderFileAreWrittenByTheMigration(t *testing.T) {
	older := fstest.MapFS{}
	for _, name := range []string{"0001_core.sql", "0002_access.sql", "0003_usage.sql", "0004_sessions.sql"} {
		text, err := fs.ReadFile(embedded, "migrations/"+name)
		if err != nil {
			t.Fatal(err)
		}
		older["migrations/"+name] = &fstest.MapFile{Data: text}
	}
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, Options{Path: path, migrations: older})
	all := bookings()
	err := s.Write(t.Context(), func(tx *Tx) error {
		ended := all[0]
		ended.ID, ended.State = "res_ended", appliance.Ended
		for i, r := range append(all, ended) {
			_, err := tx.Exec(`INSERT INTO reservations (id, tenant_id, pool_id, state, queue, expires_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)`,
				r.ID, r.TenantID, r.PoolID, r.State, i+1, r.ExpiresAt, toJSON(r))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, Options{Path: path, migrations: embedded})
	held, stray := readHeld(t, s)
	if diff := cmp.Diff(needed(all), needed(held), cmpopts.EquateEmpty()); diff != "" || len(stray) > 0 {
		t.Errorf("stray %v (-booked +read):\n%s", stray, diff)
	}
}

func TestAHoldThatIsNotWhatItsReservationSaysIsNamed(t *testing.T) {
	for _, change := range []string{
		`UPDATE reservations SET hold = replace(hold, 'GPU-a', 'GPU-z') WHERE id = 'res_0'`,
		`UPDATE reservations SET hold = NULL WHERE id = 'res_0'`,
		`UPDATE reservations SET hold = '' WHERE id = 'res_0'`,
		`UPDATE reservations SET expires_at = 5 WHERE id = 'res_0'`,
		`UPDATE reservations SET pool_id = 'pool_2' WHERE id = 'res_0'`,
		`UPDATE reservations SET state = 'ended' WHERE id = 'res_0'`,
		`UPDATE reservations SET state = 'ended', body = replace(body, '"placed"', '"ended"') WHERE id = 'res_0'`,
	} {
		s := openTest(t, Options{migrations: embedded})
		err := s.Write(t.Context(), func(tx *Tx) error {
			for i, r := range bookings() {
				if err := tx.InsertReservation(Claim{Reservation: r, Queue: int64(i + 1)}); err != nil {
					return err
				}
			}
			_, err := tx.Exec(change)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, stray := readHeld(t, s); len(stray) != 1 || stray[0] != "res_0" {
			t.Errorf("%s: stray %v", change, stray)
		}
	}
}
