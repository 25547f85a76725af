package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

// leave is a checked write that leaves its row for later.
func leave(id int) func(*Tx) error {
	return func(tx *Tx) error { return tx.Later(insert(id)) }
}

// withScribe has the scribe take a batch of checked writes, of which the first
// writes what is given, and holds it there until the function it gives is called.
// That one gives the answers.
func withScribe(t *testing.T, s *Store, first func(*Tx) error, others ...func(*Tx) error) (letGo func() []error) {
	t.Helper()
	began, release := make(chan struct{}), make(chan struct{})
	fns := append([]func(*Tx) error{func(tx *Tx) error {
		return tx.Later(func(tx *Tx) error {
			close(began)
			<-release
			return first(tx)
		})
	}}, others...)
	answers := make([]error, len(fns))
	var all sync.WaitGroup
	goOn := hold(t, s)
	for i, fn := range fns {
		all.Go(func() { answers[i] = s.WriteChecked(context.Background(), fn) })
		for len(s.writer.queue) <= i {
			runtime.Gosched()
		}
	}
	s.writer.takeAll = true
	all.Go(goOn) // the held write is answered with the batch
	<-began
	return func() []error {
		close(release)
		all.Wait()
		return answers
	}
}

// seven are the others of a batch that is large enough for the scribe.
func seven(fn func(id int) func(*Tx) error) (fns []func(*Tx) error) {
	for i := range scribeFrom - 1 {
		fns = append(fns, fn(i+2))
	}
	return fns
}

func TestABatchIsDecidedWhileTheOneBeforeIsWritten(t *testing.T) {
	s := openTest(t, Options{})
	letGo := withScribe(t, s, insert(1), seven(leave)...)
	const more = 10
	decided := make(chan int, more)
	var all sync.WaitGroup
	var answered atomic.Int32
	for i := range more {
		all.Go(func() {
			err := s.WriteChecked(context.Background(), func(tx *Tx) error {
				decided <- i
				return leave(100 + i)(tx)
			})
			if err != nil {
				t.Error(err)
			}
			answered.Add(1)
		})
	}
	for range more {
		<-decided
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("%d writes were answered before they were durable", n)
	}
	if got := ids(t, s); len(got) != 0 {
		t.Errorf("rows %v are seen before they are durable", got)
	}
	for i, err := range letGo() {
		if err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	all.Wait()
	if n := len(ids(t, s)); n != scribeFrom+more {
		t.Errorf("%d rows", n)
	}
}

// Whatever the scribe fails with, nobody keeps anything that stands on it, and
// what comes after it is as if it had never been.
func TestWhatStandsOnABatchThatCouldNotBeWrittenFallsWithIt(t *testing.T) {
	broken := errors.New("a row of ours is at fault")
	for name, c := range map[string]struct {
		bad    func(*Tx) error
		answer string // of the one at fault
		others string // "" for errFellWith
	}{
		"error":      {func(tx *Tx) error { return errors.Join(insert(1)(tx), broken) }, broken.Error(), ""},
		"constraint": {func(tx *Tx) error { return errors.Join(insert(1)(tx), insert(1)(tx)) }, "UNIQUE", ""},
		"panic":      {func(tx *Tx) error { panic("oops") }, "oops", ""},
		"forbidden":  {func(tx *Tx) error { tx.Undo(func() {}); return nil }, "panicked", ""},
		"commit": {func(tx *Tx) error {
			if _, err := tx.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
				return err
			}
			_, err := tx.Exec("INSERT INTO kids (id, parent) VALUES (1, 4711)")
			return err
		}, "FOREIGN KEY", "FOREIGN KEY"},
	} {
		for _, asks := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " asks=", asks), func(t *testing.T) {
				s := openTest(t, Options{})
				var undone []int
				good := func(id int) func(*Tx) error {
					return func(tx *Tx) error {
						tx.Undo(func() { undone = append(undone, id) })
						tx.Done(func() { t.Errorf("Done of %d ran", id) })
						return leave(id)(tx)
					}
				}
				letGo := withScribe(t, s, c.bad, seven(good)...)
				// Behind it, in order: a refusal that may stand on it, and what does.
				fns := []func(*Tx) error{func(*Tx) error { return errors.New("refused") }, good(101), good(102)}
				if asks { // has begun when it meets the failure
					fns = append(fns, insert(103))
				}
				began := make(chan struct{}, len(fns))
				behind := make([]error, len(fns))
				var last error
				var all sync.WaitGroup
				for i, fn := range fns {
					all.Go(func() {
						behind[i] = s.WriteChecked(context.Background(), func(tx *Tx) error {
							began <- struct{}{}
							return fn(tx)
						})
					})
					<-began
				}
				all.Go(func() { last = s.Write(context.Background(), insert(104)) })
				for asks && len(s.writer.queue) == 0 || !asks && len(s.writer.queue) > 0 { // it is taken, or waits for one that is
					runtime.Gosched()
				}
				for i, err := range letGo() {
					switch {
					case i == 0:
						if err == nil || !strings.Contains(err.Error(), c.answer) {
							t.Errorf("the one at fault was answered %v", err)
						}
					case c.others == "" && !fell(err), c.others != "" && (err == nil || !strings.Contains(err.Error(), c.others)):
						t.Errorf("write %d beside it was answered %v", i, err)
					}
				}
				all.Wait()
				for i, err := range behind {
					if !fell(err) {
						t.Errorf("write %d behind it was answered %v", i, err)
					}
				}
				if last != nil {
					t.Errorf("the write that came after all: %v", last)
				}
				if diff := cmp.Diff([]int{102, 101, 8, 7, 6, 5, 4, 3, 2}, undone); diff != "" {
					t.Errorf("Undo: %s", diff)
				}
				if diff := cmp.Diff([]int{104}, ids(t, s)); diff != "" {
					t.Errorf("rows: %s", diff)
				}
			})
		}
	}
}

