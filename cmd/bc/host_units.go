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
			Description: "Examples:\n   bc host history\n   bc host history --unit cpu -o json",
			Flags:       []cli.Flag{stateDirFlag(), &cli.StringFlag{Name: "unit", Usage: "changes of one `UNIT`"}},
			Action:      hostHistory,
		},
		{
			Name: "restore", Usage: "put back what the agent has changed on this machine", ArgsUsage: "[UNIT]",
			Description: "Works without a server. What others have changed since is left alone. An agent that still runs with\n" +
				"--manage-host applies its units again; stop it first.\n\n" +
				"Examples:\n   bc host restore cpu\n   bc host restore --all --yes",
			Flags:  append(hostFlags(), stateDirFlag(), yesFlag(), &cli.BoolFlag{Name: "all", Usage: "every unit"}),
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

func offlinePrinter(c *cli.Context) (*printer, error) {
	set, err := readSettings(c)
	if err != nil {
		return nil, usage{err}
	}
	return newPrinter(set.Output)
}

func hostUnits(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	p, err := offlinePrinter(c)
	if err != nil {
		return err
	}
	l, err := openHostLedger(c)
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
			r.Status.Kind = kind
			list = append(list, hostUnit{Unit: name, Wanted: len(d.Units.Wanted()) > 0, Status: r.Status})
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

// openHostLedger opens the ledger, which is root's alone on an installed agent.
func openHostLedger(c *cli.Context) (*host.Ledger, error) {
	l := host.OpenLedger(c.String("state-dir"))
	if _, err := os.ReadDir(l.Dir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("what the agent knows of this machine cannot be read; try as root: %w", err)
	}
	return l, nil
}

// unitPlan is the plan of one unit, as programs read it.
type unitPlan struct {
	Unit   string         `json:"unit"`
	State  wire.UnitState `json:"state"`
	Wanted string         `json:"wanted,omitempty"`
	Got    string         `json:"got,omitempty"`
	Reason string         `json:"reason,omitempty"`
	Steps  []planStep     `json:"steps"`
}

type planStep struct {
	Change string `json:"change"`
	Needs  string `json:"needs,omitempty"`
	Undo   string `json:"undo,omitempty"`
	Later  bool   `json:"later,omitempty"` // it waits for what it needs
}

func hostPlan(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	p, err := offlinePrinter(c)
	if err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	if _, err := openHostLedger(c); err != nil {
		return err
	}
	spec, err := plannedSpec(c, r)
	if err != nil {
		return err
	}
	plans := []unitPlan{}
	var text strings.Builder
	for _, kind := range spec.Units.Wanted() {
		up, err := r.Preview(kind, unit.Desired{Generation: spec.Generation, Units: spec.Units})
		if err != nil {
			return err
		}
		plans = append(plans, planData(kind, up))
		text.WriteString(planText(kind, up))
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

func planData(kind wire.UnitKind, up unit.Plan) unitPlan {
	out := unitPlan{Unit: string(kind), State: up.State, Wanted: up.Wanted, Got: up.Got, Reason: up.Reason, Steps: []planStep{}}
	for i, s := range slices.Concat(up.Steps, up.Later) {
		out.Steps = append(out.Steps, planStep{Change: s.Change.String(), Needs: string(s.Needs), Undo: s.Undo, Later: i >= len(up.Steps)})
	}
	return out
}

func planText(kind wire.UnitKind, up unit.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: wanted %s", string(kind), up.Wanted)
	if up.Got != "" {
		fmt.Fprintf(&b, "; now %s", up.Got)
	}
	b.WriteString("\n")
	if lines := up.Lines(); lines != "" {
		for line := range strings.Lines(lines) {
			b.WriteString("  " + line)
		}
	} else {
		fmt.Fprintf(&b, "  nothing to do: %s\n", up.State)
	}
	if up.Reason != "" {
		fmt.Fprintf(&b, "  %s\n", up.Reason)
	}
	return b.String()
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
	if err := noArguments(c); err != nil {
		return err
	}
	p, err := offlinePrinter(c)
	if err != nil {
		return err
	}
	l, err := openHostLedger(c)
	if err != nil {
		return err
	}
	events, err := l.History()
	if err != nil {
		return err
	}
	if name := c.String("unit"); name != "" {
		kind, ok := unit.KindOf(name)
		if !ok {
			return usagef("there is no unit %q, only %s", name, either(unitNames()))
		}
		events = slices.DeleteFunc(events, func(e host.Event) bool { return e.Unit != string(kind) })
	}
	return items(p, events, func(e host.Event) string { return e.Change }, "The agent has changed nothing on this machine.", func(list []host.Event) *table {
		return newTable(list,
			field[host.Event]{column{head: "WHEN"}, func(e host.Event) string { return e.At.Local().Format(time.DateTime) }},
			field[host.Event]{column{head: "UNIT"}, func(e host.Event) string { return e.Unit }},
			field[host.Event]{column{head: "CHANGE", flex: true}, func(e host.Event) string { return e.Change }},
			field[host.Event]{column{head: "WAS", flex: true}, func(e host.Event) string { return oneLine(e.Old) }},
			field[host.Event]{column{head: "FAILED", flex: true}, func(e host.Event) string { return oneLine(e.Error) }},
		)
	})
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func hostRestore(c *cli.Context) error {
	kinds := slices.Clone(wire.UnitKinds)
	slices.Reverse(kinds) // what came last goes first
	what := "all that the agent has changed"
	if !c.Bool("all") {
		if c.NArg() == 0 {
			return usagef("%s needs a unit, or --all; see %s --help", c.Command.HelpName, c.Command.HelpName)
		}
		kind, err := theUnit(c)
		if err != nil {
			return err
		}
		kinds, what = []wire.UnitKind{kind}, "what the unit "+string(kind)+" has changed"
	} else if err := noArguments(c); err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	if err := confirm(c, "Put back "+what+" on this machine?"); err != nil {
		return err
	}
	failed := false
	for _, kind := range kinds {
		status, touched, err := r.Remove(c.Context, kind)
		switch {
		case err != nil:
			return err
		case !touched:
		case status.State == wire.Failed || status.State == wire.Conflict:
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %s\n", string(kind), status.Reason)
		case status.Reason != "":
			fmt.Printf("%s: %s\n", string(kind), status.Reason)
		default:
			fmt.Printf("%s: put back\n", string(kind))
		}
	}
	if failed {
		return silent{exitFailed}
	}
	return nil
}
