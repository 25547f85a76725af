package host

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// actVariable has this test program, started once more, act as a program that
// runs commands, or as a command that is run.
const actVariable = "BC_TEST_ACT"

// leftVariable is a file for what is done after the command.
const leftVariable = "BC_TEST_LEFT"

func TestMain(m *testing.M) {
	switch act := os.Getenv(actVariable); act {
	case "":
		os.Exit(m.Run())
	case "self": // as bc run --gpus
		signals := make(chan os.Signal, 8)
		signal.Notify(signals, Forwarded...)
		os.Setenv(actVariable, os.Args[1])
		code, err := Self(append([]string{"again"}, os.Args[2:]...), signals)
		if err != nil {
			fmt.Println(err)
		}
		fmt.Println("then released")
		if file := os.Getenv(leftVariable); file != "" {
			_ = os.WriteFile(file, []byte(strconv.Itoa(code)), 0o600)
		}
		os.Exit(code)
	case "execute": // as bc run -r
		err := Execute(os.Args[1:], []string{"CUDA_VISIBLE_DEVICES=MIG-1,MIG-2", "ADDED=1"})
		var failed *NotStarted
		fmt.Println(err)
		if errors.As(err, &failed) {
			os.Exit(failed.Status())
		}
		os.Exit(99)
	default:
		command(act)
	}
}

// command is a program that says where it is, waits for a signal and ends with
// the signal's number.
func command(what string) {
	switch what {
	case "exit":
		code, _ := strconv.Atoi(os.Args[1])
		os.Exit(code)
	case "killed":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, Forwarded...)
	fmt.Println("ready, on a terminal:", term.IsTerminal(0) && term.IsTerminal(1))
	n := 0
	for s := range signals {
		number := int(s.(syscall.Signal))
		if number == int(unix.SIGINT) && what == "twice" { // as an interpreter, which goes on
			n++
			fmt.Println("interrupted", n)
			continue
		}
		fmt.Println("got", number)
		os.Exit(40 + number)
	}
}

func act(t *testing.T, what string, words ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], words...)
	cmd.Env = append(os.Environ(), actVariable+"="+what)
	return cmd
}

// A command's exit status is passed on, also a signal's, and what comes after the
// command is done in each case.
func TestSelfPassesTheExitStatusOn(t *testing.T) {
	for _, c := range []struct {
		words []string
		code  int
	}{{[]string{"exit", "0"}, 0}, {[]string{"exit", "7"}, 7}, {[]string{"exit", "255"}, 255}, {[]string{"killed"}, 128 + 9}} {
		cmd := act(t, "self", c.words...)
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != c.code || string(out) != "then released\n" {
			t.Errorf("%v: exit status %d, want %d; %s", c.words, code, c.code, out)
		}
	}
}

// Each signal that can end a program reaches the command, and what comes after it
// is done all the same.
func TestSelfPassesSignalsOn(t *testing.T) {
	for _, s := range Forwarded {
		cmd := act(t, "self", "wait")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if line, _ := lines.ReadString('\n'); line != "ready, on a terminal: false\n" {
			t.Fatalf("the command says %q", line)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(lines)
		_ = cmd.Wait()
		number := int(s.(syscall.Signal))
		if want := fmt.Sprintf("got %d\nthen released\n", number); string(rest) != want || cmd.ProcessState.ExitCode() != 40+number {
			t.Errorf("%v: exit status %d, %q, want %q", s, cmd.ProcessState.ExitCode(), rest, want)
		}
	}
}

// terminal starts a program on a terminal of its own and answers its other end.
func terminal(t *testing.T, cmd *exec.Cmd) *os.File {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be had here: %v", err)
	}
	t.Cleanup(func() { far.Close() })
	if err := unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	near, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be had here: %v", err)
	}
	defer near.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = near, near, near
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return far
}

func expect(t *testing.T, from *bufio.Reader, want string) {
	t.Helper()
	line, err := from.ReadString('\n')
	line = strings.TrimSpace(strings.ReplaceAll(line, "^C", "")) // which the terminal echoes
	if err != nil || line != want {
		t.Fatalf("the terminal shows %q (%v), want %q", line, err, want)
	}
}

// The command is on the caller's terminal. Its keys reach it once, so that what
// goes on after Ctrl-C goes on; a terminal that is closed ends it, and what comes
// after it is done.
func TestSelfOnATerminal(t *testing.T) {
	left := filepath.Join(t.TempDir(), "status")
	// The shell is hung up with its terminal, and its end hangs up what it runs.
	cmd := exec.Command("sh", "-c", `"$0" twice; :`, os.Args[0])
	cmd.Env = append(os.Environ(), actVariable+"=self", leftVariable+"="+left)
	far := terminal(t, cmd)
	screen := bufio.NewReader(far)
	expect(t, screen, "ready, on a terminal: true")
	for n := range 2 {
		if _, err := far.WriteString("\x03"); err != nil {
			t.Fatal(err)
		}
		expect(t, screen, fmt.Sprint("interrupted ", n+1))
	}
	far.Close()
	_ = cmd.Wait()
	want := strconv.Itoa(40 + int(unix.SIGHUP))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // nobody waits for an orphan
		got, err := os.ReadFile(left)
		if err == nil && string(got) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the terminal was closed: %q, want %s (%v)", got, want, err)
		}
	}
}

// A command takes the place of the program: its working directory, its arguments
// as they came, its environment with what the reservation adds, its exit status.
func TestExecuteIsTheCommand(t *testing.T) {
	dir := t.TempDir()
	cmd := act(t, "execute", "sh", "-c", `printf '%s|' "$(pwd)" "$CUDA_VISIBLE_DEVICES" "$ADDED" "$KEPT" "$1" "$$"; exit 5`, "sh", "a  'b' $c")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0,1", "KEPT=yes", "SUDO_UID=")
	out, _ := cmd.Output()
	want := strings.Join([]string{dir, "MIG-1,MIG-2", "1", "yes", "a  'b' $c", strconv.Itoa(cmd.ProcessState.Pid()), ""}, "|")
	if string(out) != want || cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("exit status %d, %s\nwant %s", cmd.ProcessState.ExitCode(), out, want)
	}
}

// A command that cannot be started has the exit status that shells give it.
func TestExecuteOfNoCommand(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "script": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/no/such/interpreter\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for command, want := range map[string]int{"no-such-program": 127, dir + "/none": 127, script: 127, dir + "/plain": 126, dir: 126} {
		cmd := act(t, "execute", command)
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != want || !strings.HasPrefix(string(out), "run "+command+": ") {
			t.Errorf("%s: exit status %d, want %d; %s", command, code, want, out)
		}
	}
}

// Root that came by sudo is its caller again, whose groups and home it has.
func TestExecuteBecomesTheCallerOfSudo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another")
	}
	cmd := act(t, "execute", "sh", "-c", `echo "$(id -u) $(id -g) $(id -G) $HOME $USER ${SUDO_UID-none}"`)
	cmd.Env = append(cmd.Env, "SUDO_UID=65534", "SUDO_GID=0", "SUDO_USER=root")
	out, _ := cmd.Output()
	if got := strings.Fields(string(out)); len(got) != 6 || got[0] != "65534" || got[1] == "0" || got[2] == "0" || got[4] != "nobody" || got[5] != "none" {
		t.Errorf("%s", out)
	}
}
