package store

import (
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/bettercompute/bc/appliance"
)

// Claim is a reservation with its place in the queue: the sequence number of
// its first event, which is the order of creation.
type Claim struct {
	appliance.Reservation
	Queue int64
}

func scanClaim(r *Rows) (c Claim, err error) {
	var body string
	if err := r.Scan(&c.Queue, &body); err != nil {
		return c, err
	}
	return c, fromJSON(body, &c.Reservation)
}

// InsertReservation adds a reservation.
func (tx *Tx) InsertReservation(c Claim) error {
	_, err := tx.Exec(`INSERT INTO reservations (id, tenant_id, pool_id, state, queue, expires_at, body, hold) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		c.ID, c.TenantID, c.PoolID, c.State, c.Queue, c.ExpiresAt, toJSON(&c.Reservation), holdOf(&c.Reservation))
	return err
}

// UpdateReservation writes a reservation that was in the given state; it tells
// whether it still was.
func (tx *Tx) UpdateReservation(c Claim, from appliance.ReservationState) (bool, error) {
	body, hold := toJSON(&c.Reservation), holdOf(&c.Reservation)
	if from.Booked() && hold != nil { // most often what it holds stays: then no index is written
		r, err := tx.Exec(`UPDATE reservations SET state = ?, body = ? WHERE id = ? AND state = ? AND expires_at IS ? AND hold = ?`,
			c.State, body, c.ID, from, c.ExpiresAt, hold)
		if err != nil || r.Changed == 1 {
			return err == nil, err
		}
	}
	r, err := tx.Exec(`UPDATE reservations SET state = ?, expires_at = ?, body = ?, hold = ? WHERE id = ? AND state = ?`,
		c.State, c.ExpiresAt, body, hold, c.ID, from)
	return r.Changed == 1, err
}

// Reservation reads one reservation.
func (tx *Tx) Reservation(id string) (Claim, error) {
	return one(tx, "reservation", scanClaim, `SELECT queue, body FROM reservations WHERE id = ?`, id)
}

// FindReservation reads one reservation if it is there.
func (tx *Tx) FindReservation(id string) (c Claim, found bool, err error) {
	c, err = tx.Reservation(id)
	var refusal *appliance.Error
	if errors.As(err, &refusal) {
		return c, false, nil
	}
	return c, err == nil, err
}

// Reservations lists a tenant's reservations in any of the states, in order of
// id, after a cursor. An empty pool does not narrow.
func (tx *Tx) Reservations(tenant, pool string, states []appliance.ReservationState, after string, limit int) ([]Claim, error) {
	return collect(tx, scanClaim, `SELECT queue, body FROM reservations
		WHERE tenant_id = ?1 AND id > ?2 AND (?3 = '' OR pool_id = ?3)
			AND state IN (SELECT value FROM json_each(?4))
		ORDER BY id LIMIT ?5`, tenant, after, pool, toJSON(states), limit)
}

// LiveReservations lists every reservation that is pending, placed or active,
// in order of creation.
func (tx *Tx) LiveReservations() ([]Claim, error) {
	return tx.claims(`SELECT queue, body FROM reservations WHERE state = 'pending'
		UNION ALL SELECT queue, body FROM reservations WHERE hold IS NOT NULL ORDER BY queue`)
}

// PendingReservations lists every pending reservation, in order of creation.
func (tx *Tx) PendingReservations() ([]Claim, error) {
	return tx.claims(`SELECT queue, body FROM reservations WHERE state = 'pending' ORDER BY queue`)
}

// claims reads many bodies.
func (tx *Tx) claims(query string) ([]Claim, error) {
	var bodies []string
	out, err := collect(tx, func(r *Rows) (c Claim, err error) {
		var body string
		err = r.Scan(&c.Queue, &body)
		bodies = append(bodies, body)
		return c, err
	}, query)
	if err != nil {
		return nil, err
	}
	return out, readAll(bodies, func(i int) any { return &out[i].Reservation })
}

// readAll reads many JSON texts on all CPUs: at a start nothing else is to be
// done meanwhile.
func readAll(texts []string, into func(i int) any) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	const size = 512
	for from := 0; from < len(texts); from += size {
		g.Go(func() error {
			for i := from; i < min(from+size, len(texts)); i++ {
				if err := fromJSON(texts[i], into(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// BookAtoms marks atoms of a node as held. An atom that is held already is a
// fault of ours: the file refuses it.
func (tx *Tx) BookAtoms(node, reservation string, atoms []string) error {
	for _, a := range atoms {
		if _, err := tx.Exec(`INSERT INTO atoms (node_id, atom, reservation_id) VALUES (?, ?, ?)`, node, a, reservation); err != nil {
			return err
		}
	}
	return nil
}

// FreeAtoms gives back the atoms that a reservation holds on a node.
func (tx *Tx) FreeAtoms(node, reservation string, atoms []string) error {
	for _, a := range atoms {
		if _, err := tx.Exec(`DELETE FROM atoms WHERE node_id = ? AND atom = ? AND reservation_id = ?`, node, a, reservation); err != nil {
			return err
		}
	}
	return nil
}

// HeldAtom is one row of what is held.
type HeldAtom struct{ NodeID, Atom, ReservationID string }

// HeldAtoms lists everything that is booked, in order of node and atom.
func (tx *Tx) HeldAtoms() ([]HeldAtom, error) {
	return collect(tx, func(r *Rows) (h HeldAtom, err error) {
		return h, r.Scan(&h.NodeID, &h.Atom, &h.ReservationID)
	}, `SELECT node_id, atom, reservation_id FROM atoms WHERE releasing = 0 ORDER BY node_id, atom`)
}

// BookedAtoms calls each for every node on which atoms are booked, with a line
// for each atom and its reservation, a tab between: a row of a node costs the
// driver less than a row of each of its atoms.
func (tx *Tx) BookedAtoms(each func(node, lines string)) error {
	rows, err := tx.Query(`SELECT node_id, group_concat(atom || char(9) || reservation_id, char(10)) FROM atoms
		WHERE releasing = 0 GROUP BY node_id`)
	if err != nil {
		return err
	}
	for rows.Next() {
		var node, lines string
		if err := rows.Scan(&node, &lines); err != nil {
			return err
		}
		each(node, lines)
	}
	return rows.Err()
}

// LiveReservationsOf lists a tenant's live reservations in order of creation.
func (tx *Tx) LiveReservationsOf(tenant string) ([]Claim, error) {
	return collect(tx, scanClaim, `SELECT queue, body FROM reservations
		WHERE tenant_id = ? AND state IN ('pending', 'placed', 'active') ORDER BY queue`, tenant)
}
