// Command bc is the whole product in one program: control plane, node agent
// and command line. It is wiring: configuration becomes fields of structs here,
// and every other package takes those. One file for each command.
//
// Its name decides what it is: better-compute and bc are the command line, bcd
// the node agent. The name bc belongs to the calculator on many systems, so as
// bc it hands whatever is not one of its own commands to the calculator.
//
// Start reading at [newApp], then serve.go and up.go.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"
)

// version is set by the Makefile from git.
var version = "0.0.0-dev"

func main() { os.Exit(run(os.Args)) }

// run is main without the exit, so that tests can be the program.
func run(args []string) int {
	name := filepath.Base(args[0])
	app := newApp()
	if name == "bcd" {
		app = newAgentApp()
	}
	if name == "bc" && forCalculator(app, args[1:]) {
		if err := calculate(app, args); len(args) > 1 || !isTerminal(os.Stdin) {
			return report(err) // else a person has typed bc alone, and reads our help
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	return report(app.RunContext(ctx, flagsFirst(app, args)))
}

// newApp is the command line.
func newApp() *cli.App {
	app := &cli.App{
		Name:                      "bc",
		Usage:                     "turn your own GPU machines into pools that teams share safely",
		Version:                   version,
		EnableBashCompletion:      true,
		DisableSliceFlagSeparator: true,
		HideHelpCommand:           true,
		ExitErrHandler:            func(*cli.Context, error) {}, // run reports
		OnUsageError:              usageError,
		Action:                    noCommand,
		Flags:                     append(globalFlags(), cli.HelpFlag),
		Commands:                  commands(),
	}
	prepare(app.Commands)
	return app
}

// newAgentApp is the program under the name bcd.
func newAgentApp() *cli.App {
	app := newApp()
	app.Name, app.Usage = "bcd", "the node agent of Better Compute"
	app.Commands = []*cli.Command{agentRunCommand(), unitCommand()}
	prepare(app.Commands)
	return app
}

// commands lists every command, in the order of the help.
func commands() []*cli.Command {
	return []*cli.Command{
		upCommand(),
		runCommand(),
		serveCommand(),
		{
			Name: "bcd", Usage: "the node agent; the program is also installed under this name", Category: "run",
			Subcommands: []*cli.Command{agentRunCommand(), unitCommand()},
		},
		simulateCommand(),
		statusCommand(),
		topCommand(),
		hostCommand(),
		poolCommand(),
		nodeCommand(),
		reservationCommand(),
		siteCommand(),
		tenantCommand(),
		quotaCommand(),
		usageCommand(),
		rateCommand(),
		budgetCommand(),
		eventCommand(),
		loginCommand(),
		keyCommand(),
		userCommand(),
		accessPolicyCommand(),
		checkCommand(),
		fleetCommand(),
		apiCommand(),
		completionCommand(),
		helpCommand(),
		versionCommand(),
		manCommand(),
	}
}
