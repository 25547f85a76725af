package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs what a person would type, against servers that are processes
// of their own. In a script
//
//	demo                      starts `bc up --demo` and waits until its node is ready
//	until PATTERN CMD ARGS    repeats a command until it succeeds and its output matches
//	port taken|free           sets TAKEN to an address of this machine that is taken, or FREE to one that is free
//	newer FILE                makes a state file say that a newer version wrote it
//
// STATE is an empty folder, BIN is where bc and bcd are, and BC_SERVER points to
// the socket in STATE.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Setup:               setUpScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"demo": startDemo, "until": until, "port": findPort, "newer": newerState,
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Getuid() == 0, nil
			case "diverted":
				_, err := os.Stat(diverted)
				return err == nil, nil
			case "calculator":
				_, err := os.Stat("/usr/bin/bc")
				return err == nil, nil
			}
			return false, errNoCondition
		},
	})
}

var errNoCondition = usagef("no such condition")

func setUpScript(env *testscript.Env) error {
	state, err := os.MkdirTemp("", "bc") // the script's own folder can be too long for a socket's path
	if err != nil {
		return err
	}
	env.Defer(func() { os.RemoveAll(state) })
	bin, _, _ := strings.Cut(env.Getenv("PATH"), string(os.PathListSeparator))
	env.Setenv("BIN", bin)
	env.Setenv("STATE", state)
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
	env.Setenv("BC_SERVER", "unix:"+filepath.Join(state, "api.sock"))
	env.Setenv("LC_ALL", "C.UTF-8")
	return nil
}

func startDemo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: demo")
	}
	cmd := exec.Command(filepath.Join(ts.Getenv("BIN"), "bc"), "up", "--demo", "--state-dir", ts.Getenv("STATE"), "--listen", "none")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			ts.Logf("bc up --demo: %v\n%s", err, &log)
		}
	})
	until(ts, false, []string{`(?m)^dgx-h100 .* ready `, "bc", "nodes", "list", "-o", "table"})
}

// until repeats a command until it succeeds and its stdout matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN CMD ARGS")
	}
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if err == nil && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s does not come to match %s: %v", strings.Join(args[1:], " "), args[0], err)
		}
	}
}

const patience = 60 * time.Second

func findPort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || args[0] != "taken" && args[0] != "free" {
		ts.Fatalf("usage: port taken|free")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv(strings.ToUpper(args[0]), l.Addr().String())
	if args[0] == "free" {
		ts.Check(l.Close())
		return
	}
	ts.Defer(func() { l.Close() })
}

// newerState edits the user_version in an SQLite file's header: four bytes at
// offset 60 (sqlite.org/fileformat2.html, section 1.3).
func newerState(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	text, err := os.ReadFile(path)
	ts.Check(err)
	if !bytes.HasPrefix(text, []byte("SQLite format 3\x00")) {
		ts.Fatalf("%s is no SQLite file", path)
	}
	binary.BigEndian.PutUint32(text[60:], 9999)
	ts.Check(os.WriteFile(path, text, 0o600))
}
