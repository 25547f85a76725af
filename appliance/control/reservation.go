package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// CreateReservation claims resources of a pool: placed at once where they fit
// and the quota holds them, pending where they do not fit yet. Checking the
// quota, charging and booking are one transaction.
func (c *Control) CreateReservation(ctx context.Context, who appliance.Caller, in appliance.CreateReservation) (out appliance.Reservation, err error) {
	in.Normalise()
	if there, found, err := c.repeated(ctx, who, in); found || err != nil {
		return there, err
	}
	err = c.writeChecked(ctx, who, appliance.ReservationsCreate, in.TenantID, in.PoolID, func(tx *store.Tx) error {
		r, tr, p, err := c.askedReservation(who, in)
		if err != nil {
			return err
		}
		if in.IdempotencyKey != "" {
			there, found, err := tx.FindReservation(r.ID)
			if err != nil {
				return err
			}
			if found {
				out = there.Reservation
				return sameAsked(there.Reservation, r, in.IdempotencyKey)
			}
		}
		if err := c.admitReservation(p, in, &r); err != nil {
			return err
		}
		if checksBudget(p, r.TenantID) {
			if err := c.billingCheck(tx, r.TenantID); err != nil {
				return err
			}
		}
		if short := c.mem.short(r.TenantID, p.ID, r.Resources); len(short) > 0 {
			return quotaExceeded(short[0])
		}
		if in.DryRun {
			out = c.dryRun(p, r)
			return nil
		}
		out, err = c.insertReservation(tx, tr, p, r)
		return err
	})
	if err == nil && out.State == appliance.Pending && !in.DryRun {
		if why, err := c.noteWhy(ctx, out.ID); err == nil { // else it is made all the same, and noted with the next look at those who wait
			out.Message = why
		}
	}
	return out, err
}

// repeated finds, at the price of a read, what an earlier call made under the
// same idempotency key. What would be refused is left to the write, which keeps
// the trail of it.
func (c *Control) repeated(ctx context.Context, who appliance.Caller, in appliance.CreateReservation) (out appliance.Reservation, found bool, err error) {
	if in.IdempotencyKey == "" {
		return out, false, nil
	}
	r, _, _, refused := c.askedReservation(who, in)
	if refused != nil {
		return out, false, nil
	}
	err = c.Store.ReadOne(ctx, func(tx *store.Tx) error {
		there, ok, err := tx.FindReservation(r.ID)
		if err != nil || !ok {
			return err
		}
		out, found = there.Reservation, true
		return sameAsked(out, r, in.IdempotencyKey)
	})
	if err != nil {
		return appliance.Reservation{}, false, err
	}
	return out, found, nil
}

// askedReservation is what is asked, by whom and of which pool: what holds for a
// repetition too, whatever has become of the pool or the time since.
func (c *Control) askedReservation(who appliance.Caller, in appliance.CreateReservation) (r appliance.Reservation, tr trail, p *pool, err error) {
	if _, err := c.inTenant(who, in.TenantID); err != nil {
		return r, tr, nil, err
	}
	if err := in.Validate(); err != nil {
		return r, tr, nil, err
	}
	p, tr, err = c.forPool(who, appliance.ReservationsCreate, in.TenantID, in.PoolID)
	if err != nil {
		return r, tr, nil, err
	}
	r = appliance.Reservation{
		TenantID: in.TenantID, PoolID: p.ID, Name: in.Name, Labels: in.Labels, State: appliance.Pending,
		Resources: in.Resources, Nodes: in.Nodes, Selector: in.Selector, Binding: in.Binding,
		Booked: appliance.Amounts{}, Placements: []appliance.Placement{}, CreatedBy: who.ID, CreatedAt: c.now(),
	}
	if in.IdempotencyKey != "" {
		r.ID = appliance.DeriveID(appliance.ReservationPrefix, in.TenantID, who.ID, in.IdempotencyKey)
	} else {
		r.ID = c.newID(appliance.ReservationPrefix)
	}
	return r, tr, p, nil
}

