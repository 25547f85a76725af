package main

import (
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func loginCommand() *cli.Command {
	return &cli.Command{
		Name: "login", Usage: "sign in as a person, by a password or a one-time link", ArgsUsage: "[NAME]", Category: "other",
		Description: "Prints the line that makes the session's token known to this shell. It is good for 12 hours.\n\n" +
			"Examples:\n   eval \"$(bc login ada@acme.example --tenant acme)\"\n   eval \"$(bc login --link)\"",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "link", Usage: "ask for the token of a one-time link (bcl_…) in place of a password"}},
		Action: login,
	}
}

func login(c *cli.Context) error {
	in := appliance.Login{}
	if c.Bool("link") {
		if err := noArguments(c); err != nil {
			return err
		}
		token, err := readSecret("Token of the link: ")
		if err != nil {
			return err
		}
		in.Token = token
	} else {
		name, err := oneName(c, "the name to sign in with")
		if err != nil {
			return err
		}
		if err := required(c, "tenant"); err != nil {
			return err
		}
		in.TenantID, in.Name = c.String("tenant"), name
		if in.Password, err = readSecret("Password: "); err != nil {
			return err
		}
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	out, err := api.Do[appliance.Login, appliance.Session](c.Context, s.Client, "iam.login", in)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "Signed in as %s of tenant %s until %s.\n", out.User.Name, out.User.TenantID, out.ExpiresAt.Format("2006-01-02 15:04 MST"))
	fmt.Printf("export BC_TOKEN=%s BC_TENANT=%s\n", out.Token, out.User.TenantID)
	return nil
}

// readSecret asks once on a terminal, without showing what is typed; else it
// takes the first line of standard input.
func readSecret(prompt string) (string, error) {
	if !isTerminal(os.Stdin) {
		return firstLine(os.Stdin)
	}
	fmt.Fprint(os.Stderr, prompt)
	b, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(os.Stderr)
	return string(b), err
}
