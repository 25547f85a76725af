package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func userCommand() *cli.Command {
	return group("users", "user", "people who sign in to the console",
		&cli.Command{
			Name: "list", Usage: "list the tenant's users", Description: "Examples:\n   bc users list",
			Action: listed("iam.users.list", func(u appliance.User) string { return u.ID }, "Tenant %s has no user. Make one with: bc users create NAME --role member", userColumns),
		},
		&cli.Command{
			Name: "get", Usage: "show a user", ArgsUsage: "USER", Description: "Examples:\n   bc users get ada@acme.example",
			Action: func(c *cli.Context) error {
				s, u, err := theUser(c)
				if err != nil {
					return err
				}
				return item(s.printer, u, u.ID, func(sh *sheet, u appliance.User) { userSheet(sh, u) })
			},
		},
		&cli.Command{
			Name: "create", Usage: "make a user, who signs in by a one-time link or a password", ArgsUsage: "NAME",
			Description: "Without --password the answer has a login link, which works once.\n\n" +
				"Examples:\n   bc users create ada@acme.example --role member\n   bc users create ada@acme.example --role member --password < password.txt",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "role", Usage: "owner, operator, member or viewer"},
				&cli.BoolFlag{Name: "password", Usage: "ask for a password, or read it from standard input"},
			},
			Action: createUser,
		},
		&cli.Command{
			Name: "update", Usage: "change a user's role, disable or enable it", ArgsUsage: "USER",
			Description: "Examples:\n   bc users update ada@acme.example --role operator\n   bc users update ada@acme.example --disable",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "role", Usage: "owner, operator, member or viewer"},
				&cli.BoolFlag{Name: "disable", Usage: "end its sessions and let it sign in no more"},
				&cli.BoolFlag{Name: "enable", Usage: "let it sign in again"},
			},
			Action: updateUser,
		},
		&cli.Command{
			Name: "set-password", Usage: "give a user a password; its sessions end", ArgsUsage: "USER",
			Description: "Examples:\n   bc users set-password ada@acme.example\n   bc users set-password ada@acme.example < password.txt",
			Action: func(c *cli.Context) error {
				s, u, err := theUser(c)
				if err != nil {
					return err
				}
				password, err := readPassword()
				if err != nil {
					return err
				}
				u, err = api.Do[appliance.SetPassword, appliance.User](c.Context, s.Client, "iam.users.setPassword", appliance.SetPassword{TenantID: s.tenant, UserID: u.ID, Password: password})
				if err != nil {
					return err
				}
				return did(s.printer, u, u.ID, "User %s has a new password.", u.Name)
			},
		},
		userVerb("login-link", "loginLink", "make a one-time login link for a user"),
		userVerb("delete", "delete", "remove a user"),
	)
}

// userVerb is a verb that takes nothing but a user.
func userVerb(name, verb, usage string) *cli.Command {
	cmd := &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "USER", Description: "Examples:\n   bc users " + name + " ada@acme.example",
		Action: func(c *cli.Context) error {
			s, u, err := theUser(c)
			if err != nil {
				return err
			}
			if verb == "delete" {
				if err := confirm(c, fmt.Sprintf("Remove user %s?", u.Name)); err != nil {
					return err
				}
			}
			u, err = api.Do[appliance.UserRef, appliance.User](c.Context, s.Client, "iam.users."+verb, appliance.UserRef{TenantID: s.tenant, UserID: u.ID})
			if err != nil {
				return err
			}
			if verb == "delete" {
				return did(s.printer, u, u.ID, "User %s is removed.", u.Name)
			}
			return s.showLink(u)
		},
	}
	if verb == "delete" {
		cmd.Flags = []cli.Flag{yesFlag()}
	}
	return cmd
}

func theUser(c *cli.Context) (*session, appliance.User, error) {
	want, err := oneName(c, "a user, by id or name")
	if err != nil {
		return nil, appliance.User{}, err
	}
	s, err := open(c)
	if err != nil {
		return nil, appliance.User{}, err
	}
	if appliance.IsID(appliance.UserPrefix, want) {
		u, err := api.Do[appliance.UserRef, appliance.User](c.Context, s.Client, "iam.users.get", appliance.UserRef{TenantID: s.tenant, UserID: want})
		return s, u, err
	}
	users, err := list[appliance.User](c.Context, s.Client, "iam.users.list", s.inTenant)
	if err != nil {
		return s, appliance.User{}, err
	}
	u, err := named(s, "user", "users", want, users, func(u appliance.User) string { return u.Name }, func(u appliance.User) string { return u.ID })
	return s, u, err
}