// admitReservation is everything else that can be refused before budget and
// quota, and sets the end.
func (c *Control) admitReservation(p *pool, in appliance.CreateReservation, r *appliance.Reservation) (err error) {
	if p.Archived {
		return appliance.NoSuch("pool")
	}
	if t, _ := c.mem.tenant(in.TenantID); t.State != appliance.TenantActive {
		return appliance.Refuse(appliance.InvalidState, "tenantId", "tenantId: tenant %s is %s and takes no new reservations", t.ID, t.State)
	}
	if err := c.fitsPool(in, p); err != nil {
		return err
	}
	r.ExpiresAt, err = endAt(in.Duration, in.ExpiresAt, r.CreatedAt)
	return err
}

// fitsPool refuses what the pool can never serve, whatever is free.
func (c *Control) fitsPool(in appliance.CreateReservation, p *pool) error {
	for _, name := range appliance.GPUResources {
		if in.Resources[name] > 0 && name != p.Sharing.Resource() {
			return appliance.Invalid("resources."+name, "the pool shares its GPUs as %s, which are booked as %s", p.Sharing, p.Sharing.Resource())
		}
	}
	if _, ok := in.Selector[appliance.MIGProfile]; !ok && in.Resources[appliance.ResourceMIG] > 0 {
		c.mem.mu.RLock()
		profiles := c.mem.index.MIGProfiles(p.ID)
		c.mem.mu.RUnlock()
		if len(profiles) > 1 {
			return appliance.Invalid("selector."+appliance.MIGProfile, "is required, since the pool has several profiles: %s", strings.Join(profiles, ", "))
		}
	}
	switch in.Binding {
	case appliance.BindNode:
		if !p.policy.TenantRoot {
			return appliance.Invalid("binding", "node needs policy.tenantRoot in the pool")
		}
	case appliance.BindKubernetes:
		if p.policy.Kubernetes == nil {
			return appliance.Invalid("binding", "kubernetes needs policy.kubernetes in the pool")
		}
	case appliance.BindInstance:
		if p.Class != appliance.ClassVPSHost {
			return appliance.Invalid("binding", "instance needs a pool of class vps-host")
		}
	}
	return nil
}

// endAt is the end that a duration or an instant asks for, nil for neither.
func endAt(duration string, at *appliance.Time, now appliance.Time) (*appliance.Time, error) {
	if duration != "" {
		d, err := appliance.ParseDuration(duration)
		if err != nil {
			return nil, err
		}
		end := appliance.At(now.Add(d))
		return &end, nil
	}
	if at == nil {
		return nil, nil
	}
	if !at.After(now.Time) {
		return nil, appliance.Invalid("expiresAt", "is not in the future")
	}
	if at.Sub(now.Time) > 10*appliance.MaxDuration {
		return nil, appliance.Invalid("expiresAt", "is more than ten years ahead; leave it out for a reservation without an end")
	}
	end := appliance.At(at.Time)
	return &end, nil
}

// sameAsked compares a retry under an idempotency key with what the first made.
func sameAsked(there, asked appliance.Reservation, key string) error {
	same := there.PoolID == asked.PoolID && maps.Equal(there.Resources, asked.Resources) && there.Nodes == asked.Nodes &&
		there.Binding == asked.Binding && there.Name == asked.Name && maps.Equal(there.Labels, asked.Labels) &&
		maps.EqualFunc(there.Selector, asked.Selector, func(a, b appliance.Match) bool { return a.String() == b.String() })
	if same {
		return nil
	}
	return appliance.Refuse(appliance.ConflictCode, "idempotencyKey",
		"idempotencyKey: %q made reservation %s, which asks for something else", key, there.ID)
}

func quotaExceeded(s appliance.QuotaShort) error {
	return appliance.Refuse(appliance.QuotaExceeded, "resources."+s.Resource,
		"quota: %d %s asked, %d of %d used; release some, or ask the pool's owner to raise the quota", s.Asked, s.Resource, s.Used, s.Max).
		With("resource", s.Resource).With("asked", s.Asked).With("used", s.Used).With("max", s.Max)
}

