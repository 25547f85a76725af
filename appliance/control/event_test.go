package control

import (
	"context"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// Old events go, and a reader whose cursor stands behind them is told, instead
// of going on as if it had read them.
func TestRetentionNeverBreaksACursorSilently(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.c.Settings.KeepEvents = 24 * time.Hour
	list := func(after int64) (appliance.List[appliance.Event], error) {
		return f.c.ListEvents(ctx, operator, appliance.ListEvents{TenantID: appliance.Root, After: after, Limit: 500})
	}
	f.tenant("early")
	last, err := f.c.LastEvent(ctx)
	f.must(err)
	f.advance(25 * time.Hour)
	f.tenant("late")
	f.must(f.c.PruneEvents(ctx))

	if got, err := list(0); err != nil || len(got.Items) != 1 || got.Items[0].Subject != "late" {
		t.Fatalf("from the start: %+v, %v", got.Items, err)
	}
	_, err = list(last - 1)
	if appliance.CodeOf(err) != appliance.InvalidState {
		t.Errorf("a cursor behind removed events: %v", err)
	}
	if got, err := list(last); err != nil || len(got.Items) != 1 {
		t.Errorf("a cursor at the last removed event has missed nothing: %+v, %v", got.Items, err)
	}
	f.restart()
	f.verify()
	if _, err = list(last - 1); appliance.CodeOf(err) != appliance.InvalidState {
		t.Errorf("after a restart: %v", err)
	}

	f.advance(48 * time.Hour)
	f.must(f.c.PruneEvents(ctx)) // the newest stays, or numbers would begin anew
	newest, err := f.c.LastEvent(ctx)
	f.must(err)
	f.tenant("later")
	if next, err := f.c.LastEvent(ctx); err != nil || next != newest+1 {
		t.Errorf("the next event is %d after %d (%v)", next, newest, err)
	}
	f.verify()
}