func userColumns(s *session) []field[appliance.User] {
	return []field[appliance.User]{
		{column{head: "NAME"}, func(u appliance.User) string { return u.Name }},
		{column{head: "ID", drop: 9}, func(u appliance.User) string { return u.ID }},
		{column{head: "ROLE"}, func(u appliance.User) string { return string(u.Role) }},
		{column{head: "STATE", state: true}, userState},
		{column{head: "SIGNS IN BY", drop: 2}, signsInBy},
		{column{head: "LAST", drop: 1}, func(u appliance.User) string {
			if u.LastLoginAt == nil {
				return "never"
			}
			return s.ago(*u.LastLoginAt)
		}},
	}
}

func userState(u appliance.User) string {
	if u.DisabledAt != nil {
		return "disabled"
	}
	return "active"
}

func signsInBy(u appliance.User) string {
	if u.HasPassword {
		return "password"
	}
	return "link"
}

func userSheet(s *sheet, u appliance.User) {
	s.fact("User", u.Name)
	s.fact("Id", u.ID)
	s.fact("Tenant", u.TenantID)
	s.fact("Role", string(u.Role))
	s.state("State", userState(u))
	s.fact("Signs in by", signsInBy(u))
	s.fact("Made", s.p.exact(&u.CreatedAt))
	s.fact("Last login", s.p.exact(u.LastLoginAt))
	s.fact("Disabled", s.p.exact(u.DisabledAt))
}

func createUser(c *cli.Context) error {
	if err := required(c, "role"); err != nil {
		return err
	}
	name, err := oneName(c, "the new user's name")
	if err != nil {
		return err
	}
	in := appliance.CreateUser{Name: name, Role: appliance.Role(c.String("role"))}
	if c.Bool("password") {
		if in.Password, err = readPassword(); err != nil {
			return err
		}
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	in.TenantID = s.tenant
	u, err := api.Do[appliance.CreateUser, appliance.User](c.Context, s.Client, "iam.users.create", in)
	if err != nil {
		return err
	}
	if u.LoginLink == nil {
		return did(s.printer, u, u.ID, "User %s is made (%s).", u.Name, u.ID)
	}
	return s.showLink(u)
}

// showLink writes the link alone to stdout: it is there to be passed on.
func (s *session) showLink(u appliance.User) error {
	if u.LoginLink == nil {
		return did(s.printer, u, u.ID, "User %s has no link.", u.Name)
	}
	if s.tabular() {
		s.note("User %s (%s) signs in with this link, once, %s:", u.Name, u.ID, s.until(&u.LoginLink.ExpiresAt))
	}
	link := u.LoginLink.URL
	if link == "" {
		link = u.LoginLink.Token
	}
	return did(s.printer, u, u.ID, "%s", link)
}

// readPassword asks twice on a terminal, without showing what is typed; else it
// takes the first line of standard input.
func readPassword() (string, error) {
	if !isTerminal(os.Stdin) {
		return firstLine(os.Stdin)
	}
	var typed [2]string
	for i, prompt := range []string{"Password: ", "Again: "} {
		var err error
		if typed[i], err = readSecret(prompt); err != nil {
			return "", err
		}
	}
	if typed[0] != typed[1] {
		return "", usagef("the two differ")
	}
	return typed[0], nil
}

// firstLine reads one line and passes over what follows.
func firstLine(r io.Reader) (string, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func updateUser(c *cli.Context) error {
	if c.Bool("disable") && c.Bool("enable") {
		return usagef("--disable and --enable exclude each other")
	}
	if c.String("role") == "" && !c.Bool("disable") && !c.Bool("enable") {
		return usagef("nothing to change: give --role, --disable or --enable")
	}
	s, u, err := theUser(c)
	if err != nil {
		return err
	}
	in := appliance.UpdateUser{TenantID: s.tenant, UserID: u.ID, Role: appliance.Role(c.String("role"))}
	if c.Bool("disable") || c.Bool("enable") {
		disabled := c.Bool("disable")
		in.Disabled = &disabled
	}
	u, err = api.Do[appliance.UpdateUser, appliance.User](c.Context, s.Client, "iam.users.update", in)
	if err != nil {
		return err
	}
	return did(s.printer, u, u.ID, "User %s is %s, with role %s.", u.Name, userState(u), u.Role)
}
