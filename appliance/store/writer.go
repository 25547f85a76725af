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

// writer runs the writes. Its loop takes a write, runs it and whatever else
// waits, commits them once, and then answers them all. It never waits for
// company: a lone write is committed at once.
//
// Of many that wait it runs a batch while the scribe writes the one before: see
// scribe.go.
type writer struct {
	s      *Store
	queue  chan *request
	limit  time.Duration // of a caller's wait
	budget time.Duration // after which a batch takes no further write
	ended  chan struct{} // closed when the loop has answered everyone, and the scribe has put the pen down
	quit   atomic.Bool   // answer those who wait instead of running them

	takeAll bool // in tests: leave nobody who waits to the next batch

	beforeCommit func(*Tx) error

	batch *batch   // the one at hand
	sent  *batch   // the one that the scribe has, nil if none
	free  []*batch // to be used again

	holds   bool         // the loop holds the pen
	toWrite chan *batch  // to the scribe
	written chan failure // from the scribe, of the one that was sent
	early   *failure     // that came while a write ran, and is looked at after it
	broken  failure      // of rows that were to be written while a write ran

	pen    sync.Mutex // of whoever uses what follows
	c      *conn
	inTx   bool
	logged int // about how many pages the log has grown by since it was copied
	copyAt int // at how many it is copied
}

// batch is the writes that share one commit.
type batch struct {
	requests []*request
	began    time.Time
	undo     []func()
	done     []func()
	topics   []string
	rows     []rows // that are not written yet
	kept     int    // writes that succeeded
	wrote    bool   // some row was or will be changed
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
// page that it changes, and what it leaves to [Tx.Later] may be written while the
// next are decided. Should it fail after its first row all the same (it has a
// fault, or the disk has), then what shares its transaction or stands on it falls
// with it, and is answered Unavailable with the reason NotStarted.
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
			go w.loop()
			return
		}
		close(w.toWrite)
	}()
	for w.step() {
	}
	returned = true
}

// step runs a write, ends the batch at hand, or answers the one that the scribe
// had, whatever is to be done. It tells whether there is more to come.
//
// A batch ends when the scribe has none and few wait. It leaves an eighth of many
// who wait to the next: callers that were all answered at once would all be away
// at once, the writer would be idle until the first came back, and then commit
// that one alone while the others came back to wait. More is not left, for each
// batch costs a sync.
func (w *writer) step() bool {
	n := len(w.batch.requests)
	full := n >= maxBatch || n > 0 && time.Since(w.batch.began) >= w.budget
	few := 7*len(w.queue) <= n && !(w.takeAll && len(w.queue) > 0)
	if w.sent == nil && n > 0 && (full || few) {
		w.end()
		return true
	}
	queue := w.queue
	if full {
		queue = nil
	}
	select {
	case f := <-w.written:
		w.settle(f)
	case r, ok := <-queue:
		switch {
		case ok:
			w.run(r)
		case w.sent != nil:
			w.settle(<-w.written)
		default:
			return false
		}
	}
	return true
}

// run runs one write of the batch at hand. One that is not checked runs in a
// savepoint, but for the first: to take it back is to take everything back.
func (w *writer) run(r *request) {
	if !r.state.CompareAndSwap(stateWaiting, stateRunning) {
		return // its caller has gone
	}
	defer w.settleEarly()
	defer r.state.Store(stateRan)
	if !r.checked {
		w.reach()
	}
	b := w.batch
	if len(b.requests) == 0 {
		b.began = time.Now()
	}
	b.requests = append(b.requests, r)
	if w.quit.Load() {
		r.err, r.onFirm = shuttingDown(), true
		return
	}
	r.onFirm = b.kept == 0 && w.sent == nil
	if !r.checked {
		if r.err = w.open(); r.err != nil {
			return
		}
	}
	tx := Tx{c: w.c, ctx: context.Background(), w: w, batch: b, of: r}
	before := b.mark()
	r.err = fmt.Errorf("store: a write ended its goroutine") // unless call returns
	defer func() {
		if r.err != nil {
			w.takeBack(r, before, &tx)
		}
	}()
	r.err = tx.call(r.fn)
	if r.err == nil && b.kept > 0 && !r.checked {
		r.err = worded(w.c.exec("RELEASE w"))
	}
	if r.err == nil {
		b.kept++
		b.wrote = b.wrote || tx.wrote
	}
}

// open begins the transaction if none is open, and else a savepoint.
func (w *writer) open() error {
	if w.inTx {
		return worded(w.c.exec("SAVEPOINT w"))
	}
	return w.begin()
}

