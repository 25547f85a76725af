package main

import (
	"errors"
	"fmt"
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
	global, i, long := flagIndex(globalFlags()), 0, false
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
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		if _, missing := os.Stat(args[1]); missing != nil {
			return unknownCommand(app, args[1])
		}
	}
	if os.Getenv(handedOver) != "" {
		return errNoCalculator // what was found is this program again
	}
	env := append(os.Environ(), handedOver+"=1")
	for try := 0; ; try++ {
		path, err := findCalculator(os.Getenv("PATH"), ownFile())
		if err != nil {
			return err
		}
		err = syscall.Exec(path, args, env)
		// The package's removal moves the calculator from one name to the other.
		if !errors.Is(err, fs.ErrNotExist) || try > 0 {
			return fmt.Errorf("start the calculator %s: %w", path, err)
		}
	}
}

// ownFile is this program's, nil where that cannot be told: /proc is not
// mounted, or the package was removed since the program started.
func ownFile() fs.FileInfo {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	me, err := os.Stat(self)
	if err != nil {
		return nil
	}
	return me
}

// findCalculator looks where the package diverts the calculator to, then for a
// bc on the path that is another program than this one.
func findCalculator(path string, me fs.FileInfo) (string, error) {
	candidates := []string{diverted}
	for _, dir := range append(filepath.SplitList(path), "/usr/bin") {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, "bc"))
		}
	}
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || me != nil && os.SameFile(info, me) {
			continue
		}
		if real, err := filepath.EvalSymlinks(c); err == nil && filepath.Base(real) != "better-compute" {
			return c, nil
		}
	}
	return "", errNoCalculator
}
