package store

import "github.com/bettercompute/bc/appliance"

const keyColumns = `id, tenant_id, name, role, created_at, expires_at, last_used_at, revoked_at`

func scanKey(r *Rows) (k appliance.Key, err error) {
	err = r.Scan(&k.ID, &k.TenantID, &k.Name, &k.Role, &k.CreatedAt, &k.ExpiresAt, &k.LastUsedAt, &k.RevokedAt)
	return k, err
}

// InsertKey adds a key under the hash of its secret; CONFLICT if the tenant
// has a live key of that name.
func (tx *Tx) InsertKey(k appliance.Key, hash string) error {
	var n int
	if err := tx.QueryRow(`SELECT count(*) FROM keys WHERE tenant_id = ? AND name = ? AND revoked_at IS NULL`, k.TenantID, k.Name).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return appliance.Refuse(appliance.ConflictCode, "name", "name: the tenant has a key named %q already", k.Name)
	}
	_, err := tx.Exec(`INSERT INTO keys (id, tenant_id, name, role, secret_hash, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		k.ID, k.TenantID, k.Name, k.Role, hash, k.CreatedAt, k.ExpiresAt)
	return err
}

// KeyByHash reads the key with that hash of its secret, revoked ones too.
func (tx *Tx) KeyByHash(hash string) (appliance.Key, error) {
	return one(tx, "key", scanKey, `SELECT `+keyColumns+` FROM keys WHERE secret_hash = ?`, hash)
}

// Key reads one key.
func (tx *Tx) Key(id string) (appliance.Key, error) {
	return one(tx, "key", scanKey, `SELECT `+keyColumns+` FROM keys WHERE id = ?`, id)
}

// KeysOf lists a tenant's keys in order of id, after a cursor.
func (tx *Tx) KeysOf(tenant, after string, limit int) ([]appliance.Key, error) {
	return collect(tx, scanKey, `SELECT `+keyColumns+` FROM keys WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`, tenant, after, limit)
}

// RevokeKey marks a key as revoked from a time on; the first time stays.
func (tx *Tx) RevokeKey(id string, at appliance.Time) error {
	_, err := tx.Exec(`UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`, at, id)
	return err
}

// TouchKeys writes when keys were last used.
func (tx *Tx) TouchKeys(used map[string]appliance.Time) error {
	for id, at := range used {
		if _, err := tx.Exec(`UPDATE keys SET last_used_at = ? WHERE id = ?`, at, id); err != nil {
			return err
		}
	}
	return nil
}
