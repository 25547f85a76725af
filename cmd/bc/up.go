package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/appliance"
)

const demoMachine = "dgx-h100"

func upCommand() *cli.Command {
	return &cli.Command{
		Name: "up", Usage: "run control plane and agent together on this machine, and show how to go on", Category: "run",
		Description: "Finds this machine, makes the first pool if it has GPUs, and prints what to try. It changes\n" +
			"nothing on the machine unless --manage-host is given. With --demo it runs on a recorded 8-GPU machine\n" +
			"instead, marked as simulated wherever it shows.\n\n" +
			"Examples:\n   bc up\n   bc up --demo --state-dir /tmp/bc-demo",
		Flags: append(append(serverFlags(), hostFlags()...),
			&cli.BoolFlag{Name: "demo", Usage: "use a recorded machine (" + demoMachine + ") in place of this one"},
			&cli.BoolFlag{Name: "manage-host", Usage: "allow changes to the machine's configuration"},
		),
		Action: up,
	}
}

func up(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	cfg, err := serverConfig(c)
	if err != nil {
		return err
	}
	if c.Bool("demo") && !c.IsSet("state-dir") { // a demo and the real thing never share a state
		cfg.stateDir += "-demo"
		cfg.Server.Socket, cfg.Store.Path = filepath.Join(cfg.stateDir, "api.sock"), filepath.Join(cfg.stateDir, "state.db")
	}
	a, err := upAgent(c, cfg)
	if err != nil {
		return err
	}
	s, err := openServer(c.Context, cfg)
	if err != nil {
		return err
	}
	a.Log = s.log
	run, ctx := errgroup.WithContext(c.Context)
	run.Go(func() error { return s.run(ctx) })
	run.Go(func() error { return agentBeside(ctx, a) })
	run.Go(func() error { welcome(ctx, os.Stdout, s, c.Bool("demo")); return nil })
	return run.Wait()
}

// upAgent is the agent that looks at this machine, or at the recorded one.
func upAgent(c *cli.Context, cfg config) (*agent.Agent, error) {
	a := &agent.Agent{
		Server: "unix:" + cfg.Server.Socket, StateDir: filepath.Join(cfg.stateDir, "agent"), Local: true,
		ManageHost: c.Bool("manage-host"), Log: slog.New(slog.DiscardHandler),
	}
	var err error
	if !c.Bool("demo") {
		a.Root, a.GPUs, err = openHost(c)
		if c.String("host-root") != "/" {
			a.Recorded = filepath.Base(c.String("host-root"))
		}
		return a, err
	}
	if c.Bool("manage-host") || c.IsSet("host-root") || c.IsSet("nvml-library") {
		return nil, usagef("--demo runs on a recorded machine: it goes with none of --manage-host, --host-root and --nvml-library")
	}
	a.Root, a.GPUs, err = recordedMachine(demoMachine)
	a.Recorded = demoMachine
	return a, err
}

// welcome waits until the machine has joined, or has been told why not, and
// prints how to go on.
func welcome(ctx context.Context, w io.Writer, s *server, demo bool) {
	who := appliance.Operator("up", "up")
	home, _, err := s.control.Home(ctx)
	if err != nil {
		return
	}
	fmt.Fprintf(w, "Better Compute %s\n", version)
	for _, l := range s.listeners {
		fmt.Fprintln(w, "listening on", l)
	}
	if demo {
		fmt.Fprintln(w, "DEMO: the machine is a recording; bookings are real, GPUs are not")
	}
	for {
		changed := s.control.Changed()
		nodes, err := s.control.ListNodes(ctx, who, appliance.ListNodes{TenantID: home})
		if err != nil {
			return
		}
		for _, n := range nodes.Items {
			if n.State != appliance.NodeAdopting {
				printNext(w, s, home, n)
				return
			}
		}
		told := s.control.Unjoined()
		if told != "" {
			printUnjoined(w, s, home, told)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.control.UnjoinedChanged():
		case <-time.After(10 * time.Second):
		}
	}
}

// command is how a person calls this program: as they did.
func command() string {
	exe := os.Args[0]
	if !strings.Contains(exe, "/") || installed() {
		return "bc"
	}
	return exe
}

func printNext(w io.Writer, s *server, home string, n appliance.Node) {
	bc := command()
	pool := n.PoolID
	if p, err := s.control.GetPool(context.Background(), appliance.Operator("up", "up"), appliance.PoolRef{TenantID: home, PoolID: pool}); err == nil && p.Name != "" {
		pool = p.Name
	}
	fmt.Fprintf(w, "\nThis machine (%s) is %s in pool %s with %d GPUs.\n", n.Hostname, n.State, pool, len(n.Devices))
	for _, c := range n.Conditions {
		if !c.Status && c.Message != "" && c.Type != appliance.ConditionRebootRequired {
			fmt.Fprintf(w, "  %s: %s\n", c.Type, c.Message)
		}
	}
	fmt.Fprintf(w, "\nGo on in another shell:\n\n  export BC_SERVER=unix:%s BC_TENANT=%s\n", s.cfg.Server.Socket, home)
	fmt.Fprintf(w, "  %s status\n  %s pools list\n  %s nodes list\n  %s reservations create --pool %s --gpus 2 --for 8h --wait\n\n", bc, bc, bc, bc, pool)
}

func printUnjoined(w io.Writer, s *server, home, why string) {
	fmt.Fprintf(w, "\nThis machine is in no pool: %s\n", why)
	fmt.Fprintf(w, "\nThe control plane runs. Go on in another shell:\n\n  export BC_SERVER=unix:%s BC_TENANT=%s\n  %s status\n\n", s.cfg.Server.Socket, home, command())
}
