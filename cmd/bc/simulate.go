package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/testdata/hosts"
)

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name: "simulate", Usage: "run many agents over a recorded machine, for demonstrations and load tests", Category: "run",
		Description: "Each is an agent of the real kind: it joins, reports, takes up what is wanted and confirms bookings.\n" +
			"Its node is marked as simulated wherever it shows. They run until the command is stopped.\n\n" +
			"Recorded machines: " + strings.Join(hosts.Names(), ", ") + "\n\n" +
			"Examples:\n   bc simulate --pool POOL --nodes 100\n   bc simulate --pool POOL --nodes 4 --machine l40s-4",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pool", Usage: "`POOL` to join, by id or name"},
			&cli.IntFlag{Name: "nodes", Usage: "how many `NODES`, 1 to 20000", Value: 1},
			&cli.StringFlag{Name: "machine", Usage: "recorded `MACHINE`", Value: demoMachine},
			&cli.StringFlag{Name: "group", Usage: "`NAME` that sets these nodes apart from another simulation's; the same name is the same nodes again"},
		},
		Action: simulate,
	}
}

func simulate(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if n := c.Int("nodes"); n < 1 || n > 20000 {
		return usagef("--nodes: %d is not 1 to 20000", n)
	}
	text, err := hosts.Read(c.String("machine"))
	if err != nil {
		return usagef("--machine: %w", err)
	}
	machine, err := inventory.Recorded(c.String("machine"), text)
	if err != nil {
		return err
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	pool, err := s.pool(c, "pool")
	if err != nil {
		return err
	}
	group := c.String("group")
	if group == "" {
		group = pool.ID + "/" + c.String("machine")
	}
	f := &agent.Fleet{
		Server: s.Server(), PoolID: pool.ID, Nodes: c.Int("nodes"), Machine: machine, Group: group,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	fmt.Printf("simulating %d × %s in pool %s; stop with Ctrl-C\n", f.Nodes, c.String("machine"), pool.ID)
	return f.Run(c.Context)
}
