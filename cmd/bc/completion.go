package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
)

// The shells ask this program for the words that may come next. Where there is
// nothing of ours to say they complete file names: the calculator, whose name
// the program shares, takes files.
const (
	bashCompletion = `# bash completion for %[1]s
_%[2]s_complete() {
  local cur words
  cur=${COMP_WORDS[COMP_CWORD]}
  if [[ $cur == -* ]]; then
    words=$("${COMP_WORDS[@]:0:COMP_CWORD}" "$cur" --generate-bash-completion 2>/dev/null)
  else
    words=$("${COMP_WORDS[@]:0:COMP_CWORD}" --generate-bash-completion 2>/dev/null)
  fi
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _%[2]s_complete %[1]s
`
	zshCompletion = `#compdef %[1]s
_%[2]s_complete() {
  local -a words_
  local cur=${words[CURRENT]}
  if [[ $cur == -* ]]; then
    words_=("${(@f)$(${words[1,CURRENT-1]} $cur --generate-bash-completion 2>/dev/null)}")
  else
    words_=("${(@f)$(${words[1,CURRENT-1]} --generate-bash-completion 2>/dev/null)}")
  fi
  if [[ -n ${words_[1]} ]]; then compadd -a words_; else _files; fi
}
if [[ $funcstack[1] == _%[1]s ]]; then _%[2]s_complete; else compdef _%[2]s_complete %[1]s; fi
`
	fishCompletion = `# fish completion for %[1]s
function __%[2]s_complete
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    if string match -q -- '-*' $cur
        set -a words $cur
    end
    command $words --generate-bash-completion 2>/dev/null
end
complete -c %[1]s -a '(__%[2]s_complete)'
`
)

func completionCommand() *cli.Command {
	scripts := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	return &cli.Command{
		Name: "completion", Usage: "write the script that completes commands, flags and names", ArgsUsage: "bash|zsh|fish", Category: "other",
		Description: "The package installs these. Names of pools, nodes and reservations are asked of the control plane.\n\n" +
			"Examples:\n   source <(bc completion bash)\n   bc completion zsh > ~/.zfunc/_bc\n   bc completion fish > ~/.config/fish/completions/bc.fish",
		Flags:        []cli.Flag{&cli.StringFlag{Name: "program", Usage: "for the program under this `NAME`", Value: "bc"}},
		BashComplete: func(c *cli.Context) { fmt.Fprintln(c.App.Writer, "bash\nzsh\nfish") },
		Action: func(c *cli.Context) error {
			shell, err := oneName(c, "a shell: bash, zsh or fish")
			if err != nil {
				return err
			}
			script, ok := scripts[shell]
			if !ok {
				return usagef("%q is not a shell that it completes in: those are bash, zsh and fish", shell)
			}
			name := c.String("program")
			_, err = fmt.Fprintf(os.Stdout, script, name, identifier(name))
			return err
		},
	}
}

// identifier makes a name fit for a function of a shell.
func identifier(name string) string {
	out := []byte(name)
	for i, b := range out {
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') {
			out[i] = '_'
		}
	}
	return string(out)
}

// completionPatience is how long somebody who pressed Tab waits for names.
const completionPatience = time.Second

// completeNames offers the names of things for the first argument, and flags
// where one has been begun. Whatever goes wrong offers nothing.
func completeNames(c *cli.Context, names func(context.Context, *session) ([]string, error)) {
	if args := os.Args; len(args) > 2 && len(args[len(args)-2]) > 0 && args[len(args)-2][0] == '-' {
		cli.DefaultCompleteWithFlags(c.Command)(c)
		return
	}
	if c.NArg() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.Context, completionPatience)
	defer cancel()
	s, err := dial(c)
	if err != nil {
		return
	}
	if _, err := s.acting(ctx); err != nil {
		return
	}
	found, err := names(ctx, s)
	if err != nil {
		return
	}
	writeWords(c.App.Writer, found)
}

func writeWords(w io.Writer, words []string) {
	for _, word := range words {
		fmt.Fprintln(w, printable(word))
	}
}

func completePools(c *cli.Context) {
	completeNames(c, func(ctx context.Context, s *session) (out []string, err error) {
		pools, err := s.pools(ctx)
		for _, p := range pools {
			if !p.Archived {
				out = append(out, poolHandle(p))
			}
		}
		return out, err
	})
}

func completeNodes(c *cli.Context) {
	completeNames(c, func(ctx context.Context, s *session) (out []string, err error) {
		nodes, err := s.nodes(ctx, "")
		for _, n := range nodes {
			out = append(out, n.Hostname)
		}
		return out, err
	})
}

func completeReservations(c *cli.Context) {
	completeNames(c, func(ctx context.Context, s *session) (out []string, err error) {
		found, err := s.reservations(ctx, appliance.ListReservations{})
		for _, r := range found {
			out = append(out, reservationHandle(r))
		}
		return out, err
	})
}
