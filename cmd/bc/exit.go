package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

// Exit codes, as every command's help lists them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4 // or in a state that does not allow it
	exitDenied      = 5
	exitUnreachable = 6
)

// usage is a mistake in how a command was called.
type usage struct{ error }

func usagef(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

func usageError(c *cli.Context, err error, _ bool) error {
	name := "bc"
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return usagef("%w; see %s --help", err, name)
}

// report writes an error for people to stderr and gives the exit code.
func report(err error) int {
	if err == nil {
		return exitOK
	}
	var quiet silent
	if errors.As(err, &quiet) {
		return quiet.code
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "bc: interrupted")
		return exitFailed
	}
	fmt.Fprintln(os.Stderr, "bc:", sentence(err))
	return exitCode(err)
}

// silent is a failure that has been reported already.
type silent struct{ code int }

func (s silent) Error() string { return fmt.Sprintf("exit status %d", s.code) }

func exitCode(err error) int {
	var u usage
	switch {
	case errors.As(err, &u):
		return exitUsage
	case errors.Is(err, api.ErrUnreachable):
		return exitUnreachable
	}
	switch appliance.CodeOf(err) {
	case appliance.InvalidInput:
		return exitUsage
	case appliance.NotFound:
		return exitNotFound
	case appliance.ConflictCode, appliance.InvalidState, appliance.QuotaExceeded:
		return exitConflict
	case appliance.AccessDenied, appliance.Unauthenticated, appliance.SpendLimitReached:
		return exitDenied
	}
	return exitFailed
}

// sentence is what a person reads of an error: of a refusal its own words,
// without its code, behind what was being done.
func sentence(err error) string {
	text := strings.TrimSpace(err.Error())
	var refusal *appliance.Error
	if errors.As(err, &refusal) {
		text = strings.Replace(text, refusal.Error(), refusal.Message, 1)
	}
	if errors.Is(err, api.ErrUnreachable) && strings.Contains(text, "systemctl start") && !installed() {
		text += " From a checkout: " + command() + " up."
	}
	return text
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
