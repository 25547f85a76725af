package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// unitCommand is what the static systemd units run.
func unitCommand() *cli.Command {
	return &cli.Command{
		Name: "unit", Usage: "apply one config unit to this machine", Hidden: true,
		Subcommands: []*cli.Command{{
			Name: "apply", Usage: "bring a unit as far as it can come, from what the agent last wanted of it", ArgsUsage: "UNIT",
			Description: "The systemd units bc-UNIT.service run it, at boot and when the agent asks. It fails if the unit\n" +
				"is in conflict or failed; systemctl status shows why.\n\nExamples:\n   bcd unit apply hugepages",
			Flags:  append(hostFlags(), stateDirFlag()),
			Action: unitApply,
		}, {
			Name: "disarm", Usage: "have the next boot try no kernel arguments",
			Description: "For the removal of the package: nobody would be there to confirm them. What was confirmed stays.\n\nExamples:\n   bcd unit disarm",
			Flags:       append(hostFlags(), stateDirFlag()),
			Action:      unitDisarm,
		}},
	}
}

func stateDirFlag() cli.Flag {
	return &cli.StringFlag{Name: "state-dir", Usage: "`DIR` where the agent keeps what it knows", Value: agentStateDir, EnvVars: []string{"BCD_STATE_DIR"}}
}

// hostRunner applies units to this machine, or to the one below --host-root.
func hostRunner(c *cli.Context) (*unit.Runner, error) {
	root, gpus, err := openHost(c)
	if err != nil {
		return nil, err
	}
	r := &unit.Runner{
		Machine: host.NewMachine(root), Ledger: host.OpenLedger(c.String("state-dir")), Manage: true,
		Now: time.Now, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	r.GPUs, _ = gpus.(*gpu.Library)
	return r, nil
}

func theUnit(c *cli.Context) (wire.UnitKind, error) {
	name, err := oneName(c, "a unit, such as hugepages")
	if err != nil {
		return "", err
	}
	kind, ok := unit.KindOf(name)
	if !ok {
		return "", usagef("there is no unit %q, only %s", name, either(unitNames()))
	}
	return kind, nil
}

func unitNames() []string {
	var names []string
	for _, kind := range wire.UnitKinds {
		names = append(names, string(kind))
	}
	return names
}

func unitDisarm(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	tried, err := r.Disarm(c.Context)
	for _, kind := range tried {
		fmt.Printf("%s: its kernel arguments are not tried by the next boot\n", string(kind))
	}
	return err
}

func unitApply(c *cli.Context) error {
	kind, err := theUnit(c)
	if err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	status, any, err := r.Apply(c.Context, kind)
	switch {
	case err != nil:
		return err
	case !any:
		fmt.Printf("%s: nothing is wanted\n", string(kind))
		return nil
	case status.State == "":
		fmt.Printf("%s: removed\n", string(kind))
		return nil
	}
	line := fmt.Sprintf("%s: %s", string(kind), status.State)
	for _, part := range []struct{ label, text string }{{"wanted", status.Wanted}, {"got", status.Got}, {"why", status.Reason}} {
		if part.text != "" {
			line += "; " + part.label + ": " + part.text
		}
	}
	if status.State == wire.Failed || status.State == wire.Conflict {
		return fmt.Errorf("%s", line)
	}
	fmt.Println(line)
	return nil
}
