package main

import (
	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func keyCommand() *cli.Command {
	return group("keys", "key", "API keys: how programs sign in",
		&cli.Command{
			Name: "list", Usage: "list the tenant's keys",
			Description: "Examples:\n   bc keys list",
			Action:      listed("iam.keys.list", func(k appliance.Key) string { return k.ID }, "Tenant %s has no key. Make one with: bc keys create NAME --role member", keyColumns),
		},
		&cli.Command{
			Name: "create", Usage: "make a key; its secret is shown this once", ArgsUsage: "NAME",
			Description: "The secret goes to stdout alone, so that it can be piped; it cannot be shown again.\n\n" +
				"Examples:\n   bc keys create ci --role member\n   bc keys create ci --role member --for 90d > ci.key",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "role", Usage: "owner, operator, member or viewer"},
				&cli.StringFlag{Name: "for", Usage: "`DURATION` after which it is refused (default: never)"},
				&cli.StringFlag{Name: "until", Usage: "`TIME` from which it is refused"},
			},
			Action: createKey,
		},
		&cli.Command{
			Name: "revoke", Usage: "end a key at once", ArgsUsage: "KEY",
			Description: "Examples:\n   bc keys revoke ci",
			Action: func(c *cli.Context) error {
				want, err := oneName(c, "a key, by id or name")
				if err != nil {
					return err
				}
				s, err := open(c)
				if err != nil {
					return err
				}
				id := want
				if !appliance.IsID(appliance.KeyPrefix, want) {
					keys, err := list[appliance.Key](c.Context, s.Client, "iam.keys.list", s.inTenant)
					if err != nil {
						return err
					}
					var live []appliance.Key
					for _, k := range keys {
						if k.RevokedAt == nil {
							live = append(live, k)
						}
					}
					k, err := named(s, "key", "keys", want, live, func(k appliance.Key) string { return k.Name }, func(k appliance.Key) string { return k.ID })
					if err != nil {
						return err
					}
					id = k.ID
				}
				k, err := api.Do[appliance.RevokeKey, appliance.Key](c.Context, s.Client, "iam.keys.revoke", appliance.RevokeKey{TenantID: s.tenant, KeyID: id})
				if err != nil {
					return err
				}
				return did(s.printer, k, k.ID, "Key %s is revoked (%s).", k.Name, k.ID)
			},
		},
	)
}

func keyColumns(s *session) []field[appliance.Key] {
	return []field[appliance.Key]{
		{column{head: "NAME"}, func(k appliance.Key) string { return k.Name }},
		{column{head: "ID"}, func(k appliance.Key) string { return k.ID }},
		{column{head: "ROLE"}, func(k appliance.Key) string { return string(k.Role) }},
		{column{head: "STATE", state: true}, func(k appliance.Key) string {
			switch {
			case k.RevokedAt != nil:
				return "revoked"
			case k.ExpiresAt != nil && !k.ExpiresAt.After(s.now):
				return "expired"
			}
			return "active"
		}},
		{column{head: "USED", drop: 1}, func(k appliance.Key) string {
			if k.LastUsedAt == nil {
				return "never"
			}
			return s.ago(*k.LastUsedAt)
		}},
		{column{head: "ENDS", drop: 2}, func(k appliance.Key) string { return s.until(k.ExpiresAt) }},
		{column{head: "MADE", drop: 3}, func(k appliance.Key) string { return s.ago(k.CreatedAt) }},
	}
}

func createKey(c *cli.Context) error {
	if err := required(c, "role"); err != nil {
		return err
	}
	name, err := oneName(c, "the new key's name")
	if err != nil {
		return err
	}
	end, err := endFlag(c)
	if err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	if c.String("for") != "" {
		d, err := appliance.ParseDuration(c.String("for"))
		if err != nil {
			return usagef("--for: %s", sentence(err))
		}
		at := appliance.At(s.now.Add(d))
		end = &at
	}
	k, err := api.Do[appliance.CreateKey, appliance.Key](c.Context, s.Client, "iam.keys.create",
		appliance.CreateKey{TenantID: s.tenant, Name: name, Role: appliance.Role(c.String("role")), ExpiresAt: end})
	if err != nil {
		return err
	}
	if s.tabular() {
		s.note("Key %s is made for tenant %s with role %s (%s). Keep its secret: it is not shown again.", k.Name, k.TenantID, k.Role, k.ID)
	}
	return did(s.printer, k, k.ID, "%s", k.Secret)
}