// fell tells the answer of a write that fell with another.
func fell(err error) bool {
	var told *appliance.Error
	return errors.As(err, &told) && told.Code == appliance.Unavailable && told.Reason == "NotStarted"
}

// Before anything of a batch is written, one that fails falls alone, whatever it
// has left for later.
func TestACheckedWriteThatFailsBeforeTheFileIsTouchedFallsAlone(t *testing.T) {
	refusal := errors.New("refused")
	for name, bad := range map[string]func(*Tx) error{
		"refused": func(*Tx) error { return refusal },
		"fails":   func(tx *Tx) error { return errors.Join(leave(66)(tx), refusal) },
		"panics":  func(tx *Tx) error { _ = leave(66)(tx); panic(refusal.Error()) },
	} {
		for _, others := range []int{2, scribeFrom} {
			for _, place := range []int{0, 1, others} {
				t.Run(fmt.Sprint(name, " at ", place, " beside ", others), func(t *testing.T) {
					s := openTest(t, Options{})
					var undone, done, want []int
					note := func(id int, fn func(*Tx) error) func(*Tx) error {
						return func(tx *Tx) error {
							tx.Undo(func() { undone = append(undone, id) })
							tx.Done(func() { done = append(done, id) })
							return fn(tx)
						}
					}
					var writes []func() error
					for i := range others {
						want = append(want, i)
						writes = append(writes, func() error { return s.WriteChecked(context.Background(), note(i, leave(i))) })
					}
					writes = slices.Insert(writes, place, func() error { return s.WriteChecked(context.Background(), note(66, bad)) })
					for i, err := range atOnce(t, s, writes...) {
						if i == place != (err != nil) || err != nil && !strings.Contains(err.Error(), refusal.Error()) {
							t.Errorf("write %d was answered %v", i, err)
						}
					}
					for what, got := range map[string][]int{"rows": ids(t, s), "Done": done} {
						if diff := cmp.Diff(want, got); diff != "" {
							t.Errorf("%s: %s", what, diff)
						}
					}
					if diff := cmp.Diff([]int{66}, undone); diff != "" {
						t.Errorf("Undo: %s", diff)
					}
				})
			}
		}
	}
}

