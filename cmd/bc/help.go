package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// parts are the parts of the help, in their order: the commands' categories.
var parts = []string{"run", "look", "things", "other"}

// prepare gives every command what the library would not hand down: errors of
// usage that are reported like any other, and nouns that refuse other words.
func prepare(commands []*cli.Command) {
	cli.HelpPrinter = printHelp
	for _, c := range commands {
		c.OnUsageError = usageError
		c.HideHelpCommand = true
		if len(c.Subcommands) > 0 && c.Action == nil {
			c.Action = noVerb
		}
		prepare(c.Subcommands)
	}
}

// maxHelpWidth keeps lines of the help short enough to be read.
const maxHelpWidth = 100

// helpPage is the help of the program, of a noun or of a command.
type helpPage struct {
	out   io.Writer
	width int
}

// printHelp stands in for the library's templates, which know no width.
func printHelp(out io.Writer, _ string, of any) {
	h := helpPage{out: out, width: maxHelpWidth}
	if w := terminalWidth(os.Stdout); w > 0 {
		h.width = min(max(w, 40), maxHelpWidth)
	}
	switch of := of.(type) {
	case *cli.App:
		h.app(of)
	case *cli.Command:
		h.command(of)
	}
}

func (h helpPage) line(format string, args ...any) { fmt.Fprintf(h.out, format+"\n", args...) }

// row writes a name and, beside or below it, what it is.
func (h helpPage) row(name, text string, column int) {
	const indent = "  "
	lines := fold(text, h.width-len(indent)-column-gap)
	if width(name) > column {
		h.line("%s%s", indent, name)
	} else {
		h.line("%s", strings.TrimRight(indent+name+strings.Repeat(" ", column-width(name)+gap)+lines[0], " "))
		lines = lines[1:]
	}
	for _, l := range lines {
		h.line("%s%s%s", indent, strings.Repeat(" ", column+gap), l)
	}
}

func (h helpPage) commands(title string, commands []*cli.Command) {
	commands = slices.DeleteFunc(slices.Clone(commands), func(c *cli.Command) bool { return c.Hidden })
	column := 0
	for _, c := range commands {
		column = max(column, len(c.Name))
	}
	if column == 0 {
		return
	}
	h.line("\n%s:", title)
	for _, c := range commands {
		h.row(c.Name, c.Usage, column)
	}
}

// maxFlagColumn is how wide the names of flags may be to have their text beside
// them.
const maxFlagColumn = 30

func (h helpPage) flags(title string, flags []cli.Flag) {
	var names, texts []string
	column := 0
	for _, f := range flags {
		d, ok := f.(cli.DocGenerationFlag)
		if !ok || f == cli.HelpFlag || f == cli.VersionFlag {
			continue
		}
		name := strings.Join(spellings(f), ", ")
		if d.TakesValue() {
			name += " " + placeholder(d.GetUsage())
		}
		names, texts = append(names, name), append(texts, flagText(d))
		if width(name) <= maxFlagColumn {
			column = max(column, width(name))
		}
	}
	if len(names) == 0 {
		return
	}
	h.line("\n%s:", title)
	for i := range names {
		h.row(names[i], texts[i], column)
	}
}

// spellings are a flag's names as they are typed.
func spellings(f cli.Flag) []string {
	var out []string
	for _, n := range f.Names() {
		dash := "--"
		if len(n) == 1 {
			dash = "-"
		}
		out = append(out, dash+n)
	}
	return out
}

// flagText is what a flag is for, with its default if that says something, and
// its variable.
func flagText(d cli.DocGenerationFlag) string {
	text := strings.ReplaceAll(d.GetUsage(), "`", "")
	switch v := d.GetDefaultText(); v {
	case "", `""`, "0", "0s", "-1", "false":
	default:
		text += " (default: " + strings.Trim(v, `"`) + ")"
	}
	if vars := d.GetEnvVars(); len(vars) > 0 {
		text += " [$" + strings.Join(vars, ", $") + "]"
	}
	return text
}

func (h helpPage) app(app *cli.App) {
	h.line("%s - %s\n\nUsage:\n  %s COMMAND [ARGUMENTS] [FLAGS]", app.HelpName, app.Usage, app.HelpName)
	if app.Name != "bc" {
		h.commands("Commands", app.Commands)
		return
	}
	h.line("\nBegin with:")
	h.row("bc up --demo", "a control plane on a recorded 8-GPU machine", 12)
	h.row("bc up", "the same on this machine; changes nothing on it", 12)
	h.row("bc status", "what there is, and what needs attention", 12)
	for _, part := range parts {
		var in []*cli.Command
		for _, c := range app.Commands {
			if c.Category == part {
				in = append(in, c)
			}
		}
		h.commands(upperFirst(part), in)
	}
	h.flags("Flags of every command", app.Flags)
	h.line("")
	h.prose("Each setting comes from its flag, else its variable, else ~/.config/better-compute/config.toml (keys server, token, ca, " +
		"tenant, output). Names of pools, sites, nodes and reservations work wherever ids do.")
	h.line("\nExit codes:")
	for _, e := range exitCodes {
		h.row(e[0], e[1], 1)
	}
}

// exitCodes explains the exit codes.
var exitCodes = [][2]string{
	{"0", "done"},
	{"1", "failed"},
	{"2", "called in a wrong way, or an input was refused"},
	{"3", "not found, or not visible to the caller"},
	{"4", "conflict, over quota, or in a state that does not allow it"},
	{"5", "denied, or no credential"},
	{"6", "the server cannot be reached"},
}

func (h helpPage) command(c *cli.Command) {
	h.line("%s - %s\n", c.HelpName, c.Usage)
	words := []string{c.HelpName}
	if len(c.Subcommands) > 0 {
		words = append(words, "VERB [ARGUMENTS]")
	} else if c.ArgsUsage != "" {
		words = append(words, c.ArgsUsage)
	}
	h.line("Usage:\n  %s", strings.Join(append(words, "[FLAGS]"), " "))
	if len(c.Aliases) > 0 {
		h.line("  also as: %s", strings.Join(c.Aliases, ", "))
	}
	if c.Description != "" {
		h.line("")
		h.prose(c.Description)
	}
	h.commands("Verbs", c.Subcommands)
	h.flags("Flags", c.Flags)
	h.line("")
	h.prose("Every command takes --server, --token, --ca, --tenant (-t) and --output (-o): see bc help.")
}

// prose folds the paragraphs of a text to the width. Indented lines, which are
// there to be pasted, stay as they are.
func (h helpPage) prose(text string) {
	paragraph := ""
	flush := func() {
		if paragraph == "" {
			return
		}
		for _, l := range fold(paragraph, h.width) {
			h.line("%s", l)
		}
		paragraph = ""
	}
	for _, l := range strings.Split(text, "\n") {
		switch {
		case l == "" || strings.HasPrefix(l, " "):
			flush()
			h.line("%s", strings.Replace(l, "   ", "  ", 1))
		case paragraph == "":
			paragraph = l
		default:
			paragraph += " " + l
		}
	}
	flush()
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
			printHelp(c.App.Writer, "", at)
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
	for _, e := range exitCodes {
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
		if !ok || f == cli.HelpFlag || f == cli.VersionFlag {
			continue
		}
		names := spellings(f)
		for i, n := range names {
			names[i] = `\fB` + roff(n) + `\fR`
		}
		value := ""
		if d.TakesValue() {
			value = ` \fI` + roff(placeholder(d.GetUsage())) + `\fR`
		}
		line(".TP\n%s%s\n%s", strings.Join(names, ", "), value, roff(flagText(d)))
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
