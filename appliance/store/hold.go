package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// The column hold of a booked reservation, and of no other, is what a start has
// to know of it beside the columns that the index reservations_booked has too:
// its binding and the resources that it is charged for in the first line, and a
// line for each placement. Fields are set apart by tabs, the elements of a list
// by commas, amounts are in order of name:
//
//	hold	gpu=2
//	node_01…	GPU-5b…,GPU-77…	=	1-14,113-125	0	gpu=2,memoryGiB=250,vcpu=27
//
// The fields of a placement are the node, the devices, the atoms ("=" where they
// are the devices), CPUs, memory nodes, and amounts. Whether a node has confirmed
// its part is not there: a confirmation leaves the column, and its index, alone.

// holdOf writes the column: NULL for a reservation that is not booked, and empty
// for one with a name in it that the form cannot say.
func holdOf(r *appliance.Reservation) any {
	if !r.State.Booked() {
		return nil
	}
	return holdText(r)
}

func holdText(r *appliance.Reservation) string {
	b := make([]byte, 0, 512)
	b = append(append(b, r.Binding...), '\t')
	b = appendAmounts(b, r.Resources)
	for i := range r.Placements {
		p := &r.Placements[i]
		if !plainNames(p.Devices) || !plainNames(p.Atoms) || strings.ContainsAny(p.NodeID+p.CPUs+p.NUMANodes, "\t\n") {
			return ""
		}
		b = append(append(append(b, '\n'), p.NodeID...), '\t')
		b = append(appendList(b, p.Devices), '\t')
		if slices.Equal(p.Atoms, p.Devices) {
			b = append(b, '=')
		} else {
			b = appendList(b, p.Atoms)
		}
		b = append(append(append(append(b, '\t'), p.CPUs...), '\t'), p.NUMANodes...)
		b = appendAmounts(append(b, '\t'), p.Amounts)
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
	var few [8]string // on the stack
	names := few[:0]
	for name := range a {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
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

	lists      []string // what is not used yet of the memory for lists
	placements []appliance.Placement
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

// HeldReservations calls each for every booked reservation, those of a pool in
// order of id. It has the tenant, the pool, the end, the binding, the resources
// that are charged and the placements, and nothing else. It is good until each
// returns; its placements stay. Its amounts are shared and must not be changed.
func (tx *Tx) HeldReservations(each func(*appliance.Reservation) error) error {
	var same shared
	var r appliance.Reservation
	var end appliance.Time
	var text string
	// One text costs the driver less than three do.
	rows, err := tx.Query(`SELECT id, expires_at, tenant_id || char(9) || pool_id || char(9) || hold
		FROM reservations WHERE hold IS NOT NULL ORDER BY pool_id, id`)
	if err != nil {
		return err
	}
	for rows.Next() {
		r = appliance.Reservation{}
		if err := rows.Scan(&r.ID, &end, &text); err != nil {
			return err
		}
		tenant, rest, _ := strings.Cut(text, "\t")
		pool, hold, _ := strings.Cut(rest, "\t")
		if hold == "" {
			c, err := tx.Reservation(r.ID)
			if err != nil {
				return err
			}
			r = c.Reservation
		} else if err := same.readHold(hold, &r); err != nil {
			return fmt.Errorf("the hold of reservation %s: %w", r.ID, err)
		}
		r.TenantID, r.PoolID, r.ExpiresAt = same.name(tenant), same.name(pool), nil
		if !end.IsZero() {
			at := end
			r.ExpiresAt = &at
		}
		if err := each(&r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// StrayHolds names, in order, the reservations of which a start would read
// something else than their bodies say.
func (tx *Tx) StrayHolds() ([]string, error) {
	rows, err := tx.Query(`SELECT id, tenant_id, pool_id, state, expires_at, body, hold FROM reservations
		WHERE hold IS NOT NULL OR state IN ('placed', 'active') ORDER BY id`)
	if err != nil {
		return nil, err
	}
	var stray []string
	for rows.Next() {
		var row, r appliance.Reservation
		var body string
		var hold *string
		if err := rows.Scan(&row.ID, &row.TenantID, &row.PoolID, &row.State, &row.ExpiresAt, &body, &hold); err != nil {
			return nil, err
		}
		if err := fromJSON(body, &r); err != nil {
			return nil, err
		}
		booked := hold != nil
		same := booked == r.State.Booked() && (!booked || *hold == holdText(&r))
		sameEnd := (row.ExpiresAt == nil) == (r.ExpiresAt == nil) && (r.ExpiresAt == nil || row.ExpiresAt.UnixMilli() == r.ExpiresAt.UnixMilli())
		if !same || !sameEnd || row.State != r.State || row.TenantID != r.TenantID || row.PoolID != r.PoolID {
			stray = append(stray, row.ID)
		}
	}
	return stray, rows.Err()
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
	r.Placements = slabOf(&h.placements, strings.Count(rest, "\n")+1)[:0]
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
	var f [6]string
	for i := range f {
		var more bool
		if f[i], line, more = strings.Cut(line, "\t"); more != (i < len(f)-1) {
			return p, fmt.Errorf("a placement of %d fields", i+1)
		}
	}
	p.NodeID, p.CPUs, p.NUMANodes = f[0], h.name(f[3]), h.name(f[4])
	p.Devices = h.readList(f[1])
	if p.Atoms = p.Devices; f[2] != "=" {
		p.Atoms = h.readList(f[2])
	}
	p.Amounts, err = h.readAmounts(f[5])
	return p, err
}

func (h *shared) readList(s string) []string {
	if s == "" {
		return nil
	}
	out := slabOf(&h.lists, 1+strings.Count(s, ","))
	for i := range out {
		out[i], s, _ = strings.Cut(s, ",")
	}
	return out
}

// slabOf takes n elements off a slab, and makes a new one when it is used up: many
// short lists are then one allocation.
func slabOf[T any](slab *[]T, n int) []T {
	if n > len(*slab) {
		*slab = make([]T, max(n, 512))
	}
	out := (*slab)[:n:n]
	*slab = (*slab)[n:]
	return out
}

func (h *shared) readAmounts(text string) (appliance.Amounts, error) {
	if a, ok := h.amounts[text]; ok {
		return a, nil
	}
	a := appliance.Amounts{}
	for _, item := range h.readList(text) {
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
