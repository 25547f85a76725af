package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatBelongsToTheCalculator(t *testing.T) {
	app := newApp()
	for _, tc := range []struct {
		args string
		want bool
	}{
		{"", true},
		{"-l", true},
		{"-lq sums.bc", true},
		{"--mathlib", true},
		{"--version", true},
		{"sums.bc", true},
		{"./serve", true},
		{"-o json", true}, // short flags are the calculator's until a command stands before them
		{"serve", false},
		{"api system.status", false},
		{"--tenant acme api pools.list", false},
		{"--tenant=acme api pools.list", false},
		{"--generate-bash-completion", false},
	} {
		if got := forCalculator(app, strings.Fields(tc.args)); got != tc.want {
			t.Errorf("bc %s: for the calculator %t, want %t", tc.args, got, tc.want)
		}
	}
}

// runBC gives what the program under the name bc prints, with path as its PATH.
func runBC(t *testing.T, path, input, args string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("bc", strings.Fields(args)...) // ours: see TestMain
	cmd.Env = append(env, "PATH="+path)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSumsReachTheRealCalculator(t *testing.T) {
	if _, err := findCalculator("/usr/bin", nil); err != nil {
		t.Skip(err)
	}
	for _, tc := range []struct{ args, input, want string }{
		{"", "2^64\n", "18446744073709551616\n"},
		{"-l", "scale=5; a(1)*4\n", "3.14156\n"},
		{"-q", "1/0\n", "Runtime error"},
	} {
		got, err := runBC(t, "/usr/bin", tc.input, tc.args)
		if err != nil || !strings.Contains(got, tc.want) {
			t.Errorf("echo %q | bc %s: %q, %v; want %q", tc.input, tc.args, got, err, tc.want)
		}
	}
}

// A bc on the path before the system's is the calculator that the user chose.
// This one is cat, and so shows how it was started.
func TestTheCalculatorKeepsNameAndArguments(t *testing.T) {
	if _, err := os.Stat(diverted); err == nil {
		t.Skip(diverted + " comes before the path")
	}
	dir := t.TempDir()
	if err := os.Symlink("/bin/cat", filepath.Join(dir, "bc")); err != nil {
		t.Fatal(err)
	}
	got, err := runBC(t, dir, "", "/proc/self/cmdline")
	if want := "bc\x00/proc/self/cmdline\x00"; err != nil || got != want {
		t.Errorf("started as %q, %v; want %q", got, err, want)
	}
}

// While the package is removed a bc that still runs does not find its own file
// any more.
func TestTheCalculatorIsFoundWithoutKnowingOneself(t *testing.T) {
	if _, err := os.Stat(diverted); err == nil {
		t.Skip(diverted + " comes before the path")
	}
	ours, theirs := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(ours, "better-compute"), nil, 0o755),
		os.Symlink("better-compute", filepath.Join(ours, "bc")),
		os.Symlink("/bin/cat", filepath.Join(theirs, "bc")),
	); err != nil {
		t.Fatal(err)
	}
	got, err := findCalculator(ours+":"+theirs, nil)
	if want := filepath.Join(theirs, "bc"); err != nil || got != want {
		t.Errorf("found %q, %v; want %q", got, err, want)
	}
}

func TestTwoCopiesDoNotHandOverForEver(t *testing.T) {
	got, err := runBC(t, "/usr/bin", "1+1\n", "", handedOver+"=1")
	if err == nil || !strings.Contains(got, "the calculator is not installed") {
		t.Errorf("got %q, %v", got, err)
	}
}
