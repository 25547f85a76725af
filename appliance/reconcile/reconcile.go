// Package reconcile runs the loops of the control plane: pending reservations
// placed, nodes brought to their pool's policy, what expired ended, silent
// nodes marked. It decides nothing and keeps nothing: each loop calls control
// as a named system caller and is never told what changed, so there is one
// path for just now, after a restart and after a failure. A loop does not
// retry either; its next run is the retry.
//
// Start reading at [Tasks].
package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bettercompute/bc/appliance/control"
)

// Task is one loop.
type Task struct {
	Name  string
	Every time.Duration          // runs at least this often
	Wake  func() <-chan struct{} // and when this is closed; nil: never in between

	// Run does the work. A positive next is when it wants to run again, if that
	// is before Every.
	Run func(ctx context.Context) (next time.Duration, err error)
}

// Tasks lists the loops. Interval is how often each runs without a reason,
// retry how often pending reservations are tried without one.
func Tasks(c *control.Control, interval, retry time.Duration) []Task {
	return []Task{
		{"capacity.hosts", interval, c.SpecsChanged, plain(c.RefreshNodes)},
		{"pending.stirred", interval, c.PendingChanged, plain(c.RetryStirred)},
		{"pending.all", retry, nil, plain(c.RetryAll)},
		{"expiry", interval, c.ExpiriesChanged, c.ExpireDue},
		{"liveness", min(interval, 5*time.Second), nil, plain(c.CheckLiveness)},
		{"budgets", interval, nil, plain(c.WatchBudgets)},
		{"events", time.Hour, nil, plain(c.PruneEvents)},
		{"keys", time.Minute, nil, plain(c.NoteKeyUse)},
	}
}

func plain(run func(context.Context) error) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) { return 0, run(ctx) }
}

// Run runs the tasks until the context ends, each on its own.
func Run(ctx context.Context, log *slog.Logger, tasks []Task) {
	var wg sync.WaitGroup
	for _, t := range tasks {
		wg.Go(func() { t.loop(ctx, log) })
	}
	wg.Wait()
}

func (t Task) loop(ctx context.Context, log *slog.Logger) {
	failing := ""
	for ctx.Err() == nil {
		var wake <-chan struct{}
		if t.Wake != nil {
			wake = t.Wake() // before the run, so that no commit falls between
		}
		next, err := t.Run(ctx)
		switch {
		case err == nil && failing != "":
			log.Info("the loop works again", "loop", t.Name)
			failing = ""
		case err != nil && ctx.Err() == nil && err.Error() != failing:
			log.Error("the loop failed; it runs again", "loop", t.Name, "in", t.Every, "err", err)
			failing = err.Error()
		}
		wait := t.Every
		if next > 0 && next < wait {
			wait = next
		}
		if failing != "" {
			wake = nil // a failing loop waits its time: the next commit may be its own
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}
