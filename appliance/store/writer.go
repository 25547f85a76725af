package store

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bettercompute/bc/appliance"
)

const (
	maxBatch    = 256 // writes that share one commit
	batchBudget = 20 * time.Millisecond
	maxWaiting  = 1024 // writes that queue before callers wait to queue

	// About what a commit adds to the log: a page of each table and index that it
	// changes, and one for each write of the batch.
	commitPages = 6
)

// writer owns the writing connection. Its loop takes a write, begins a
// transaction, runs the write and whatever else waits, commits once, and then
// answers them all. It never waits for company: a lone write is committed at once.
type writer struct {
	s      *Store
	c      *conn
	queue  chan *request
	limit  time.Duration // of a caller's wait
	budget time.Duration // after which a batch takes no further write
	ended  chan struct{} // closed when the loop has answered everyone
	quit   atomic.Bool   // answer those who wait instead of running them

	takeAll bool // in tests: leave nobody who waits to the next batch

	beforeCommit func(*Tx) error

	// of the batch at hand
	batch  []*request
	undo   []func()
	done   []func()
	topics []string
	inTx   bool
	kept   int // writes that succeeded and stand in the transaction
	wrote  bool

	logged int // about how many pages the log has grown by since it was copied
	copyAt int // at how many it is copied
}

// request is one call of Write.
type request struct {
	ctx     context.Context
	fn      func(*Tx) error
	checked bool // see WriteChecked
	state   atomic.Int32
	answer  chan error // room for one, so that the writer never waits for a caller
	timer   *time.Timer

	err    error // the function's own
	onFirm bool  // err was found with no other write before it in the transaction
}

// A request goes forward through these; its caller may give up, but not while
// the function runs, for the function may write to the caller's variables.
const (
	stateWaiting int32 = iota
	stateRunning
	stateRan
	stateGivenUp
)

var requests = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &request{answer: make(chan error, 1), timer: t}
}}

// Write runs fn in a transaction and returns once it is durable, or with fn's
// error, or with that of the commit, and then nothing of it is kept. Writes that
// wait at the same time are run one after another, each seeing what those before
// it did, and share a commit.
//
// fn runs on the writer's goroutine: it must be short, do no other I/O, and must
// not call Write or Read. A panic in it is an error for this caller alone.
//
// A caller whose ctx ends before fn has started is answered at once and fn does
// not run; after that the answer is that of the commit. When the disk is stuck
// longer than Options.WriteWait the answer is Unavailable, with the reason
// NotStarted, or OutcomeUnknown if fn had run: then the write may yet be made.
func (s *Store) Write(ctx context.Context, fn func(*Tx) error) error { return s.write(ctx, fn, false) }

// WriteChecked is Write for a function that has checked whatever could refuse it
// before it changes its first row: it needs no savepoint, which would copy each
// page that it changes. Should it fail after that all the same (it has a fault, or the disk
// has), then what shares its transaction falls with it, and is answered
// Unavailable with the reason NotStarted.
func (s *Store) WriteChecked(ctx context.Context, fn func(*Tx) error) error {
	return s.write(ctx, fn, true)
}

func (s *Store) write(ctx context.Context, fn func(*Tx) error, checked bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := &s.writer
	r := requests.Get().(*request)
	r.ctx, r.fn, r.checked, r.err, r.onFirm = ctx, fn, checked, nil, false
	r.state.Store(stateWaiting)
	r.timer.Reset(w.limit)
	if err := w.enter(ctx, r); err != nil {
		r.timer.Stop()
		return err
	}
	stop := ctx.Done()
	for {
		select {
		case err := <-r.answer:
			r.timer.Stop()
			r.ctx, r.fn, r.err = nil, nil, nil
			requests.Put(r)
			return err
		case <-stop:
			if r.state.CompareAndSwap(stateWaiting, stateGivenUp) {
				r.timer.Stop()
				return context.Cause(ctx)
			}
			stop = nil // it has started: only the commit has the answer
		case <-r.timer.C:
			if r.state.CompareAndSwap(stateWaiting, stateGivenUp) {
				return tooLong(w.limit)
			}
			if r.state.CompareAndSwap(stateRan, stateGivenUp) {
				return outcomeUnknown("the disk has not confirmed this write within %s", w.limit)
			}
			r.timer.Reset(w.limit)
		}
	}
}

