package store

import "github.com/bettercompute/bc/appliance"

// KeepAtoms marks what a reservation holds on a node as being released: it stays
// taken until the node has said that nobody is behind the wall any more. The
// generation, above 0, is that of the first NodeSpec without the binding.
func (tx *Tx) KeepAtoms(node, reservation string, atoms []string, generation int64) error {
	for _, a := range atoms {
		if _, err := tx.Exec(`UPDATE atoms SET releasing = ? WHERE node_id = ? AND atom = ? AND reservation_id = ?`, generation, node, a, reservation); err != nil {
			return err
		}
	}
	return nil
}

// ReleasingAtoms is what one ended reservation still keeps of a node.
type ReleasingAtoms struct {
	NodeID, ReservationID string
	TenantID              string // whose reservation it was
	Generation            int64
	Atoms                 []string
}

// AllReleasing lists what ended reservations keep, in order of node and
// reservation.
func (tx *Tx) AllReleasing() ([]ReleasingAtoms, error) {
	rows, err := tx.Query(`SELECT a.node_id, a.reservation_id, r.tenant_id, a.releasing, a.atom
		FROM atoms a JOIN reservations r ON r.id = a.reservation_id
		WHERE a.releasing > 0 ORDER BY a.node_id, a.reservation_id, a.atom`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []ReleasingAtoms
	for rows.Next() {
		var r ReleasingAtoms
		var atom string
		if err := rows.Scan(&r.NodeID, &r.ReservationID, &r.TenantID, &r.Generation, &atom); err != nil {
			return nil, err
		}
		if last := len(out) - 1; last < 0 || out[last].NodeID != r.NodeID || out[last].ReservationID != r.ReservationID {
			out = append(out, r)
		}
		last := &out[len(out)-1]
		last.Atoms = append(last.Atoms, atom)
	}
	return out, rows.Err()
}

// WalledNodes lists the nodes that are not removed and whose agents wall
// bookings in.
func (tx *Tx) WalledNodes() ([]string, error) {
	return collect(tx, func(r *Rows) (id string, err error) { return id, r.Scan(&id) },
		`SELECT id FROM nodes WHERE walled = 1 AND removed_at IS NULL`)
}

// NodeRollout is a node's place in a rollout.
type NodeRollout struct {
	NodeID  string
	Rollout appliance.Rollout
}

// Rollouts lists the nodes that are not removed and in a rollout, in order of id.
func (tx *Tx) Rollouts() ([]NodeRollout, error) {
	return collect(tx, func(r *Rows) (n NodeRollout, err error) {
		var body string
		if err := r.Scan(&n.NodeID, &body); err != nil {
			return n, err
		}
		return n, fromJSON(body, &n.Rollout)
	}, `SELECT id, rollout_json FROM nodes WHERE rollout_json <> '' AND removed_at IS NULL ORDER BY id`)
}
