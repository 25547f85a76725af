package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// What bc host restore puts back besides units.
const (
	restoreWalls = "walls"
	restoreFence = "fence"
)

func hostRestore(c *cli.Context) error {
	kinds, walls, fence := slices.Clone(wire.UnitKinds), true, true
	slices.Reverse(kinds) // what came last goes first
	what := "all that the agent has changed"
	if !c.Bool("all") {
		if c.NArg() == 0 {
			return usagef("%s needs a unit, walls, fence or --all; see %s --help", c.Command.HelpName, c.Command.HelpName)
		}
		name, err := oneName(c, "a unit, walls or fence")
		if err != nil {
			return err
		}
		kind, ok := unit.KindOf(name)
		kinds, walls, fence = nil, name == restoreWalls, name == restoreFence
		switch {
		case ok:
			kinds, what = []wire.UnitKind{kind}, "what the unit "+name+" has changed"
		case walls:
			what = "what walls reservations in"
		case fence:
			what = "every CPU to the host's own services"
		default:
			return usagef("there is no unit %q, only %s", name, either(append(unitNames(), restoreWalls, restoreFence)))
		}
	} else if err := noArguments(c); err != nil {
		return err
	}
	r, err := hostRunner(c)
	if err != nil {
		return err
	}
	question := "Put back " + what + " on this machine?"
	if list := agent.Walls(r.Machine.Root); walls && len(list) > 0 {
		question = fmt.Sprintf("Put back %s on this machine, and end what runs in %s (%s)?", what, count(len(list), "reservation"), clip(list, 8))
	}
	if err := confirm(c, question); err != nil {
		return err
	}
	failed := false
	if (walls || fence) && r.Machine.Real() {
		failed = !takeDown(c, r.Machine.Root, r.Ledger, walls)
	}
	undone, err := restoreUnits(c, r, kinds)
	if err != nil {
		return err
	}
	if failed || !undone {
		return silent{exitFailed}
	}
	return nil
}

// takeDown takes the walls down, or the fence alone, and says how far that came.
// It reports whether nothing is left.
func takeDown(c *cli.Context, root *host.Root, ledger *host.Ledger, walls bool) bool {
	if !walls {
		if err := agent.RemoveFence(c.Context, root, ledger); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", restoreFence, err)
			return false
		}
		return true
	}
	err := agent.RemoveWalls(c.Context, root, ledger, func(reservation, state string) {
		fmt.Printf("wall of %s: %s\n", reservation, state)
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", restoreWalls, err)
		return false
	}
	return true
}

// restoreUnits undoes units, and reports whether each could be.
func restoreUnits(c *cli.Context, r *unit.Runner, kinds []wire.UnitKind) (bool, error) {
	ok := true
	for _, kind := range kinds {
		status, touched, err := r.Remove(c.Context, kind)
		switch {
		case err != nil:
			return false, err
		case !touched:
		case status.State == wire.Failed || status.State == wire.Conflict:
			ok = false
			fmt.Fprintf(os.Stderr, "%s: %s\n", string(kind), status.Reason)
		case status.Reason != "":
			fmt.Printf("%s: %s\n", string(kind), status.Reason)
		default:
			fmt.Printf("%s: put back\n", string(kind))
		}
	}
	return ok, nil
}
