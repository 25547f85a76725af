package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/google/go-cmp/cmp"
)

// The two drivers spell pragmas in a DSN differently and ignore each other's
// spelling, so every connection of both handles is asked what holds.
func TestEveryConnectionHasItsPragmas(t *testing.T) {
	t.Log(driverName)
	s := openTest(t, Options{Synchronous: "FULL", ReadConns: 4})
	want := map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000", "temp_store": "2",
		"trusted_schema": "0", "journal_size_limit": "16777216", "wal_autocheckpoint": "8000", "cache_size": "-8192", "query_only": "0",
	}
	ask := func(name string, tx *Tx) {
		for pragma, want := range want {
			var got any
			if err := tx.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || fmt.Sprint(got) != want {
				t.Errorf("%s: %s = %v, %v; want %s", name, pragma, got, err, want)
			}
		}
	}
	err := s.Write(t.Context(), func(tx *Tx) error { ask("writer", tx); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want["query_only"], want["cache_size"] = "1", "-2048"
	var nest func(depth int)
	nest = func(depth int) { // all readers at once, so that each is another connection
		err := s.Read(t.Context(), func(tx *Tx) error {
			ask(fmt.Sprint("reader ", depth), tx)
			if depth > 1 {
				nest(depth - 1)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	nest(4)
	if len(s.idle) != 4 {
		t.Errorf("%d connections were asked, want 4", len(s.idle))
	}
}

func TestAReadCannotWrite(t *testing.T) {
	s := openTest(t, Options{})
	for _, q := range []string{
		"INSERT INTO rows (id) VALUES (1)",
		"INSERT INTO rows (id) VALUES (1) RETURNING id",
		"WITH x AS (SELECT 1) INSERT INTO rows (id) SELECT * FROM x",
		"DROP TABLE rows",
	} {
		err := s.Read(t.Context(), func(tx *Tx) error { _, err := tx.Exec(q); return err })
		if !errors.Is(err, errReadOnlyTx) {
			t.Errorf("%s: %v", q, err)
		}
	}
	c, err := connect(s.path, readOnly, "FULL") // the connection itself refuses, too
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.script("INSERT INTO rows (id) VALUES (1)"); resultCode(err)&0xff != codeReadOnly {
		t.Errorf("the read-only connection: %v", err)
	}
}

func TestConstraintsAreToldByCode(t *testing.T) {
	s := openTest(t, Options{})
	err := s.Write(t.Context(), func(tx *Tx) error {
		for _, tc := range []struct {
			query          string
			duplicate, key bool
		}{
			{"INSERT INTO rows (id, name) VALUES (1, 'a')", false, false},
			{"INSERT INTO rows (id, name) VALUES (1, 'b')", true, false},
			{"INSERT INTO rows (id, name) VALUES (2, 'a')", true, false},
			{"INSERT INTO kids (id, parent) VALUES (1, 99)", false, true},
			{"INSERT INTO rows (id, body) VALUES (3, NULL)", false, false},
		} {
			_, err := tx.Exec(tc.query)
			if isDuplicate(err) != tc.duplicate || isForeignKey(err) != tc.key {
				t.Errorf("%s: %v (code %d)", tc.query, err, resultCode(err))
			}
			if err != nil && !strings.HasPrefix(err.Error(), "INSERT INTO") {
				t.Errorf("the error does not say which statement: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStatementIsPreparedOnceAndMayBeNested(t *testing.T) {
	s := openTest(t, Options{})
	const q = "SELECT value FROM json_each('[1,2,3]') WHERE value > ?"
	err := s.Read(t.Context(), func(tx *Tx) error {
		sum := 0
		outer, err := tx.Query(q, 0)
		if err != nil {
			return err
		}
		for outer.Next() {
			inner, err := tx.Query(q, 1) // the same text while it is in use
			if err != nil {
				return err
			}
			for inner.Next() {
				var n int
				if err := inner.Scan(&n); err != nil {
					return err
				}
				sum += n
			}
			if inner.Err() != nil {
				return inner.Err()
			}
		}
		if sum != 15 || outer.Err() != nil {
			return fmt.Errorf("sum %d, %v", sum, outer.Err())
		}
		before := tx.c.stmts[q]
		var n int
		if err := tx.QueryRow(q, 2).Scan(&n); err != nil || n != 3 {
			return fmt.Errorf("%d, %v", n, err)
		}
		if tx.c.stmts[q] != before || before.busy || len(tx.open) != 0 {
			return fmt.Errorf("the statement was prepared again or is still in use")
		}
		for i := range 2 * maxCachedStatements {
			if err := tx.QueryRow(fmt.Sprintf("SELECT %d", i)).Scan(&n); err != nil || n != i {
				return fmt.Errorf("%d, %v", n, err)
			}
		}
		if len(tx.c.stmts) > maxCachedStatements {
			return fmt.Errorf("%d statements are kept", len(tx.c.stmts))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAReadEndsWithItsContext(t *testing.T) {
	s := openTest(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := s.Read(ctx, func(tx *Tx) error {
		rows, err := tx.Query("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c) SELECT n FROM c")
		if err != nil {
			return err
		}
		for rows.Next() {
			n++
			cancel()
		}
		return rows.Err()
	})
	if !errors.Is(err, context.Canceled) || n > 256 {
		t.Errorf("%v after %d rows", err, n)
	}
	if n := len(ids(t, s)); n != 0 {
		t.Errorf("the connection gives %d rows afterwards", n)
	}
}

// Too many arguments are told by mattn alone: modernc has no word for how many
// a statement takes.
func TestWrongNumbersOfArgumentsAndColumnsAreErrors(t *testing.T) {
	s := openTest(t, Options{})
	err := s.Read(t.Context(), func(tx *Tx) error {
		var a, b any
		if err := tx.QueryRow("SELECT ?, ?", 1).Scan(&a, &b); err == nil {
			t.Error("1 argument for 2 parameters was taken")
		}
		if err := tx.QueryRow("SELECT ?, ?", 1, 2, 3).Scan(&a, &b); err == nil && strings.Contains(driverName, "mattn") {
			t.Error("3 arguments for 2 parameters were taken")
		}
		if err := tx.QueryRow("SELECT 1, 2").Scan(&a); err == nil {
			t.Error("1 destination for 2 columns was taken")
		}
		if err := tx.QueryRow("SELECT 1 WHERE 0").Scan(&a); err != ErrNoRows {
			t.Errorf("no row: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestValuesComeBackAsTheyWere(t *testing.T) {
	type word string
	type count int32
	type all struct {
		S  string
		W  word
		I  int
		N  count
		U  uint16
		B  bool
		F  float64
		Z  []byte
		J  json.RawMessage
		At appliance.Time
		P  *appliance.Time
		Q  *word
		R  *int64
	}
	at := appliance.At(time.Date(2026, 1, 31, 8, 0, 0, 123e6, time.UTC))
	w, n := word("ü"), int64(-5)
	for name, in := range map[string]all{
		"zero": {},
		"full": {"a\x00b", "w", -1 << 62, -7, 65535, true, 1.5, []byte{0, 1}, json.RawMessage(`{"a":1}`), at, &at, &w, &n},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{})
			err := s.Write(t.Context(), func(tx *Tx) error {
				if _, err := tx.Exec(`CREATE TABLE v (s TEXT, w TEXT, i INTEGER, n INTEGER, u INTEGER, b INTEGER, f REAL,
					z BLOB, j TEXT, at INTEGER, p INTEGER, q TEXT, r INTEGER) STRICT`); err != nil {
					return err
				}
				_, err := tx.Exec("INSERT INTO v VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
					in.S, in.W, in.I, in.N, in.U, in.B, in.F, in.Z, in.J, in.At, in.P, in.Q, in.R)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			var out all
			err = s.Read(t.Context(), func(tx *Tx) error {
				return tx.QueryRow("SELECT * FROM v").Scan(&out.S, &out.W, &out.I, &out.N, &out.U, &out.B, &out.F,
					&out.Z, &out.J, &out.At, &out.P, &out.Q, &out.R)
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(in, out); diff != "" {
				t.Error(diff)
			}
		})
	}
	var small int8
	if err := scanInto(&small, int64(300)); err == nil {
		t.Error("300 was read into an int8")
	}
	if err := scanInto(small, int64(3)); err == nil {
		t.Error("a destination that is no pointer was taken")
	}
	if _, err := bindable(time.Now()); err == nil {
		t.Error("a time.Time was taken; drivers store it as different texts")
	}
}

func TestAnyNameOfAFileWorks(t *testing.T) {
	for _, name := range []string{"a?b.db", "a#b.db", "a%20b.db", "a b&c=d.db", "ü.db"} {
		path := filepath.Join(t.TempDir(), name)
		s := openTest(t, Options{Path: path})
		if err := s.Write(t.Context(), insert(1)); err != nil {
			t.Fatal(err)
		}
		if len(ids(t, s)) != 1 || !exists(path) {
			t.Errorf("%s does not hold what was written", name)
		}
	}
}
