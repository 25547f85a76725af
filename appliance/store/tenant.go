package store

import "github.com/bettercompute/bc/appliance"

const tenantColumns = `id, coalesce(parent_id, ''), name, state, created_at`

func scanTenant(r *Rows) (t appliance.Tenant, err error) {
	err = r.Scan(&t.ID, &t.ParentID, &t.Name, &t.State, &t.CreatedAt)
	return t, err
}

// InsertTenant adds a tenant; CONFLICT if the id is taken, also by a deleted
// tenant, whose id is never used again.
func (tx *Tx) InsertTenant(t appliance.Tenant) error {
	var parent any
	if t.ParentID != "" {
		parent = t.ParentID
	}
	_, err := tx.Exec(`INSERT INTO tenants (id, parent_id, name, state, created_at) VALUES (?, ?, ?, ?, ?)`,
		t.ID, parent, t.Name, t.State, t.CreatedAt)
	if isDuplicate(err) {
		return appliance.Refuse(appliance.ConflictCode, "id", "id: the tenant id %q is taken", t.ID)
	}
	return err
}

// Tenant reads one tenant, deleted ones too.
func (tx *Tx) Tenant(id string) (appliance.Tenant, error) {
	return one(tx, "tenant", scanTenant, `SELECT `+tenantColumns+` FROM tenants WHERE id = ?`, id)
}

// Subtree lists a tenant and all below it, in order of id, after a cursor.
func (tx *Tx) Subtree(top, after string, limit int) ([]appliance.Tenant, error) {
	return collect(tx, scanTenant, `
		WITH RECURSIVE below (id) AS (
			SELECT ?1 UNION ALL SELECT t.id FROM tenants t JOIN below b ON t.parent_id = b.id
		)
		SELECT `+tenantColumns+` FROM tenants WHERE id IN (SELECT id FROM below) AND id > ?2 ORDER BY id LIMIT ?3`,
		top, after, limit)
}

// IsBelow tells whether a tenant is another or stands below it.
func (tx *Tx) IsBelow(id, top string) (bool, error) {
	var n int
	err := tx.QueryRow(`
		WITH RECURSIVE above (id, parent_id) AS (
			SELECT id, parent_id FROM tenants WHERE id = ?1
			UNION ALL SELECT t.id, t.parent_id FROM tenants t JOIN above a ON t.id = a.parent_id
		)
		SELECT count(*) FROM above WHERE id = ?2`, id, top).Scan(&n)
	return n > 0, err
}

// AllTenants lists every tenant, deleted ones too.
func (tx *Tx) AllTenants() ([]appliance.Tenant, error) {
	return collect(tx, scanTenant, `SELECT `+tenantColumns+` FROM tenants ORDER BY id`)
}

// LiveChildren counts the tenants right below one that are not deleted.
func (tx *Tx) LiveChildren(id string) (n int, err error) {
	err = tx.QueryRow(`SELECT count(*) FROM tenants WHERE parent_id = ? AND state <> 'deleted'`, id).Scan(&n)
	return n, err
}

// SetTenantState moves a tenant to a state.
func (tx *Tx) SetTenantState(id string, s appliance.TenantState) error {
	_, err := tx.Exec(`UPDATE tenants SET state = ? WHERE id = ?`, s, id)
	return err
}
