package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// The help of the program, of a noun and of a command, in the library's
// templates. What a user may do next stands in it: examples, and where the
// flags that every command takes are explained.
const (
	appHelp = `{{.HelpName}} - {{.Usage}}

Usage:
   {{.HelpName}} COMMAND [ARGUMENTS] [FLAGS]

Begin with:
   bc up --demo           a control plane on a recorded 8-GPU machine
   bc up                  the same on this machine; changes nothing on it
   bc status              what there is, and what needs attention
{{range .VisibleCategories}}{{if .Name}}
{{.Name}}:{{range .VisibleCommands}}
   {{.Name}}{{"\t"}}{{.Usage}}{{end}}
{{end}}{{end}}
Flags of every command:{{range .VisibleFlags}}
   {{.}}{{end}}

Each setting comes from its flag, else its variable, else ~/.config/better-compute/config.toml
(keys server, token, ca, tenant, output). Names of pools, sites, nodes and reservations work wherever ids do.

Exit codes:
   0  done                        3  not found, or not visible to the caller
   1  failed                      4  conflict, or in a state that does not allow it
   2  called in a wrong way       5  denied, or no credential
                                  6  the server cannot be reached
`
	nounHelp = `{{.HelpName}} - {{.Usage}}

Usage:
   {{.HelpName}} VERB [ARGUMENTS] [FLAGS]
{{if .Aliases}}
Also:
   {{join .Aliases ", "}}
{{end}}{{if .Description}}
{{.Description}}
{{end}}
Verbs:{{range .VisibleCommands}}
   {{.Name}}{{"\t"}}{{.Usage}}{{end}}
{{if .VisibleFlags}}
Flags:{{range .VisibleFlags}}
   {{.}}{{end}}
{{end}}
` + everyCommand + `
`
	commandHelp = `{{.HelpName}} - {{.Usage}}

Usage:
   {{.HelpName}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}{{if .VisibleFlags}} [FLAGS]{{end}}
{{if .Description}}
{{.Description}}
{{end}}{{if .VisibleFlags}}
Flags:{{range .VisibleFlags}}
   {{.}}{{end}}
{{end}}
` + everyCommand + `
`
	agentHelp = `{{.HelpName}} - {{.Usage}}

Usage:
   {{.HelpName}} COMMAND [FLAGS]

Commands:{{range .VisibleCommands}}
   {{.Name}}{{"\t"}}{{.Usage}}{{end}}

{{.HelpName}} COMMAND --help says more.
`
	everyCommand = "Every command takes --server, --token, --ca, --tenant (-t) and --output (-o); bc help explains them and the exit codes."
)

// The order of the parts of the help.
var parts = []string{"run", "look", "things", "other"}

// prepare gives every command what the library would not hand down: our help,
// and errors of usage that are reported like any other.
func prepare(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
		c.CustomHelpTemplate = commandHelp
		if len(c.Subcommands) > 0 {
			c.CustomHelpTemplate = nounHelp
			if c.Action == nil {
				c.Action = noVerb
			}
		}
		prepare(c.Subcommands)
	}
}

func helpCommand() *cli.Command {
	return &cli.Command{
		Name: "help", Usage: "show help, of the program or of a command", ArgsUsage: "[COMMAND [VERB]]", Category: "other",
		Description: "Examples:\n   bc help\n   bc help pools update",
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return cli.ShowAppHelp(c)
			}
			commands, words := c.App.Commands, c.Args().Slice()
			var at *cli.Command
			for _, w := range words {
				if at = find(commands, w); at == nil {
					return usagef("there is no command %q; bc help lists them", strings.Join(words, " "))
				}
				commands = at.Subcommands
			}
			at.HelpName = "bc " + strings.Join(words, " ")
			cli.HelpPrinter(c.App.Writer, at.CustomHelpTemplate, at)
			return nil
		},
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "show the version of this program", Category: "other",
		Description: "Examples:\n   bc version",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			fmt.Println(version)
			return nil
		},
	}
}

// noCommand is the program without a command that it knows.
func noCommand(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowAppHelp(c)
	}
	return unknownCommand(c.App, c.Args().First())
}

func unknownCommand(app *cli.App, word string) error {
	near := ""
	if s := suggest(app.Commands, word); s != "" {
		near = "; did you mean " + s + "?"
	}
	return usagef("there is no command %q%s; bc help lists them", word, near)
}

func manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "write the manual page, of section 1", Hidden: true,
		Action: func(c *cli.Context) error {
			_, err := fmt.Fprint(os.Stdout, manPage(c.App))
			return err
		},
	}
}

// manPage writes the program's manual page in the macros of man(7).
func manPage(app *cli.App) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH BETTER\-COMPUTE 1 "" "Better Compute %s" "User Commands"`, roff(app.Version))
	line(".SH NAME\nbetter\\-compute, bc \\- %s", roff(app.Usage))
	line(".SH SYNOPSIS\n.B bc\n.I COMMAND\n[\\fIARGUMENTS\\fR] [\\fIFLAGS\\fR]")
	line(".SH DESCRIPTION\nControl plane, node agent and command line in one program. Names of pools, sites, nodes and reservations work wherever their ids do. " +
		"Flags may stand behind arguments. Under the name \\fBbc\\fR it hands whatever is not one of its own commands to the calculator \\fBbc\\fR(1), if that is installed.")
	line(".SH FLAGS OF EVERY COMMAND")
	manFlags(line, app.Flags)
	line(".SH COMMANDS")
	for _, part := range parts {
		for _, c := range app.Commands {
			if c.Category == part && !c.Hidden {
				manCommandText(line, "bc "+c.Name, c)
			}
		}
	}
	line(".SH FILES")
	for _, f := range [][2]string{
		{"~/.config/better-compute/config.toml", "server, token, ca, tenant and output: what to use without flag and variable"},
		{configFile, "the configuration of the control plane"},
		{stateDir, "its state"},
		{runtimeSocket, "its socket"},
	} {
		line(".TP\n.I %s\n%s", roff(f[0]), roff(f[1]))
	}
	line(".SH EXIT STATUS")
	for _, e := range [][2]string{
		{"0", "done"}, {"1", "failed"}, {"2", "called in a wrong way, or an input refused"}, {"3", "not found, or not visible to the caller"},
		{"4", "conflict, quota, or in a state that does not allow it"}, {"5", "denied, or no credential"}, {"6", "the server cannot be reached"},
	} {
		line(".TP\n.B %s\n%s", e[0], e[1])
	}
	line(".SH SEE ALSO\n.BR systemctl (1),\n.BR journalctl (1)")
	return b.String()
}

func manCommandText(line func(string, ...any), name string, c *cli.Command) {
	if len(c.Subcommands) == 0 || len(c.Flags) > 0 {
		line(".SS \"%s\"", roff(strings.TrimSpace(name+" "+c.ArgsUsage)))
		line("%s.", roff(upperFirst(c.Usage)))
		text, examples, _ := strings.Cut(c.Description, "Examples:\n")
		if text = strings.TrimSpace(text); text != "" {
			line(".PP\n%s", roff(text))
		}
		manFlags(line, c.Flags)
		if examples != "" {
			line(".PP\n.nf\n.RS\n%s\n.RE\n.fi", roff(strings.ReplaceAll(examples, "\n   ", "\n")[3:]))
		}
	}
	for _, v := range c.Subcommands {
		if !v.Hidden {
			manCommandText(line, name+" "+v.Name, v)
		}
	}
}

func manFlags(line func(string, ...any), flags []cli.Flag) {
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if !ok || slices.Contains(f.Names(), "help") {
			continue
		}
		var names []string
		for _, n := range f.Names() {
			dash := "--"
			if len(n) == 1 {
				dash = "-"
			}
			names = append(names, `\fB`+roff(dash+n)+`\fR`)
		}
		usage := strings.ReplaceAll(d.GetUsage(), "`", "")
		if vars := d.GetEnvVars(); len(vars) > 0 {
			usage += " [$" + strings.Join(vars, ", $") + "]"
		}
		value := ""
		if d.TakesValue() {
			value = ` \fI` + roff(placeholder(d.GetUsage())) + `\fR`
		}
		line(".TP\n%s%s\n%s", strings.Join(names, ", "), value, roff(usage))
	}
}

// placeholder is the word between back quotes in a flag's usage.
func placeholder(usage string) string {
	if parts := strings.Split(usage, "`"); len(parts) == 3 {
		return parts[1]
	}
	return "VALUE"
}

// roff escapes what roff would act on.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
