package main

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Tests that write what they compare with look this flag up.
var _ = flag.Bool("update", false, "write the files that the tests compare with")

// TestMain makes the test binary be the program where a test or a script calls
// it by one of its names. What stands in package main_test knows the program
// only so, as a process of its own.
func TestMain(m *testing.M) {
	program := func() { os.Exit(run(os.Args)) }
	testscript.Main(m, map[string]func(){"bc": program, "bcd": program, "better-compute": program})
}
