package control

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// load reads the whole state and compares its sums: an appliance that cannot
// trust them must not go on.
func (c *Control) load(ctx context.Context) error {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tenants, m.policies, m.pools = map[string]appliance.Tenant{}, map[string][]appliance.AccessPolicy{}, map[string]*pool{}
	m.nodes, m.byToken, m.byHost = map[string]*node{}, map[string]*node{}, map[string]*node{}
	m.visible = map[string][]string{}
	m.quotas = map[quotaKey]*counter{}
	m.waiting, m.turns, m.stirred, m.ends = map[string][]waiting{}, map[string]turn{}, map[string]bool{}, ends{}
	m.dirtyQuotas, m.dirtyNodes = map[quotaKey]bool{}, map[string]bool{}
	m.rolling, m.releasing = map[string]map[string]bool{}, map[string]map[string]*release{}
	l := loading{c: c, used: map[quotaKey]int{}, now: c.Now()}
	l.booked.seed = maphash.MakeSeed()
	l.atoms.seed = l.booked.seed
	var err error
	if m.index, err = plan.Fill(func(x *plan.Index) error { return l.fill(ctx, x) }); err != nil {
		return err
	}
	for _, r := range l.pending {
		m.waiting[r.PoolID] = append(m.waiting[r.PoolID], waitingOf(r))
		if r.ExpiresAt != nil {
			m.ends.set(r.ID, r.ExpiresAt)
		}
	}
	return c.Store.Read(ctx, func(tx *store.Tx) error {
		if err := c.loadRollouts(tx); err != nil {
			return err
		}
		if err := c.loadReleasing(tx); err != nil {
			return err
		}
		return l.compare(tx)
	})
}

func (c *Control) loadTenants(tx *store.Tx) error {
	all, err := tx.AllTenants()
	if err != nil {
		return err
	}
	for _, t := range all {
		c.mem.tenants[t.ID] = t
	}
	for _, t := range all {
		policies, err := tx.AccessPolicies(t.ID)
		if err != nil {
			return err
		}
		c.mem.policies[t.ID] = policies
		if err := c.IAM.SetTenant(t.ID, c.mem.above(t.ID), policies); err != nil {
			c.Log.Error("a tenant is locked out until its policy is mended: bc api iam.policies.put", "tenant", t.ID, "err", err)
		}
	}
	return nil
}

func (c *Control) loadPools(tx *store.Tx) error {
	all, err := tx.AllPools()
	if err != nil {
		return err
	}
	for _, p := range all {
		facts, err := c.readPool(tx, p)
		if err != nil {
			return err
		}
		c.mem.pools[p.ID] = facts
		quotas, err := tx.QuotasIn(p.ID)
		if err != nil {
			return err
		}
		for _, q := range quotas {
			c.mem.quotas[quotaKey{q.TenantID, q.PoolID, q.Resource}] = &counter{max: q.Max, used: q.Used}
		}
	}
	return nil
}

// loading is what a start knows while it reads.
type loading struct {
	c       *Control
	now     time.Time
	devices []plan.Device // memory of the last node's
	ledgers []store.NodeLedger
	pending []store.Claim
	gaps    int64 // events that are missing
	used    map[quotaKey]int

	// What is booked by the reservations, and by the table of atoms.
	booked, atoms atomSum
}

// atomSum is the sum of the digests of different atoms with their holders: two
// sets whose sums are the same are the same.
type atomSum struct {
	seed  maphash.Seed
	lines int
	sum   uint64
	text  []byte // scratch
}

// add adds what is booked on a node: lines of an atom, a tab and its reservation,
// the last of which may be apart. An atom whose name holds a newline is two lines
// wherever it comes from.
func (s *atomSum) add(node, atoms, reservation string) {
	for more := true; more; {
		var line string
		line, atoms, more = strings.Cut(atoms, "\n")
		s.text = append(append(append(s.text[:0], node...), '\t'), line...)
		if !more && reservation != "" {
			s.text = append(append(s.text, '\t'), reservation...)
		}
		s.lines++
		s.sum += maphash.Bytes(s.seed, s.text)
	}
}

func (s *atomSum) same(as *atomSum) bool { return s.lines == as.lines && s.sum == as.sum }

// lane brings what a reader reads to the index, so many at once, and memory that
// was used back.
type lane[T any] struct {
	to    chan []T
	back  chan []T
	some  []T
	ended bool
}

const loadBatch = 128 // values

func laneOf[T any](batches int) *lane[T] {
	return &lane[T]{to: make(chan []T, batches), back: make(chan []T, 1)}
}

func (l *lane[T]) add(v T) {
	if l.some == nil {
		select {
		case l.some = <-l.back:
		default:
			l.some = make([]T, 0, loadBatch)
		}
	}
	if l.some = append(l.some, v); len(l.some) == loadBatch {
		l.to <- l.some
		l.some = nil
	}
}

// each calls do for everything that comes, unless something has failed. The rest
// is taken and let go: the reader waits for that.
func (l *lane[T]) each(err error, do func(*T) error) error {
	for some := range l.to {
		for i := 0; i < len(some) && err == nil; i++ {
			err = do(&some[i])
		}
		select {
		case l.back <- some[:0]:
		default:
		}
	}
	return err
}

