package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var errHeld = errors.New("held")

// hold occupies the writer until the function it gives is called, so that a
// test can let writes pile up behind it, and then leaves nothing behind.
func hold(t *testing.T, s *Store) (letGo func()) {
	t.Helper()
	started, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Write(context.Background(), func(*Tx) error {
			close(started)
			<-release
			return errHeld
		})
	}()
	<-started
	var once sync.Once
	letGo = func() {
		once.Do(func() {
			close(release)
			var tooLong *appliance.Error // the held write has waited as long as those behind it
			if err := <-ended; err != errHeld && !(errors.As(err, &tooLong) && tooLong.Reason == "OutcomeUnknown") {
				t.Error(err)
			}
		})
	}
	t.Cleanup(letGo)
	return letGo
}

// together runs writes in one batch, in order, and gives their answers.
func together(t *testing.T, s *Store, fns ...func(*Tx) error) []error {
	t.Helper()
	var writes []func() error
	for _, fn := range fns {
		writes = append(writes, func() error { return s.Write(context.Background(), fn) })
	}
	return atOnce(t, s, writes...)
}

// atOnce makes calls that write so that they run in one batch, in order, and
// gives their answers.
func atOnce(t *testing.T, s *Store, writes ...func() error) []error {
	t.Helper()
	letGo := hold(t, s)
	s.writer.takeAll = true
	answers := make([]error, len(writes))
	var wg sync.WaitGroup
	for i, write := range writes {
		wg.Go(func() { answers[i] = write() })
		for len(s.writer.queue) <= i {
			runtime.Gosched()
		}
	}
	letGo()
	wg.Wait()
	return answers
}

