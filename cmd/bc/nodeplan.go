package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func nodePlanCommand() *cli.Command {
	return &cli.Command{
		Name: "plan", Usage: "show what a policy would still change on a node; changes nothing", ArgsUsage: "NODE", BashComplete: completeNodes,
		Description: "The node's agent compares the machine with its pool's policy, or with the one that is given, and\n" +
			"changes nothing. With --set and --unset the pool's policy is the start. -o wide shows how each\n" +
			"change is undone.\n\n" +
			"Examples:\n   bc nodes plan gpu-01\n   bc nodes plan gpu-01 --policy policy.toml\n   bc nodes plan gpu-01 --set cpu.isolate=2-15 -o json",
		Flags:  policyFlags(),
		Action: planNode,
	}
}

func planNode(c *cli.Context) error {
	s, n, err := theNode(c)
	if err != nil {
		return err
	}
	var now appliance.RawPolicy
	if c.IsSet("set") || c.IsSet("unset") {
		p, err := s.findPool(c.Context, n.PoolID)
		if err != nil {
			return err
		}
		now = p.Policy
	}
	next, err := changedPolicy(c, now)
	if err != nil {
		return err
	}
	in := appliance.PlanNode{TenantID: s.tenant, NodeID: n.ID}
	if next != nil {
		in.Policy = &next
	}
	plan, err := api.Do[appliance.PlanNode, appliance.NodePlan](c.Context, s.Client, "nodes.plan", in)
	if err != nil {
		return err
	}
	if !s.tabular() {
		return item(s.printer, plan, plan.NodeID, nil)
	}
	if plan.Note != "" {
		s.note("%s: %s.", plan.Hostname, printable(plan.Note))
	}
	if !plan.Simulated && settled(plan.Units) {
		s.note("No changes.")
		return nil
	}
	for _, u := range plan.Units {
		fmt.Fprint(s.out, planText(u, s.format == formatWide))
	}
	for _, line := range planNeeds(plan) {
		fmt.Fprintln(s.out, line)
	}
	return nil
}

// settled tells whether there is nothing to do, and nothing that cannot be done.
func settled(units []wire.UnitPlan) bool {
	return !slices.ContainsFunc(units, func(u wire.UnitPlan) bool {
		return len(u.Steps) > 0 || u.State != wire.InSync && u.State != wire.NotApplicable
	})
}

// planText is the plan of one unit for people.
func planText(u wire.UnitPlan, undo bool) string {
	var b strings.Builder
	line := func(indent, text string) { b.WriteString(indent + printable(text) + "\n") }
	head := string(u.Kind) + ": wanted " + u.Wanted
	if u.Gone {
		head = string(u.Kind) + ": no longer wanted"
	} else if u.Wanted == "" {
		head = string(u.Kind) + ":"
	}
	if u.Got != "" {
		head += "; now " + u.Got
	}
	line("", head)
	for _, s := range u.Steps {
		for text := range strings.Lines(stepText(s)) {
			line("  ", strings.TrimSuffix(text, "\n"))
		}
		if undo && s.Undo != "" {
			line("    ", "undone by: "+s.Undo)
		}
	}
	if len(u.Steps) == 0 {
		nothing := "nothing to do: "
		if u.State == wire.Failed || u.State == wire.Conflict {
			nothing = "nothing can be done: "
		}
		line("  ", nothing+string(u.State))
	}
	if u.Reason != "" {
		line("  ", u.Reason)
	}
	return b.String()
}

// stepText is a step for people, of one line or more.
func stepText(s wire.PlanStep) string {
	first, rest, more := strings.Cut(s.Change, "\n")
	if s.Needs != "" {
		first = strings.TrimSuffix(first, ":") + " (needs " + s.Needs + ")"
		if more {
			first += ":"
		}
	}
	if s.Later {
		first = "later: " + first
	}
	if more {
		first += "\n" + rest
	}
	return first
}

// planNeeds sums up what a plan waits for, and who is on the node.
func planNeeds(plan appliance.NodePlan) []string {
	needs := map[string][]string{}
	steps := 0
	for _, u := range plan.Units {
		steps += len(u.Steps)
		for _, s := range u.Steps {
			if s.Needs != "" && !slices.Contains(needs[s.Needs], string(u.Kind)) {
				needs[s.Needs] = append(needs[s.Needs], string(u.Kind))
			}
		}
		if u.State == wire.PendingReboot && !slices.Contains(needs["reboot"], string(u.Kind)) {
			needs["reboot"] = append(needs["reboot"], string(u.Kind))
		}
	}
	out := []string{"No changes."}
	if steps > 0 {
		out[0] = count(steps, "change") + "."
	}
	if units := needs["idle GPU"]; len(units) > 0 {
		out = append(out, "Waits for idle GPUs: "+strings.Join(units, ", ")+".")
	}
	if units := needs["reboot"]; len(units) > 0 {
		out = append(out, fmt.Sprintf("In effect after a reboot: %s. bc nodes reboot %s drains the node first.", strings.Join(units, ", "), plan.Hostname))
	}
	if len(plan.Reservations) > 0 {
		out = append(out, fmt.Sprintf("On the node now: %s.", bookingText(plan.Reservations)))
	}
	return out
}

// bookingText lists reservations on a node.
func bookingText(list []appliance.NodeBooking) string {
	var parts []string
	for _, b := range list {
		parts = append(parts, fmt.Sprintf("%s of %s", b.ReservationID, b.TenantID))
	}
	return strings.Join(parts, ", ")
}
