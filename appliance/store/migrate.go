package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

//go:embed migrations/*.sql
var embedded embed.FS

// applicationID marks the file as ours, in the header field that SQLite has for
// it: "BcAp".
const applicationID = 0x42634170

// migration is one step of the schema, file NNNN_noun.sql. Steps only go
// forward, and one that has been released is never edited.
type migration struct{ name, text string }

// steps reads the migrations in order and checks that they count from 1.
func steps(fsys fs.FS) ([]migration, error) {
	names, err := fs.Glob(fsys, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	list := make([]migration, 0, len(names))
	for i, n := range names {
		base := strings.TrimPrefix(n, "migrations/")
		if !strings.HasPrefix(base, fmt.Sprintf("%04d_", i+1)) {
			return nil, fmt.Errorf("migration %s: expected number %04d", base, i+1)
		}
		text, err := fs.ReadFile(fsys, n)
		if err != nil {
			return nil, err
		}
		list = append(list, migration{name: base, text: string(text)})
	}
	if len(list) == 0 {
		return nil, errors.New("no migrations")
	}
	return list, nil
}

// version reads whose file this is and how far its schema has come.
func version(c *conn) (app, v int, err error) {
	if err := c.scan("PRAGMA application_id", &app); err != nil {
		return 0, 0, err
	}
	err = c.scan("PRAGMA user_version", &v)
	return app, v, err
}

// checkVersion refuses a file that is not ours or that is newer than known.
func checkVersion(path string, app, v, known int) error {
	if app != applicationID || v < 1 {
		return fmt.Errorf("%s is not a state file of this program (application id %#x, schema %d); name another file", path, app, v)
	}
	if v > known {
		way := "or restore a backup made before the upgrade"
		if copied := copyBefore(path, known); exists(copied) {
			way = "or put back " + copied + ", the copy made before the upgrade, and lose what was written since"
		}
		return fmt.Errorf("%s was written by a newer version of this program (schema %d, this one knows up to %d): install that version again, %s", path, v, known, way)
	}
	return nil
}

// copyBefore names the copy of a file that is kept when it leaves schema v.
func copyBefore(path string, v int) string { return fmt.Sprintf("%s.schema-%d.bak", path, v) }

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// migrate brings an existing file to the last step, after a copy of it.
func migrate(ctx context.Context, c *conn, o Options) error {
	list, err := steps(o.migrations)
	if err != nil {
		return err
	}
	app, v, err := version(c)
	if err != nil {
		return fmt.Errorf("open %s: %w", o.Path, err)
	}
	if err := checkVersion(o.Path, app, v, len(list)); err != nil {
		return err
	}
	if v == len(list) {
		return nil
	}
	copied := copyBefore(o.Path, v)
	if err := backup(ctx, o.Path, copied, len(list)); err != nil {
		return fmt.Errorf("copy %s before migrating it from schema %d to %d: %w", o.Path, v, len(list), err)
	}
	if err := apply(c, list, v); err != nil {
		return fmt.Errorf("migrate %s: %w; it stays as it was before that step, and %s is the copy made before the first", o.Path, err, copied)
	}
	return nil
}

// applyAll makes the schema in an empty file.
func applyAll(c *conn, fsys fs.FS) error {
	list, err := steps(fsys)
	if err != nil {
		return err
	}
	return apply(c, list, 0)
}

// apply runs the steps after the v-th, each in a transaction of its own.
// Foreign keys are off meanwhile, so that a step can rebuild a table in SQLite's
// way (https://www.sqlite.org/lang_altertable.html), and are checked before
// each commit.
func apply(c *conn, list []migration, v int) error {
	if err := c.script("PRAGMA foreign_keys = OFF"); err != nil {
		return err
	}
	for i := v; i < len(list); i++ {
		if err := applyOne(c, list[i], i+1); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", list[i].name, err), c.script("PRAGMA foreign_keys = ON"))
		}
	}
	return c.script("PRAGMA foreign_keys = ON")
}

func applyOne(c *conn, m migration, v int) error {
	if err := c.script("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := c.script(m.text)
	if err == nil {
		err = checkForeignKeys(c)
	}
	if err == nil {
		err = c.script(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", applicationID, v))
	}
	if err != nil {
		_ = c.script("ROLLBACK") // SQLite may have rolled back already
	}
	return err
}

// checkForeignKeys finds a row that refers to nothing.
func checkForeignKeys(c *conn) error {
	var table, parent string
	var row *int64
	var key int
	err := c.scan("PRAGMA foreign_key_check", &table, &row, &parent, &key)
	if errors.Is(err, ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("a row of %s refers to a row of %s that is not there", table, parent)
}
