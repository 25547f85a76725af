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
			Action:      listed("tenants.list", func(t appliance.Tenant) string { return t.ID }, "No tenant is visible.", tenantColumns),
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
		tenantVerb("suspend", "refuse a tenant's new reservations; what runs goes on", ""),
		tenantVerb("resume", "take a suspended tenant's reservations again", ""),
		tenantVerb("delete", "tear a tenant down: its pools are archived, its reservations end",
			"Delete tenant %s? Its pools are archived and its reservations end. This cannot be undone."),
	)
}

func tenantColumns(s *session) []field[appliance.Tenant] {
	return []field[appliance.Tenant]{
		{column{head: "TENANT"}, func(t appliance.Tenant) string { return t.ID }},
		{column{head: "PARENT", drop: 1}, func(t appliance.Tenant) string { return t.ParentID }},
		{column{head: "STATE", state: true}, func(t appliance.Tenant) string { return string(t.State) }},
		{column{head: "NAME", flex: true}, func(t appliance.Tenant) string { return t.Name }},
		{column{head: "MADE", drop: 2}, func(t appliance.Tenant) string { return s.ago(t.CreatedAt) }},
	}
}

// tenantVerb is a verb that moves a tenant from one state to another, after a
// question if there is one.
func tenantVerb(verb, usage, question string) *cli.Command {
	cmd := &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: "TENANT",
		Description: "Examples:\n   bc tenants " + verb + " acme --tenant root",
		Action: func(c *cli.Context) error {
			id, err := oneName(c, "a tenant")
			if err != nil {
				return err
			}
			s, err := open(c)
			if err != nil {
				return err
			}
			if question != "" {
				if err := confirm(c, fmt.Sprintf(question, id)); err != nil {
					return err
				}
			}
			t, err := api.Do[appliance.TenantRef, appliance.Tenant](c.Context, s.Client, "tenants."+verb, appliance.TenantRef{TenantID: s.tenant, ID: id})
			if err != nil {
				return err
			}
			return did(s.printer, t, t.ID, "Tenant %s is %s.", t.ID, t.State)
		},
	}
	if question != "" {
		cmd.Flags = []cli.Flag{yesFlag()}
	}
	return cmd
}
