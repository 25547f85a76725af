package main

import (
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func quotaCommand() *cli.Command {
	return group("quotas", "quota", "the most that a tenant may hold of a resource in a pool",
		&cli.Command{
			Name: "list", Usage: "list the tenant's quotas, and everyone's in pools that it owns",
			Description: "Examples:\n   bc quotas list\n   bc quotas list --pool training --for-tenant acme",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "those of one `POOL`, by id or name"},
				&cli.StringFlag{Name: "for-tenant", Usage: "those of one `TENANT`"},
			},
			Action: listQuotas,
		},
		&cli.Command{
			Name: "set", Usage: "set a tenant's quota in a pool of one's own",
			Description: "Below what is in use is legal: what runs stays, nothing new fits.\n\n" +
				"Examples:\n   bc quotas set --pool training --for-tenant acme --resource gpu --max 32\n   bc quotas set --pool slices --resource gpu.mig --max any",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "`POOL`, by id or name"},
				&cli.StringFlag{Name: "for-tenant", Usage: "whose: `TENANT` (default: the pool's owner)"},
				&cli.StringFlag{Name: "resource", Usage: "gpu, gpu.mig, gpu.slot, vcpu, memoryGiB, hugepages2Mi, hugepages1Gi or diskGiB"},
				&cli.StringFlag{Name: "max", Usage: "`N`, or any"},
			},
			Action: setQuota,
		},
	)
}

func listQuotas(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	in := appliance.ListQuotas{TenantID: s.tenant, ForTenantID: c.String("for-tenant")}
	if c.IsSet("pool") {
		p, err := s.pool(c, "pool")
		if err != nil {
			return err
		}
		in.PoolID = p.ID
	}
	rows, err := list[appliance.Quota](c.Context, s.Client, "quotas.list", func(page appliance.Page) any {
		in.Page = page
		return in
	})
	if err != nil {
		return err
	}
	names, err := s.poolNames(c)
	if err != nil {
		return err
	}
	empty := fmt.Sprintf("Tenant %s has no such quota. A pool's owner sets one with: bc quotas set --pool POOL --for-tenant %s --resource gpu --max N", s.tenant, s.tenant)
	id := func(q appliance.Quota) string { return q.PoolID + "/" + q.TenantID + "/" + q.Resource }
	return items(s.printer, rows, id, empty, func(rows []appliance.Quota) *table { return quotaTable(rows, names) })
}

// quotaTable shows whose and where only if pools' names are given.
func quotaTable(rows []appliance.Quota, pools map[string]string) *table {
	type row = appliance.Quota
	return newTable(rows,
		field[row]{column{head: "POOL"}, func(q row) string {
			if pools == nil {
				return ""
			}
			return nameOf(pools, q.PoolID)
		}},
		field[row]{column{head: "TENANT"}, func(q row) string {
			if pools == nil {
				return ""
			}
			return q.TenantID
		}},
		field[row]{column{head: "RESOURCE"}, func(q row) string { return q.Resource }},
		field[row]{column{head: "USED", right: true}, func(q row) string { return strconv.Itoa(q.Used) }},
		field[row]{column{head: "MAX", right: true}, func(q row) string { return quotaMax(q.Max) }},
		field[row]{column{head: "AVAILABLE", right: true, drop: 1}, func(q row) string {
			if q.Max == appliance.MaxCount {
				return "any"
			}
			return strconv.Itoa(q.Available)
		}},
	)
}

func setQuota(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if err := required(c, "pool", "resource", "max"); err != nil {
		return err
	}
	n, err := parseCount(c.String("max"))
	if err != nil {
		return usagef("--max: %w", err)
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	p, err := s.pool(c, "pool")
	if err != nil {
		return err
	}
	q, err := api.Do[appliance.SetQuota, appliance.Quota](c.Context, s.Client, "quotas.set",
		appliance.SetQuota{TenantID: s.tenant, PoolID: p.ID, ForTenantID: c.String("for-tenant"), Resource: c.String("resource"), Max: n})
	if err != nil {
		return err
	}
	return did(s.printer, q, q.PoolID+"/"+q.TenantID+"/"+q.Resource, "Tenant %s may hold %s %s of pool %s; %d are in use.", q.TenantID, quotaMax(q.Max), q.Resource, poolHandle(p), q.Used)
}
