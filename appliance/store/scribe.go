package store

import "context"

// Deciding a write takes as long as writing its rows. So of many checked writes
// that wait, the loop decides a batch, which changes memory alone, while the
// scribe, a goroutine of its own, writes the rows of the batch before and commits
// them. Nobody is answered before what they were answered from is durable; should
// the scribe fail, what was decided since is taken back too, for it stands on it.
//
// A write that is not checked runs on the loop with the connection at hand, and
// so does what a checked one asks of the file: that waits for the scribe to be
// done, and the rest of its batch stays with the loop.

// rows is what a write left for later.
type rows struct {
	write func(*Tx) error
	of    *request // nil for what BeforeCommit left
}

// failure is why a batch is not kept; without err it is kept.
type failure struct {
	err   error
	of    *request // the write whose rows failed, if it was that
	fatal bool     // nothing could have been written after it
}

// others is the answer of those who are not at fault.
func (f failure) others() error {
	if f.of == nil || f.fatal {
		return f.err
	}
	return errFellWith
}

// Later has a function write rows: at once, or in a checked write when the batch
// is written, which may be on another goroutine while the next writes are decided.
// It works with the Tx that it is given, must not touch memory that writes change,
// and calls none of Undo, Done, Touch and Later. Whoever asks the file after it,
// in this write or a later one, sees its rows.
func (tx *Tx) Later(write func(*Tx) error) error {
	if tx.w.holds {
		return write(tx)
	}
	tx.wrote = true
	tx.batch.rows = append(tx.batch.rows, rows{write, tx.of})
	return nil
}

// scribe writes what it is sent, until there is no more to come.
func (w *writer) scribe() {
	for b := range w.toWrite {
		w.pen.Lock()
		f := w.put(b)
		if f.err == nil {
			f.err = w.commit(b)
		}
		if f.err != nil {
			w.rollBack()
		}
		w.written <- f
		w.tendLog()
		w.pen.Unlock()
	}
	close(w.ended)
}

// put writes the rows of a batch.
func (w *writer) put(b *batch) failure {
	for _, r := range b.rows {
		if err := w.begin(); err != nil {
			return failure{err: err}
		}
		tx := Tx{c: w.c, ctx: context.Background(), w: w}
		if err := tx.call(r.write); err != nil {
			return failure{err: err, of: r.of, fatal: tx.fatal != nil}
		}
	}
	b.rows = shorten(b.rows, 0)
	return failure{}
}

// scribeFrom is how many writes a batch must have for the scribe: to wake it costs as
// much as deciding a few. With 8 callers it cost a tenth of their rate, with 64
// it brought a sixth more.
const scribeFrom = 8

// sends tells whether the batch at hand is for the scribe.
func (w *writer) sends() bool {
	return !w.holds && w.sent == nil && w.batch.kept >= scribeFrom
}

// settle answers the batch that the scribe had, once it has the next.
func (w *writer) settle(f failure) {
	b := w.sent
	w.sent = nil
	if f.err != nil {
		w.batch.fail(failure{err: errFellWith})
		b.fail(f)
	} else if w.sends() {
		w.end()
	}
	w.answer(b)
}

// pickUp takes the pen, and writes what was left for later. It tells whether that
// could be written; broken says why not.
func (w *writer) pickUp() bool {
	w.pen.Lock()
	w.holds = true
	w.broken = w.put(w.batch)
	return w.broken.err == nil
}

// putDown gives the pen back, if the loop has it, and ends a transaction in which
// nothing is to be kept.
func (w *writer) putDown() {
	if w.holds {
		w.rollBack()
		w.tendLog()
		w.holds = false
		w.pen.Unlock()
	}
}

// settleEarly answers what the scribe had done while a write ran.
func (w *writer) settleEarly() {
	if f := w.early; f != nil {
		w.early = nil
		w.settle(*f)
	}
}

// reach takes the pen, between two writes, and writes what was left for later.
func (w *writer) reach() {
	if w.holds {
		return
	}
	for w.sent != nil {
		w.settle(<-w.written)
	}
	if !w.pickUp() {
		w.fall(failure{})
	}
}

// reach takes the pen for a write that asks the file, and begins the transaction.
func (tx *Tx) reach() error {
	w := tx.w
	if !w.holds {
		if w.sent != nil && w.early == nil {
			f := <-w.written
			w.early = &f
		}
		if w.early != nil && w.early.err != nil {
			return errFellWith
		}
		if !w.pickUp() {
			return errFellWith
		}
	}
	return w.begin()
}