// request is a reservation as the placement index takes it.
func request(p *pool, r appliance.Reservation) plan.Request {
	return plan.Request{
		PoolID: p.ID, ReservationID: r.ID, Resources: r.Resources, Nodes: r.Nodes, Selector: r.Selector, Binding: r.Binding, PerGPU: perGPU(p),
	}
}

// perGPU is policy.perGpu: what it leaves out has the pool's default.
func perGPU(p *pool) appliance.Amounts {
	out := appliance.Amounts{}
	if s := p.policy.PerGPU; s != nil {
		if s.VCPU != nil {
			out[appliance.ResourceVCPU] = *s.VCPU
		}
		if s.MemoryGiB != nil {
			out[appliance.ResourceMemoryGiB] = *s.MemoryGiB
		}
	}
	return out
}

// dryRun says whether and where a reservation would fit. It has no id: nothing
// is kept of it.
func (c *Control) dryRun(p *pool, r appliance.Reservation) appliance.Reservation {
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	r.ID = ""
	x := c.mem.index.Explain(request(p, r))
	r.Message = x.Message
	if d, ok := c.mem.index.Place(request(p, r)); ok {
		r.State, r.Placements, r.Booked = appliance.Placed, d.Placements, d.Booked
	}
	return r
}

// insertReservation writes a new reservation, placed if it fits.
func (c *Control) insertReservation(tx *store.Tx, tr trail, p *pool, r appliance.Reservation) (appliance.Reservation, error) {
	created := ofPool(c.event(tr, appliance.EventReservationCreated, r.TenantID, r.ID, r.CreatedAt), p)
	says := reservationEvent(r)
	claim := store.Claim{Reservation: r}
	placed, err := c.tryPlace(tx, p, &claim.Reservation)
	if err != nil {
		return r, err
	}
	if r.ExpiresAt != nil {
		c.setExpiry(tx, r.ID, r.ExpiresAt)
	}
	if !placed {
		if claim.Queue, err = tx.Emit(created, says); err != nil {
			return r, err
		}
		claim.Message = "waiting for resources"
		c.enqueue(tx, claim)
		return claim.Reservation, tx.InsertReservation(claim)
	}
	return claim.Reservation, tx.Later(func(tx *store.Tx) (err error) {
		if claim.Queue, err = tx.Emit(created, says); err != nil {
			return err
		}
		if err := c.putPlaced(tx, tr, p, claim.Reservation); err != nil {
			return err
		}
		return tx.InsertReservation(claim)
	})
}

// tryPlace books a pending reservation in memory if it fits, and charges it. The
// caller has checked the quota, and writes what follows: putPlaced and the
// reservation's row.
func (c *Control) tryPlace(tx *store.Tx, p *pool, r *appliance.Reservation) (bool, error) {
	m := &c.mem
	m.mu.Lock()
	mine := m.turns[p.ID]
	if mine.id == r.ID {
		m.index.Keep(mine.nodes, "") // for this decision alone; dequeue ends the turn
	}
	d, fits := m.index.Place(request(p, *r))
	if mine.id == r.ID {
		m.index.Keep(mine.nodes, r.ID)
	}
	if fits {
		r.Placements, r.Booked, r.MIGProfile = d.Placements, d.Booked, d.Profile
		if err := m.index.Book(bookingOf(*r)); err != nil {
			m.mu.Unlock()
			return false, err
		}
	}
	m.mu.Unlock()
	if !fits {
		return false, nil
	}
	id := r.ID
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.index.Release(id)
	})
	if err := c.charge(tx, r.TenantID, p.ID, r.Resources, 1); err != nil {
		return false, err
	}
	for _, at := range r.Placements {
		c.dirty(tx, at.NodeID)
	}
	now := c.now()
	r.State, r.PlacedAt, r.Message = appliance.Placed, &now, "placed; waiting for the nodes to confirm"
	return true, nil
}

