package store

import (
	"encoding/json"
	"strconv"

	"github.com/bettercompute/bc/appliance"
)

// Entry is one event as it is kept: what readers see, who else may read it,
// and the trail of who did it.
type Entry struct {
	appliance.Event
	Reader   string // a second tenant that may read it
	ToPool   bool   // whoever sees the pool may read it
	Actor    string
	Policies string // those that permitted the write, joined by commas
}

// Emit stores an event in the transaction that causes it and gives its
// sequence number. Data is written as JSON; nil is {}.
func (tx *Tx) Emit(e Entry, data any) (int64, error) {
	body := "{}"
	if data != nil {
		body = toJSON(data)
	}
	r, err := tx.Exec(`INSERT INTO events (type, tenant_id, reader_id, pool_id, to_pool, subject, at, data, actor, policies)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Type, e.TenantID, e.Reader, e.PoolID, e.ToPool, e.Subject, e.At, body, e.Actor, e.Policies)
	return r.LastID, err
}

// Events lists what a tenant may read after a sequence number, in order: its
// own events, those addressed to it, and those of pools that it sees.
func (tx *Tx) Events(tenant string, after int64, limit int) ([]appliance.Event, error) {
	return collect(tx, scanEvent, `SELECT seq, type, tenant_id, pool_id, subject, at, data FROM events e
		WHERE seq > ?2 AND (tenant_id = ?1 OR reader_id = ?1
			OR to_pool AND EXISTS (SELECT 1 FROM pool_authz a WHERE a.tenant_id = ?1 AND a.pool_id = e.pool_id))
		ORDER BY seq LIMIT ?3`, tenant, after, limit)
}

func scanEvent(r *Rows) (e appliance.Event, err error) {
	var data string
	err = r.Scan(&e.Seq, &e.Type, &e.TenantID, &e.PoolID, &e.Subject, &e.At, &data)
	e.Data = json.RawMessage(data)
	return e, err
}

// LastSeq is the sequence number of the newest event, 0 if there is none.
func (tx *Tx) LastSeq() (n int64, err error) {
	err = tx.QueryRow(`SELECT coalesce(max(seq), 0) FROM events`).Scan(&n)
	return n, err
}

// EventGaps counts the sequence numbers that are missing among the newest
// events, at most so many of them.
func (tx *Tx) EventGaps(newest int) (n int64, err error) {
	err = tx.QueryRow(`SELECT coalesce(max(seq) - min(seq) + 1 - count(*), 0)
		FROM (SELECT seq FROM events ORDER BY seq DESC LIMIT ?)`, newest).Scan(&n)
	return n, err
}

// Denial is a write that was denied.
type Denial struct {
	At       appliance.Time
	Actor    string
	Address  string
	Action   appliance.Action
	Tenant   string
	Subject  string
	Policies string
}

// InsertDenial adds to the trail of denied writes and keeps the newest 100,000.
func (tx *Tx) InsertDenial(d Denial) error {
	r, err := tx.Exec(`INSERT INTO denials (at, actor, address, action, tenant_id, subject, policies)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		d.At, d.Actor, d.Address, d.Action, d.Tenant, d.Subject, d.Policies)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`DELETE FROM denials WHERE seq <= ?`, r.LastID-100_000)
	return err
}

// metaPruned holds the highest sequence number that retention has removed.
const metaPruned = "events.pruned"

// PruneEvents removes, of the oldest events, at most so many, those up to the
// last that is older than an instant, and remembers up to where. It looks at no
// other: most often none is old enough, and no index by time is kept. The newest
// event always stays, so that sequence numbers go on rising.
func (tx *Tx) PruneEvents(before appliance.Time, limit int) (removed int64, err error) {
	var last int64
	err = tx.QueryRow(`SELECT coalesce(max(seq), 0) FROM (SELECT seq, at FROM events ORDER BY seq LIMIT ?)
		WHERE at < ? AND seq < (SELECT max(seq) FROM events)`, limit, before).Scan(&last)
	if err != nil || last == 0 {
		return 0, err
	}
	r, err := tx.Exec(`DELETE FROM events WHERE seq <= ?`, last)
	if err != nil {
		return 0, err
	}
	return r.Changed, tx.SetMeta(metaPruned, strconv.FormatInt(last, 10))
}

// PrunedEvents is the highest sequence number that retention has removed, 0 if
// none was.
func (tx *Tx) PrunedEvents() (int64, error) {
	text, err := tx.Meta(metaPruned)
	if err != nil || text == "" {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}
