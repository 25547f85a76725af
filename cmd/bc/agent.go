package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/testdata/hosts"
)

// agentStateDir is where an installed agent keeps its ledger.
const agentStateDir = "/var/lib/better-compute/agent"

func agentRunCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run the node agent on this machine",
		Description: "Finds what this machine is, keeps it joined to its control plane, and holds it to its pool's\n" +
			"policy. It reconnects for ever. Without --manage-host it changes nothing on the machine.\n\n" +
			"Examples:\n   bcd run --server unix:/run/better-compute/api.sock --state-dir /var/lib/better-compute/agent\n" +
			"   bcd run --server unix:/tmp/bc/api.sock --state-dir /tmp/bcd --host-root TREE --nvml-library FILE",
		Flags: append(hostFlags(),
			&cli.StringFlag{Name: "server", Usage: "`ADDRESS` of the control plane (default: the one joined before, else unix:" + runtimeSocket + ")", EnvVars: []string{"BC_SERVER"}},
			&cli.StringFlag{Name: "state-dir", Usage: "`DIR` for what the agent keeps", Value: agentStateDir, EnvVars: []string{"BCD_STATE_DIR"}},
			&cli.StringFlag{Name: "pool", Usage: "`ID` of the pool to join (default: the one that fits)"},
			&cli.BoolFlag{Name: "local", Usage: "this is the machine that the control plane runs on (default: when the server is a Unix socket and no other root is given)"},
			&cli.BoolFlag{Name: "manage-host", Usage: "allow changes to the machine's configuration"},
		),
		Action: runAgent,
	}
}

// hostFlags say which machine to look at.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "host-root", Usage: "read the machine below `DIR`, such as an unpacked recorded machine", Value: "/"},
		&cli.StringFlag{Name: "nvml-library", Usage: "load `FILE` as the NVML library"},
	}
}

func runAgent(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	root, gpus, err := openHost(c)
	if err != nil {
		return err
	}
	server := c.String("server")
	real := c.String("host-root") == "/"
	a := &agent.Agent{
		Server: server, StateDir: c.String("state-dir"), PoolID: c.String("pool"), Local: c.Bool("local") || real && isUnix(server),
		Root: root, GPUs: gpus, ManageHost: c.Bool("manage-host"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Notify: host.Notify,
	}
	if !real {
		a.Recorded = filepath.Base(c.String("host-root"))
	}
	return a.Run(c.Context)
}

func openHost(c *cli.Context) (*host.Root, agent.GPUs, error) {
	root, err := host.OpenRoot(c.String("host-root"))
	if err != nil {
		return nil, nil, err
	}
	gpus, err := agent.FindGPUs(root, c.String("nvml-library"))
	return root, gpus, err
}

// recordedMachine gives a recorded machine by name, as a root to read below.
func recordedMachine(name string) (*host.Root, agent.GPUs, error) {
	text, err := hosts.Read(name)
	if err != nil {
		return nil, nil, usagef("%w", err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		return nil, nil, fmt.Errorf("recorded machine %s: %w", name, err)
	}
	root := archive.Root()
	gpus, err := agent.FindGPUs(root, "")
	return root, gpus, err
}

// agentBeside runs the agent in the process of the control plane.
func agentBeside(ctx context.Context, a *agent.Agent) error {
	err := a.Run(ctx)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
