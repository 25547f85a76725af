package store

import "sync/atomic"

// copier copies the write-ahead log into the database (SQLite calls it a
// checkpoint) on a connection and a goroutine of its own, so that the writes that
// wait do not wait for that too: copying a thousand pages and syncing the
// database takes as long as ten commits. What the writer adds to the log
// meanwhile, little, it copies itself, between two batches. Then all of the log
// is in the database, and the next write begins it anew.
type copier struct {
	state atomic.Int32
	wake  chan struct{} // room for one
	ended chan struct{} // closed when the goroutine is gone
}

// The writer takes the copier from resting to copying and from copied to
// resting; the copier from copying to copied.
const (
	copierRests int32 = iota
	copierCopies
	copierCopied
)

// run copies whenever it is woken. An error is not told: the writer, which
// copies after it, then does all of it, and its own commits meet the same disk.
func (p *copier) run(path, synchronous string) {
	defer close(p.ended)
	var c *conn
	for range p.wake {
		if c == nil {
			c, _ = connect(path, copyOnly, synchronous)
		}
		if c != nil {
			_ = c.copyLog()
		}
		p.state.Store(copierCopied)
	}
	if c != nil {
		_ = c.close()
	}
}

// stop ends the goroutine once the writer, which wakes it, has ended.
func (p *copier) stop() { close(p.wake) }

// copyLog copies as much of the log as no reader and no other copying is in the
// way of.
func (c *conn) copyLog() error {
	var busy, logged, copied int
	return c.scan("PRAGMA wal_checkpoint(PASSIVE)", &busy, &logged, &copied)
}

// tendLog runs between two batches: it has the log copied when it has grown,
// and copies the last of it.
func (w *writer) tendLog() {
	p := &w.s.copier
	switch p.state.Load() {
	case copierRests:
		if w.logged >= w.copyAt {
			p.state.Store(copierCopies)
			p.wake <- struct{}{}
		}
	case copierCopied:
		_ = w.c.copyLog() // what stays in the log is copied the next time
		w.logged = 0
		p.state.Store(copierRests)
	}
}