// putPlaced writes what a placement changes beside the reservation's own row:
// its atoms, and the event.
func (c *Control) putPlaced(tx *store.Tx, tr trail, p *pool, r appliance.Reservation) error {
	for _, at := range r.Placements {
		if err := tx.BookAtoms(at.NodeID, r.ID, at.Atoms); err != nil {
			return err
		}
	}
	_, err := tx.Emit(ofPool(c.event(tr, appliance.EventReservationPlaced, r.TenantID, r.ID, *r.PlacedAt), p), reservationEvent(r))
	return err
}

// whyPending says in words why a reservation waits: the quota row that stops
// it, or what its pool lacks.
func (c *Control) whyPending(p *pool, r appliance.Reservation) string {
	if short := c.mem.short(r.TenantID, p.ID, r.Resources); len(short) > 0 {
		s := short[0]
		return fmt.Sprintf("waiting for quota: %d %s asked, %d of %d used", s.Asked, s.Resource, s.Used, s.Max)
	}
	c.mem.mu.RLock()
	defer c.mem.mu.RUnlock()
	x := c.mem.index.Explain(request(p, r))
	c.mem.explainReleasing(p, r.TenantID, &x)
	return x.Message
}

// end gives back what a reservation holds and closes it, or fails a pending
// one. It tells whether the reservation was live.
func (c *Control) end(tx *store.Tx, tr trail, r *store.Claim, reason, message string) (bool, error) {
	if !r.State.Live() {
		return false, nil
	}
	from, now, p := r.State, c.now(), c.mem.pool(r.PoolID)
	kind := appliance.EventReservationEnded
	if from.Booked() {
		if err := c.meterEnd(tx, p, r.Reservation, now); err != nil {
			return false, err
		}
		if err := c.giveBack(tx, r.Reservation); err != nil {
			return false, err
		}
		r.State = appliance.Ended
	} else {
		c.dequeue(tx, *r)
		r.State = appliance.Ended
		if reason == appliance.ReasonMaxPending || reason == appliance.ReasonPoolGone {
			r.State, kind = appliance.Failed, appliance.EventReservationFailed
		}
	}
	r.EndedAt, r.Reason, r.Message = &now, reason, message
	c.setExpiry(tx, r.ID, nil)
	if ok, err := tx.UpdateReservation(*r, from); err != nil || !ok {
		return false, orMoved(err, r.ID)
	}
	_, err := tx.Emit(ofPool(c.event(tr, kind, r.TenantID, r.ID, now), p), reservationEvent(r.Reservation))
	c.stir(tx, p.ID)
	return true, err
}

func orMoved(err error, id string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("reservation %s changed its state inside one transaction", id)
}

// giveBack frees the rows of a booked reservation and its charge, and its devices
// once nobody holds them any more.
func (c *Control) giveBack(tx *store.Tx, r appliance.Reservation) error {
	m := &c.mem
	m.mu.Lock()
	b, ok := m.index.Release(r.ID)
	m.mu.Unlock()
	if !ok {
		return fmt.Errorf("reservation %s is %s and has no booking", r.ID, r.State)
	}
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.index.Book(b); err != nil {
			panic(err) // memory would no longer equal the rows
		}
	})
	for _, p := range r.Placements {
		c.dirty(tx, p.NodeID)
		if err := c.releaseAtoms(tx, r, p); err != nil {
			return err
		}
	}
	return c.charge(tx, r.TenantID, r.PoolID, r.Resources, -1)
}

// own reads a reservation of the tenant's; a stranger's is none.
func (c *Control) own(tx *store.Tx, tenant, id string) (store.Claim, error) {
	r, err := tx.Reservation(id)
	if err == nil && r.TenantID != tenant {
		return store.Claim{}, appliance.NoSuch("reservation")
	}
	return r, err
}

