package store

import "github.com/bettercompute/bc/appliance"

const quotaColumns = `tenant_id, pool_id, resource, max, used`

func scanQuota(r *Rows) (q appliance.Quota, err error) {
	err = r.Scan(&q.TenantID, &q.PoolID, &q.Resource, &q.Max, &q.Used)
	q.Available = max(0, q.Max-q.Used)
	return q, err
}

// SetQuotaMax makes or changes the limit of a row; what is used stays.
func (tx *Tx) SetQuotaMax(tenant, pool, resource string, limit int) error {
	_, err := tx.Exec(`INSERT INTO quotas (`+quotaColumns+`) VALUES (?, ?, ?, ?, 0)
		ON CONFLICT (tenant_id, pool_id, resource) DO UPDATE SET max = excluded.max`, tenant, pool, resource, limit)
	return err
}

// LowerQuotasToUse sets a tenant's limits in a pool to what is used.
func (tx *Tx) LowerQuotasToUse(tenant, pool string) error {
	_, err := tx.Exec(`UPDATE quotas SET max = min(max, used) WHERE tenant_id = ? AND pool_id = ?`, tenant, pool)
	return err
}

// SetQuotaUsed writes what is used of a row that exists.
func (tx *Tx) SetQuotaUsed(tenant, pool, resource string, used int) error {
	_, err := tx.Exec(`UPDATE quotas SET used = ? WHERE tenant_id = ? AND pool_id = ? AND resource = ?`, used, tenant, pool, resource)
	return err
}

// QuotasOf lists a tenant's rows in a pool, in order of resource.
func (tx *Tx) QuotasOf(tenant, pool string) ([]appliance.Quota, error) {
	return collect(tx, scanQuota, `SELECT `+quotaColumns+` FROM quotas WHERE tenant_id = ? AND pool_id = ? ORDER BY resource`, tenant, pool)
}

// QuotasSeen lists the rows that a tenant may read: its own in pools that it
// sees, and everyone's in pools that it owns. Empty filters do not narrow.
// They come in order of pool, tenant and resource, after a cursor of those
// three joined by a slash.
func (tx *Tx) QuotasSeen(tenant, pool, of, after string, limit int) ([]appliance.Quota, error) {
	return collect(tx, scanQuota, `SELECT q.tenant_id, q.pool_id, q.resource, q.max, q.used FROM quotas q
		JOIN pool_authz a ON a.pool_id = q.pool_id AND a.tenant_id = ?1
		WHERE (a.owned OR q.tenant_id = ?1) AND (?2 = '' OR q.pool_id = ?2) AND (?3 = '' OR q.tenant_id = ?3)
			AND q.pool_id || '/' || q.tenant_id || '/' || q.resource > ?4
		ORDER BY q.pool_id, q.tenant_id, q.resource LIMIT ?5`, tenant, pool, of, after, limit)
}

// QuotasIn lists every tenant's rows in a pool.
func (tx *Tx) QuotasIn(pool string) ([]appliance.Quota, error) {
	return collect(tx, scanQuota, `SELECT `+quotaColumns+` FROM quotas WHERE pool_id = ? ORDER BY tenant_id, resource`, pool)
}

// ZeroQuotas sets a tenant's limits in a pool to 0; what is used stays.
func (tx *Tx) ZeroQuotas(tenant, pool string) error {
	_, err := tx.Exec(`UPDATE quotas SET max = 0 WHERE tenant_id = ? AND pool_id = ?`, tenant, pool)
	return err
}

// AllQuotas lists every row, in order of tenant, pool and resource.
func (tx *Tx) AllQuotas() ([]appliance.Quota, error) {
	return collect(tx, scanQuota, `SELECT `+quotaColumns+` FROM quotas ORDER BY tenant_id, pool_id, resource`)
}
