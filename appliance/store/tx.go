package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// Tx is what a function given to [Store.Write] or [Store.Read] works with. It
// is of no use after the function has returned, nor on another goroutine.
//
// Errors of statements carry SQLite's; a rows function turns what the caller
// can act on (a name that is taken) into a refusal. After the disk has failed a
// statement, every later one of the same function fails too, and so does its
// write, whatever the function returns: the transaction may be gone by then.
type Tx struct {
	c      *conn
	ctx    context.Context
	w      *writer  // nil in a read
	batch  *batch   // of a write, nil in what it left for later
	of     *request // whose write it is
	open   []*Rows
	wrote  bool  // some row was changed
	single bool  // one query alone: see ReadOne
	asked  bool  // a query was made
	fatal  error // SQLite may have ended the transaction
}

// Result is what a statement did.
type Result struct {
	Changed int64 // rows that the statement itself inserted, updated or deleted
	LastID  int64 // the integer primary key of the row inserted last, on this connection
}

// Exec runs a statement. Parameters are ? or ?N; bindable says what an
// argument may be.
func (tx *Tx) Exec(query string, args ...any) (r Result, err error) {
	s, err := tx.prepare(query, args)
	if err != nil {
		return r, err
	}
	defer s.release()
	res, err := s.prepared.(driver.StmtExecContext).ExecContext(context.Background(), s.args)
	if err != nil {
		return r, tx.failed(query, err)
	}
	if s.writes {
		r.Changed, _ = res.RowsAffected() // neither driver has an error for these two
		r.LastID, _ = res.LastInsertId()
		tx.wrote = tx.wrote || r.Changed > 0
	}
	return r, nil
}

// Query runs a query, or a statement with RETURNING, for its rows.
func (tx *Tx) Query(query string, args ...any) (*Rows, error) {
	s, err := tx.prepare(query, args)
	if err != nil {
		return nil, err
	}
	rows, err := s.prepared.(driver.StmtQueryContext).QueryContext(context.Background(), s.args)
	if err != nil {
		s.release()
		return nil, tx.failed(query, err)
	}
	if n := len(rows.Columns()); len(s.row) != n {
		s.row = make([]driver.Value, n)
	}
	tx.wrote = tx.wrote || s.writes
	r := &Rows{tx: tx, s: s, rows: rows}
	tx.open = append(tx.open, r)
	return r, nil
}

// QueryRow runs a query for its first row; errors wait for [Row.Scan].
func (tx *Tx) QueryRow(query string, args ...any) Row {
	rows, err := tx.Query(query, args...)
	return Row{rows: rows, err: err}
}

// Undo gives, in a write, a function that puts back what this write changed in memory. Those
// of one write run last to first, on the writer's goroutine, when the write is
// rolled back, be it for its own error or because the shared commit failed.
// They must not panic: memory would no longer equal the rows, so the process ends.
func (tx *Tx) Undo(f func()) { tx.batch.undo = append(tx.batch.undo, f) }

// Done gives a function that runs on the writer's goroutine once the write is
// durable, before Write returns. It must be short, for the next writes wait,
// must not call Write, and must not panic.
func (tx *Tx) Done(f func()) { tx.batch.done = append(tx.batch.done, f) }

// Touch names something that this write changed, such as a pool's id, for those
// who wait with [Store.ChangedIn].
func (tx *Tx) Touch(topic string) { tx.batch.topics = append(tx.batch.topics, topic) }

func (tx *Tx) prepare(query string, args []any) (*stmt, error) {
	if tx.batch != nil && tx.fatal == nil {
		tx.fatal = tx.reach()
	}
	if tx.fatal != nil {
		return nil, tx.fatal
	}
	if tx.ctx.Err() != nil {
		return nil, context.Cause(tx.ctx)
	}
	if tx.single && tx.asked {
		return nil, statementError(query, errSecondQuery)
	}
	tx.asked = true
	s, err := tx.c.stmt(query)
	if err != nil {
		return nil, tx.failed(query, err)
	}
	if s.writes && tx.w == nil {
		s.release()
		return nil, statementError(query, errReadOnlyTx)
	}
	if err := s.bind(args); err != nil {
		s.release()
		return nil, statementError(query, err)
	}
	return s, nil
}

// failed words a statement's error and remembers it if nothing may follow it.
func (tx *Tx) failed(query string, err error) error {
	fatal := endsTransaction(err)
	err = worded(statementError(query, err))
	if fatal {
		tx.fatal = err
	}
	return err
}

// forget drops rows that are closed.
func (tx *Tx) forget(r *Rows) {
	for i, o := range tx.open {
		if o == r {
			last := len(tx.open) - 1
			tx.open[i], tx.open[last] = tx.open[last], nil
			tx.open = tx.open[:last]
			return
		}
	}
}

// closeRows closes what the function left open.
func (tx *Tx) closeRows() {
	for len(tx.open) > 0 {
		tx.open[len(tx.open)-1].Close()
	}
}

// Rows are the rows of one query. They are closed by the end of the rows, by
// Close, and at the latest by the end of the transaction.
type Rows struct {
	tx    *Tx
	s     *stmt
	rows  driver.Rows
	count int
	err   error
}

// Next goes to the next row and says whether there is one; when not, Err says
// why.
func (r *Rows) Next() bool {
	if r.rows == nil {
		return false
	}
	if r.count++; r.count%256 == 0 && r.tx.ctx.Err() != nil {
		r.err = context.Cause(r.tx.ctx)
		r.Close()
		return false
	}
	if err := r.rows.Next(r.s.row); err != nil {
		if err != io.EOF {
			r.err = r.tx.failed(r.s.query, err)
		}
		r.Close()
		return false
	}
	return true
}

// Scan reads the columns of the row into pointers, in order: to strings,
// integers, floats, bool, []byte, [appliance.Time] (from milliseconds since
// 1970), any type of such a kind, or a pointer to one of these for a column that
// may be NULL. NULL leaves the zero value in a destination that is not a pointer.
func (r *Rows) Scan(dest ...any) error {
	if r.rows == nil {
		return errors.New("store: Scan without a row")
	}
	if len(dest) != len(r.s.row) {
		return fmt.Errorf("store: %d destinations for %d columns of %s", len(dest), len(r.s.row), r.s.query)
	}
	for i, d := range dest {
		if err := scanInto(d, r.s.row[i]); err != nil {
			return fmt.Errorf("store: column %d (%s): %w", i+1, r.rows.Columns()[i], err)
		}
	}
	return nil
}

// Err is what ended the rows early; nil if they were read to their end.
func (r *Rows) Err() error { return r.err }

// Close ends the query; it may be called again.
func (r *Rows) Close() {
	if r.rows == nil {
		return
	}
	_ = r.rows.Close() // reset repeats the error of the last step, which Next has told
	r.rows = nil
	r.s.release()
	r.tx.forget(r)
}

// Row is the first row of a query.
type Row struct {
	rows *Rows
	err  error
}

// Scan reads the row as [Rows.Scan] does; ErrNoRows if there is none.
func (r Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return ErrNoRows
	}
	return r.rows.Scan(dest...)
}
