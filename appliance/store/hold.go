package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// The column hold of a booked reservation is what a start has to know of it,
// beside the columns: its binding and the resources that it is charged for in
// the first line, and a line for each placement. Fields are set apart by tabs,
// the elements of a list by commas, amounts are in order of name:
//
//	hold	gpu=2
//	node_01…	GPU-5b…,GPU-77…	=	1-14,113-125	0	gpu=2,memoryGiB=250,vcpu=27	true
//
// The fields of a placement are the node, the devices, the atoms ("=" where they
// are the devices), CPUs, memory nodes, amounts, and whether it is confirmed.

// putHold keeps the hold of a booked reservation.
func (tx *Tx) putHold(r *appliance.Reservation) error {
	_, err := tx.Exec(`INSERT INTO holds (reservation_id, tenant_id, pool_id, active, expires_at, hold) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (reservation_id) DO UPDATE SET active = excluded.active, expires_at = excluded.expires_at, hold = excluded.hold`,
		r.ID, r.TenantID, r.PoolID, r.State == appliance.Active, r.ExpiresAt, holdOf(r))
	return err
}

// holdOf writes the column. It is nil for a reservation with a name in it that
// the form cannot say.
func holdOf(r *appliance.Reservation) any {
	b := make([]byte, 0, 256)
	b = append(append(b, r.Binding...), '\t')
	b = appendAmounts(b, r.Resources)
	for i := range r.Placements {
		p := &r.Placements[i]
		if !plainNames(p.Devices) || !plainNames(p.Atoms) || strings.ContainsAny(p.NodeID+p.CPUs+p.NUMANodes, "\t\n") {
			return nil
		}
		b = append(append(append(b, '\n'), p.NodeID...), '\t')
		b = append(appendList(b, p.Devices), '\t')
		if slices.Equal(p.Atoms, p.Devices) {
			b = append(b, '=')
		} else {
			b = appendList(b, p.Atoms)
		}
		b = append(append(append(append(b, '\t'), p.CPUs...), '\t'), p.NUMANodes...)
		b = append(appendAmounts(append(b, '\t'), p.Amounts), '\t')
		b = strconv.AppendBool(b, p.Confirmed)
	}
	return string(b)
}

func plainNames(names []string) bool {
	for _, n := range names {
		if n == "" || n == "=" || strings.ContainsAny(n, ",\t\n") {
			return false
		}
	}
	return true
}

func appendList(b []byte, list []string) []byte {
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, s...)
	}
	return b
}

func appendAmounts(b []byte, a appliance.Amounts) []byte {
	for i, name := range slices.Sorted(maps.Keys(a)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(append(b, name...), '='), int64(a[name]), 10)
	}
	return b
}

// shared gives one copy of what many rows have alike.
type shared struct {
	names   map[string]string
	amounts map[string]appliance.Amounts
}

// name gives one copy of a string for all that are equal.
func (h *shared) name(s string) string {
	if same, ok := h.names[s]; ok || s == "" {
		return same
	}
	if h.names == nil {
		h.names = map[string]string{}
	}
	s = strings.Clone(s)
	h.names[s] = s
	return s
}

