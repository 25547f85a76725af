package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/term"
)

// Execute runs a person's command in place of this process, found on the PATH.
// Root who came by sudo becomes again the user who called it, for good. env adds
// to the environment. It returns only if it fails.
func Execute(argv, env []string) error {
	environ, err := becomeCaller(os.Environ())
	if err != nil {
		return err
	}
	name, err := exec.LookPath(argv[0])
	if err != nil {
		return &NotStarted{argv[0], errors.Unwrap(err)}
	}
	for _, e := range env {
		key, value, _ := strings.Cut(e, "=")
		environ = setVariable(environ, key, value)
	}
	return &NotStarted{argv[0], syscall.Exec(name, argv, environ)}
}

// NotStarted is a command that could not be started.
type NotStarted struct {
	Command string
	Err     error
}

func (e *NotStarted) Error() string { return "run " + e.Command + ": " + e.Err.Error() }
func (e *NotStarted) Unwrap() error { return e.Err }

// Status is the exit status that a shell has for it (POSIX, "Exit Status for
// Commands"): 127 for a command that is not there, 126 for one that is and cannot
// be run.
func (e *NotStarted) Status() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// becomeCaller gives root up if sudo(8) says who called it, and answers that
// user's environment.
func becomeCaller(environ []string) ([]string, error) {
	id := os.Getenv("SUDO_UID")
	if os.Geteuid() != 0 || id == "" || id == "0" {
		return environ, nil
	}
	u, err := user.LookupId(id)
	if err != nil {
		return nil, fmt.Errorf("SUDO_UID=%s: %w", id, err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	names, groupErr := u.GroupIds()
	if err := errors.Join(uidErr, gidErr, groupErr); err != nil {
		return nil, fmt.Errorf("the groups of %s: %w", u.Username, err)
	}
	var groups []int
	for _, name := range names {
		if g, err := strconv.Atoi(name); err == nil {
			groups = append(groups, g)
		}
	}
	// In this order: without root, groups can no longer be set.
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return nil, fmt.Errorf("become %s: %w", u.Username, err)
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, "SUDO_") || strings.HasPrefix(e, "MAIL=")
	})
	for key, value := range map[string]string{"HOME": u.HomeDir, "USER": u.Username, "LOGNAME": u.Username} {
		environ = setVariable(environ, key, value)
	}
	return environ, nil
}

func setVariable(environ []string, key, value string) []string {
	environ = slices.DeleteFunc(environ, func(e string) bool { return strings.HasPrefix(e, key+"=") })
	return append(environ, key+"="+value)
}

// Forwarded are the signals that Self passes on: whoever uses it has them
// delivered to its channel, from before there is something to be undone.
var Forwarded = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// Self runs this program again with other arguments, on the same standard
// streams, and passes signals on to it. It answers the exit status, which for a
// program ended by a signal is 128 and its number, as in a shell.
func Self(argv []string, signals <-chan os.Signal) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self)
	cmd.Args = argv
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				// A terminal gives the keys' signals to both.
				if keys := s == syscall.SIGINT || s == syscall.SIGQUIT; !keys || !term.IsTerminal(int(os.Stdin.Fd())) {
					_ = cmd.Process.Signal(s) // it has ended: so be it
				}
			}
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
