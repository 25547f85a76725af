package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/google/go-cmp/cmp"
)

// wantUnavailable checks that an error tells a caller to come back later, why,
// and keeps SQLite's own for the log.
func wantUnavailable(t *testing.T, err error, reason string) {
	t.Helper()
	var e *appliance.Error
	if !errors.As(err, &e) || e.Code != appliance.Unavailable || e.Reason != reason {
		t.Errorf("got %v, want UNAVAILABLE for %s", err, reason)
		return
	}
	if strings.Contains(e.Message, "INSERT") || resultCode(err) == 0 {
		t.Errorf("message %q, cause %v", e.Message, errors.Unwrap(e))
	}
}

func fat(id int) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO rows (id, body) VALUES (?, ?)", id, strings.Repeat("x", 100_000))
		return err
	}
}

// A database that may not grow stands in for a full disk: SQLite gives the
// same code, in the middle of a transaction.
func TestAFullDatabaseIsUnavailableUntilThereIsSpace(t *testing.T) {
	s := openTest(t, Options{})
	limit := func(pages int) {
		t.Helper()
		err := s.Write(t.Context(), func(tx *Tx) error {
			_, err := tx.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", pages))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Write(t.Context(), insert(1)); err != nil {
		t.Fatal(err)
	}
	limit(20)
	answers := together(t, s,
		insert(2),
		fat(3),
		func(tx *Tx) error { // one that does not look at its errors
			_ = fat(4)(tx)
			_ = insert(5)(tx)
			return nil
		},
		insert(6),
	)
	wantUnavailable(t, answers[1], "DiskFull")
	wantUnavailable(t, answers[2], "DiskFull")
	acknowledged := []int{1}
	for i, id := range map[int]int{0: 2, 3: 6} { // kept or fallen with the others, but answered truthfully
		if answers[i] == nil {
			acknowledged = append(acknowledged, id)
		}
	}
	slices.Sort(acknowledged)
	if diff := cmp.Diff(acknowledged, ids(t, s)); diff != "" {
		t.Errorf("rows (-acknowledged +there): %s", diff)
	}
	limit(1 << 20)
	if err := s.Write(t.Context(), fat(7)); err != nil {
		t.Errorf("once there is space: %v", err)
	}
}

// smallDisk mounts a file system of its own; only root may.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("mounting a file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func TestAFullDiskIsUnavailableUntilThereIsSpace(t *testing.T) {
	dir := smallDisk(t, "size=2m")
	s := openTest(t, Options{Path: filepath.Join(dir, "state.db"), Synchronous: "FULL"})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var kept []int
	var full error
	for id := 1; full == nil && id < 100; id++ {
		if full = s.Write(t.Context(), fat(id)); full == nil {
			kept = append(kept, id)
		}
	}
	wantUnavailable(t, full, "DiskFull")
	if err := s.Backup(t.Context(), filepath.Join(dir, "copy.db")); appliance.CodeOf(err) != appliance.Unavailable {
		t.Errorf("a backup onto the full disk: %v", err)
	}
	if diff := cmp.Diff(kept, ids(t, s)); diff != "" {
		t.Errorf("reads on the full disk (-acknowledged +there): %s", diff)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), fat(500)); err != nil {
		t.Errorf("once there is space: %v", err)
	}
	if diff := cmp.Diff(append(kept, 500), ids(t, s)); diff != "" {
		t.Error(diff)
	}
}

func TestAReadOnlyDiskIsUnavailableUntilItIsWritable(t *testing.T) {
	s := openTest(t, Options{})
	if err := s.Write(t.Context(), insert(1)); err != nil {
		t.Fatal(err)
	}
	set := func(on string) { // gives the code that a read-only disk gives; the writer is idle
		t.Helper()
		if err := s.writer.c.script("PRAGMA query_only = " + on); err != nil {
			t.Fatal(err)
		}
	}
	set("ON")
	wantUnavailable(t, s.Write(t.Context(), insert(2)), "ReadOnly")
	if diff := cmp.Diff([]int{1}, ids(t, s)); diff != "" {
		t.Error(diff)
	}
	set("OFF")
	if err := s.Write(t.Context(), insert(3)); err != nil {
		t.Errorf("once it is writable: %v", err)
	}
}

func TestAnotherProgramsLockIsUnavailable(t *testing.T) {
	s := openTest(t, Options{})
	err := s.Write(t.Context(), func(tx *Tx) error { return tx.c.script("PRAGMA busy_timeout = 1") })
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(s.path, readWrite, "OFF")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.script("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	wantUnavailable(t, s.Write(t.Context(), insert(1)), "Busy")
	if err := c.script("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), insert(1)); err != nil {
		t.Errorf("once it is free: %v", err)
	}
}