// mayOwn decides an action on one of the tenant's own reservations. The pool
// may be out of the tenant's sight by now: what runs is still the tenant's.
func (c *Control) mayOwn(tx *store.Tx, who appliance.Caller, action appliance.Action, tenant, id string) (store.Claim, trail, error) {
	if _, err := c.inTenant(who, tenant); err != nil {
		return store.Claim{}, trail{}, err
	}
	r, err := c.own(tx, tenant, id)
	if err != nil {
		return r, trail{}, err
	}
	p := c.mem.pool(r.PoolID)
	row := p.Authz(tenant)
	tr, err := c.may(who, appliance.ReservationsRead, tenant, &row, "")
	if err != nil {
		return r, trail{}, appliance.NoSuch("reservation").Because(err)
	}
	if action != appliance.ReservationsRead {
		tr, err = c.may(who, action, tenant, &row, "")
	}
	return r, tr, err
}

// GetReservation shows one of the tenant's reservations.
func (c *Control) GetReservation(ctx context.Context, who appliance.Caller, in appliance.ReservationRef) (out appliance.Reservation, err error) {
	err = c.Store.ReadOne(ctx, func(tx *store.Tx) error {
		r, _, err := c.mayOwn(tx, who, appliance.ReservationsRead, in.TenantID, in.ReservationID)
		out = r.Reservation
		return err
	})
	return out, err
}

// ListReservations shows the tenant's reservations, by default the live ones.
func (c *Control) ListReservations(ctx context.Context, who appliance.Caller, in appliance.ListReservations) (out appliance.List[appliance.Reservation], err error) {
	if _, _, err := c.forTenant(who, appliance.ReservationsRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	states := in.States
	if len(states) == 0 {
		states = []appliance.ReservationState{appliance.Pending, appliance.Placed, appliance.Active}
		if in.All {
			states = append(states, appliance.Ended, appliance.Failed)
		}
	}
	for _, s := range states {
		if !slices.Contains([]appliance.ReservationState{appliance.Pending, appliance.Placed, appliance.Active, appliance.Ended, appliance.Failed}, s) {
			return out, appliance.Invalid("states", "%q is not pending, placed, active, ended or failed", s)
		}
	}
	out.Items = []appliance.Reservation{}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		claims, err := tx.Reservations(in.TenantID, in.PoolID, states, in.Cursor, in.Size()+1)
		if err != nil {
			return err
		}
		page := store.Page(claims, in.Size(), func(r store.Claim) string { return r.ID })
		out.NextCursor = page.NextCursor
		for _, r := range page.Items {
			row := c.mem.pool(r.PoolID).Authz(in.TenantID)
			if _, err := c.may(who, appliance.ReservationsRead, in.TenantID, &row, ""); err == nil {
				out.Items = append(out.Items, r.Reservation)
			}
		}
		return nil
	})
	return out, err
}

// ReleaseReservation ends a reservation. Releasing again changes nothing.
func (c *Control) ReleaseReservation(ctx context.Context, who appliance.Caller, in appliance.ReservationRef) (out appliance.Reservation, err error) {
	err = c.writeChecked(ctx, who, appliance.ReservationsManage, in.TenantID, in.ReservationID, func(tx *store.Tx) error {
		r, tr, err := c.mayOwn(tx, who, appliance.ReservationsManage, in.TenantID, in.ReservationID)
		if err != nil {
			return err
		}
		if _, err := c.end(tx, tr, &r, appliance.ReasonReleased, "released by "+who.ID); err != nil {
			return err
		}
		out = r.Reservation
		return nil
	})
	return out, err
}

// ExtendReservation moves the end later, ShortenReservation earlier.
func (c *Control) ExtendReservation(ctx context.Context, who appliance.Caller, in appliance.MoveReservation) (appliance.Reservation, error) {
	return c.moveEnd(ctx, who, in, true, func(before, after *appliance.Time) error {
		if before == nil {
			return appliance.Refuse(appliance.InvalidState, "expiresAt", "expiresAt: the reservation has no end that could move later")
		}
		if after.Before(before.Time) {
			return appliance.Invalid("expiresAt", "is before the present end; shorten moves it earlier")
		}
		return nil
	})
}

