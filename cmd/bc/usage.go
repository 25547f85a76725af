package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func usageCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "from", Usage: "`TIME`, such as 2026-01-01 or 2026-01-31T08:00:00Z (default: the first of this month, UTC)"},
		&cli.StringFlag{Name: "to", Usage: "`TIME` up to which, not included (default: now)"},
		&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "of one `POOL`, by id or name"},
		&cli.StringFlag{Name: "by", Usage: "any of `tenant,pool,reservation,day` (default: tenant,pool)"},
		&cli.BoolFlag{Name: "of-pools", Usage: "everyone's usage of the tenant's own pools, in place of the tenant's own"},
	}
	return group("usage", "", "what was held, by meter, and what it cost",
		&cli.Command{
			Name: "query", Usage: "integrate what was held over a window of time",
			Description: "Examples:\n   bc usage query\n   bc usage query --from 2026-01-01 --to 2026-02-01 --of-pools --by tenant,day",
			Flags:       flags, Action: queryUsage,
		},
		&cli.Command{
			Name: "export", Usage: "write the same as CSV, of RFC 4180",
			Description: "Examples:\n   bc usage export --from 2026-01-01 --to 2026-02-01 --of-pools > january.csv",
			Flags:       flags, Action: exportUsage,
		},
	)
}

// usageInput is what the flags ask for.
func usageInput(c *cli.Context) (*session, appliance.QueryUsage, error) {
	in := appliance.QueryUsage{OfPools: c.Bool("of-pools")}
	if err := noArguments(c); err != nil {
		return nil, in, err
	}
	s, err := open(c)
	if err != nil {
		return nil, in, err
	}
	in.TenantID = s.tenant
	now := s.now.UTC()
	in.From, in.To = appliance.At(time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)), appliance.At(now.Add(time.Millisecond))
	for flag, into := range map[string]*appliance.Time{"from": &in.From, "to": &in.To} {
		if c.String(flag) == "" {
			continue
		}
		if *into, err = dayOrTime(c.String(flag)); err != nil {
			return nil, in, usagef("--%s: %w", flag, err)
		}
	}
	if c.String("by") != "" {
		in.GroupBy = strings.Split(c.String("by"), ",")
	}
	if c.IsSet("pool") {
		p, err := s.pool(c, "pool")
		if err != nil {
			return nil, in, err
		}
		in.PoolID = p.ID
	}
	return s, in, nil
}

// dayOrTime reads a day of UTC, or an instant.
func dayOrTime(text string) (appliance.Time, error) {
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return appliance.At(day), nil
	}
	var t appliance.Time
	if err := t.UnmarshalText([]byte(text)); err != nil {
		return t, fmt.Errorf("%q is neither a day such as 2026-01-31 nor a time such as 2026-01-31T08:00:00Z", text)
	}
	return t, nil
}

func queryUsage(c *cli.Context) error {
	s, in, err := usageInput(c)
	if err != nil {
		return err
	}
	got, err := api.Do[appliance.QueryUsage, appliance.List[appliance.Usage]](c.Context, s.Client, "usage.query", in)
	if err != nil {
		return err
	}
	names, err := s.poolNames(c)
	if err != nil {
		return err
	}
	type row = appliance.Usage
	return items(s.printer, got.Items, func(u row) string { return u.Meter }, "Nothing was held in that time.", func(rows []row) *table {
		return newTable(rows,
			field[row]{column{head: "DAY"}, func(u row) string { return u.Day }},
			field[row]{column{head: "TENANT"}, func(u row) string { return u.TenantID }},
			field[row]{column{head: "POOL"}, func(u row) string { return nameOf(names, u.PoolID) }},
			field[row]{column{head: "RESERVATION"}, func(u row) string { return u.ReservationID }},
			field[row]{column{head: "METER"}, func(u row) string { return u.Meter }},
			field[row]{column{head: "QUANTITY", right: true}, func(u row) string { return strconv.FormatFloat(u.Quantity, 'f', 3, 64) }},
			field[row]{column{head: "COST", right: true}, func(u row) string {
				if u.Cost == nil {
					return ""
				}
				return money(*u.Cost)
			}},
		)
	})
}

func exportUsage(c *cli.Context) error {
	s, in, err := usageInput(c)
	if err != nil {
		return err
	}
	got, err := api.Do[appliance.QueryUsage, appliance.UsageExport](c.Context, s.Client, "usage.export", in)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(s.out, got.Text)
	return err
}

func money(n float64) string { return strconv.FormatFloat(n, 'f', 2, 64) }

