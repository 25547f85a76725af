package main_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// runBox is a server with one pool of one machine, whose eight GPUs nobody walls in.
func runBox(t *testing.T) (*box, *person, appliance.Pool) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("bc run needs root")
	}
	b := startBox(t)
	op := b.operator(t)
	site := b.site(t, b.tenant(t, "acme"), "lab", appliance.SiteCustom)
	pool := b.pool(t, site, "train", object{"ownerQuota": object{"gpu": 100}})
	b.fleet(t, pool, "dgx-h100", 1)
	return b, op, pool
}

func (b *box) run(words ...string) *exec.Cmd {
	cmd := exec.Command("bc", append([]string{"run"}, words...)...)
	cmd.Env = append(os.Environ(), "BC_SERVER=unix:"+b.socket, "BC_TENANT=acme", "BC_CONFIG=")
	return cmd
}

// booked counts the tenant's reservations that are not over.
func booked(t *testing.T, p *person) int {
	t.Helper()
	n := 0
	for _, r := range do[appliance.List[appliance.Reservation]](t, p, "reservations.list", object{"tenantId": "acme"}).Items {
		if r.EndedAt == nil {
			n++
		}
	}
	return n
}

// bc run that is told to end while it waits for its GPUs leaves no reservation,
// whatever tells it, and also when nobody reads what it says any more.
func TestRunThatIsInterruptedReleases(t *testing.T) {
	b, op, pool := runBox(t)
	do[appliance.Reservation](t, op, "reservations.create", object{"tenantId": "acme", "poolId": pool.ID, "resources": object{"gpu": 8}})
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		deaf   bool
	}{
		{"Ctrl-C", syscall.SIGINT, false}, {"ended", syscall.SIGTERM, false}, {"the terminal was closed", syscall.SIGHUP, false},
		{"quit", syscall.SIGQUIT, false}, {"ended, with its output closed", syscall.SIGTERM, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := b.run("--gpus", "1", "--", "true")
			said, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(said)
			first, _ := lines.ReadString('\n')
			if n := booked(t, op); n != 2 {
				t.Errorf("%d reservations while it waits, want 2: %s", n, first)
			}
			if c.deaf {
				said.Close()
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(lines)
			_ = cmd.Wait()
			if n := booked(t, op); n != 1 || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("%d reservations are left, want 1; exit status %d\n%s%s", n, cmd.ProcessState.ExitCode(), first, rest)
			}
			if !c.deaf && !strings.Contains(string(rest), "is released") {
				t.Errorf("it does not say that it released: %s", rest)
			}
		})
	}
}

// What is active and not walled in is released, and the reason is told: the
// command would have run among all others.
func TestRunWithoutAWallRefusesAndReleases(t *testing.T) {
	b, op, _ := runBox(t)
	for _, c := range []struct {
		words []string
		code  int
		says  []string
	}{
		{[]string{"--gpus", "2", "--", "touch", "/nowhere/ran"}, 4, []string{"does not wall the resources in", "is released"}},
		{[]string{"--gpus", "2"}, 2, []string{"needs a command behind --"}},
		{[]string{"--", "true"}, 2, []string{"either --reservation RESERVATION or --gpus N"}},
		{[]string{"-r", "x", "--for", "1h", "--", "true"}, 2, []string{"--for is of a new reservation"}},
		{[]string{"-r", "nothing", "--", "true"}, 3, []string{"nothing"}},
	} {
		var said bytes.Buffer
		cmd := b.run(c.words...)
		cmd.Stderr = &said
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != c.code {
			t.Errorf("%v: exit status %d, want %d: %s", c.words, cmd.ProcessState.ExitCode(), c.code, &said)
		}
		for _, want := range c.says {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%v: %q is not in: %s", c.words, want, &said)
			}
		}
		if n := booked(t, op); n != 0 {
			t.Fatalf("%v: %d reservations are left", c.words, n)
		}
	}
}
