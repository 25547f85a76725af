package main

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// eachCommand visits every command that a person can find.
func eachCommand(path string, commands []*cli.Command, visit func(string, *cli.Command)) {
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		visit(path+" "+c.Name, c)
		eachCommand(path+" "+c.Name, c.Subcommands, visit)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	app := newApp()
	eachCommand("bc", app.Commands, func(path string, c *cli.Command) {
		if c.Usage == "" || c.OnUsageError == nil {
			t.Errorf("%s lacks its usage or our handling of its errors", path)
		}
		if len(c.Subcommands) > 0 {
			return
		}
		if c.Action == nil {
			t.Errorf("%s does nothing", path)
		}
		if _, examples, ok := strings.Cut(c.Description, "Examples:\n   "); !ok {
			t.Errorf("%s has no examples", path)
		} else if !strings.HasPrefix(path, "bc bcd") {
			checkExamples(t, path, examples)
		}
	})
	for _, c := range app.Commands {
		known := c.Hidden
		for _, p := range parts {
			known = known || c.Category == p
		}
		if !known {
			t.Errorf("bc %s stands in no part of the help: %q", c.Name, c.Category)
		}
	}
}

// checkExamples holds the examples to the command that they stand under, and
// to flags that it has.
func checkExamples(t *testing.T, path, examples string) {
	t.Helper()
	mentioned := false
	for line := range strings.Lines(examples) {
		mentioned = mentioned || strings.Contains(line, path)
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "bc" {
			continue
		}
		commands := newApp().Commands
		var at *cli.Command
		for _, w := range words[1:] {
			c := find(commands, w)
			if c == nil {
				break
			}
			at, commands = c, c.Subcommands
		}
		if at == nil {
			t.Errorf("%s: an example calls no command: %s", path, line)
			continue
		}
		known := flagIndex(append(globalFlags(), at.Flags...))
		for _, w := range words[1:] {
			name, _, _ := strings.Cut(w, "=")
			if _, ok := known[name]; strings.HasPrefix(w, "--") && len(w) > 2 && !ok {
				t.Errorf("%s: an example has flag %s, which bc %s lacks", path, name, at.Name)
			}
		}
	}
	if !mentioned {
		t.Errorf("%s: no example shows it:\n%s", path, examples)
	}
}

func TestNoFlagIsDeclaredTwice(t *testing.T) {
	eachCommand("bc", newApp().Commands, func(path string, c *cli.Command) {
		seen := map[string]bool{}
		own := append([]cli.Flag{}, c.Flags...)
		if path != "bc bcd run" { // whose server is another's
			own = append(own, globalFlags()...)
		}
		for _, f := range own {
			for _, n := range f.Names() {
				if seen[n] {
					t.Errorf("%s: flag %s means two things", path, n)
				}
				seen[n] = true
			}
		}
	})
}

func TestTheManualPageHasEveryCommand(t *testing.T) {
	app := newApp()
	page := manPage(app)
	eachCommand("bc", app.Commands, func(path string, c *cli.Command) {
		if len(c.Subcommands) == 0 && !strings.Contains(page, "\n.SS \""+roff(path)) {
			t.Errorf("%s is not in the manual page", path)
		}
	})
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, " ") {
			t.Errorf("a line begins with a blank, which breaks it off: %q", line)
		}
	}
}

func TestSlipsOfTheFingerAreUnderstood(t *testing.T) {
	for word, want := range map[string]string{"stauts": "status", "pol": "pools", "resrvations": "reservations", "node": "nodes", "frobnicate": "", "x": ""} {
		if got := suggest(newApp().Commands, word); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}
