package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say which file to open and how.
type Options struct {
	// Path of the database file. Its folder must exist, and belongs to one
	// server at a time; the file is made if it is not there.
	Path string

	// Synchronous is SQLite's pragma: FULL, the default, syncs each commit and
	// is what the product promises; OFF is for tests that prove no durability.
	Synchronous string

	// ReadConns bounds the reads that run at once. Connections are opened when
	// first needed and take up to 3 MiB each. Default: twice the CPUs, 4 to 16.
	ReadConns int

	// WriteWait is how long a write waits for a disk that does not answer.
	// Default 10 s.
	WriteWait time.Duration

	migrations fs.FS // other than the embedded, in tests
}

// Store is the open state. All its methods may be called at once.
type Store struct {
	path    string
	sync    string
	lock    *lock
	writer  writer
	copier  copier
	changes changes

	closing  chan struct{} // closed when nothing new may come in
	entering sync.RWMutex  // held while a write enters the queue, so that the queue is closed after the last
	once     sync.Once

	slots  chan struct{} // taken by a read while it runs
	idleMu sync.Mutex
	idle   []*conn // last used last, so that few connections stay warm
}

// Open opens the state, makes it if there is none, and brings its schema up to
// this program's; before that it keeps a copy of the file beside it. It refuses
// a folder that another server holds, a file of another program or of a newer
// version, and a damaged file, and leaves each as it is.
func Open(ctx context.Context, o Options) (*Store, error) {
	switch o.Synchronous {
	case "":
		o.Synchronous = "FULL"
	case "OFF", "NORMAL", "FULL", "EXTRA":
	default: // SQLite would pass over it in silence
		return nil, fmt.Errorf("synchronous %q is none of OFF, NORMAL, FULL, EXTRA", o.Synchronous)
	}
	if o.ReadConns <= 0 {
		o.ReadConns = min(max(2*runtime.GOMAXPROCS(0), 4), 16)
	}
	if o.WriteWait <= 0 {
		o.WriteWait = 10 * time.Second
	}
	if o.migrations == nil {
		o.migrations = embedded
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, err
	}
	o.Path = path
	l, err := takeLock(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	crashed := exists(path + "-wal") // closing removes it
	c, err := openCurrent(ctx, o)
	if err != nil {
		l.release()
		if isDamage(err) {
			return nil, fmt.Errorf("%s is damaged; it was left as it is: keep it, and restore a backup in its place: %w", path, err)
		}
		return nil, err
	}
	s := &Store{path: path, sync: o.Synchronous, lock: l, closing: make(chan struct{}), slots: make(chan struct{}, o.ReadConns)}
	s.writer = writer{s: s, c: c, limit: o.WriteWait, budget: batchBudget, copyAt: walCopyPages, queue: make(chan *request, maxWaiting), ended: make(chan struct{}),
		batch: new(batch), toWrite: make(chan *batch, 1), written: make(chan failure, 1)}
	if crashed { // it may be as long as can be, and more than one crash has made it so
		s.writer.logged = walCopyPages
	}
	s.copier.wake, s.copier.ended = make(chan struct{}, 1), make(chan struct{})
	go s.copier.run(path, o.Synchronous)
	go s.writer.scribe()
	go s.writer.loop()
	return s, nil
}

// openCurrent gives a connection for writing to a file of the current schema.
func openCurrent(ctx context.Context, o Options) (*conn, error) {
	info, err := os.Stat(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(o.Path + "-wal"); err == nil {
			return nil, fmt.Errorf("%s is missing but its log %s-wal is there: put the file back or restore a backup; a new one would lose what the log holds", o.Path, o.Path)
		}
		if err := create(o); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", o.Path)
	case info.Size() == 0:
		return nil, fmt.Errorf("%s is empty, which a state file never is: restore a backup, or remove it to start anew", o.Path)
	case cutShort(o.Path, info):
		return nil, fmt.Errorf("%s is damaged, its last page is cut short; it was left as it is: keep it, and restore a backup in its place", o.Path)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} { // SQLite gives the last two the mode of the first
		if err := os.Chmod(o.Path+suffix, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	c, err := connect(o.Path, readWrite, o.Synchronous)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", o.Path, err)
	}
	if err := migrate(ctx, c, o); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// cutShort says whether a file ends within a page, which SQLite passes over.
// With a log beside it that may be a copy into the file that a crash
// interrupted, and the log repairs it.
func cutShort(path string, info fs.FileInfo) bool {
	const pageBytes = 4096 // SQLite's default, and so of every file that create made
	return info.Size()%pageBytes != 0 && !exists(path+"-wal")
}

// create makes the file under another name and moves it into place complete,
// so that an incomplete one is never mistaken for a state.
func create(o Options) error {
	part := o.Path + ".new"
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(part + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the state file: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	c, err := connect(part, readWrite, o.Synchronous)
	if err != nil {
		return fmt.Errorf("make %s: %w", o.Path, err)
	}
	err = applyAll(c, o.migrations)
	if err := errors.Join(err, c.close()); err != nil {
		return fmt.Errorf("make %s: %w", o.Path, err)
	}
	return moveIntoPlace(part, o.Path)
}

// moveIntoPlace renames a complete file durably.
func moveIntoPlace(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read runs fn on a snapshot: it sees everything of each commit that preceded
// its first statement and nothing of later ones, however long it runs. fn may not
// write. It runs on the caller's goroutine, and its queries end with ctx, at
// their start and every 256 rows.
func (s *Store) Read(ctx context.Context, fn func(*Tx) error) error {
	c, err := s.takeReader(ctx)
	if err != nil {
		return err
	}
	sound := false
	defer func() { s.giveReader(c, sound) }()
	if err := c.exec("BEGIN"); err != nil {
		return worded(err)
	}
	tx := Tx{c: c, ctx: ctx}
	defer func() { // also when fn panics
		tx.closeRows()
		sound = c.exec("COMMIT") == nil
	}()
	return fn(&tx)
}

// ReadOne is Read for a function that runs one query: the query is its own
// snapshot, which spares the two statements around it. A second query is
// refused.
func (s *Store) ReadOne(ctx context.Context, fn func(*Tx) error) error {
	c, err := s.takeReader(ctx)
	if err != nil {
		return err
	}
	tx := Tx{c: c, ctx: ctx, single: true}
	sound := false
	defer func() { s.giveReader(c, sound) }()
	defer tx.closeRows() // also when fn panics
	err = fn(&tx)
	sound = tx.fatal == nil
	return err
}

// ReadApart runs functions as Read does, all at once and each on a connection
// of its own that is closed afterwards: a start reads much, and once. A commit
// that comes meanwhile may be seen by some of them and not by others.
func (s *Store) ReadApart(ctx context.Context, fns ...func(*Tx) error) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, fn := range fns {
		all.Go(func() error {
			c, err := connect(s.path, readThrough, s.sync)
			if err != nil {
				return worded(fmt.Errorf("open %s for reading: %w", s.path, err))
			}
			tx := Tx{c: c, ctx: ctx}
			defer func() {
				tx.closeRows()
				_ = c.close() // nothing was written on it
			}()
			if err := c.exec("BEGIN"); err != nil {
				return worded(err)
			}
			return fn(&tx)
		})
	}
	return all.Wait()
}

func (s *Store) takeReader(ctx context.Context) (*conn, error) {
	if s.isClosing() {
		return nil, shuttingDown()
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-s.closing:
		return nil, shuttingDown()
	}
	s.idleMu.Lock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.idleMu.Unlock()
		return c, nil
	}
	s.idleMu.Unlock()
	c, err := connect(s.path, readOnly, s.sync)
	if err != nil {
		<-s.slots
		return nil, worded(fmt.Errorf("open %s for reading: %w", s.path, err))
	}
	return c, nil
}

// giveReader puts a connection back, or drops one that is stuck in a transaction.
func (s *Store) giveReader(c *conn, sound bool) {
	if sound {
		s.idleMu.Lock()
		s.idle = append(s.idle, c)
		s.idleMu.Unlock()
	} else {
		_ = c.close() // why is what its read was told
	}
	<-s.slots
}

// Path is the file that is open.
func (s *Store) Path() string { return s.path }

// Close is Shutdown that waits as long as it takes.
func (s *Store) Close() error { return s.Shutdown(context.Background()) }

// Shutdown refuses new writes and reads, finishes those that have come, moves
// the log into the file, and closes it. When ctx ends first, writes that have
// not started are answered Unavailable and what runs is not waited for: the
// error says so, and the log is replayed at the next start.
func (s *Store) Shutdown(ctx context.Context) error {
	var err error
	s.once.Do(func() { err = s.shutdown(ctx) })
	return err
}

func (s *Store) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

func (s *Store) shutdown(ctx context.Context) error {
	close(s.closing)
	s.entering.Lock()
	close(s.writer.queue)
	s.entering.Unlock()
	select {
	case <-s.writer.ended:
	case <-ctx.Done():
		s.writer.quit.Store(true)
		select {
		case <-s.writer.ended:
		case <-time.After(time.Second): // the batch at hand hangs on the disk
			return fmt.Errorf("close %s: a write still waits for the disk: %w", s.path, context.Cause(ctx))
		}
	}
	s.copier.stop()
	select {
	case <-s.copier.ended:
	case <-ctx.Done():
		return fmt.Errorf("close %s: the log is still being copied: %w", s.path, context.Cause(ctx))
	}
	for range cap(s.slots) {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("close %s: a read is still running: %w", s.path, context.Cause(ctx))
		}
	}
	var errs []error
	for _, c := range s.idle {
		errs = append(errs, c.close())
	}
	errs = append(errs, s.writer.c.close()) // the last connection moves the log into the file and removes it
	s.lock.release()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close %s: %w", s.path, err)
	}
	return nil
}
