package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
)

// hostUnitCommands are the verbs that look at the configuration of this machine
// and undo it, without any server.
func hostUnitCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "units", Usage: "show how far each config unit of this machine has come",
			Description: "Reads what the agent has written down; nothing is changed.\n\nExamples:\n   bc host units\n   bc host units -o json",
			Flags:       append(hostFlags(), stateDirFlag()),
			Action:      hostUnits,
		},
		{
			Name: "plan", Usage: "show what a policy would change on this machine, and change nothing",
			Description: "With --policy the file is a pool's policy (JSON or TOML), with --spec a NodeSpec or its units (JSON).\n" +
				"Without either it is what the agent last wanted: what is printed then is drift.\n\n" +
				"Examples:\n   bc host plan --policy training.toml\n   bc host plan --spec nodespec.json --host-root TREE",
			Flags: append(hostFlags(), stateDirFlag(),
				&cli.StringFlag{Name: "policy", Usage: "`FILE` with a policy, - for standard input"},
				&cli.StringFlag{Name: "spec", Usage: "`FILE` with a NodeSpec, - for standard input"}),
			Action: hostPlan,
		},
		{
			Name: "history", Usage: "list what the agent has changed on this machine, the newest last",
			Description: "Of a file that was changed, WAS is the first line; -o wide and -o json have all.\n\n" +
				"Examples:\n   bc host history\n   bc host history --unit cpu -o json",
			Flags:  []cli.Flag{stateDirFlag(), &cli.StringFlag{Name: "unit", Usage: "changes of one `UNIT`"}},
			Action: hostHistory,
		},
		{
			Name: "restore", Usage: "put back what the agent has changed on this machine", ArgsUsage: "[UNIT | walls | fence]",
			Description: "Works without a server. What others have changed since is left alone. The walls of reservations come\n" +
				"down with what runs behind them; fence is the host's own CPUs alone. An agent that still runs with\n" +
				"--manage-host does it all again; stop it first.\n\n" +
				"Examples:\n   bc host restore cpu\n   bc host restore walls\n   bc host restore --all --yes",
			Flags:  append(hostFlags(), stateDirFlag(), yesFlag(), &cli.BoolFlag{Name: "all", Usage: "the walls, the fence and every unit"}),
			Action: hostRestore,
		},
	}
}

// hostUnit is a line of bc host units.
type hostUnit struct {
	Unit   string          `json:"unit"`
	Wanted bool            `json:"wanted"` // else it is being undone
	Status wire.UnitStatus `json:"status"`
}

// openOffline is how a command without arguments starts that needs no server: with
// its printer, and the ledger, which is root's alone on an installed agent.
func openOffline(c *cli.Context) (*printer, *host.Ledger, error) {
	if err := noArguments(c); err != nil {
		return nil, nil, err
	}
	set, err := readSettings(c)
	if err != nil {
		return nil, nil, usage{err}
	}
	p, err := newPrinter(set.Output)
	if err != nil {
		return nil, nil, err
	}
	l := host.OpenLedger(c.String("state-dir"))
	if _, err := os.ReadDir(l.Dir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("what the agent knows of this machine cannot be read; try as root: %w", err)
	}
	return p, l, nil
}

func hostUnits(c *cli.Context) error {
	p, l, err := openOffline(c)
	if err != nil {
		return err
	}
	var list []hostUnit
	for _, kind := range wire.UnitKinds {
		name := string(kind)
		var d unit.Desired
		known, err := l.Load(host.Desired, name, &d)
		if err != nil {
			return err
		}
		var r unit.Result
		ended, err := l.Load(host.Results, name, &r)
		if err != nil {
			return err
		}
		if known || ended {
			wanted := len(d.Units.Wanted()) > 0
			if !wanted && r.Generation != d.Generation { // a result of when it was wanted
				r.Status = wire.UnitStatus{Reason: "taken out of the policy; the agent has not undone it yet"}
			}
			r.Status.Kind = kind
			list = append(list, hostUnit{Unit: name, Wanted: wanted, Status: r.Status})
		}
	}
	return items(p, list, func(u hostUnit) string { return u.Unit }, "The agent has changed nothing on this machine.", func(list []hostUnit) *table {
		return newTable(list,
			field[hostUnit]{column{head: "UNIT"}, func(u hostUnit) string { return u.Unit }},
			field[hostUnit]{column{head: "STATE", state: true}, func(u hostUnit) string { return string(u.Status.State) }},
			field[hostUnit]{column{head: "WANTED", drop: 2}, func(u hostUnit) string { return u.Status.Wanted }},
			field[hostUnit]{column{head: "GOT", drop: 1}, func(u hostUnit) string { return u.Status.Got }},
			field[hostUnit]{column{head: "REASON", flex: true}, func(u hostUnit) string { return u.Status.Reason }},
		)
	})
}

