package store

import (
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// A look for old events reads a bounded number of the oldest, whatever stands
// behind them: it runs on the writer, and a server has millions.
func TestPruningLooksAtTheOldestEventsAlone(t *testing.T) {
	s := openTest(t, Options{migrations: embedded})
	const old, young = 1, 100
	err := s.Write(t.Context(), func(tx *Tx) error {
		for _, at := range []int64{old, young, old, young, old, young} { // the clock was set back twice
			_, err := tx.Exec(`INSERT INTO events (type, tenant_id, subject, at, data, actor) VALUES ('t', 'root', 's', ?, '{}', 'a')`, at)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		limit         int
		removed, upTo int64
	}{
		{2, 1, 1}, // 1 of 1, 2
		{1, 0, 1}, // 2 is young, and 3 behind it is not looked at
		{2, 2, 3}, // 3 is old: so is what precedes it
		{9, 2, 5}, // 6 is the newest
	} {
		var removed, upTo int64
		err := s.Write(t.Context(), func(tx *Tx) (err error) {
			if removed, err = tx.PruneEvents(appliance.AtMillis(50), want.limit); err != nil {
				return err
			}
			upTo, err = tx.PrunedEvents()
			return err
		})
		if err != nil || removed != want.removed || upTo != want.upTo {
			t.Errorf("step %d: removed %d, up to %d, want %d and %d (%v)", i+1, removed, upTo, want.removed, want.upTo, err)
		}
	}
}