// A write that asks the file sees what was left for later by itself, by those of
// its batch, and by the batch that is with the scribe.
func TestAWriteThatAsksTheFileSeesWhatWasLeftForLater(t *testing.T) {
	ask := func(tx *Tx) (list []int, err error) {
		return collect(tx, func(r *Rows) (id int, err error) { return id, r.Scan(&id) }, "SELECT id FROM rows ORDER BY id")
	}
	for name, write := range map[string]func(*Store) func(context.Context, func(*Tx) error) error{
		"checked":     func(s *Store) func(context.Context, func(*Tx) error) error { return s.WriteChecked },
		"not checked": func(s *Store) func(context.Context, func(*Tx) error) error { return s.Write },
	} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, Options{})
			letGo := withScribe(t, s, insert(1), seven(leave)...)
			decided := make(chan struct{})
			var all sync.WaitGroup
			all.Go(func() {
				err := s.WriteChecked(context.Background(), func(tx *Tx) error { close(decided); return leave(20)(tx) })
				if err != nil {
					t.Error(err)
				}
			})
			<-decided
			var seen []int
			all.Go(func() {
				err := write(s)(context.Background(), func(tx *Tx) (err error) {
					if err := leave(30)(tx); err != nil {
						return err
					}
					seen, err = ask(tx)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
			for len(s.writer.queue) > 0 {
				runtime.Gosched()
			}
			for _, err := range letGo() {
				if err != nil {
					t.Error(err)
				}
			}
			all.Wait()
			if diff := cmp.Diff([]int{1, 2, 3, 4, 5, 6, 7, 8, 20, 30}, seen); diff != "" {
				t.Errorf("seen: %s", diff)
			}
		})
	}
}

// Many callers at once make every kind of write, of which some fail in every way
// that there is. Memory equals the rows whenever a write asks, and in the end both
// are what was acknowledged.
func TestMemoryRowsAndAnswersAgreeWhateverFails(t *testing.T) {
	s := openTest(t, Options{})
	s.writer.budget = batchBudget
	made := map[int]bool{} // memory: the writer's alone
	var failing, asked atomic.Bool
	failing.Store(true)
	s.BeforeCommit(func(tx *Tx) error {
		if !failing.Load() || rand.IntN(60) > 0 {
			return nil
		}
		switch rand.IntN(3) {
		case 0:
			return errors.New("counters do not add up")
		case 1:
			return tx.Later(func(*Tx) error { return errors.New("a counter is not written") })
		}
		return tx.Later(func(tx *Tx) error { // so that COMMIT is refused
			if _, err := tx.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
				return err
			}
			_, err := tx.Exec("INSERT INTO kids (parent) VALUES (-1)")
			return err
		})
	})
	agree := func(tx *Tx) error {
		var n int
		if err := tx.QueryRow("SELECT count(*) FROM rows").Scan(&n); err != nil {
			return err
		}
		if n != len(made) {
			t.Errorf("%d rows, and %d in memory", n, len(made))
		}
		asked.Store(true)
		return nil
	}
	write := func(id int) (bool, error) {
		kind, fails, asks := rand.IntN(4), rand.IntN(12), rand.IntN(12)
		fn := func(tx *Tx) error {
			if fails == 0 {
				return errors.New("refused")
			}
			if asks == 0 || kind == 0 && asks < 6 {
				if err := agree(tx); err != nil {
					return err
				}
			}
			made[id] = true
			tx.Undo(func() { delete(made, id) })
			row := insert(id)
			if fails == 1 && rand.IntN(4) == 0 {
				row = func(tx *Tx) error { return errors.Join(insert(id)(tx), errors.New("a row failed")) }
			}
			if fails == 2 && rand.IntN(4) == 0 {
				row = func(tx *Tx) error { panic("a row panicked") }
			}
			err := tx.Later(row)
			if fails == 3 {
				return errors.Join(err, errors.New("refused after a row"))
			}
			if err == nil && asks == 1 {
				return agree(tx)
			}
			return err
		}
		if kind == 0 {
			return false, s.Write(context.Background(), fn)
		}
		return true, s.WriteChecked(context.Background(), fn)
	}
	const callers, each = 48, 150
	var mu sync.Mutex
	acknowledged := map[int]bool{}
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range each {
				id := c*each + i
				if _, err := write(id); err == nil {
					mu.Lock()
					acknowledged[id] = true
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	failing.Store(false)
	if err := s.Write(t.Context(), agree); err != nil || !asked.Load() {
		t.Error(err, asked.Load())
	}
	rows := ids(t, s)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(acknowledged)), rows); diff != "" {
		t.Errorf("acknowledged and stored: %s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(made)), rows); diff != "" {
		t.Errorf("memory and stored: %s", diff)
	}
	if n := len(rows); n < callers*each/20 {
		t.Errorf("%d writes of %d were kept: what was to be shown was not", n, callers*each)
	}
}
