package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// clock counts the runs of a task and tells when each was, in seconds after
// the start.
type clock struct {
	start time.Time
	at    []int
}

func (c *clock) note() { c.at = append(c.at, int(time.Since(c.start)/time.Second)) }

func run(t *testing.T, d time.Duration, task Task) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	Run(ctx, slog.New(slog.DiscardHandler), []Task{task})
}

func wantRuns(t *testing.T, c *clock, want ...int) {
	t.Helper()
	if len(c.at) != len(want) {
		t.Fatalf("ran at %v, want %v", c.at, want)
	}
	for i := range want {
		if c.at[i] != want[i] {
			t.Fatalf("ran at %v, want %v", c.at, want)
		}
	}
}

func TestATaskRunsAtOnceAndThenAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		run(t, 95*time.Second, Task{Name: "t", Every: 30 * time.Second, Run: plain(func(context.Context) error { c.note(); return nil })})
		wantRuns(t, c, 0, 30, 60, 90)
	})
}

func TestATaskRunsWhenItIsWokenAndWhenItWantsTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		woken := make(chan struct{})
		time.AfterFunc(10*time.Second, func() { close(woken) })
		wakes := 0
		run(t, 50*time.Second, Task{
			Name: "t", Every: 30 * time.Second,
			Wake: func() <-chan struct{} {
				if wakes++; wakes == 1 {
					return woken
				}
				return nil
			},
			Run: func(context.Context) (time.Duration, error) {
				c.note()
				if len(c.at) == 2 {
					return 5 * time.Second, nil
				}
				return 0, nil
			},
		})
		wantRuns(t, c, 0, 10, 15, 45)
	})
}

// TestAFailingTaskWaitsItsTime: the next commit may be its own, so a wake must
// not make it spin; and one failure is logged once.
func TestAFailingTaskWaitsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{start: time.Now()}
		closed := make(chan struct{})
		close(closed)
		var log strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		Run(ctx, slog.New(slog.NewTextHandler(&log, nil)), []Task{{
			Name: "t", Every: 30 * time.Second, Wake: func() <-chan struct{} { return closed },
			Run: plain(func(context.Context) error { c.note(); return errors.New("no disk") }),
		}})
		wantRuns(t, c, 0, 30, 60, 90)
		if n := strings.Count(log.String(), "no disk"); n != 1 {
			t.Errorf("the failure was logged %d times:\n%s", n, log.String())
		}
	})
}
