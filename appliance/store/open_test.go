package store

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write schema.sql anew")

// schema.sql is the place to read the schema: what all migrations make of an
// empty file.
func TestSchemaIsTheSumOfAllMigrations(t *testing.T) {
	s := openTest(t, Options{migrations: embedded})
	var dump strings.Builder
	dump.WriteString("-- Made from migrations/ by go test ./appliance/store -update; not read by the program.\n")
	err := s.Read(t.Context(), func(tx *Tx) error {
		rows, err := tx.Query("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid")
		if err != nil {
			return err
		}
		for rows.Next() {
			var name, sql string
			if err := rows.Scan(&name, &sql); err != nil {
				return err
			}
			if strings.HasPrefix(sql, "CREATE TABLE") && !strings.Contains(sql[strings.LastIndex(sql, ")"):], "STRICT") {
				t.Errorf("table %s is not STRICT", name)
			}
			for _, word := range []string{"ON CONFLICT ROLLBACK", "RAISE(ROLLBACK"} { // would end the others' transaction
				if strings.Contains(strings.ToUpper(sql), word) {
					t.Errorf("%s says %s", name, word)
				}
			}
			dump.WriteString("\n" + sql + ";\n")
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("schema.sql", []byte(dump.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(kept), dump.String()); diff != "" {
		t.Errorf("schema.sql is not what the migrations make (-kept +made); run with -update:\n%s", diff)
	}
}

// withSteps adds steps to the test schema.
func withSteps(more ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for k, v := range testSchema {
		m[k] = v
	}
	for i, text := range more {
		m[fmt.Sprintf("migrations/%04d_more.sql", i+2)] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// someState makes a state of schema 1 with two rows and gives its path.
func someState(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, Options{Path: path})
	for i := range 2 {
		if err := s.Write(t.Context(), insert(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnOlderStateIsCopiedAndMigrated(t *testing.T) {
	path := someState(t)
	newer := withSteps("ALTER TABLE rows ADD COLUMN more TEXT;", `
		CREATE TABLE rows2 (id INTEGER PRIMARY KEY, body TEXT NOT NULL, more TEXT) STRICT;
		INSERT INTO rows2 SELECT id, body, more FROM rows;
		DROP TABLE rows;
		ALTER TABLE rows2 RENAME TO rows;`)
	s := openTest(t, Options{Path: path, migrations: newer})
	if diff := cmp.Diff([]int{0, 1}, ids(t, s)); diff != "" {
		t.Error(diff)
	}
	err := s.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec("INSERT INTO kids (id, parent) VALUES (1, 99)")
		return err
	})
	if !isForeignKey(err) {
		t.Errorf("foreign keys are off after a migration: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	copied := path + ".schema-1.bak"
	if err := verify(copied, 1); err != nil {
		t.Errorf("the copy made before: %v", err)
	}

	_, err = Open(t.Context(), Options{Path: path, migrations: testSchema})
	if err == nil || !strings.Contains(err.Error(), "newer version") || !strings.Contains(err.Error(), "schema 3") || !strings.Contains(err.Error(), copied) {
		t.Errorf("the older program: %v", err)
	}
	if err := os.Rename(copied, path); err != nil { // the way back that it names
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0, 1}, ids(t, openTest(t, Options{Path: path}))); diff != "" {
		t.Error(diff)
	}
}

func TestAMigrationThatFailsLeavesTheStateAsItWas(t *testing.T) {
	for name, tc := range map[string]struct{ step, want string }{
		"wrong SQL":         {"DELETE FROM rows; CREATE TABLE rows (id);", "0002_more.sql"},
		"dangling row":      {"DELETE FROM rows; INSERT INTO kids (id, parent) VALUES (1, 99);", "refers to a row of rows"},
		"not STRICT enough": {"DELETE FROM rows; INSERT INTO rows (id) VALUES ('x');", "0002_more.sql"},
	} {
		t.Run(name, func(t *testing.T) {
			path := someState(t)
			_, err := Open(t.Context(), Options{Path: path, migrations: withSteps(tc.step)})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), ".schema-1.bak") {
				t.Fatalf("got %v, want it to name %q and the copy", err, tc.want)
			}
			if diff := cmp.Diff([]int{0, 1}, ids(t, openTest(t, Options{Path: path}))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMigrationsCountFromOne(t *testing.T) {
	for _, names := range [][]string{{}, {"0002_a"}, {"0001_a", "0003_b"}, {"0001_a", "0001_b"}} {
		m := fstest.MapFS{}
		for _, n := range names {
			m["migrations/"+n+".sql"] = &fstest.MapFile{}
		}
		if _, err := steps(m); err == nil {
			t.Errorf("%v was taken", names)
		}
	}
}

// What is not a sound state of ours is refused in words, and is byte for byte
// what it was.
func TestWhatIsNotASoundStateIsRefusedAndLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string, b []byte) []byte
		want  string
	}{
		"empty":           {func(*testing.T, string, []byte) []byte { return nil }, "is empty"},
		"cut at a half":   {func(_ *testing.T, _ string, b []byte) []byte { return b[:len(b)/2] }, "damaged"},
		"cut in a page":   {func(_ *testing.T, _ string, b []byte) []byte { return b[:len(b)-100] }, "damaged"},
		"header gone":     {func(_ *testing.T, _ string, b []byte) []byte { clear(b[:100]); return b }, "damaged"},
		"first page gone": {func(_ *testing.T, _ string, b []byte) []byte { clear(b[100:4096]); return b }, "damaged"},
		"text":            {func(*testing.T, string, []byte) []byte { return bytes.Repeat([]byte("hello\n"), 1000) }, "damaged"},
		"another program's": {func(t *testing.T, path string, _ []byte) []byte {
			c, err := connect(path, readWrite, "OFF")
			if err != nil {
				t.Fatal(err)
			}
			if err := c.script("PRAGMA application_id = 7"); err != nil {
				t.Fatal(err)
			}
			if err := c.close(); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}, "not a state file of this program"},
	} {
		t.Run(name, func(t *testing.T) {
			path := someState(t)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b = tc.spoil(t, path, b)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(t.Context(), Options{Path: path, migrations: testSchema})
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q and the path", err, tc.want)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, b) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
	t.Run("file gone, log there", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := os.WriteFile(path+"-wal", []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{Path: path}); err == nil || !strings.Contains(err.Error(), "is missing but its log") {
			t.Errorf("got %v", err)
		}
		if exists(path) {
			t.Error("a new database was made")
		}
	})
	t.Run("no folder", func(t *testing.T) {
		if _, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "no", "state.db")}); err == nil {
			t.Error("a folder that is not there was taken")
		}
	})
}

func TestAHalfMadeStateIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if err := os.WriteFile(path+".new", []byte("half of it"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, Options{Path: path})
	if err := s.Write(t.Context(), insert(1)); err != nil {
		t.Fatal(err)
	}
	if exists(path + ".new") {
		t.Error("the half is still there")
	}
}

func TestFilesAreForTheOwnerAlone(t *testing.T) {
	path := someState(t)
	if err := os.Chmod(path, 0o644); err != nil { // as a careless restore leaves it
		t.Fatal(err)
	}
	s := openTest(t, Options{Path: path})
	if err := s.Write(t.Context(), insert(7)); err != nil {
		t.Fatal(err)
	}
	if err := backup(t.Context(), path, path+".copy", 1); err != nil {
		t.Fatal(err)
	}
	n := 0
	err := filepath.WalkDir(filepath.Dir(path), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n++
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v", d.Name(), info.Mode())
		}
		return nil
	})
	if err != nil || n != 5 {
		t.Errorf("%d files (state, log, shared memory, lock, copy: 5), %v", n, err)
	}
}

func TestASecondServerIsRefusedAndToldWho(t *testing.T) {
	path := someState(t)
	s := openTest(t, Options{Path: path})
	_, err := Open(context.Background(), Options{Path: filepath.Join(filepath.Dir(path), "other.db")})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("got %v, want the pid %d", err, os.Getpid())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, Options{Path: path})
}
