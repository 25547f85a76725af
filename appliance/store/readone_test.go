package store

import (
	"context"
	"errors"
	"testing"
)

func TestReadOneSeesTheLastCommitAndRunsOneQuery(t *testing.T) {
	s := openTest(t, Options{migrations: testSchema})
	ctx := context.Background()
	for n := 1; n <= 3; n++ {
		if err := s.Write(ctx, func(tx *Tx) error {
			_, err := tx.Exec("INSERT INTO rows (id, name, body) VALUES (?, ?, '')", n, n)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		count := 0
		if err := s.ReadOne(ctx, func(tx *Tx) error { return tx.QueryRow("SELECT count(*) FROM rows").Scan(&count) }); err != nil || count != n {
			t.Fatalf("counted %d of %d: %v", count, n, err)
		}
	}
	err := s.ReadOne(ctx, func(tx *Tx) error {
		var n int
		if err := tx.QueryRow("SELECT 1").Scan(&n); err != nil {
			return err
		}
		return tx.QueryRow("SELECT 2").Scan(&n)
	})
	if !errors.Is(err, errSecondQuery) {
		t.Errorf("a second query gave %v", err)
	}
	if err := s.ReadOne(ctx, func(tx *Tx) error { _, err := tx.Query("SELECT id FROM rows"); return err }); err != nil { // left open
		t.Fatal(err)
	}
	if err := s.Write(ctx, func(tx *Tx) error { _, err := tx.Exec("DELETE FROM rows"); return err }); err != nil {
		t.Fatal(err)
	}
	count := -1
	if err := s.ReadOne(ctx, func(tx *Tx) error { return tx.QueryRow("SELECT count(*) FROM rows").Scan(&count) }); err != nil || count != 0 {
		t.Errorf("a query that was left open holds its snapshot: %d rows, %v", count, err)
	}
}
