package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// globalFlags stand before or behind every command.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "server", Usage: "`ADDRESS` of the control plane: unix:PATH or https://HOST:PORT", EnvVars: []string{"BC_SERVER"}},
		&cli.StringFlag{Name: "token", Usage: "API `KEY` (bck_…); better in BC_TOKEN, where no process list shows it", EnvVars: []string{"BC_TOKEN"}},
		&cli.StringFlag{Name: "ca", Usage: "`FILE` with the certificate authority of the server", EnvVars: []string{"BC_CA"}},
		&cli.StringFlag{Name: "tenant", Aliases: []string{"t"}, Usage: "`TENANT` in whose name to act", EnvVars: []string{"BC_TENANT"}},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: table, wide, json, yaml or name", EnvVars: []string{"BC_OUTPUT"}},
	}
}

// flagsFirst moves flags that stand behind arguments to before them, within
// the words of the last command: urfave/cli takes flags only there, and would
// silently take `bc pools get NAME -o json` without its -o. What follows --
// stays arguments. Flags of the program move to the front.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) < 2 || args[len(args)-1] == "--generate-bash-completion" {
		return args // completion asks about the words as they stand
	}
	global := flagIndex(globalFlags())
	var front, words []string
	commands, local, leaf, i := app.Commands, flagIndex(nil), false, 1
	for i < len(args) && args[i] != "--" { // the command's own words
		n := global.width(args, i)
		if n > 0 {
			front = append(front, args[i:i+n]...)
			i += n
			continue
		}
		c := find(commands, args[i])
		if c == nil {
			break
		}
		words = append(words, args[i])
		commands, local = c.Subcommands, flagIndex(c.Flags)
		i++
		if len(c.Subcommands) == 0 {
			leaf = true
			break
		}
	}
	var flags, rest []string
	for i < len(args) {
		if args[i] == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if args[i] == "--help" || args[i] == "-h" {
			return join(args[:1], front, words, []string{"--help"}) // the library would look for the help of an argument
		} else if n := local.width(args, i); n > 0 {
			flags = append(flags, args[i:i+n]...)
			i += n
		} else if n := global.width(args, i); n > 0 {
			front = append(front, args[i:i+n]...)
			i += n
		} else if len(args[i]) > 1 && strings.HasPrefix(args[i], "-") {
			flags = append(flags, args[i]) // unknown: for the library to refuse by name
			i++
		} else {
			rest = append(rest, args[i])
			i++
		}
	}
	if leaf && len(rest) > 0 {
		flags = append(flags, "--") // all that follows are arguments, whatever they look like
	}
	return join(args[:1], front, words, flags, rest)
}

func join(parts ...[]string) []string {
	var out []string
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func find(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// index knows each flag by its spelling, and whether a value follows.
type index map[string]bool

func flagIndex(flags []cli.Flag) index {
	out := index{}
	for _, f := range flags {
		takes := true
		if d, ok := f.(cli.DocGenerationFlag); ok {
			takes = d.TakesValue()
		}
		for _, n := range f.Names() {
			dash := "--"
			if len(n) == 1 {
				dash = "-"
			}
			out[dash+n] = takes
		}
	}
	return out
}

// width is how many words the flag at i takes, 0 if it is none of these.
func (x index) width(args []string, i int) int {
	name, _, joined := strings.Cut(args[i], "=")
	takes, ok := x[name]
	switch {
	case !ok:
		return 0
	case takes && !joined && i+1 < len(args):
		return 2
	}
	return 1
}