func rateCommand() *cli.Command {
	return group("rates", "rate", "what a unit of a meter costs in the tenant's pools",
		&cli.Command{
			Name: "list", Usage: "list the rates of the tenant's pools", Description: "Examples:\n   bc rates list",
			Action: listed("rates.list", func(r appliance.Rate) string { return r.Meter },
				"No meter has a rate, so usage has no cost. Set one with: bc rates set gpu.h100.hours 2.50", rateColumns),
		},
		&cli.Command{
			Name: "set", Usage: "set what one unit of a meter costs", ArgsUsage: "METER AMOUNT",
			Description: "Examples:\n   bc rates set gpu.h100.hours 2.50\n   bc rates set gpu.h100.mig.1g.10gb.hours 0.40",
			Action: func(c *cli.Context) error {
				if c.NArg() != 2 {
					return usagef("%s needs a meter and an amount; see %s --help", c.Command.HelpName, c.Command.HelpName)
				}
				n, err := strconv.ParseFloat(c.Args().Get(1), 64)
				if err != nil {
					return usagef("%q is not an amount such as 2.50", c.Args().Get(1))
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				r, err := api.Do[appliance.SetRate, appliance.Rate](c.Context, s.Client, "rates.set", appliance.SetRate{TenantID: s.tenant, Meter: c.Args().First(), PerUnit: n})
				if err != nil {
					return err
				}
				return did(s.printer, r, r.Meter, "%s costs %s in the pools of tenant %s.", r.Meter, strconv.FormatFloat(r.PerUnit, 'f', -1, 64), r.TenantID)
			},
		},
	)
}

func rateColumns(*session) []field[appliance.Rate] {
	return []field[appliance.Rate]{
		{column{head: "METER"}, func(r appliance.Rate) string { return r.Meter }},
		{column{head: "PER UNIT", right: true}, func(r appliance.Rate) string { return strconv.FormatFloat(r.PerUnit, 'f', -1, 64) }},
	}
}

func budgetCommand() *cli.Command {
	return group("budgets", "budget", "the most that a tenant's usage may cost",
		&cli.Command{
			Name: "list", Usage: "list the tenant's budgets with what is spent of them", Description: "Examples:\n   bc budgets list",
			Action: listed("budgets.list", budgetName,
				"Tenant %s has no budget. Set one with: bc budgets set --for-tenant TENANT --period month --amount 1000", budgetColumns),
		},
		&cli.Command{
			Name: "set", Usage: "set the most that a tenant's usage may cost in a period",
			Description: "It stops nothing by itself: a pool whose policy has admission.budgetCheck meter, and an offer with\n" +
				"--on-budget-exceeded, ask for it.\n\nExamples:\n   bc budgets set --for-tenant acme --period month --amount 10000",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "for-tenant", Usage: "whose: `TENANT` itself or one below it (default: itself)"},
				&cli.StringFlag{Name: "period", Usage: "month or total"},
				&cli.Float64Flag{Name: "amount", Usage: "`AMOUNT` in the currency of the rates"},
			},
			Action: setBudget,
		},
	)
}

func budgetName(b appliance.Budget) string { return b.TenantID + "/" + string(b.Period) }

func budgetColumns(*session) []field[appliance.Budget] {
	return []field[appliance.Budget]{
		{column{head: "TENANT"}, func(b appliance.Budget) string { return b.TenantID }},
		{column{head: "PERIOD"}, func(b appliance.Budget) string { return string(b.Period) }},
		{column{head: "SPENT", right: true}, func(b appliance.Budget) string { return money(b.Spent) }},
		{column{head: "AMOUNT", right: true}, func(b appliance.Budget) string { return money(b.Amount) }},
		{column{head: "SET BY", drop: 1}, func(b appliance.Budget) string { return b.SetBy }},
	}
}

func setBudget(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if err := required(c, "period", "amount"); err != nil {
		return err
	}
	if !slices.Contains([]string{string(appliance.PeriodMonth), string(appliance.PeriodTotal)}, c.String("period")) {
		return usagef("--period: %q is not month or total", c.String("period"))
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	b, err := api.Do[appliance.SetBudget, appliance.Budget](c.Context, s.Client, "budgets.set", appliance.SetBudget{
		TenantID: s.tenant, ForTenantID: c.String("for-tenant"), Period: appliance.BudgetPeriod(c.String("period")), Amount: c.Float64("amount")})
	if err != nil {
		return err
	}
	return did(s.printer, b, budgetName(b), "Tenant %s may spend %s (%s); %s is spent.", b.TenantID, money(b.Amount), b.Period, money(b.Spent))
}
