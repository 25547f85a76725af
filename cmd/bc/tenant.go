package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func tenantCommand() *cli.Command {
	return group("tenants", "tenant", "who owns, offers and reserves: a tree under root",
		&cli.Command{
			Name: "list", Usage: "list the tenant and all below it",
			Description: "Examples:\n   bc tenants list\n   bc tenants list --tenant root",
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				tenants, err := s.tenants(c)
				if err != nil {
					return err
				}
				return items(s.printer, tenants, func(t appliance.Tenant) string { return t.ID }, "No tenant is visible.", func(ts []appliance.Tenant) *table {
					return newTable(ts,
						field[appliance.Tenant]{column{head: "TENANT"}, func(t appliance.Tenant) string { return t.ID }},
						field[appliance.Tenant]{column{head: "PARENT", drop: 1}, func(t appliance.Tenant) string { return t.ParentID }},
						field[appliance.Tenant]{column{head: "STATE", state: true}, func(t appliance.Tenant) string { return string(t.State) }},
						field[appliance.Tenant]{column{head: "NAME", flex: true}, func(t appliance.Tenant) string { return t.Name }},
						field[appliance.Tenant]{column{head: "MADE", drop: 2}, func(t appliance.Tenant) string { return s.ago(t.CreatedAt) }},
					)
				})
			},
		},
		&cli.Command{
			Name: "get", Usage: "show a tenant", ArgsUsage: "TENANT",
			Description: "Examples:\n   bc tenants get acme",
			Action: func(c *cli.Context) error {
				id, err := oneName(c, "a tenant")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				t, err := api.Do[appliance.TenantRef, appliance.Tenant](c.Context, s.Client, "tenants.get", appliance.TenantRef{TenantID: s.tenant, ID: id})
				if err != nil {
					return err
				}
				return item(s.printer, t, t.ID, func(sh *sheet, t appliance.Tenant) {
					sh.fact("Tenant", t.ID)
					sh.fact("Name", t.Name)
					sh.fact("Parent", t.ParentID)
					sh.state("State", string(t.State))
					sh.fact("Made", s.exact(&t.CreatedAt))
				})
			},
		},
		&cli.Command{
			Name: "create", Usage: "make a tenant below another", ArgsUsage: "TENANT",
			Description: "Its id is 1 to 63 of a-z, 0-9 and -, starting with a letter, and never changes.\n\n" +
				"Examples:\n   bc tenants create acme --name 'Acme Research'\n   bc tenants create acme-vision --parent acme",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "name", Usage: "`NAME` for people (default: the id)"},
				&cli.StringFlag{Name: "parent", Usage: "`TENANT` above it (default: the acting one)"},
			},
			Action: func(c *cli.Context) error {
				id, err := oneName(c, "the new tenant's id")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				t, err := api.Do[appliance.CreateTenant, appliance.Tenant](c.Context, s.Client, "tenants.create",
					appliance.CreateTenant{TenantID: s.tenant, ID: id, ParentID: c.String("parent"), Name: c.String("name")})
				if err != nil {
					return err
				}
				return did(s.printer, t, t.ID, "Tenant %s is made below %s. Let it see a pool with: bc pools offer POOL --to %s --gpus N", t.ID, t.ParentID, t.ID)
			},
		},
	)
}

func (s *session) tenants(c *cli.Context) ([]appliance.Tenant, error) {
	return list[appliance.Tenant](c.Context, s.Client, "tenants.list", func(page appliance.Page) any {
		return appliance.TenantList{TenantID: s.tenant, Page: page}
	})
}

func siteCommand() *cli.Command {
	return group("sites", "site", "where machines stand",
		&cli.Command{
			Name: "list", Usage: "list the tenant's own sites",
			Description: "Examples:\n   bc sites list",
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				sites, err := s.sites(c.Context)
				if err != nil {
					return err
				}
				empty := fmt.Sprintf("Tenant %s has no site. Make one with: bc sites create NAME --region REGION", s.tenant)
				return items(s.printer, sites, func(x appliance.Site) string { return x.ID }, empty, func(xs []appliance.Site) *table {
					return newTable(xs,
						field[appliance.Site]{column{head: "NAME"}, func(x appliance.Site) string { return x.Name }},
						field[appliance.Site]{column{head: "ID"}, func(x appliance.Site) string { return x.ID }},
						field[appliance.Site]{column{head: "KIND"}, func(x appliance.Site) string { return string(x.Kind) }},
						field[appliance.Site]{column{head: "REGION"}, func(x appliance.Site) string { return x.Region }},
						field[appliance.Site]{column{head: "MADE", drop: 1}, func(x appliance.Site) string { return s.ago(x.CreatedAt) }},
					)
				})
			},
		},
		&cli.Command{
			Name: "get", Usage: "show a site", ArgsUsage: "SITE",
			Description: "Examples:\n   bc sites get lab",
			Action: func(c *cli.Context) error {
				want, err := oneName(c, "a site, by id or name")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				x, err := s.findSite(c.Context, want)
				if err != nil {
					return err
				}
				return item(s.printer, x, x.ID, func(sh *sheet, x appliance.Site) {
					sh.fact("Site", x.Name)
					sh.fact("Id", x.ID)
					sh.fact("Owner", x.OwnerTenantID)
					sh.fact("Kind", string(x.Kind))
					sh.fact("Region", x.Region)
					sh.fact("Made", s.exact(&x.CreatedAt))
				})
			},
		},
		&cli.Command{
			Name: "create", Usage: "make a site that the tenant owns", ArgsUsage: "NAME",
			Description: "Examples:\n   bc sites create lab --region fra1\n   bc sites create fra1-shared --kind shared --region fra1 --tenant root",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "kind", Usage: "custom, or for the platform shared or dedicated", Value: string(appliance.SiteCustom)},
				&cli.StringFlag{Name: "region", Usage: "`REGION`, a label that policies can decide on"},
			},
			Action: func(c *cli.Context) error {
				if err := required(c, "region"); err != nil {
					return err
				}
				name, err := oneName(c, "the new site's name")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				x, err := api.Do[appliance.CreateSite, appliance.Site](c.Context, s.Client, "sites.create",
					appliance.CreateSite{TenantID: s.tenant, Kind: appliance.SiteKind(c.String("kind")), Name: name, Region: c.String("region")})
				if err != nil {
					return err
				}
				return did(s.printer, x, x.ID, "Site %s is made (%s).", x.Name, x.ID)
			},
		},
	)
}
