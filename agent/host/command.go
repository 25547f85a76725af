package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Programs are the only ones that the agent runs, with how long each may take.
// A real update-initramfs of every kernel is minutes on a slow disk.
var Programs = map[string]time.Duration{
	"update-grub":      2 * time.Minute,
	"grub-editenv":     time.Minute,
	"grubby":           2 * time.Minute,
	"bootctl":          time.Minute,
	"kernel-install":   5 * time.Minute,
	"update-initramfs": 10 * time.Minute,
	"dracut":           10 * time.Minute,
	"modprobe":         time.Minute,
	"kubeadm":          5 * time.Minute,
}

var programDirs = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// programPath finds a program where distributions put it. The environment's
// PATH is not asked.
func programPath(program string) string {
	if _, ok := Programs[program]; !ok {
		return ""
	}
	for _, dir := range programDirs {
		name := dir + "/" + program
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name
		}
	}
	return ""
}

// maxTail bounds what an error keeps of a program's output.
const maxTail = 2048

// run runs a program as an argument list: no shell reads any of it.
func run(ctx context.Context, argv []string) error {
	limit, ok := Programs[argv[0]]
	if !ok {
		return fmt.Errorf("run %s: it is none of the programs that the agent may run", argv[0])
	}
	name := programPath(argv[0])
	if name == "" {
		return fmt.Errorf("run %s: it is not installed; install it or make this change by hand", argv[0])
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(limited, name, argv[1:]...)
	cmd.Env = []string{"PATH=" + strings.Join(programDirs, ":"), "LC_ALL=C.UTF-8", "HOME=/root"}
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second // for children that keep the output open
	// Most of the programs are shell scripts. What they started goes with them, or
	// it would write on while boot files are put back.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out lastWords
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("run %s: %w", strings.Join(argv, " "), ctx.Err())
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it did not end within %v and was stopped", limit)
	}
	return &CommandError{Argv: argv, Output: tail(out.String()), Log: out.String(), Err: err}
}

// CommandError is a program that ran and failed.
type CommandError struct {
	Argv   []string
	Output string // its last lines
	Log    string // its last 64 KiB
	Err    error
}

func (e *CommandError) Error() string {
	text := "run " + strings.Join(e.Argv, " ") + ": " + e.Err.Error()
	if e.Output != "" {
		text += ": " + e.Output
	}
	return text
}

func (e *CommandError) Unwrap() error { return e.Err }

// tail gives the last lines of an output as one line.
func tail(out string) string {
	out = strings.ToValidUTF8(strings.TrimSpace(out), "?")
	if len(out) > maxTail {
		out = strings.ToValidUTF8("…"+out[len(out)-maxTail:], "")
	}
	return strings.Join(strings.FieldsFunc(out, func(c rune) bool { return c == '\n' || c == '\r' }), "; ")
}
