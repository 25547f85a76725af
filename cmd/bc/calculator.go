package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

// diverted is where the package moves the calculator's own /usr/bin/bc.
const diverted = "/usr/bin/bc.calculator"

// handedOver is set for the calculator, so that a wrapper named bc that calls
// this program again is found out instead of going round for ever.
const handedOver = "BC_HANDED_OVER"

// forCalculator tells whether the arguments are the calculator's: whatever does
// not begin with one of our commands, behind flags of ours or not. Its --help
// is ours, for nobody pipes sums into that.
func forCalculator(app *cli.App, args []string) bool {
	if len(args) == 0 {
		return true
	}
	if args[0] == "--help" || args[len(args)-1] == "--generate-bash-completion" {
		return false
	}
	global, i, long := flagIndex(app.Flags), 0, false
	for i < len(args) {
		n := global.width(args, i)
		if n == 0 {
			break
		}
		long = long || strings.HasPrefix(args[i], "--")
		i += n
	}
	return !long && (i >= len(args) || app.Command(args[i]) == nil)
}

var errNoCalculator = errors.New("the calculator is not installed (apt install bc)")

// calculate replaces this program by the calculator. It returns only if there
// is none, or if the first argument is a mistyped command: a word that is no
// file, with which the calculator could do nothing.
func calculate(app *cli.App, args []string) error {
	path, err := findCalculator(os.Getenv("PATH"))
	if os.Getenv(handedOver) != "" {
		err = errNoCalculator // what was found is this program again
	}
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		if _, missing := os.Stat(args[1]); missing != nil {
			return unknownCommand(app, args[1])
		}
	}
	if err != nil {
		return err
	}
	return syscall.Exec(path, args, append(os.Environ(), handedOver+"=1"))
}

// findCalculator looks where the package diverts the calculator to, then for a
// bc on the path that is another program than this one. Where /proc is not
// mounted this program does not know itself, and takes the first alone.
func findCalculator(path string) (string, error) {
	candidates := []string{diverted}
	self, err := os.Executable()
	var me fs.FileInfo
	if err == nil {
		me, err = os.Stat(self)
	}
	if err == nil {
		for _, dir := range append(filepath.SplitList(path), "/usr/bin") {
			if filepath.IsAbs(dir) {
				candidates = append(candidates, filepath.Join(dir, "bc"))
			}
		}
	}
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && (me == nil || !os.SameFile(info, me)) {
			return c, nil
		}
	}
	return "", errNoCalculator
}
