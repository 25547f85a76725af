package main

import (
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func accessPolicyCommand() *cli.Command {
	return group("policies", "policy", "the tenant's own access policies, in Cedar",
		&cli.Command{
			Name: "list", Usage: "list the tenant's own policies", Description: "Examples:\n   bc policies list\n   bc policies list -o yaml",
			Action: listed("iam.policies.list", func(p appliance.AccessPolicy) string { return p.Name },
				"Tenant %s has no policy of its own; roles decide. Make one with: bc policies put NAME --file FILE", accessPolicyColumns),
		},
		&cli.Command{
			Name: "put", Usage: "make or replace a policy", ArgsUsage: "NAME",
			Description: "Examples:\n   bc policies put no-h100 --file no-h100.cedar\n   bc policies put no-h100 --file - < no-h100.cedar",
			Flags:       []cli.Flag{&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with Cedar statements, - for standard input"}},
			Action: func(c *cli.Context) error {
				if err := required(c, "file"); err != nil {
					return err
				}
				name, err := oneName(c, "the policy's name")
				if err != nil {
					return err
				}
				text, err := readInput(c.String("file"))
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				p, err := api.Do[appliance.PutPolicy, appliance.AccessPolicy](c.Context, s.Client, "iam.policies.put", appliance.PutPolicy{TenantID: s.tenant, Name: name, Cedar: string(text)})
				if err != nil {
					return err
				}
				return did(s.printer, p, p.Name, "Policy %s decides in tenant %s from now on.", p.Name, p.TenantID)
			},
		},
		&cli.Command{
			Name: "delete", Usage: "remove a policy", ArgsUsage: "NAME", Description: "Examples:\n   bc policies delete no-h100",
			Action: func(c *cli.Context) error {
				name, err := oneName(c, "the policy's name")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				got, err := api.Do[appliance.DeletePolicy, appliance.PolicyDeleted](c.Context, s.Client, "iam.policies.delete", appliance.DeletePolicy{TenantID: s.tenant, Name: name})
				if err != nil {
					return err
				}
				if !got.Removed {
					return did(s.printer, got, name, "There was no policy %s.", name)
				}
				return did(s.printer, got, name, "Policy %s is removed.", name)
			},
		},
	)
}

func accessPolicyColumns(s *session) []field[appliance.AccessPolicy] {
	return []field[appliance.AccessPolicy]{
		{column{head: "NAME"}, func(p appliance.AccessPolicy) string { return p.Name }},
		{column{head: "UPDATED"}, func(p appliance.AccessPolicy) string { return s.ago(p.UpdatedAt) }},
		{column{head: "CEDAR", flex: s.format != formatWide}, func(p appliance.AccessPolicy) string { return strings.Join(strings.Fields(p.Cedar), " ") }},
	}
}

// readInput reads a file, - being standard input.
func readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(path)
}

func checkCommand() *cli.Command {
	return &cli.Command{
		Name: "check", Usage: "say whether somebody might do something, and which policies decide", ArgsUsage: "PRINCIPAL ACTION", Category: "things",
		Description: "The principal is the id of a key, user or node, or operator.\n\n" +
			"Examples:\n   bc check key_01k5c000000000000000000000 compute:reservations:create --pool training",
		Flags: []cli.Flag{&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "`POOL` that it is about, by id or name"}},
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return usagef("%s needs a principal and an action; see %s --help", c.Command.HelpName, c.Command.HelpName)
			}
			s, err := open(c)
			if err != nil {
				return err
			}
			in := appliance.Check{TenantID: s.tenant, Principal: c.Args().First(), Action: appliance.Action(c.Args().Get(1))}
			if c.IsSet("pool") {
				p, err := s.pool(c, "pool")
				if err != nil {
					return err
				}
				in.PoolID = p.ID
			}
			got, err := api.Do[appliance.Check, appliance.CheckResult](c.Context, s.Client, "iam.check", in)
			if err != nil {
				return err
			}
			return item(s.printer, got, yesNo(got.Allowed), func(sh *sheet, got appliance.CheckResult) {
				sh.state("Allowed", yesNo(got.Allowed))
				sh.fact("Because", got.Reason)
				sh.fact("Policies", strings.Join(got.Policies, ", "))
			})
		},
	}
}