func tooLong(limit time.Duration) error {
	return appliance.Refuse(appliance.Unavailable, "",
		"this write waited %s for the disk and was not started; nothing was changed, try again later", limit).WithReason("NotStarted")
}

// outcomeUnknown answers a write that was handed to the disk and not confirmed.
func outcomeUnknown(format string, args ...any) *appliance.Error {
	return appliance.Refuse(appliance.Unavailable, "",
		format+"; it may yet be made: look, or repeat it with the same idempotency key", args...).WithReason("OutcomeUnknown")
}

// enter puts a request into the queue.
func (w *writer) enter(ctx context.Context, r *request) error {
	w.s.entering.RLock()
	defer w.s.entering.RUnlock()
	if w.s.isClosing() {
		return shuttingDown()
	}
	select {
	case w.queue <- r:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.s.closing:
		return shuttingDown()
	case <-r.timer.C:
		return tooLong(w.limit)
	}
}

// BeforeCommit gives the function that is called on the writer's goroutine once
// a batch, after its writes and before their commit, to write what they
// gathered in memory, such as counters. Its error fails the whole batch, and its
// Undo functions run with those of the batch. It is set once, before the first
// Write.
func (s *Store) BeforeCommit(fn func(*Tx) error) {
	if s.writer.beforeCommit != nil {
		panic("store: BeforeCommit is set twice")
	}
	s.writer.beforeCommit = fn
}

// loop serves the queue until it is closed and empty.
func (w *writer) loop() {
	returned := false
	defer func() {
		if !returned { // a write called runtime.Goexit, as a test's Fatal does: it ends this goroutine, not the service
			w.end()
			go w.loop()
			return
		}
		close(w.ended)
	}()
	for r := range w.queue {
		w.serve(r)
	}
	returned = true
}

// serve runs one batch, of which r is the first write. It leaves an eighth of
// many who wait to the next: callers that were all answered at once would all be
// away at once, the writer would be idle until the first came back, and then
// commit that one alone while the others came back to wait. More is not left,
// for each batch costs a sync.
func (w *writer) serve(r *request) {
	start := time.Now()
	w.run(r)
	for len(w.batch) < maxBatch && (w.takeAll || 7*len(w.queue) > len(w.batch)) && time.Since(start) < w.budget {
		select {
		case next, ok := <-w.queue:
			if !ok {
				w.end()
				return
			}
			w.run(next)
			continue
		default:
		}
		break
	}
	w.end()
}

// run runs one write within the batch's transaction. The first that is kept
// needs no savepoint, for taking it back is taking everything back.
func (w *writer) run(r *request) {
	if !r.state.CompareAndSwap(stateWaiting, stateRunning) {
		return // its caller has gone
	}
	w.batch = append(w.batch, r)
	defer r.state.Store(stateRan)
	if w.quit.Load() {
		r.err, r.onFirm = shuttingDown(), true
		return
	}
	r.onFirm = w.kept == 0
	if r.err = w.open(r.checked); r.err != nil {
		return
	}
	undo, done, topics := len(w.undo), len(w.done), len(w.topics)
	tx := Tx{c: w.c, ctx: context.Background(), w: w}
	r.err = fmt.Errorf("store: a write ended its goroutine") // unless call returns
	kept := false
	defer func() {
		if kept {
			return
		}
		w.done, w.topics = cut(w.done, done), w.topics[:topics]
		w.takeBack(r, undo, &tx)
	}()
	r.err = tx.call(r.fn)
	if r.err == nil && w.kept > 0 && !r.checked {
		r.err = worded(w.c.exec("RELEASE w"))
	}
	if r.err == nil {
		kept = true
		w.kept++
		w.wrote = w.wrote || tx.wrote
	}
}

