package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

func hostCommand() *cli.Command {
	g := group("host", "", "this machine, without any server",
		&cli.Command{
			Name: "inventory", Usage: "show what discovery finds on this machine",
			Description: "It only reads. The same is what a node agent would report.\n\n" +
				"Examples:\n   bc host inventory\n   bc host inventory -o json\n   bc host inventory --host-root TREE --nvml-library FILE",
			Flags:  hostFlags(),
			Action: hostInventory,
		},
		&cli.Command{
			Name: "capture", Usage: "record this machine in a file, for a bug report or a simulation", ArgsUsage: "FILE",
			Description: "Records the files that discovery reads and what the GPU library answers. Host names, machine ids,\n" +
				"serial numbers and hardware addresses are left out or blanked; read it before you pass it on.\n\n" +
				"Examples:\n   bc host capture machine.txtar\n   bc host capture machine.txtar --comment 'node 7 of the lab'",
			Flags:  append(hostFlags(), &cli.StringFlag{Name: "comment", Usage: "`TEXT` at the top of the file"}),
			Action: hostCapture,
		},
	)
	g.Subcommands = append(g.Subcommands, hostUnitCommands()...)
	g.Category = "look"
	return g
}

// gpuPatience is how long the GPU library may take: opening it wakes each GPU
// of a machine without persistence mode, a second or two.
const gpuPatience = 25 * time.Second

// seenHost is this machine, or the one below --host-root.
func seenHost(c *cli.Context) (*host.Root, inventory.GPUs, []string, error) {
	root, gpus, err := openHost(c)
	if err != nil {
		return nil, inventory.GPUs{}, nil, err
	}
	ctx, cancel := context.WithTimeout(c.Context, gpuPatience)
	defer cancel()
	seen := gpus.Snapshot(ctx)
	return root, inventory.GPUs{Library: seen.Library, Devices: seen.GPUs}, seen.Notes, nil
}

func hostInventory(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	set, err := readSettings(c)
	if err != nil {
		return usage{err}
	}
	p, err := newPrinter(set.Output)
	if err != nil {
		return err
	}
	root, gpus, notes, err := seenHost(c)
	if err != nil {
		return err
	}
	inv := inventory.Collect(root, gpus)
	inv.Notes = append(inv.Notes, notes...)
	if !root.Real() {
		inv.Recorded = filepath.Base(c.String("host-root"))
	}
	if p.tabular() {
		return inventory.Text(p.out, inv)
	}
	return item(p, inv, inv.MachineID, func(*sheet, wire.Inventory) {})
}

func hostCapture(c *cli.Context) error {
	file, err := oneName(c, "the file to write")
	if err != nil {
		return err
	}
	root, gpus, _, err := seenHost(c)
	if err != nil {
		return err
	}
	a := host.Capture(root, c.String("comment"))
	a.SetDocument(inventory.RecordedGPUsFile, []byte(jsonText(blankGPUs(gpus))+"\n"))
	if err := os.WriteFile(file, a.Format(), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "Wrote %s: %s. Read it before you pass it on.\n", file, count(len(gpus.Devices), "GPU"))
	return nil
}

// blankGPUs gives the GPUs identities that say nothing of the real ones: they
// keep apart what has to be told apart.
func blankGPUs(g inventory.GPUs) inventory.GPUs {
	inv := inventory.Personalise(wire.Inventory{GPULibrary: g.Library, GPUs: g.Devices}, "capture", 0)
	return inventory.GPUs{Library: inv.GPULibrary, Devices: inv.GPUs}
}
