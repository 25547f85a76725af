package store

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// testSchema is a schema of the engine's own tests.
var testSchema = fstest.MapFS{"migrations/0001_test.sql": {Data: []byte(`
	CREATE TABLE kids (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES rows(id)) STRICT;
	CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT UNIQUE, body TEXT NOT NULL DEFAULT '') STRICT;
`)}}

// openTest opens a store on a new file with the test schema, or as o says.
func openTest(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "state.db")
	}
	if o.migrations == nil {
		o.migrations = testSchema
	}
	if o.Synchronous == "" {
		o.Synchronous = "OFF"
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, measured := t.(*testing.B); !measured {
		s.writer.budget = time.Hour // batches are as the test makes them, however slow the machine
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func insert(id int) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO rows (id) VALUES (?)", id)
		return err
	}
}

func ids(t testing.TB, s *Store) (list []int) {
	t.Helper()
	err := s.Read(context.Background(), func(tx *Tx) error {
		rows, err := tx.Query("SELECT id FROM rows ORDER BY id")
		if err != nil {
			return err
		}
		for rows.Next() {
			var id int
			if err := rows.Scan(&id); err != nil {
				return err
			}
			list = append(list, id)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAWriteIsReadAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, Options{Path: path})
	if err := s.Write(t.Context(), insert(7)); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); len(got) != 1 || got[0] != 7 {
		t.Fatalf("ids = %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), insert(8)); appliance.CodeOf(err) != appliance.Unavailable {
		t.Errorf("a write after Close: %v, want UNAVAILABLE", err)
	}
	if err := s.Read(t.Context(), func(*Tx) error { return nil }); appliance.CodeOf(err) != appliance.Unavailable {
		t.Errorf("a read after Close: %v, want UNAVAILABLE", err)
	}
	if got := ids(t, openTest(t, Options{Path: path})); len(got) != 1 || got[0] != 7 {
		t.Fatalf("after reopening, ids = %v", got)
	}
}

func TestARefusedWriteLeavesNothing(t *testing.T) {
	s := openTest(t, Options{})
	refusal := appliance.Refuse(appliance.QuotaExceeded, "", "no")
	err := s.Write(t.Context(), func(tx *Tx) error {
		if _, err := tx.Exec("INSERT INTO rows (id) VALUES (1)"); err != nil {
			return err
		}
		return refusal
	})
	if !errors.Is(err, refusal) {
		t.Fatalf("got %v, want the refusal itself", err)
	}
	if got := ids(t, s); len(got) != 0 {
		t.Fatalf("ids = %v", got)
	}
}
