package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func poolOfferCommand() *cli.Command {
	return &cli.Command{
		Name: "offer", Usage: "make a pool visible to another tenant, with a quota", ArgsUsage: "POOL", BashComplete: completePools,
		Description: "Offering again replaces the priority and the settings, and sets the quota rows that are named. A\n" +
			"resource without a quota row grants nothing.\n\n" +
			"Examples:\n   bc pools offer training --to acme --gpus 32\n   bc pools offer training --to acme --quota gpu=32 --quota vcpu=512 --priority 10",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "`TENANT` that shall see the pool"},
			&cli.IntFlag{Name: "gpus", Aliases: []string{"g"}, Usage: "the quota in the pool's own GPU resource: whole GPUs, MIG instances or slots"},
			&cli.StringSliceFlag{Name: "quota", Usage: "`RESOURCE=MAX`, any number of times"},
			&cli.IntFlag{Name: "priority", Usage: "-1000 to 1000; stored, the placer does not read it in this release"},
			&cli.BoolFlag{Name: "include-descendants", Usage: "stored; in this release the tenant is matched exactly"},
			&cli.StringFlag{Name: "on-budget-exceeded", Usage: "none, stop-new or drain", Value: string(appliance.BudgetNone)},
		},
		Action: offerPool,
	}
}

func offerPool(c *cli.Context) error {
	if err := required(c, "to"); err != nil {
		return err
	}
	quota, err := quotaPairs("quota", c.StringSlice("quota"))
	if err != nil {
		return err
	}
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	if c.IsSet("gpus") {
		quota[p.Sharing.Resource()] = c.Int("gpus")
	}
	o, err := api.Do[appliance.OfferPool, appliance.Offer](c.Context, s.Client, "pools.offer", appliance.OfferPool{
		TenantID: s.tenant, PoolID: p.ID, ToTenantID: c.String("to"), Quota: quota, IncludeDescendants: c.Bool("include-descendants"),
		Priority: c.Int("priority"), OnBudgetExceeded: appliance.OnBudgetExceeded(c.String("on-budget-exceeded")),
	})
	if err != nil {
		return err
	}
	if len(quota) == 0 && s.tabular() {
		s.note("Without a quota %s sees the pool and can book nothing of it: give --gpus or --quota.", o.TenantID)
	}
	return did(s.printer, o, o.TenantID, "Pool %s is offered to %s (%s).", poolHandle(p), o.TenantID, orNothing(quotaText(o.Quotas)))
}

func orNothing(s string) string {
	if s == "" {
		return "no quota"
	}
	return s
}

// quotaPairs reads RESOURCE=MAX, where MAX may be "any".
func quotaPairs(flag string, words []string) (appliance.QuotaMap, error) {
	given, err := pairs(flag, words)
	if err != nil {
		return nil, err
	}
	out := appliance.QuotaMap{}
	for r, v := range given {
		n, err := parseCount(v)
		if err != nil {
			return nil, usagef("--%s: %s: %w", flag, r, err)
		}
		out[r] = n
	}
	if err := out.Validate("--" + flag); err != nil {
		return nil, err
	}
	return out, nil
}

func parseCount(v string) (int, error) {
	if v == "any" {
		return appliance.MaxCount, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number, nor any", v)
	}
	return n, nil
}

func unofferPool(c *cli.Context) error {
	if err := required(c, "from"); err != nil {
		return err
	}
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	got, err := api.Do[appliance.UnofferPool, appliance.Unoffered](c.Context, s.Client, "pools.unoffer",
		appliance.UnofferPool{TenantID: s.tenant, PoolID: p.ID, ToTenantID: c.String("from")})
	if err != nil {
		return err
	}
	if !got.Removed {
		return did(s.printer, got, p.ID, "Pool %s was not offered to %s.", poolHandle(p), c.String("from"))
	}
	return did(s.printer, got, p.ID, "Pool %s is no longer offered to %s.", poolHandle(p), c.String("from"))
}

func listOffers(c *cli.Context) error {
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	got, err := api.Do[appliance.PoolRef, appliance.List[appliance.Offer]](c.Context, s.Client, "pools.offers", appliance.PoolRef{TenantID: s.tenant, PoolID: p.ID})
	if err != nil {
		return err
	}
	empty := fmt.Sprintf("Pool %s is offered to nobody. Offer it with: bc pools offer %s --to TENANT --gpus N", poolHandle(p), poolHandle(p))
	return items(s.printer, got.Items, func(o appliance.Offer) string { return o.TenantID }, empty, func(offers []appliance.Offer) *table {
		return newTable(offers,
			field[appliance.Offer]{column{head: "TENANT"}, func(o appliance.Offer) string { return o.TenantID }},
			field[appliance.Offer]{column{head: "QUOTA"}, func(o appliance.Offer) string { return quotaText(o.Quotas) }},
			field[appliance.Offer]{column{head: "PRIORITY", right: true, drop: 2}, func(o appliance.Offer) string { return strconv.Itoa(o.Priority) }},
			field[appliance.Offer]{column{head: "DESCENDANTS", drop: 3}, func(o appliance.Offer) string { return yesNo(o.IncludeDescendants) }},
			field[appliance.Offer]{column{head: "BUDGET SPENT", drop: 4}, func(o appliance.Offer) string { return string(o.OnBudgetExceeded) }},
			field[appliance.Offer]{column{head: "SINCE", drop: 1}, func(o appliance.Offer) string { return s.ago(o.CreatedAt) }},
		)
	})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// quotaText writes quota rows in one line: gpu 4/32, vcpu 0/512.
func quotaText(rows []appliance.Quota) string {
	var out []string
	for _, q := range rows {
		out = append(out, fmt.Sprintf("%s %d/%s", q.Resource, q.Used, quotaMax(q.Max)))
	}
	return strings.Join(out, ", ")
}
