package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
)

// diverted is where the package moves the calculator's own /usr/bin/bc.
const diverted = "/usr/bin/bc.calculator"

// forCalculator tells whether the arguments are the calculator's: whatever does
// not begin with one of our commands or one of our own long flags.
func forCalculator(app *cli.App, args []string) bool {
	if len(args) == 0 {
		return true
	}
	if app.Command(args[0]) != nil {
		return false
	}
	name, _, _ := strings.Cut(args[0], "=")
	for _, f := range app.Flags {
		for _, n := range f.Names() {
			if len(n) > 1 && name == "--"+n {
				return false
			}
		}
	}
	return args[0] != "--generate-bash-completion"
}

// calculate replaces this program by the calculator. It returns only if there
// is none.
func calculate(args []string) error {
	path, err := findCalculator(os.Getenv("PATH"))
	if err != nil {
		if len(args) > 1 {
			return errors.New(args[1] + " is not a command of Better Compute (see bc help), and the calculator is not installed (apt install bc)")
		}
		return err
	}
	return syscall.Exec(path, append([]string{path}, args[1:]...), os.Environ())
}

// findCalculator looks where the package diverts the calculator to, then for a
// bc on the path that is another program than this one.
func findCalculator(path string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	me, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	candidates := []string{diverted}
	for _, dir := range append(filepath.SplitList(path), "/usr/bin") {
		if filepath.IsAbs(dir) {
			candidates = append(candidates, filepath.Join(dir, "bc"))
		}
	}
	for _, c := range candidates {
		info, err := os.Stat(c)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !os.SameFile(info, me) {
			return c, nil
		}
	}
	return "", errors.New("the calculator is not installed (apt install bc)")
}