// open begins the transaction if none is open, and else a savepoint, which a
// checked write goes without.
func (w *writer) open(checked bool) error {
	if w.inTx {
		if checked {
			return nil
		}
		return worded(w.c.exec("SAVEPOINT w"))
	}
	err := w.c.exec("BEGIN IMMEDIATE")
	if resultCode(err)&0xff == codeError { // a rollback that failed earlier left a transaction open
		_ = w.c.exec("ROLLBACK")
		err = w.c.exec("BEGIN IMMEDIATE")
	}
	w.inTx = err == nil
	return worded(err)
}

// call runs a function and closes what it left open. A panic becomes an error.
func (tx *Tx) call(fn func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: a write panicked: %v\n%s", p, debug.Stack())
		}
		tx.closeRows()
		if tx.fatal != nil {
			err = tx.fatal
		}
	}()
	return fn(tx)
}

// takeBack rolls back the write r alone, whose Undo functions begin at undo.
func (w *writer) takeBack(r *request, undo int, tx *Tx) {
	switch {
	case w.kept == 0:
		w.rollBack()
		return
	case r.checked && !tx.wrote && tx.fatal == nil: // it left nothing in the transaction
		w.undoTo(undo)
		return
	case r.checked:
		r.onFirm = true // its error is its own
		w.fail(cmp.Or(tx.fatal, errFellWith))
		return
	}
	err := w.c.exec("ROLLBACK TO w")
	if err == nil {
		err = w.c.exec("RELEASE w")
	}
	if err != nil { // SQLite has ended the transaction, or cannot go back: the others fall with this one
		w.fail(cmp.Or(tx.fatal, worded(err)))
		return
	}
	w.undoTo(undo)
}

// errFellWith answers those who shared a transaction with a write that should not
// have failed.
var errFellWith error = appliance.Refuse(appliance.Unavailable, "",
	"another write, which shared the transaction of this one, failed; nothing of this one was kept, try again").WithReason("NotStarted")

// fail takes the batch back as a whole. Whoever was in it is answered err,
// but those whose own error stood on nothing that is now undone.
func (w *writer) fail(err error) {
	w.rollBack()
	for _, r := range w.batch {
		if r.err == nil || !r.onFirm {
			r.err = err
		}
	}
}

// rollBack ends the transaction without a trace, in the file and in memory.
func (w *writer) rollBack() {
	if w.inTx {
		_ = w.c.exec("ROLLBACK") // it fails only if SQLite has rolled back already; see open
	}
	w.undoTo(0)
	w.done, w.topics = cut(w.done, 0), w.topics[:0]
	w.inTx, w.kept, w.wrote = false, 0, false
}

// undoTo runs the Undo functions from the last down to the n-th.
func (w *writer) undoTo(n int) {
	for i := len(w.undo) - 1; i >= n; i-- {
		w.undo[i]()
	}
	w.undo = cut(w.undo, n)
}

// cut shortens a list and lets go of what it held.
func cut(list []func(), n int) []func() {
	clear(list[n:])
	return list[:n]
}

// end commits the batch, tells who waits for changes, and answers.
func (w *writer) end() {
	if w.inTx && w.kept > 0 {
		if err := w.commit(); err != nil {
			w.fail(worded(err))
		}
	}
	if w.kept > 0 {
		for _, f := range w.done {
			f()
		}
		if w.wrote || len(w.topics) > 0 {
			w.s.changes.tell(w.topics)
		}
		w.logged += commitPages + w.kept
		w.inTx, w.kept, w.wrote = false, 0, false
		w.undo, w.done, w.topics = cut(w.undo, 0), cut(w.done, 0), w.topics[:0]
	}
	for i, r := range w.batch {
		r.answer <- r.err
		w.batch[i] = nil
	}
	w.batch = w.batch[:0]
	w.tendLog()
}

// commit makes the batch durable.
func (w *writer) commit() error {
	if w.beforeCommit != nil {
		tx := Tx{c: w.c, ctx: context.Background(), w: w}
		if err := tx.call(w.beforeCommit); err != nil {
			return err
		}
		w.wrote = w.wrote || tx.wrote
	}
	err := w.c.exec("COMMIT")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("COMMIT: %w", err)
	if resultCode(err)&0xff == codeIO { // the log may hold it whole, and be replayed should we die before it is overwritten
		return outcomeUnknown("the disk gave an error while making this write durable").Because(err)
	}
	return err
}
