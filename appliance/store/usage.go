package store

import "github.com/bettercompute/bc/appliance"

// UsageInterval is what a reservation held, unchanged, from one instant to
// another: amounts by meter.
type UsageInterval struct {
	ReservationID, TenantID, PoolID string
	From, To                        appliance.Time
	Meters                          map[string]int
}

// PutUsage keeps an interval; a second writing of it changes nothing.
func (tx *Tx) PutUsage(v UsageInterval) error {
	_, err := tx.Exec(`INSERT INTO usage_intervals (reservation_id, from_at, to_at, tenant_id, pool_id, meters_json)
		VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, v.ReservationID, v.From, v.To, v.TenantID, v.PoolID, toJSON(v.Meters))
	return err
}

func scanUsage(r *Rows) (v UsageInterval, err error) {
	var meters string
	if err := r.Scan(&v.ReservationID, &v.From, &v.To, &v.TenantID, &v.PoolID, &meters); err != nil {
		return v, err
	}
	return v, fromJSON(meters, &v.Meters)
}

const usageColumns = `reservation_id, from_at, to_at, tenant_id, pool_id, meters_json`

// UsageOf lists the kept intervals of a tenant that touch a window.
func (tx *Tx) UsageOf(tenant string, from, to appliance.Time) ([]UsageInterval, error) {
	return collect(tx, scanUsage, `SELECT `+usageColumns+` FROM usage_intervals WHERE tenant_id = ? AND to_at > ? AND from_at < ?`, tenant, from, to)
}

// UsageIn lists the kept intervals in the pools of an owner that touch a window.
func (tx *Tx) UsageIn(owner string, from, to appliance.Time) ([]UsageInterval, error) {
	return collect(tx, scanUsage, `SELECT `+usageColumns+` FROM usage_intervals
		WHERE pool_id IN (SELECT id FROM pools WHERE owner_tenant_id = ?) AND to_at > ? AND from_at < ?`, owner, from, to)
}

// UsageEnd is the end of a reservation's last kept interval, zero if it has
// none: from there on what it holds is not kept yet.
func (tx *Tx) UsageEnd(reservation string) (at appliance.Time, err error) {
	err = tx.QueryRow(`SELECT max(to_at) FROM usage_intervals WHERE reservation_id = ?`, reservation).Scan(&at)
	return at, err
}

// BookedReservations lists the reservations that hold something now: a
// tenant's, or with ofPools everyone's in the pools that the tenant owns.
func (tx *Tx) BookedReservations(tenant string, ofPools bool) ([]Claim, error) {
	if ofPools {
		return collect(tx, scanClaim, `SELECT queue, body FROM reservations
			WHERE pool_id IN (SELECT id FROM pools WHERE owner_tenant_id = ?) AND hold IS NOT NULL`, tenant)
	}
	return collect(tx, scanClaim, `SELECT queue, body FROM reservations WHERE tenant_id = ? AND state IN ('placed', 'active')`, tenant)
}

// BookedInPool lists the reservations that hold something of a pool now.
func (tx *Tx) BookedInPool(pool string) ([]Claim, error) {
	return collect(tx, scanClaim, `SELECT queue, body FROM reservations WHERE pool_id = ? AND hold IS NOT NULL`, pool)
}

// PutRate makes or replaces a rate.
func (tx *Tx) PutRate(r appliance.Rate) error {
	_, err := tx.Exec(`INSERT OR REPLACE INTO rates (tenant_id, meter, per_unit) VALUES (?, ?, ?)`, r.TenantID, r.Meter, r.PerUnit)
	return err
}

func scanRate(r *Rows) (v appliance.Rate, err error) {
	return v, r.Scan(&v.TenantID, &v.Meter, &v.PerUnit)
}

// RatesOf lists a tenant's rates in order of meter.
func (tx *Tx) RatesOf(tenant string) ([]appliance.Rate, error) {
	return collect(tx, scanRate, `SELECT tenant_id, meter, per_unit FROM rates WHERE tenant_id = ? ORDER BY meter`, tenant)
}

// PoolRate is a rate as it holds for a pool: its owner's.
type PoolRate struct {
	PoolID, Meter string
	PerUnit       float64
}

// PoolRates lists every rate by the pools that it holds for.
func (tx *Tx) PoolRates() ([]PoolRate, error) {
	return collect(tx, func(r *Rows) (v PoolRate, err error) {
		return v, r.Scan(&v.PoolID, &v.Meter, &v.PerUnit)
	}, `SELECT p.id, r.meter, r.per_unit FROM rates r JOIN pools p ON p.owner_tenant_id = r.tenant_id`)
}

// BudgetRow is a budget as it is kept.
type BudgetRow struct {
	appliance.Budget
	Exceeded bool // that it is spent has been told
}

// PutBudget makes or replaces a budget.
func (tx *Tx) PutBudget(b BudgetRow) error {
	_, err := tx.Exec(`INSERT OR REPLACE INTO budgets (tenant_id, period, amount, set_by, exceeded) VALUES (?, ?, ?, ?, ?)`,
		b.TenantID, b.Period, b.Amount, b.SetBy, b.Exceeded)
	return err
}

func scanBudget(r *Rows) (b BudgetRow, err error) {
	return b, r.Scan(&b.TenantID, &b.Period, &b.Amount, &b.SetBy, &b.Exceeded)
}

// BudgetsOf lists a tenant's budgets in order of period.
func (tx *Tx) BudgetsOf(tenant string) ([]BudgetRow, error) {
	return collect(tx, scanBudget, `SELECT tenant_id, period, amount, set_by, exceeded FROM budgets WHERE tenant_id = ? ORDER BY period`, tenant)
}

// AllBudgets lists every budget in order of tenant and period.
func (tx *Tx) AllBudgets() ([]BudgetRow, error) {
	return collect(tx, scanBudget, `SELECT tenant_id, period, amount, set_by, exceeded FROM budgets ORDER BY tenant_id, period`)
}