// HeldReservations calls each for every booked reservation, in order of id. It
// has the tenant, the pool, the state, the end, the binding, the resources that
// are charged and the placements, and nothing else. Its amounts are shared and
// must not be changed.
func (tx *Tx) HeldReservations(each func(*appliance.Reservation) error) error {
	var same shared
	rows, err := tx.Query(`SELECT reservation_id, tenant_id, pool_id, active, expires_at, hold FROM holds ORDER BY reservation_id`)
	if err != nil {
		return err
	}
	for rows.Next() {
		var r appliance.Reservation
		var active bool
		var hold string
		if err := rows.Scan(&r.ID, &r.TenantID, &r.PoolID, &active, &r.ExpiresAt, &hold); err != nil {
			return err
		}
		if hold == "" {
			c, err := tx.Reservation(r.ID)
			if err != nil {
				return err
			}
			r = c.Reservation
		} else if err := same.readHold(hold, &r); err != nil {
			return fmt.Errorf("the hold of reservation %s: %w", r.ID, err)
		}
		r.TenantID, r.PoolID = same.name(r.TenantID), same.name(r.PoolID)
		if r.State = appliance.Placed; active {
			r.State = appliance.Active
		}
		if err := each(&r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// StrayHolds names, in order, the reservations of which a start would read
// something else than their rows say.
func (tx *Tx) StrayHolds() ([]string, error) {
	stray, err := collect(tx, func(r *Rows) (id string, err error) {
		err = r.Scan(&id)
		return id, err
	}, `SELECT id FROM reservations r LEFT JOIN holds h ON h.reservation_id = r.id
		WHERE r.state IN ('placed', 'active') AND (h.reservation_id IS NULL OR h.tenant_id <> r.tenant_id OR h.pool_id <> r.pool_id
			OR h.active <> (r.state = 'active') OR h.expires_at IS NOT r.expires_at)
		UNION SELECT reservation_id FROM holds h WHERE NOT EXISTS (
			SELECT 1 FROM reservations r WHERE r.id = h.reservation_id AND r.state IN ('placed', 'active'))`)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(`SELECT r.body, h.hold FROM holds h JOIN reservations r ON r.id = h.reservation_id`)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var r appliance.Reservation
		var body, hold string
		if err := rows.Scan(&body, &hold); err != nil {
			return nil, err
		}
		if err := fromJSON(body, &r); err != nil {
			return nil, err
		}
		if want, _ := holdOf(&r).(string); hold != want {
			stray = append(stray, r.ID)
		}
	}
	slices.Sort(stray)
	return slices.Compact(stray), rows.Err()
}

// readHold sets what the column says of a reservation. Its devices and atoms
// are parts of text.
func (h *shared) readHold(text string, r *appliance.Reservation) (err error) {
	line, rest, more := strings.Cut(text, "\n")
	binding, resources, _ := strings.Cut(line, "\t")
	r.Binding = appliance.BindingKind(h.name(binding))
	if r.Resources, err = h.readAmounts(resources); err != nil {
		return err
	}
	r.Placements = make([]appliance.Placement, 0, 1)
	for more {
		line, rest, more = strings.Cut(rest, "\n")
		var p appliance.Placement
		if p, err = h.readPlacement(line); err != nil {
			return err
		}
		r.Placements = append(r.Placements, p)
	}
	return nil
}

func (h *shared) readPlacement(line string) (p appliance.Placement, err error) {
	var f [7]string
	for i := range f {
		var more bool
		if f[i], line, more = strings.Cut(line, "\t"); more != (i < len(f)-1) {
			return p, fmt.Errorf("a placement of %d fields", i+1)
		}
	}
	p.NodeID, p.CPUs, p.NUMANodes, p.Confirmed = f[0], h.name(f[3]), h.name(f[4]), f[6] == "true"
	p.Devices = readList(f[1])
	if p.Atoms = p.Devices; f[2] != "=" {
		p.Atoms = readList(f[2])
	}
	p.Amounts, err = h.readAmounts(f[5])
	return p, err
}

func readList(s string) []string {
	if s == "" {
		return nil
	}
	out := make([]string, 0, 1+strings.Count(s, ","))
	for more := true; more; {
		var one string
		one, s, more = strings.Cut(s, ",")
		out = append(out, one)
	}
	return out
}

func (h *shared) readAmounts(text string) (appliance.Amounts, error) {
	if a, ok := h.amounts[text]; ok {
		return a, nil
	}
	a := appliance.Amounts{}
	for _, item := range readList(text) {
		name, count, _ := strings.Cut(item, "=")
		n, err := strconv.Atoi(count)
		if err != nil {
			return nil, fmt.Errorf("amounts %q", text)
		}
		a[name] = n
	}
	if h.amounts == nil {
		h.amounts = map[string]appliance.Amounts{}
	}
	h.amounts[strings.Clone(text)] = a
	return a, nil
}
