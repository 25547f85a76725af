package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

// plannedFleet reads the files and the state and compares them.
func plannedFleet(c *cli.Context) (*session, fleetState, []step, error) {
	if err := noArguments(c); err != nil {
		return nil, fleetState{}, nil, err
	}
	want, err := readFleetFiles(c.StringSlice("file"))
	if err != nil {
		return nil, fleetState{}, nil, err
	}
	s, err := open(c)
	if err != nil {
		return nil, fleetState{}, nil, err
	}
	have, err := s.readFleet(c)
	if err != nil {
		return nil, fleetState{}, nil, err
	}
	p := planner{want: want, have: have, prune: c.Bool("prune")}
	if s.local {
		p.caller = string(appliance.CallerOperator)
	}
	steps, err := p.plan()
	if err != nil {
		return s, have, nil, appliance.Refuse(appliance.InvalidState, "", "%s", strings.ReplaceAll(err.Error(), "\n", "\nbc: "))
	}
	return s, have, steps, nil
}

func planFleetFiles(c *cli.Context) error {
	s, _, steps, err := plannedFleet(c)
	if err != nil {
		return err
	}
	return s.writePlan(steps)
}

func (s *session) writePlan(steps []step) error {
	return items(s.printer, steps, func(x step) string { return x.Kind + " " + x.Name }, "No changes.", func(steps []step) *table {
		for _, line := range s.planLines(steps) {
			fmt.Fprintln(s.out, line)
		}
		return &table{}
	})
}

// planLines writes a plan for people.
func (s *session) planLines(steps []step) []string {
	signs := map[string]string{"create": "+", "update": "~", "withdraw": "-", "archive": "-"}
	colours := map[string]string{"+": green, "~": yellow, "-": red}
	counts := map[string]int{}
	var out []string
	for _, x := range steps {
		sign := signs[x.Action]
		counts[sign]++
		line := fmt.Sprintf("%s %s %s", sign, x.Kind, x.Name)
		if x.Action == "archive" {
			line += ": archive it"
		}
		if x.ID != "" && x.ID != x.Name {
			line += " (" + x.ID + ")"
		}
		out = append(out, s.paint(colours[sign], printable(line)))
		for _, ch := range x.Changes {
			out = append(out, "  "+changeLine(s.printer, ch))
		}
	}
	return append(out, fmt.Sprintf("%d to make, %d to change, %d to end.", counts["+"], counts["~"], counts["-"]))
}

func applyFleetFiles(c *cli.Context) error {
	s, have, steps, err := plannedFleet(c)
	if err != nil {
		return err
	}
	if len(steps) == 0 {
		return s.writePlan(steps)
	}
	if s.tabular() {
		for _, line := range s.planLines(steps) {
			s.note("%s", line)
		}
	}
	if err := confirm(c, "Apply this?"); err != nil {
		return err
	}
	ids := fleetIDs{sites: map[ref]string{}, pools: map[ref]string{}}
	for at, x := range have.sites {
		ids.sites[at] = x.ID
	}
	for i := range steps {
		if err := s.do(c.Context, &steps[i], ids); err != nil {
			return fmt.Errorf("%s %s %s: %w (%d of %d steps are done; apply again goes on from here)", steps[i].Action, steps[i].Kind, steps[i].Name, err, i, len(steps))
		}
		if s.tabular() {
			s.note("done  %s %s %s", steps[i].Action, steps[i].Kind, steps[i].Name)
		}
	}
	if s.tabular() {
		fmt.Fprintf(s.out, "Applied: %s.\n", count(len(steps), "step"))
		return nil
	}
	return s.writePlan(steps)
}

// fleetIDs are the ids of what has been made on the way.
type fleetIDs struct{ sites, pools map[ref]string }

// do takes one step.
func (s *session) do(ctx context.Context, x *step, ids fleetIDs) error {
	poolID := func(known string) string {
		if known == "" {
			return ids.pools[x.pool]
		}
		return known
	}
	var err error
	switch in := x.in.(type) {
	case appliance.CreateTenant:
		err = s.Call(ctx, "tenants.create", in, nil)
	case appliance.CreateSite:
		var made appliance.Site
		made, err = api.Do[appliance.CreateSite, appliance.Site](ctx, s.Client, "sites.create", in)
		ids.sites[x.site], x.ID = made.ID, made.ID
	case appliance.CreatePool:
		if in.SiteID == "" {
			in.SiteID = ids.sites[x.site]
		}
		var made appliance.Pool
		made, err = api.Do[appliance.CreatePool, appliance.Pool](ctx, s.Client, "pools.create", in)
		ids.pools[x.pool], x.ID = made.ID, made.ID
	case appliance.UpdatePool:
		err = s.Call(ctx, "pools.update", in, nil)
	case appliance.UnofferPool:
		err = s.Call(ctx, "pools.unoffer", in, nil)
	case appliance.OfferPool:
		in.PoolID = poolID(in.PoolID)
		err = s.Call(ctx, "pools.offer", in, nil)
	case appliance.SetQuota:
		in.PoolID = poolID(in.PoolID)
		err = s.Call(ctx, "quotas.set", in, nil)
	case appliance.SetBudget:
		err = s.Call(ctx, "budgets.set", in, nil)
	case appliance.PoolRef:
		err = s.Call(ctx, "pools.archive", in, nil)
	default:
		err = fmt.Errorf("no verb takes %T", in)
	}
	return err
}
