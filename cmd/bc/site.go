package main

import (
	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func siteCommand() *cli.Command {
	return group("sites", "site", "where machines stand",
		&cli.Command{
			Name: "list", Usage: "list the tenant's own sites",
			Description: "Examples:\n   bc sites list",
			Action:      listed("sites.list", func(x appliance.Site) string { return x.ID }, "Tenant %s has no site. Make one with: bc sites create NAME --region REGION", siteColumns),
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

func siteColumns(s *session) []field[appliance.Site] {
	return []field[appliance.Site]{
		{column{head: "NAME"}, func(x appliance.Site) string { return x.Name }},
		{column{head: "ID"}, func(x appliance.Site) string { return x.ID }},
		{column{head: "KIND"}, func(x appliance.Site) string { return string(x.Kind) }},
		{column{head: "REGION"}, func(x appliance.Site) string { return x.Region }},
		{column{head: "MADE", drop: 1}, func(x appliance.Site) string { return s.ago(x.CreatedAt) }},
	}
}
