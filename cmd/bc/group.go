package main

import (
	"cmp"
	"maps"
	"slices"

	"github.com/urfave/cli/v2"
)

// group is the command of a noun with its verbs, which mirror the API's. A noun
// may also stand in the singular.
func group(name, singular, usage string, verbs ...*cli.Command) *cli.Command {
	g := &cli.Command{Name: name, Usage: usage, Category: "things", Subcommands: verbs, Action: noVerb}
	if singular != "" {
		g.Aliases = []string{singular}
	}
	return g
}

// noVerb answers a noun alone with its help, and refuses words that are none of
// its verbs.
func noVerb(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowSubcommandHelp(c)
	}
	word := c.Args().First()
	near := ""
	if s := suggest(c.Command.Subcommands, word); s != "" {
		near = "; did you mean " + s + "?"
	}
	return usagef("%s has no %q%s; see %s --help", c.Command.HelpName, word, near, c.Command.HelpName)
}

// suggest gives the command whose name is nearest to a mistyped word, if one
// is near: at most one slip for each three letters.
func suggest(commands []*cli.Command, word string) string {
	best, least := "", len(word)/3+1
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		for _, n := range c.Names() {
			if d := slips(word, n); d < least {
				best, least = c.Name, d
			}
		}
	}
	return best
}

// slips is the Levenshtein distance, where two letters that changed places
// count once.
func slips(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