// end lets go of who waits for more. It may be called again.
func (l *lane[T]) end() {
	if !l.ended {
		l.ended = true
		l.to <- l.some
		close(l.to)
	}
}

// fill reads nodes, bookings, and what they are compared with, and puts them
// into the index meanwhile, once it has read the tenants and pools that they
// belong to. Nothing else runs yet that could write.
func (l *loading) fill(ctx context.Context, x *plan.Index) error {
	nodes, held := laneOf[store.LoadedNode](8), laneOf[plan.Booking](4096)
	read := make(chan error, 1)
	go func() {
		read <- l.c.Store.ReadApart(ctx,
			func(tx *store.Tx) error {
				err := tx.LoadNodes(func(rec *store.LoadedNode) error { nodes.add(*rec); return nil })
				nodes.end()
				if err != nil {
					return err
				}
				return l.readAtoms(tx) // which nobody waits for yet
			},
			func(tx *store.Tx) error {
				err := l.readHeld(tx, held.add)
				held.end()
				if err != nil {
					return err
				}
				return l.readRest(tx)
			})
		nodes.end() // a connection that does not open reads nothing
		held.end()
	}()
	err := l.c.Store.Read(ctx, func(tx *store.Tx) error {
		if err := l.c.loadTenants(tx); err != nil {
			return err
		}
		return l.c.loadPools(tx)
	})
	var unpack plan.Unpacker
	err = nodes.each(err, func(n *store.LoadedNode) error { return l.put(x, &unpack, n) })
	err = held.each(err, func(b *plan.Booking) error {
		if err := x.Book(*b); err != nil {
			return fmt.Errorf("two bookings of one thing: %w", err)
		}
		return nil
	})
	if failed := <-read; failed != nil { // what was put is not whole then, and no wonder
		return failed
	}
	return err
}

// put takes a node into memory.
func (l *loading) put(x *plan.Index, unpack *plan.Unpacker, rec *store.LoadedNode) error {
	m := &l.c.mem
	facts := plan.Node{Rows: rec.Ledger.Resources, Devices: l.devices}
	identify(&facts, m.pools[rec.PoolID], store.NodeRecord{ID: rec.ID, PoolID: rec.PoolID, Hostname: rec.Hostname, Role: rec.Role, Control: rec.Control})
	if err := unpack.Unpack(plan.Packed(rec.Facts), &facts); err != nil {
		return err
	}
	l.devices = facts.Devices // the index keeps none of it
	if _, err := x.PutNode(facts); err != nil {
		return err
	}
	m.put(&node{
		id: rec.ID, pool: rec.PoolID, hostname: rec.Hostname, token: rec.CredentialHash, machine: rec.MachineID,
		state: rec.State, inventory: rec.InventoryHash, generation: rec.Ledger.Generation, version: rec.SpecVersion,
		simulated: rec.Simulated, owned: rec.Control == appliance.ControlTenantOwned, seen: l.now,
	})
	l.ledgers = append(l.ledgers, rec.Ledger)
	return nil
}

func (l *loading) readHeld(tx *store.Tx, each func(plan.Booking)) error {
	return tx.HeldReservations(func(r *appliance.Reservation) error {
		for name, n := range r.Resources {
			l.used[quotaKey{r.TenantID, r.PoolID, name}] += n
		}
		for i := range r.Placements {
			p := &r.Placements[i]
			for _, atom := range p.Atoms {
				l.booked.add(p.NodeID, atom, r.ID)
			}
		}
		if r.ExpiresAt != nil {
			l.c.mem.ends.set(r.ID, r.ExpiresAt)
		}
		each(bookingOf(*r))
		return nil
	})
}

func (l *loading) readAtoms(tx *store.Tx) error {
	return tx.BookedAtoms(func(node, lines string) { l.atoms.add(node, lines, "") })
}

func (l *loading) readRest(tx *store.Tx) (err error) {
	if l.pending, err = tx.PendingReservations(); err != nil {
		return err
	}
	l.gaps, err = tx.EventGaps(newestEvents)
	return err
}

// compare holds the sums of what was booked against the stored counters. What
// differs is named by looking at everything again.
func (l *loading) compare(tx *store.Tx) error {
	var releasing findings
	if err := l.c.verifyReleasing(tx, &releasing); err != nil {
		return err
	}
	if l.gaps == 0 && l.booked.same(&l.atoms) && len(releasing) == 0 && l.sameQuotas() && l.sameLedgers() {
		return nil
	}
	live, err := tx.LiveReservations()
	if err != nil {
		return err
	}
	if err := l.c.verify(tx, live, newestEvents); err != nil {
		return err
	}
	return errors.New("the state adds up when it is read in full and not when it is read in short, so nothing was started; this is a fault of the program: please report it")
}

func (l *loading) sameQuotas() bool {
	for k, q := range l.c.mem.quotas {
		if q.used != l.used[k] {
			return false
		}
		delete(l.used, k)
	}
	for _, n := range l.used { // of no quota row
		if n > 0 {
			return false
		}
	}
	return true
}

func (l *loading) sameLedgers() bool {
	for _, ledger := range l.ledgers {
		if !l.c.mem.index.SameRows(ledger.NodeID, ledger.Resources) {
			return false
		}
	}
	return true
}