func TestWritesThatWaitShareOneCommit(t *testing.T) {
	s := openTest(t, Options{})
	commits := 0
	s.BeforeCommit(func(*Tx) error { commits++; return nil })
	var fns []func(*Tx) error
	for i := range 100 {
		fns = append(fns, insert(i))
	}
	for _, err := range together(t, s, fns...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if commits != 1 {
		t.Errorf("%d commits, want 1", commits)
	}
	if n := len(ids(t, s)); n != 100 {
		t.Errorf("%d rows, want 100", n)
	}
}

func TestABatchLeavesAnEighthOfThoseWhoWait(t *testing.T) {
	s := openTest(t, Options{})
	var sizes []int
	s.BeforeCommit(func(*Tx) error { sizes = append(sizes, len(s.writer.batch.requests)); return nil })
	letGo := hold(t, s) // is the first of its batch
	var all sync.WaitGroup
	for i := range 63 {
		all.Go(func() {
			if err := s.Write(context.Background(), insert(i)); err != nil {
				t.Error(err)
			}
		})
		for len(s.writer.queue) <= i {
			runtime.Gosched()
		}
	}
	letGo()
	all.Wait()
	if diff := cmp.Diff([]int{56, 7, 1}, sizes); diff != "" {
		t.Errorf("batches of 64 that wait and do not come back (-want +got):\n%s", diff)
	}
}

func TestOneWritesEndTakesBackItsOwnAlone(t *testing.T) {
	refusal := errors.New("no")
	for name, bad := range map[string]func(tx *Tx) error{
		"error":      func(*Tx) error { return refusal },
		"panic":      func(*Tx) error { panic("oops") },
		"goexit":     func(*Tx) error { runtime.Goexit(); return nil },
		"constraint": insert(1),
		"open rows": func(tx *Tx) error {
			rows, err := tx.Query("INSERT INTO rows (id) VALUES (70), (71) RETURNING id")
			if err != nil || !rows.Next() {
				return fmt.Errorf("no rows: %v", err)
			}
			return refusal
		},
	} {
		for place := range 3 { // first in the batch, so without a savepoint; between others; last
			t.Run(fmt.Sprint(name, " at ", place), func(t *testing.T) {
				s := openTest(t, Options{})
				var undone, done []string
				good := func(id int) func(*Tx) error {
					return func(tx *Tx) error {
						tx.Undo(func() { undone = append(undone, fmt.Sprint("good ", id)) })
						tx.Done(func() { done = append(done, fmt.Sprint(id)) })
						return insert(id)(tx)
					}
				}
				if err := s.Write(t.Context(), insert(1)); err != nil {
					t.Fatal(err)
				}
				fns := []func(*Tx) error{good(2), good(3)}
				fns = slices.Insert(fns, place, func(tx *Tx) error {
					for _, w := range []string{"a", "b"} {
						tx.Undo(func() { undone = append(undone, w) })
						tx.Done(func() { done = append(done, w) })
					}
					tx.Touch("bad")
					if err := insert(66)(tx); err != nil {
						return err
					}
					return bad(tx)
				})
				touched := s.ChangedIn("bad")
				answers := together(t, s, fns...)
				for i, err := range answers {
					if (err != nil) != (i == place) {
						t.Errorf("answer %d: %v", i, err)
					}
				}
				if name == "panic" && (!strings.Contains(fmt.Sprint(answers[place]), "oops") || appliance.CodeOf(answers[place]) != appliance.Internal) {
					t.Errorf("a panic was answered %v", answers[place])
				}
				if diff := cmp.Diff([]int{1, 2, 3}, ids(t, s)); diff != "" {
					t.Errorf("rows: %s", diff)
				}
				if diff := cmp.Diff([]string{"b", "a"}, undone); diff != "" {
					t.Errorf("Undo: %s", diff)
				}
				if name != "goexit" { // it ends the batch where it stands, so the order is the same but in two commits
					if diff := cmp.Diff([]string{"2", "3"}, done); diff != "" {
						t.Errorf("Done: %s", diff)
					}
				}
				select {
				case <-touched:
					t.Error("the topic of a write that was taken back was told")
				default:
				}
				if err := s.Write(t.Context(), insert(4)); err != nil {
					t.Errorf("the next write: %v", err)
				}
			})
		}
	}
}

// A write that has checked everything before it changes a row and is refused
// takes nothing with it. One that fails later, as it should not, takes back what
// came before it in the transaction, which is told so, and nothing else.
func TestACheckedWriteIsTakenBackWithoutASavepoint(t *testing.T) {
	refusal := errors.New("no")
	for name, c := range map[string]struct {
		bad   func(*Tx) error
		falls bool // what shares the transaction
	}{
		"refused":              {func(*Tx) error { return refusal }, false},
		"refused by the file":  {insert(1), false},
		"panic at once":        {func(*Tx) error { panic("oops") }, false},
		"fails with a row":     {func(tx *Tx) error { return errors.Join(insert(66)(tx), refusal) }, true},
		"fails at a later row": {func(tx *Tx) error { return errors.Join(insert(66)(tx), insert(1)(tx)) }, true},
		"panic with a row":     {func(tx *Tx) error { _ = insert(66)(tx); panic("oops") }, true},
		"fails with open rows": {func(tx *Tx) error {
			rows, err := tx.Query("INSERT INTO rows (id) VALUES (70), (71) RETURNING id")
			if err != nil || !rows.Next() {
				return fmt.Errorf("no rows: %v", err)
			}
			return refusal
		}, true},
	} {
		for place := range 4 {
			t.Run(fmt.Sprint(name, " at ", place), func(t *testing.T) {
				s := openTest(t, Options{})
				if err := s.Write(t.Context(), insert(1)); err != nil {
					t.Fatal(err)
				}
				var undone, done []int
				good := func(id int) func(*Tx) error {
					return func(tx *Tx) error {
						tx.Undo(func() { undone = append(undone, id) })
						tx.Done(func() { done = append(done, id) })
						return insert(id)(tx)
					}
				}
				writes := []func() error{
					func() error { return s.WriteChecked(context.Background(), good(2)) },
					func() error { return s.Write(context.Background(), good(3)) },
					func() error { return s.WriteChecked(context.Background(), good(4)) },
				}
				writes = slices.Insert(writes, place, func() error {
					return s.WriteChecked(context.Background(), func(tx *Tx) error {
						tx.Undo(func() { undone = append(undone, 66) })
						tx.Done(func() { done = append(done, 66) })
						return c.bad(tx)
					})
				})
				kept, takenBack := []int{2, 3, 4}, []int{66}
				if c.falls {
					kept, takenBack = kept[place:], append(takenBack, kept[:place]...)
				}
				slices.Sort(takenBack)
				for i, err := range atOnce(t, s, writes...) {
					switch {
					case i == place:
						if err == nil || errors.Is(err, errFellWith) {
							t.Errorf("the write that failed was answered %v", err)
						}
					case i < place && c.falls:
						if !fell(err) {
							t.Errorf("write %d before it was answered %v", i, err)
						}
					case err != nil:
						t.Errorf("write %d was answered %v", i, err)
					}
				}
				if diff := cmp.Diff(append([]int{1}, kept...), ids(t, s)); diff != "" {
					t.Errorf("rows: %s", diff)
				}
				slices.Sort(undone)
				if diff := cmp.Diff(takenBack, undone); diff != "" {
					t.Errorf("Undo: %s", diff)
				}
				if diff := cmp.Diff(kept, done, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("Done: %s", diff)
				}
			})
		}
	}
}

func TestAFailedCommitAnswersAllAndUndoesAll(t *testing.T) {
	for name, tc := range map[string]struct {
		breaks func(s *Store, on *atomic.Bool)
		want   string
	}{
		"BeforeCommit": {func(s *Store, on *atomic.Bool) {
			s.BeforeCommit(func(tx *Tx) error {
				if !on.Load() {
					return nil
				}
				if err := insert(90)(tx); err != nil {
					return err
				}
				return errors.New("counters do not add up")
			})
		}, "do not add up"},
		"COMMIT": {func(s *Store, on *atomic.Bool) {
			s.BeforeCommit(func(tx *Tx) error {
				if !on.Load() {
					return nil
				}
				if _, err := tx.Exec("PRAGMA defer_foreign_keys = ON"); err != nil { // so that COMMIT itself is refused
					return err
				}
				_, err := tx.Exec("INSERT INTO kids (id, parent) VALUES (1, 4711)")
				return err
			})
		}, "FOREIGN KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{})
			var on atomic.Bool
			on.Store(true)
			tc.breaks(s, &on)
			var undone []int
			good := func(id int) func(*Tx) error {
				return func(tx *Tx) error {
					tx.Undo(func() { undone = append(undone, id) })
					tx.Done(func() { t.Errorf("Done of %d ran", id) })
					return insert(id)(tx)
				}
			}
			early, late := errors.New("refused before anything"), errors.New("refused after others")
			changed := s.Changed()
			answers := together(t, s, func(*Tx) error { return early }, good(1), func(*Tx) error { return late }, good(2))
			if answers[0] != early { // it stood on nothing that is undone
				t.Errorf("first answer: %v", answers[0])
			}
			for _, i := range []int{1, 2, 3} { // also the refusal: what it was refused for has never been
				if answers[i] == nil || !strings.Contains(answers[i].Error(), tc.want) {
					t.Errorf("answer %d: %v", i, answers[i])
				}
			}
			if diff := cmp.Diff([]int{2, 1}, undone); diff != "" {
				t.Errorf("Undo: %s", diff)
			}
			if got := ids(t, s); len(got) != 0 {
				t.Errorf("rows %v are left", got)
			}
			select {
			case <-changed:
				t.Error("Changed was told of nothing")
			default:
			}
			on.Store(false)
			if err := s.Write(t.Context(), insert(5)); err != nil {
				t.Errorf("the next write: %v", err)
			}
		})
	}
}