func hostPlan(c *cli.Context) error {
	p, _, err := openOffline(c)
	if err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	spec, err := plannedSpec(c, r)
	if err != nil {
		return err
	}
	plans := []wire.UnitPlan{}
	var text strings.Builder
	for _, kind := range spec.Units.Wanted() {
		up, err := r.Preview(kind, unit.Desired{Generation: spec.Generation, Units: spec.Units})
		if err != nil {
			return err
		}
		u := up.Wire(kind)
		plans = append(plans, u)
		text.WriteString(planText(u, p.format == formatWide))
	}
	if len(plans) == 0 {
		text.WriteString("Nothing is wanted of this machine's configuration.\n")
	}
	if !p.tabular() {
		return p.data(plans)
	}
	_, err = fmt.Fprint(p.out, text.String())
	return err
}

// plannedSpec is what --policy or --spec asks for, else what the agent last
// wanted.
func plannedSpec(c *cli.Context, r *unit.Runner) (wire.NodeSpec, error) {
	if c.IsSet("policy") && c.IsSet("spec") {
		return wire.NodeSpec{}, usagef("--policy and --spec exclude each other")
	}
	switch {
	case c.IsSet("policy"):
		raw, err := readPolicyFile(c.String("policy"))
		if err != nil {
			return wire.NodeSpec{}, err
		}
		policy, err := plan.ReadPolicy(raw)
		if err != nil {
			return wire.NodeSpec{}, err
		}
		units := plan.Units(policy, plan.PoolFacts{Class: appliance.ClassMetalHost})
		return wire.NodeSpec{Units: units}, units.Validate()
	case c.IsSet("spec"):
		data, err := readInput(c.String("spec"))
		if err != nil {
			return wire.NodeSpec{}, err
		}
		var spec wire.NodeSpec
		if err := json.Unmarshal(data, &spec); err != nil {
			return spec, usagef("%s: not a NodeSpec: %w", c.String("spec"), err)
		}
		if len(spec.Units.Wanted()) == 0 {
			if err := json.Unmarshal(data, &spec.Units); err != nil {
				return spec, usagef("%s: not the units of a NodeSpec: %w", c.String("spec"), err)
			}
		}
		return spec, spec.Units.Validate()
	}
	return r.Wanted()
}

func hostHistory(c *cli.Context) error {
	p, l, err := openOffline(c)
	if err != nil {
		return err
	}
	events, err := l.History()
	if err != nil {
		return err
	}
	if name := c.String("unit"); name != "" {
		if _, ok := unit.KindOf(name); !ok && name != restoreFence {
			return usagef("there is no unit %q, only %s", name, either(append(unitNames(), restoreFence)))
		}
		events = slices.DeleteFunc(events, func(e host.Event) bool { return e.Unit != name })
	}
	return items(p, events, func(e host.Event) string { return e.Change }, "The agent has changed nothing on this machine.", func(list []host.Event) *table {
		return newTable(list,
			field[host.Event]{column{head: "WHEN"}, func(e host.Event) string { return e.At.Local().Format(time.DateTime) }},
			field[host.Event]{column{head: "UNIT"}, func(e host.Event) string { return e.Unit }},
			field[host.Event]{column{head: "CHANGE", flex: true}, func(e host.Event) string { return e.Change }},
			field[host.Event]{column{head: "WAS", flex: true}, func(e host.Event) string { return was(e.Old, p.format == formatWide) }},
			field[host.Event]{column{head: "FAILED", flex: true}, func(e host.Event) string { return oneLine(e.Error) }},
		)
	})
}

// was is what stood where something was changed: of a file, its first line that
// says something, unless all is asked for.
func was(old string, all bool) string {
	lines := strings.Split(strings.TrimSpace(old), "\n")
	if all || len(lines) == 1 {
		return oneLine(old)
	}
	return fmt.Sprintf("%s … (%s)", oneLine(lines[0]), count(len(lines), "line"))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