// begin begins the transaction if none is open.
func (w *writer) begin() error {
	if w.inTx {
		return nil
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

// takeBack takes back the write r alone, before which the batch was as marked,
// or the whole batch where r cannot be told from the rest in the transaction.
func (w *writer) takeBack(r *request, before mark, tx *Tx) {
	b := w.batch
	switch {
	case b.kept == 0: // nothing else is in the transaction
		w.putDown()
		b.cut(before)
	case !w.holds, r.checked && !tx.wrote && tx.fatal == nil: // nothing of it is
		b.cut(before)
	case r.checked:
		r.onFirm = true // its error is its own
		w.fall(failure{err: cmp.Or(tx.fatal, errFellWith)})
	default:
		err := w.c.exec("ROLLBACK TO w")
		if err == nil {
			err = w.c.exec("RELEASE w")
		}
		if err != nil { // SQLite has ended the transaction, or cannot go back
			w.fall(failure{err: cmp.Or(tx.fatal, worded(err))})
			return
		}
		b.cut(before)
	}
}

// errFellWith answers those who shared a transaction with a write that should not
// have failed, or who stood on one.
var errFellWith error = appliance.Refuse(appliance.Unavailable, "",
	"another write, which shared the transaction of this one, failed; nothing of this one was kept, try again").WithReason("NotStarted")

// fall takes back the whole batch at hand: for its rows that could not be
// written, if there are such, or else for f.
func (w *writer) fall(f failure) {
	if w.broken.err != nil {
		f, w.broken = w.broken, failure{}
	}
	if w.holds {
		w.rollBack()
	}
	w.batch.fail(f)
}

// rollBack ends the transaction, if there is one, without a trace in the file. It
// is for whoever has the pen.
func (w *writer) rollBack() {
	if w.inTx {
		_ = w.c.exec("ROLLBACK") // it fails only if SQLite has rolled back already; see begin
		w.inTx = false
	}
}

// mark is how far a batch had come.
type mark struct{ undo, done, topics, rows int }

func (b *batch) mark() mark { return mark{len(b.undo), len(b.done), len(b.topics), len(b.rows)} }

// cut takes a batch back to a mark, running the Undo functions from the last down.
func (b *batch) cut(m mark) {
	for i := len(b.undo) - 1; i >= m.undo; i-- {
		b.undo[i]()
	}
	b.shorten(m)
}

// shorten lets go of what came after a mark. Rows may have been written since.
func (b *batch) shorten(m mark) {
	b.undo, b.done, b.rows = shorten(b.undo, m.undo), shorten(b.done, m.done), shorten(b.rows, min(m.rows, len(b.rows)))
	b.topics = b.topics[:m.topics]
}

func shorten[T any](list []T, n int) []T {
	clear(list[n:])
	return list[:n]
}

// fail undoes a batch in memory. Whoever was in it is answered why, but for
// those whose own error stood on nothing that is now undone.
func (b *batch) fail(f failure) {
	b.cut(mark{})
	b.kept, b.wrote = 0, false
	for _, r := range b.requests {
		switch {
		case r == f.of:
			r.err = f.err
		case r.err == nil || !r.onFirm:
			r.err = f.others()
		}
	}
}

// end has the batch at hand written and made durable: by the scribe if it is of
// several writes none of which has asked the file, or here.
func (w *writer) end() {
	b := w.batch
	if b.kept > 0 && w.beforeCommit != nil {
		tx := Tx{c: w.c, ctx: context.Background(), w: w, batch: b}
		if err := tx.call(w.beforeCommit); err != nil {
			w.fall(failure{err: err})
		}
		b.wrote = b.wrote || tx.wrote
	}
	if w.sends() {
		w.sent, w.batch = b, w.freshBatch()
		w.toWrite <- b
		return
	}
	if b.kept > 0 {
		w.reach()
	}
	if b.kept > 0 {
		if err := w.commit(b); err != nil {
			w.fall(failure{err: err})
		}
	}
	w.answer(b)
	w.putDown()
}

// commit makes what is written of a batch durable.
func (w *writer) commit(b *batch) error {
	if !w.inTx { // writes that changed memory alone
		return nil
	}
	err := w.c.exec("COMMIT")
	if err == nil {
		w.inTx = false
		w.logged += commitPages + b.kept
		return nil
	}
	err = fmt.Errorf("COMMIT: %w", err)
	if resultCode(err)&0xff == codeIO { // the log may hold it whole, and be replayed should we die before it is overwritten
		return outcomeUnknown("the disk gave an error while making this write durable").Because(err)
	}
	return worded(err)
}

// answer tells who waits for changes of what a batch has made, and then those
// who wrote.
func (w *writer) answer(b *batch) {
	for _, f := range b.done {
		f()
	}
	if b.kept > 0 && (b.wrote || len(b.topics) > 0) {
		w.s.changes.tell(b.topics)
	}
	for _, r := range b.requests {
		r.answer <- r.err
	}
	b.shorten(mark{})
	clear(b.requests)
	b.requests, b.kept, b.wrote = b.requests[:0], 0, false
	if b != w.batch {
		w.free = append(w.free, b)
	}
}

func (w *writer) freshBatch() *batch {
	n := len(w.free)
	if n == 0 {
		return new(batch)
	}
	b := w.free[n-1]
	w.free = w.free[:n-1]
	return b
}
