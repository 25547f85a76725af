package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
)

// Memory and sizes of a connection. A page is 4 KiB; modernc.org/memory takes
// half as much again for it: the writer's 8 MiB, when full, were 12 MiB resident.
const (
	writerCacheKiB = 8 << 10
	readerCacheKiB = 2 << 10

	// What is read once needs no cache: the memory of one page is taken for the
	// next. With a larger one half of the time goes into memory for pages, and
	// with the file mapped even more into page faults.
	throughCacheKiB = 256

	// The write-ahead log is copied into the database when it has grown by about
	// 4 MiB, which is SQLite's default (see copier), and then overwritten from its
	// start: overwriting syncs in half the time of appending. SQLite copies it
	// within a commit only past the second number, should it grow faster than it
	// is copied. It is cut back to the limit if a long read let it grow past that.
	walCopyPages       = 1000
	walCheckpointPages = 8000
	walKeptBytes       = 16 << 20

	busyMillis = 5000 // only another program can hold the file's lock

	maxCachedStatements = 256
)

// conn is one SQLite connection with its prepared statements. One goroutine at
// a time uses it.
type conn struct {
	raw   driver.Conn
	stmts map[string]*stmt // by SQL text
}

type access int

const (
	readWrite access = iota
	readOnly
	readThrough // readOnly for reading much, once: a small cache
	copyOnly    // for copying the log, which takes write access but changes no row
)

// pragmas are set on every connection, for SQLite keeps them by connection.
func pragmas(a access, synchronous string) []string {
	cache := writerCacheKiB
	switch a {
	case readOnly:
		cache = readerCacheKiB
	case readThrough, copyOnly:
		cache = throughCacheKiB
	}
	list := []string{
		fmt.Sprintf("busy_timeout = %d", busyMillis),
		"foreign_keys = ON",
		"trusted_schema = OFF",
		"temp_store = MEMORY",
		fmt.Sprintf("cache_size = -%d", cache),
		fmt.Sprintf("journal_size_limit = %d", walKeptBytes),
		fmt.Sprintf("wal_autocheckpoint = %d", walCheckpointPages),
		"synchronous = " + synchronous,
	}
	if a != readWrite {
		return append(list, "query_only = ON")
	}
	return append(list, "journal_mode = WAL")
}

// uri names a file for SQLite; no mode makes a file that is not there.
func uri(path string, a access) string {
	mode := "rw"
	if a == readOnly || a == readThrough {
		mode = "ro"
	}
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return "file:" + escaped + "?mode=" + mode
}

// connect opens the file at path, which must exist, and sets the pragmas.
func connect(path string, a access, synchronous string) (*conn, error) {
	raw, err := open(uri(path, a))
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw, stmts: map[string]*stmt{}}
	for _, p := range pragmas(a, synchronous) {
		if err := c.script("PRAGMA " + p); err != nil {
			return nil, errors.Join(fmt.Errorf("PRAGMA %s: %w", p, err), raw.Close())
		}
	}
	return c, nil
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.prepared.Close())
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

// script runs any number of statements, unprepared.
func (c *conn) script(text string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
	return err
}

// exec runs one cached statement without arguments that gives no rows, such as
// COMMIT. One that gives rows would stay open, with the snapshot that it reads.
func (c *conn) exec(query string) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	defer s.release()
	return s.run()
}

// scan reads the first row of a query without arguments, such as a pragma's.
func (c *conn) scan(query string, dest ...any) error {
	tx := Tx{c: c, ctx: context.Background()}
	return tx.QueryRow(query).Scan(dest...)
}

// stmt is a prepared statement and what one use of it needs.
type stmt struct {
	prepared driver.Stmt
	query    string
	args     []driver.NamedValue
	row      []driver.Value
	params   int  // -1 where the driver does not say
	writes   bool // it is not a plain query
	cached   bool
	busy     bool
}

// stmt gives the prepared statement of a text. A text that is in use (a query
// inside the loop over the same query) or that comes when the cache is full is
// prepared for this one use.
func (c *conn) stmt(query string) (*stmt, error) {
	s, ok := c.stmts[query]
	if ok && !s.busy {
		s.busy = true
		return s, nil
	}
	prepared, err := c.raw.Prepare(query)
	if err != nil {
		return nil, err
	}
	s = &stmt{prepared: prepared, query: query, params: prepared.NumInput(), writes: writes(query), busy: true}
	if !ok && len(c.stmts) < maxCachedStatements {
		s.cached = true
		c.stmts[query] = s
	}
	return s, nil
}

// release ends one use.
func (s *stmt) release() {
	s.busy = false
	clear(s.args) // hold on to nothing of the caller's
	clear(s.row)
	if !s.cached {
		_ = s.prepared.Close() // its outcome was told by the statement itself
	}
}

// bind makes the arguments of one use.
func (s *stmt) bind(args []any) error {
	if s.params >= 0 && s.params != len(args) {
		return fmt.Errorf("store: %d arguments for %d parameters", len(args), s.params)
	}
	s.args = s.args[:0]
	for i, a := range args {
		v, err := bindable(a)
		if err != nil {
			return fmt.Errorf("store: argument %d: %w", i+1, err)
		}
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return nil
}

// run executes the statement with its bound arguments.
func (s *stmt) run() error {
	_, err := s.prepared.(driver.StmtExecContext).ExecContext(context.Background(), s.args)
	return err
}

// writes says whether a statement may write. It errs on the side of yes.
func writes(query string) bool {
	text := strings.TrimSpace(query)
	word, _, _ := strings.Cut(text, " ")
	if i := strings.IndexAny(word, "\n\t("); i >= 0 {
		word = word[:i]
	}
	switch strings.ToUpper(word) {
	case "SELECT", "VALUES", "EXPLAIN", "PRAGMA":
		return false
	case "WITH":
		u := strings.ToUpper(text)
		return strings.Contains(u, "INSERT ") || strings.Contains(u, "UPDATE ") || strings.Contains(u, "DELETE ")
	}
	return true
}
