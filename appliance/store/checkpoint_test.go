package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logBytes is how large the log's file is. It is overwritten from its start
// once all of it is in the database, and grows for as long as it is not.
func logBytes(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestTheLogIsCopiedBesideTheWriterAndBegunAnew(t *testing.T) {
	const pages = 50
	s := openTest(t, Options{})
	s.writer.copyAt = pages
	big := strings.Repeat("x", 3000) // about a page each
	next := 0
	writeMany := func(n int) {
		t.Helper()
		for range n {
			next++
			err := s.Write(t.Context(), func(tx *Tx) error {
				_, err := tx.Exec("INSERT INTO rows (id, body) VALUES (?, ?)", next, big)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	const commits, bound = 1500, 40 * pages * 4096 // what 1,500 commits of at least two pages write is twice the bound
	writeMany(commits)
	if n := logBytes(t, s); n > bound {
		t.Errorf("the log has %d bytes after %d commits, more than %d", n, commits, bound)
	}
	err := s.Read(t.Context(), func(tx *Tx) error { // a reader needs what it began with: the log goes on behind it
		if _, err := tx.Query("SELECT id FROM rows"); err != nil {
			return err
		}
		writeMany(commits)
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM rows").Scan(&n); err != nil || n != commits {
			t.Errorf("a reader that began at %d rows sees %d, %v", commits, n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	writeMany(commits)
	grown := logBytes(t, s)
	writeMany(commits)
	if n := logBytes(t, s); n > grown {
		t.Errorf("the log has grown from %d to %d bytes after the reader had gone", grown, n)
	}
	if n := len(ids(t, s)); n != next {
		t.Errorf("%d rows, want %d", n, next)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path + "-wal"); err == nil {
		t.Error("closing left the log")
	}
	again := openTest(t, Options{Path: s.path})
	if n := len(ids(t, again)); n != next {
		t.Errorf("%d rows after closing, want %d", n, next)
	}
}

// A server that is killed again and again before its log is long enough to be
// copied would leave a longer one each time.
func TestALogThatACrashLeftIsCopiedWithTheFirstWrites(t *testing.T) {
	s := openTest(t, Options{})
	const rows = 100
	for i := range rows {
		if err := s.Write(t.Context(), insert(i)); err != nil {
			t.Fatal(err)
		}
	}
	copyOf := func(from string, suffixes ...string) string {
		t.Helper()
		to := filepath.Join(t.TempDir(), "state.db")
		for _, suffix := range suffixes {
			b, err := os.ReadFile(from + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to+suffix, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return to
	}
	after := openTest(t, Options{Path: copyOf(s.path, "", "-wal")}) // what a kill leaves
	for i := range 1000 {
		if err := after.Write(t.Context(), insert(rows+i)); err != nil {
			t.Fatal(err)
		}
		if i > 0 && after.copier.state.Load() == copierRests {
			break
		}
	}
	alone := openTest(t, Options{Path: copyOf(after.path, "")})
	if n := len(ids(t, alone)); n < rows {
		t.Errorf("the file without its log has %d rows, want the %d that the crash left in the log", n, rows)
	}
}