// ShortenReservation moves the end earlier, not before now.
func (c *Control) ShortenReservation(ctx context.Context, who appliance.Caller, in appliance.MoveReservation) (appliance.Reservation, error) {
	return c.moveEnd(ctx, who, in, false, func(before, after *appliance.Time) error {
		if before != nil && after.After(before.Time) {
			return appliance.Invalid("expiresAt", "is after the present end; extend moves it later")
		}
		return nil
	})
}

func (c *Control) moveEnd(ctx context.Context, who appliance.Caller, in appliance.MoveReservation, longer bool, legal func(before, after *appliance.Time) error) (out appliance.Reservation, err error) {
	err = c.write(ctx, who, appliance.ReservationsManage, in.TenantID, in.ReservationID, func(tx *store.Tx) error {
		r, tr, err := c.mayOwn(tx, who, appliance.ReservationsManage, in.TenantID, in.ReservationID)
		if err != nil {
			return err
		}
		if !r.State.Live() {
			return appliance.Refuse(appliance.InvalidState, "reservationId", "reservationId: the reservation is %s", r.State)
		}
		if (in.Duration == "") == (in.ExpiresAt == nil) {
			return appliance.Invalid("expiresAt", "give either duration or expiresAt")
		}
		end, err := endAt(in.Duration, in.ExpiresAt, c.now())
		if err != nil {
			return err
		}
		if err := legal(r.ExpiresAt, end); err != nil {
			return err
		}
		if longer && checksBudget(c.mem.pool(r.PoolID), r.TenantID) {
			if err := c.billingCheck(tx, r.TenantID); err != nil {
				return err
			}
		}
		r.ExpiresAt = end
		c.setExpiry(tx, r.ID, end)
		if ok, err := tx.UpdateReservation(r, r.State); err != nil || !ok {
			return orMoved(err, r.ID)
		}
		out = r.Reservation
		data := reservationEvent(r.Reservation)
		data.ExpiresAt = end
		_, err = tx.Emit(ofPool(c.event(tr, appliance.EventReservationUpdated, r.TenantID, r.ID, c.now()), c.mem.pool(r.PoolID)), data)
		return err
	})
	return out, err
}

// ExplainReservation says why a reservation is where it is: per node what is
// missing, the quota rows that stop it, and what would help.
func (c *Control) ExplainReservation(ctx context.Context, who appliance.Caller, in appliance.ReservationRef) (appliance.Explanation, error) {
	r, err := c.GetReservation(ctx, who, in)
	if err != nil {
		return appliance.Explanation{}, err
	}
	x := appliance.Explanation{Message: r.Message, Nodes: []appliance.NodeReason{}, Quota: []appliance.QuotaShort{}, Helps: []string{}}
	if r.State == appliance.Pending {
		p := c.mem.pool(r.PoolID)
		c.mem.mu.RLock()
		x = c.mem.index.Explain(request(p, r))
		c.mem.explainReleasing(p, r.TenantID, &x)
		c.mem.mu.RUnlock()
		if short := c.mem.short(r.TenantID, r.PoolID, r.Resources); len(short) > 0 {
			x.Quota = short
			for _, s := range short {
				x.Helps = append(x.Helps, fmt.Sprintf("a quota of %d %s (it is %d), set by the pool's owner, or releasing %d", s.Used+s.Asked, s.Resource, s.Max, s.Used+s.Asked-s.Max))
			}
			x.Message = c.whyPending(p, r)
		}
	}
	x.ReservationID, x.State = r.ID, r.State
	if x.Message == "" {
		x.Message = "the reservation is " + string(r.State)
	}
	return x, nil
}

// system is the trail of a reconciler.
func system(name string) trail {
	return trail{who: appliance.System(name), policies: "system"}
}
