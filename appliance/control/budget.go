package control

import (
	"context"
	"fmt"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// SetBudget sets the most that a tenant's usage may cost in a period. A tenant
// cannot change a budget that a tenant above it has set.
func (c *Control) SetBudget(ctx context.Context, who appliance.Caller, in appliance.SetBudget) (out appliance.Budget, err error) {
	if in.ForTenantID == "" {
		in.ForTenantID = in.TenantID
	}
	err = c.write(ctx, who, appliance.BudgetsManage, in.TenantID, in.ForTenantID, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.BudgetsManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if below, err := tx.IsBelow(in.ForTenantID, in.TenantID); err != nil || !below {
			return orNoTenant(err)
		}
		if t, _ := c.mem.tenant(in.ForTenantID); t.State == appliance.TenantDeleted {
			return appliance.Refuse(appliance.InvalidState, "forTenantId", "forTenantId: tenant %s is deleted", t.ID)
		}
		before, err := tx.BudgetsOf(in.ForTenantID)
		if err != nil {
			return err
		}
		for _, b := range before {
			if b.Period != in.Period || b.SetBy == in.TenantID {
				continue
			}
			if above, err := tx.IsBelow(in.TenantID, b.SetBy); err != nil || above {
				return orDenied(err, b.SetBy)
			}
		}
		row := store.BudgetRow{Budget: appliance.Budget{TenantID: in.ForTenantID, Period: in.Period, Amount: in.Amount, SetBy: in.TenantID}}
		if err := tx.PutBudget(row); err != nil {
			return err
		}
		out = row.Budget
		if out.Spent, err = c.spent(tx, in.ForTenantID, in.Period); err != nil {
			return err
		}
		e := c.event(tr, appliance.EventBudgetUpdated, in.ForTenantID, in.ForTenantID, c.now())
		e.Reader = in.TenantID
		_, err = tx.Emit(e, out)
		return err
	})
	return out, err
}

func orNoTenant(err error) error {
	if err != nil {
		return err
	}
	return appliance.NoSuch("tenant").WithReason("forTenantId")
}

func orDenied(err error, setBy string) error {
	if err != nil {
		return err
	}
	return appliance.Refuse(appliance.AccessDenied, "forTenantId", "forTenantId: the budget was set by %s, which stands above", setBy)
}

// ListBudgets shows the tenant's budgets with what is spent of them.
func (c *Control) ListBudgets(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Budget], err error) {
	if _, _, err := c.forTenant(who, appliance.BudgetsRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		rows, err := tx.BudgetsOf(in.TenantID)
		if err != nil {
			return err
		}
		budgets := make([]appliance.Budget, len(rows))
		for i, b := range rows {
			if b.Spent, err = c.spent(tx, b.TenantID, b.Period); err != nil {
				return err
			}
			budgets[i] = b.Budget
		}
		out = pageOf(budgets, in.Page, func(b appliance.Budget) string { return string(b.Period) })
		return nil
	})
	return out, err
}

// spent is what a tenant's usage has cost in the current period.
func (c *Control) spent(tx *store.Tx, tenant string, period appliance.BudgetPeriod) (float64, error) {
	now := c.now()
	usage, err := c.usage(tx, appliance.QueryUsage{TenantID: tenant, From: appliance.At(periodStart(period, now.Time)), To: now, GroupBy: []string{}})
	return plan.Cost(usage), err
}

// billingCheck is billing.check of the built-in implementation: it refuses a
// tenant one of whose budgets is spent.
func (c *Control) billingCheck(tx *store.Tx, tenant string) error {
	rows, err := tx.BudgetsOf(tenant)
	if err != nil {
		return err
	}
	for _, b := range rows {
		spent, err := c.spent(tx, tenant, b.Period)
		if err != nil {
			return err
		}
		if spent >= b.Amount {
			return appliance.Refuse(appliance.SpendLimitReached, "tenantId",
				"tenantId: %.2f of the budget of %.2f (%s) is spent; %s can raise it", spent, b.Amount, b.Period, b.SetBy).
				With("period", b.Period).With("amount", b.Amount).With("spent", spent)
		}
	}
	return nil
}

// checksBudget tells whether admission to a pool asks for a tenant's budget:
// by the pool's policy, or by the offer to the tenant.
func checksBudget(p *pool, tenant string) bool {
	o, ok := p.offers[tenant]
	return p.policy.ChecksBudget() || ok && o.OnBudgetExceeded != appliance.BudgetNone
}

// WatchBudgets tells of budgets that are spent, once for each time, and ends
// what runs by an offer that drains.
func (c *Control) WatchBudgets(ctx context.Context) error {
	var all []store.BudgetRow
	err := c.Store.Read(ctx, func(tx *store.Tx) (err error) {
		all, err = tx.AllBudgets()
		return err
	})
	if err != nil {
		return err
	}
	for _, b := range all {
		if err := c.Store.Write(ctx, func(tx *store.Tx) error { return c.watchBudget(tx, b) }); err != nil {
			return fmt.Errorf("budget of %s: %w", b.TenantID, err)
		}
	}
	return nil
}

func (c *Control) watchBudget(tx *store.Tx, b store.BudgetRow) error {
	spent, err := c.spent(tx, b.TenantID, b.Period)
	if err != nil {
		return err
	}
	exceeded := spent >= b.Amount
	tr := system("budgets")
	if exceeded != b.Exceeded {
		b.Exceeded = exceeded
		if err := tx.PutBudget(b); err != nil {
			return err
		}
		if exceeded {
			e := c.event(tr, appliance.EventBudgetExceeded, b.TenantID, b.TenantID, c.now())
			e.Reader = b.SetBy
			if _, err := tx.Emit(e, map[string]any{"period": b.Period, "amount": b.Amount, "spent": spent}); err != nil {
				return err
			}
		}
	}
	if !exceeded {
		return nil
	}
	live, err := tx.LiveReservationsOf(b.TenantID)
	if err != nil {
		return err
	}
	for _, r := range live {
		p := c.mem.pool(r.PoolID)
		if o, ok := p.offers[b.TenantID]; !ok || o.OnBudgetExceeded != appliance.BudgetDrain {
			continue
		}
		if _, err := c.end(tx, tr, &r, appliance.ReasonBudgetExceeded, fmt.Sprintf("the budget of %.2f (%s) is spent", b.Amount, b.Period)); err != nil {
			return err
		}
	}
	return nil
}
