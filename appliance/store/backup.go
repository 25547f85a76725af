package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Backup writes a consistent copy of the state to the file dest while reads and
// writes go on, and puts it into place only when it has been verified and is on
// the disk; a file of that name is replaced. The copy can stand in for the state
// file as it is.
func (s *Store) Backup(ctx context.Context, dest string) error {
	list, err := steps(embedded)
	if err != nil {
		return err
	}
	if err := backup(ctx, s.path, dest, len(list)); err != nil {
		return fmt.Errorf("back up to %s: %w", dest, worded(err))
	}
	return nil
}

// backup copies the database at path, on a connection of its own.
func backup(ctx context.Context, path, dest string, known int) (err error) {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	part := dest + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(part)
		}
	}()
	c, err := connect(path, readOnly, "FULL")
	if err != nil {
		return err
	}
	err = c.vacuumInto(part)
	if err := errors.Join(err, c.close()); err != nil {
		return err
	}
	if err := verify(part, known); err != nil {
		return err
	}
	if err := f.Sync(); err != nil { // VACUUM INTO leaves that to its caller
		return err
	}
	return moveIntoPlace(part, dest)
}

// vacuumInto is SQLite's own copy: one read transaction, no lock on writers.
func (c *conn) vacuumInto(path string) error {
	if err := c.script("PRAGMA query_only = OFF"); err != nil { // the file itself is open read-only
		return err
	}
	s, err := c.stmt("VACUUM INTO ?")
	if err != nil {
		return err
	}
	defer s.release()
	if err := s.bind([]any{path}); err != nil {
		return err
	}
	return s.run()
}

// Verify reads the whole file at path and says what is wrong with it: damage,
// references to nothing, or a schema that this program does not know. It
// changes nothing, and may be asked of a state that is in use. SQLite keeps no
// checksums: a value that was changed into another is not found.
func Verify(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	list, err := steps(embedded)
	if err != nil {
		return err
	}
	return verify(path, len(list))
}

func verify(path string, known int) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if cutShort(path, info) {
		return fmt.Errorf("%s is damaged: its last page is cut short", path)
	}
	c, err := connect(path, readOnly, "FULL")
	if err != nil {
		return fmt.Errorf("%s cannot be read as a database: %w", path, err)
	}
	defer func() { err = errors.Join(err, c.close()) }()
	app, v, err := version(c)
	if err != nil {
		return fmt.Errorf("%s cannot be read as a database: %w", path, err)
	}
	if err := checkVersion(path, app, v, known); err != nil {
		return err
	}
	var found string
	if err := c.scan("PRAGMA integrity_check(1)", &found); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	if found != "ok" {
		return fmt.Errorf("%s is damaged: %s", path, found)
	}
	if err := checkForeignKeys(c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
