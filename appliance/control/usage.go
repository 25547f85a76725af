package control

import (
	"context"
	"encoding/csv"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// meterEnd keeps what a booked reservation held up to an instant. It is called
// where it ends, and where what it counts as changes. A clock that was set back
// makes an interval without length, never a negative one.
func (c *Control) meterEnd(tx *store.Tx, p *pool, r appliance.Reservation, at appliance.Time) error {
	v, err := c.openInterval(tx, p, r, at)
	if err != nil {
		return err
	}
	return tx.PutUsage(v)
}

// openInterval is what a booked reservation holds that is not kept yet.
func (c *Control) openInterval(tx *store.Tx, p *pool, r appliance.Reservation, at appliance.Time) (store.UsageInterval, error) {
	from, err := tx.UsageEnd(r.ID)
	if err != nil {
		return store.UsageInterval{}, err
	}
	if r.PlacedAt != nil && r.PlacedAt.After(from.Time) {
		from = *r.PlacedAt
	}
	if at.Before(from.Time) {
		at = from
	}
	return store.UsageInterval{ReservationID: r.ID, TenantID: r.TenantID, PoolID: r.PoolID, From: from, To: at, Meters: plan.Meters(p.GPUModel, r)}, nil
}

// cutMeters keeps what the reservations of a pool held under its present
// model, before that changes.
func (c *Control) cutMeters(tx *store.Tx, p *pool) error {
	claims, err := tx.BookedInPool(p.ID)
	if err != nil {
		return err
	}
	for _, r := range claims {
		if err := c.meterEnd(tx, p, r.Reservation, c.now()); err != nil {
			return err
		}
	}
	return nil
}

// QueryUsage integrates what was held over a window of time.
func (c *Control) QueryUsage(ctx context.Context, who appliance.Caller, in appliance.QueryUsage) (out appliance.List[appliance.Usage], err error) {
	in.Normalise()
	if _, _, err := c.forTenant(who, appliance.UsageRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Validate(); err != nil {
		return out, err
	}
	if in.PoolID != "" {
		if p, _ := c.mem.poolSeen(in.PoolID, in.TenantID); p == nil {
			return out, appliance.NoSuch("pool")
		}
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		out.Items, err = c.usage(tx, in)
		return err
	})
	return out, err
}

// usage sums what is kept and what is live.
func (c *Control) usage(tx *store.Tx, in appliance.QueryUsage) ([]appliance.Usage, error) {
	read := tx.UsageOf
	if in.OfPools {
		read = tx.UsageIn
	}
	kept, err := read(in.TenantID, in.From, in.To)
	if err != nil {
		return nil, err
	}
	live, err := tx.BookedReservations(in.TenantID, in.OfPools)
	if err != nil {
		return nil, err
	}
	for _, r := range live {
		v, err := c.openInterval(tx, c.mem.pool(r.PoolID), r.Reservation, c.now())
		if err != nil {
			return nil, err
		}
		kept = append(kept, v)
	}
	intervals := make([]plan.Interval, 0, len(kept))
	for _, v := range kept {
		if in.PoolID == "" || v.PoolID == in.PoolID {
			intervals = append(intervals, plan.Interval{ReservationID: v.ReservationID, TenantID: v.TenantID, PoolID: v.PoolID, From: v.From.Time, To: v.To.Time, Meters: v.Meters})
		}
	}
	rates, err := poolRates(tx)
	if err != nil {
		return nil, err
	}
	return plan.SumUsage(intervals, in.From.Time, in.To.Time, in.GroupBy, rates), nil
}

// poolRates are the rates as they hold now, by pool.
func poolRates(tx *store.Tx) (plan.Rates, error) {
	all, err := tx.PoolRates()
	if err != nil {
		return nil, err
	}
	type key struct{ pool, meter string }
	rates := make(map[key]float64, len(all))
	for _, r := range all {
		rates[key{r.PoolID, r.Meter}] = r.PerUnit
	}
	return func(pool, meter string) (float64, bool) {
		perUnit, ok := rates[key{pool, meter}]
		return perUnit, ok
	}, nil
}

// ExportUsage is QueryUsage as CSV.
func (c *Control) ExportUsage(ctx context.Context, who appliance.Caller, in appliance.QueryUsage) (out appliance.UsageExport, err error) {
	got, err := c.QueryUsage(ctx, who, in)
	if err != nil {
		return out, err
	}
	var text strings.Builder
	w := csv.NewWriter(&text)
	rows := [][]string{{"day", "tenant", "pool", "reservation", "meter", "quantity", "cost"}}
	for _, u := range got.Items {
		cost := ""
		if u.Cost != nil {
			cost = strconv.FormatFloat(*u.Cost, 'f', 4, 64)
		}
		rows = append(rows, []string{u.Day, u.TenantID, u.PoolID, u.ReservationID, u.Meter, strconv.FormatFloat(u.Quantity, 'f', 6, 64), cost})
	}
	if err := w.WriteAll(rows); err != nil {
		return out, err
	}
	return appliance.UsageExport{ContentType: "text/csv; charset=utf-8", Text: text.String()}, nil
}

// SetRate sets what one unit of a meter costs in the pools that a tenant owns.
func (c *Control) SetRate(ctx context.Context, who appliance.Caller, in appliance.SetRate) (appliance.Rate, error) {
	out := appliance.Rate(in)
	err := c.write(ctx, who, appliance.RatesManage, in.TenantID, in.Meter, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.RatesManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if err := tx.PutRate(out); err != nil {
			return err
		}
		_, err = tx.Emit(c.event(tr, appliance.EventRateUpdated, in.TenantID, in.Meter, c.now()), out)
		return err
	})
	return out, err
}

// ListRates shows the rates of the tenant's pools.
func (c *Control) ListRates(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Rate], err error) {
	if _, _, err := c.forTenant(who, appliance.RatesRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		all, err := tx.RatesOf(in.TenantID)
		out = pageOf(all, in.Page, func(r appliance.Rate) string { return r.Meter })
		return err
	})
	return out, err
}

// periodStart is when the current period of a budget began.
func periodStart(p appliance.BudgetPeriod, now time.Time) time.Time {
	if p == appliance.PeriodMonth {
		y, m, _ := now.UTC().Date()
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Unix(0, 0).UTC()
}
