package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
)

func apiCommand() *cli.Command {
	return &cli.Command{
		Name: "api", Usage: "call a method of the HTTP interface as it is: JSON in, JSON out", ArgsUsage: "METHOD [JSON]", Category: "other",
		Description: "The input is the second argument, or standard input with -f -. A refusal is written to stderr as the\n" +
			"error body, with exit code 1.\n\n" +
			"Examples:\n   bc api pools.list '{\"tenantId\":\"local\"}'\n   echo '{\"tenantId\":\"local\"}' | bc api pools.list -f -",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "read the input from `FILE`, - for standard input"},
		},
		Action: rawCall,
	}
}

func rawCall(c *cli.Context) error {
	if c.NArg() < 1 || c.NArg() > 2 || c.NArg() == 2 && c.IsSet("file") {
		return usagef("bc api takes a method and its input, as an argument or with -f; see bc api --help")
	}
	body, err := rawInput(c)
	if err != nil {
		return err
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	answer, err := s.Raw(c.Context, c.Args().First(), body)
	var refusal *appliance.Error
	if errors.As(err, &refusal) {
		fmt.Fprintln(os.Stderr, string(answer))
		return silent{exitFailed}
	}
	if err != nil {
		return err
	}
	fmt.Println(string(answer))
	return nil
}

func rawInput(c *cli.Context) ([]byte, error) {
	switch name := c.String("file"); {
	case c.NArg() == 2:
		return []byte(c.Args().Get(1)), nil
	case name == "-":
		return io.ReadAll(os.Stdin)
	case name != "":
		return os.ReadFile(name)
	}
	return []byte("{}"), nil
}