func TestACallerThatIsCancelled(t *testing.T) {
	t.Run("before its write starts is answered at once and nothing runs", func(t *testing.T) {
		s := openTest(t, Options{})
		letGo := hold(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("the client went away")
		go func() {
			for len(s.writer.queue) == 0 {
				runtime.Gosched()
			}
			cancel(reason)
		}()
		if err := s.Write(ctx, insert(1)); !errors.Is(err, reason) {
			t.Errorf("got %v", err)
		}
		letGo()
		if err := s.Write(ctx, insert(1)); !errors.Is(err, reason) {
			t.Errorf("with a ctx that is over: %v", err)
		}
		if err := s.Write(t.Context(), insert(2)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{2}, ids(t, s)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("while its write runs gets the truth", func(t *testing.T) {
		s := openTest(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		err := s.Write(ctx, func(tx *Tx) error {
			cancel()
			return insert(1)(tx)
		})
		if err != nil {
			t.Errorf("got %v for a write that was made", err)
		}
		if diff := cmp.Diff([]int{1}, ids(t, s)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAWriteWaitsNoLongerThanTheLimit(t *testing.T) {
	reason := func(err error) string {
		var e *appliance.Error
		if !errors.As(err, &e) || e.Code != appliance.Unavailable {
			return fmt.Sprint("not UNAVAILABLE: ", err)
		}
		return e.Reason
	}
	t.Run("not started", func(t *testing.T) {
		s := openTest(t, Options{WriteWait: 300 * time.Millisecond})
		letGo := hold(t, s)
		if got := reason(s.Write(t.Context(), insert(1))); got != "NotStarted" {
			t.Error(got)
		}
		letGo()
		if err := s.Write(t.Context(), insert(2)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{2}, ids(t, s)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("started and unconfirmed", func(t *testing.T) {
		s := openTest(t, Options{WriteWait: 300 * time.Millisecond})
		release := make(chan struct{})
		s.BeforeCommit(func(*Tx) error { <-release; return nil })
		if got := reason(s.Write(t.Context(), insert(1))); got != "OutcomeUnknown" {
			t.Error(got)
		}
		close(release)
		if err := s.Write(t.Context(), insert(2)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{1, 2}, ids(t, s)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestChangedTellsOfCommitsThatWrote(t *testing.T) {
	s := openTest(t, Options{})
	isClosed := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	write := func(fn func(*Tx) error) {
		t.Helper()
		if err := s.Write(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	all, pool, other := s.Changed(), s.ChangedIn("pool_a"), s.ChangedIn("pool_b")
	write(func(tx *Tx) error { var n int; return tx.QueryRow("SELECT count(*) FROM rows").Scan(&n) })
	write(func(tx *Tx) error { _, err := tx.Exec("DELETE FROM rows WHERE id = 9"); return err })
	if isClosed(all) {
		t.Error("Changed was told of writes that changed nothing")
	}
	write(func(tx *Tx) error { tx.Touch("pool_a"); return insert(1)(tx) })
	if got := []bool{isClosed(all), isClosed(pool), isClosed(other)}; !slices.Equal(got, []bool{true, true, false}) {
		t.Errorf("told all, pool_a, pool_b = %v", got)
	}
	if isClosed(s.Changed()) || isClosed(s.ChangedIn("pool_a")) {
		t.Error("a channel taken after the commit is closed already")
	}
}

func TestShutdownFinishesWhatHasCome(t *testing.T) {
	s := openTest(t, Options{})
	letGo := hold(t, s)
	answer := make(chan error)
	go func() { answer <- s.Write(context.Background(), insert(1)) }()
	for len(s.writer.queue) == 0 {
		runtime.Gosched()
	}
	closed := make(chan error)
	go func() { closed <- s.Shutdown(context.Background()) }()
	<-s.closing
	if err := s.Write(t.Context(), insert(2)); appliance.CodeOf(err) != appliance.Unavailable {
		t.Errorf("a write that came later: %v", err)
	}
	letGo()
	if err := <-answer; err != nil {
		t.Errorf("the write that waited: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if exists(s.path + "-wal") {
		t.Error("the log is still there: it was not moved into the file")
	}
}

func TestShutdownWaitsNoLongerThanItsContext(t *testing.T) {
	s := openTest(t, Options{})
	letGo := hold(t, s)
	answer := make(chan error)
	go func() { answer <- s.Write(context.Background(), insert(1)) }()
	for len(s.writer.queue) == 0 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	letGo()
	if err := <-answer; appliance.CodeOf(err) != appliance.Unavailable {
		t.Errorf("the write that waited: %v", err)
	}
	<-s.writer.ended
	if err := errors.Join(s.writer.c.close()); err != nil { // what Shutdown left
		t.Error(err)
	}
	s.lock.release()
}

func TestWritersAndReadersDoNotMeetBusy(t *testing.T) {
	s := openTest(t, Options{ReadConns: 3})
	var wg sync.WaitGroup
	const each = 20
	for i := range 50 {
		wg.Go(func() {
			for j := range each {
				if err := s.Write(t.Context(), insert(i*each+j)); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range each {
				err := s.Read(t.Context(), func(tx *Tx) error {
					var before, after int
					if err := tx.QueryRow("SELECT count(*) FROM rows").Scan(&before); err != nil {
						return err
					}
					runtime.Gosched()
					if err := tx.QueryRow("SELECT count(id) FROM rows").Scan(&after); err != nil {
						return err
					}
					if before != after {
						return fmt.Errorf("one read saw %d rows and then %d", before, after)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(ids(t, s)); n != 50*each {
		t.Errorf("%d rows, want %d", n, 50*each)
	}
}
