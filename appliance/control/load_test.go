package control

import (
	"context"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// Whatever of the stored sums is not what the bookings sum to, the start names
// it and serves nothing.
func TestAStateThatDoesNotAddUpIsNotServed(t *testing.T) {
	for _, c := range []struct{ change, says string }{
		{`UPDATE quotas SET used = used + 1 WHERE resource = 'gpu'`, "live bookings sum to"},
		{`DELETE FROM quotas WHERE resource = 'gpu'`, "without a quota row"},
		{`DELETE FROM atoms WHERE atom = (SELECT min(atom) FROM atoms)`, "is not held"},
		{`INSERT INTO atoms (node_id, atom, reservation_id) SELECT node_id, 'GPU-stray', reservation_id FROM atoms LIMIT 1`, "does not book it"},
		{`UPDATE atoms SET reservation_id = 'res_other' WHERE atom = (SELECT min(atom) FROM atoms)`, "held by res_other"},
		{`UPDATE node_ledgers SET resources = replace(resources, '"allocated":', '"allocated":1')`, "allocated, its bookings sum to"},
		{`UPDATE reservations SET hold = NULL WHERE id = (SELECT min(id) FROM reservations)`, "is not what the reservation says"},
		{`UPDATE reservations SET hold = replace(hold, 'hold' || char(9) || 'gpu=2', 'hold' || char(9) || 'gpu=1')`, "is not what the reservation says"},
		{`DELETE FROM events WHERE seq = (SELECT max(seq) - 2 FROM events)`, "events are missing"},
	} {
		f := newFixture(t)
		pool := f.pool(appliance.SharingExclusive, "")
		f.join(pool, machine("a", 64, 512, 8))
		f.reserve(pool, 2)
		f.reserve(pool, 1)
		f.restart() // what adds up is served
		f.must(f.c.Store.Write(context.Background(), func(tx *store.Tx) error {
			r, err := tx.Exec(c.change)
			if err == nil && r.Changed == 0 {
				t.Errorf("%s: changed nothing", c.change)
			}
			return err
		}))
		again := &Control{Store: f.c.Store, IAM: iam.New(), Settings: f.c.Settings, Now: f.now}
		err := again.Start(context.Background())
		if err == nil || !strings.Contains(err.Error(), "does not add up") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: start says %v", c.change, err)
		}
	}
}
