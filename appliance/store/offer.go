package store

import "github.com/bettercompute/bc/appliance"

const offerColumns = `pool_id, tenant_id, include_descendants, priority, on_budget_exceeded, created_at`

func scanOffer(r *Rows) (o appliance.Offer, err error) {
	err = r.Scan(&o.PoolID, &o.TenantID, &o.IncludeDescendants, &o.Priority, &o.OnBudgetExceeded, &o.CreatedAt)
	o.Quotas = []appliance.Quota{}
	return o, err
}

// PutOffer makes or replaces an offer; the time of the first is kept.
func (tx *Tx) PutOffer(o appliance.Offer) error {
	_, err := tx.Exec(`INSERT INTO pool_offers (`+offerColumns+`) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (pool_id, tenant_id) DO UPDATE SET include_descendants = excluded.include_descendants,
			priority = excluded.priority, on_budget_exceeded = excluded.on_budget_exceeded`,
		o.PoolID, o.TenantID, o.IncludeDescendants, o.Priority, o.OnBudgetExceeded, o.CreatedAt)
	return err
}

// DropOffer removes an offer and tells whether there was one.
func (tx *Tx) DropOffer(pool, tenant string) (bool, error) {
	r, err := tx.Exec(`DELETE FROM pool_offers WHERE pool_id = ? AND tenant_id = ?`, pool, tenant)
	return r.Changed > 0, err
}

// OffersOf lists a pool's offers, in order of tenant.
func (tx *Tx) OffersOf(pool string) ([]appliance.Offer, error) {
	return collect(tx, scanOffer, `SELECT `+offerColumns+` FROM pool_offers WHERE pool_id = ? ORDER BY tenant_id`, pool)
}
