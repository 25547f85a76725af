package main_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/control"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

var kills = flag.Int("kills", 4, "how often the server is killed under load")

// answered is what clients were told, by reservation: the last state that was
// acknowledged, and whether a release was sent that got no answer.
type answered struct {
	mu     sync.Mutex
	told   map[string]appliance.ReservationState
	count  int // of answers in this round
	total  int
	enough chan struct{}
	upTo   int             // answers until enough is closed
	asking map[string]bool // a release is on its way or its answer was lost
}

func (a *answered) note(id string, state appliance.ReservationState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told[id] = state
	delete(a.asking, id)
	a.total++
	if a.count++; a.count == a.upTo {
		close(a.enough)
	}
}

// begin starts a round that has enough after so many answers.
func (a *answered) begin(upTo int) (enough <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count, a.upTo, a.enough = 0, upTo, make(chan struct{})
	return a.enough
}

func (a *answered) ask(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asking[id] = true
}

// TestKilledUnderLoadNothingAcknowledgedIsLost kills the server at random
// moments under 32 clients that create, release and read. The program itself
// refuses to start on a state that does not add up; besides, each answer that a
// client got is held against the rows, and the invariants are checked anew.
// go test ./cmd/bc -run KilledUnderLoad -kills 300 does it for longer.
func TestKilledUnderLoadNothingAcknowledgedIsLost(t *testing.T) {
	b := startBox(t)
	me := b.operator(t)
	pool := crashPool(t, b, me)
	a := &answered{told: map[string]appliance.ReservationState{}, asking: map[string]bool{}}
	for round := range *kills {
		ctx, stop := context.WithCancel(t.Context())
		enough := a.begin(1 + rand.IntN(150))
		var clients sync.WaitGroup
		for i := range 32 {
			c := b.operator(t)
			clients.Go(func() { crashClient(ctx, c, pool, a, i) })
		}
		select {
		case <-enough:
		case <-time.After(patience):
			t.Fatalf("round %d: the clients got no answers", round)
		}
		time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // the moment within a commit is to be any
		if err := b.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = b.cmd.Wait() // killed
		stop()
		clients.Wait()
		holdAgainst(t, b, a, round)
		b.start(t)
	}
	t.Logf("%d kills, %d answers, %d reservations known", *kills, a.total, len(a.told))
}

// crashPool makes a pool with one simulated machine and plenty of slots.
func crashPool(t *testing.T, b *box, me *person) string {
	t.Helper()
	var sites appliance.List[appliance.Site]
	if err := me.Call(t.Context(), "sites.list", appliance.TenantList{TenantID: "local"}, &sites); err != nil {
		t.Fatal(err)
	}
	var pool appliance.Pool
	err := me.Call(t.Context(), "pools.create", appliance.CreatePool{
		TenantID: "local", SiteID: sites.Items[0].ID, Class: appliance.ClassMetalHost, GPUModel: "H100", Sharing: appliance.SharingTimeslice,
		Policy: appliance.RawPolicy(`{"sharing":{"replicas":48}}`), OwnerQuota: appliance.QuotaMap{"gpu.slot": 100},
	}, &pool)
	if err != nil {
		t.Fatal(err)
	}
	b.fleet(t, pool, "dgx-h100", 1)
	return pool.ID
}

// crashClient creates and releases until the server is gone.
func crashClient(ctx context.Context, c *person, pool string, a *answered, i int) {
	defer c.Close()
	for n := 0; ctx.Err() == nil; n++ {
		var r appliance.Reservation
		err := c.Call(ctx, "reservations.create", appliance.CreateReservation{
			TenantID: "local", PoolID: pool, Resources: appliance.Amounts{"gpu.slot": 1 + i%5}, Duration: "30m",
		}, &r)
		switch appliance.CodeOf(err) {
		case "":
			a.note(r.ID, r.State)
		case appliance.QuotaExceeded: // others hold it; release some of what is known
			r.ID = a.any()
		default:
			return
		}
		if r.ID == "" || n%3 == 0 {
			continue
		}
		a.ask(r.ID)
		ref := appliance.ReservationRef{TenantID: "local", ReservationID: r.ID}
		if c.Call(ctx, "reservations.release", ref, &r) != nil {
			return
		}
		a.note(r.ID, r.State)
	}
}

// any is a reservation that was acknowledged as live, "" if there is none.
func (a *answered) any() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, state := range a.told {
		if state.Live() && !a.asking[id] {
			return id
		}
	}
	return ""
}

// holdAgainst opens the file that the killed server left and compares it with
// what clients were told.
func holdAgainst(t *testing.T, b *box, a *answered, round int) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(b.dir, "state.db")})
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	defer s.Close()
	c := &control.Control{Store: s, IAM: iam.New(), Settings: control.Defaults()}
	if err := c.Start(t.Context()); err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	if err := c.Verify(t.Context()); err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	order := map[appliance.ReservationState]int{appliance.Pending: 0, appliance.Placed: 1, appliance.Active: 2, appliance.Ended: 3}
	err = s.Read(t.Context(), func(tx *store.Tx) error {
		for id, told := range a.told {
			r, found, err := tx.FindReservation(id)
			if err != nil {
				return err
			}
			switch {
			case !found:
				t.Errorf("round %d: reservation %s was acknowledged as %s and is gone", round, id, told)
			case order[r.State] < order[told]:
				t.Errorf("round %d: reservation %s was acknowledged as %s and is %s", round, id, told, r.State)
			case r.State == appliance.Ended && told != appliance.Ended && !a.asking[id]:
				t.Errorf("round %d: reservation %s has ended and nobody released it", round, id)
			default:
				a.told[id] = r.State
				if r.State == appliance.Ended {
					delete(a.asking, id)
				}
			}
		}
		a.asking = map[string]bool{}
		live, err := tx.LiveReservations() // also those whose answer was lost: unknown, they would fill the quota for good
		if err != nil {
			return err
		}
		for _, r := range live {
			a.told[r.ID] = r.State
		}
		return heldByLive(tx)
	})
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
}

// heldByLive tells of atoms that are held by what is no longer live, and of
// charges without a booking: by counting rows, not with the program's own check.
func heldByLive(tx *store.Tx) error {
	var orphans, used, booked int
	err := tx.QueryRow(`SELECT count(*) FROM atoms a WHERE NOT EXISTS
		(SELECT 1 FROM reservations r WHERE r.id = a.reservation_id AND r.state IN ('placed', 'active'))`).Scan(&orphans)
	if err != nil {
		return err
	}
	if orphans > 0 {
		return fmt.Errorf("%d atoms are held by no live reservation", orphans)
	}
	err = tx.QueryRow(`SELECT coalesce(sum(used), 0) FROM quotas WHERE resource = 'gpu.slot'`).Scan(&used)
	if err != nil {
		return err
	}
	err = tx.QueryRow(`SELECT coalesce(sum(json_extract(body, '$.resources."gpu.slot"')), 0) FROM reservations WHERE state IN ('placed', 'active')`).Scan(&booked)
	if err != nil {
		return err
	}
	if used != booked {
		return fmt.Errorf("quota rows say %d slots are used, live reservations hold %d", used, booked)
	}
	return nil
}
