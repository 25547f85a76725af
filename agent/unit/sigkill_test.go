package unit_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// killer is the edge of a machine whose process is killed at a moment: 2n-1 is
// right before the nth change reaches the machine, 2n right after.
type killer struct {
	host.Edge
	moment, seen int
}

func (k *killer) around(do func() error) error {
	k.pass()
	err := do()
	k.pass()
	return err
}

// pass is one moment. Nothing is deferred, flushed or unlocked at the last.
func (k *killer) pass() {
	if k.seen++; k.seen == k.moment {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it arrives
	}
}

func (k *killer) WriteFile(name string, data []byte) error {
	return k.around(func() error { return k.Edge.WriteFile(name, data) })
}

func (k *killer) RemoveFile(name string) error {
	return k.around(func() error { return k.Edge.RemoveFile(name) })
}

func (k *killer) WriteKernel(name, value string) error {
	return k.around(func() error { return k.Edge.WriteKernel(name, value) })
}

func (k *killer) Run(ctx context.Context, argv ...string) error {
	return k.around(func() error { return k.Edge.Run(ctx, argv...) })
}

const everyHostUnit = `{"kernel-modules":{"load":["vfio-pci"],"options":{"vfio_pci":"disable_idle_d3=1"}},` +
	`"hugepages":{"sizeKiB":2048,"count":64,"perNuma":true},"cpu":{"governor":"performance","isolate":"2-3"},"iommu":{"passthrough":true}}`

// A real SIGKILL right before and right after each change of every host unit,
// while it is applied and while it is removed. The next process goes on from
// there: in the end the machine, and what is remembered, are as if nobody had
// been killed.
func TestSIGKILLAtEachChange(t *testing.T) {
	if tree := os.Getenv("BC_KILL_TREE"); tree != "" { // the process that is killed
		r := runnerOf(hosttest.Open(t, tree), os.Getenv("BC_KILL_STATE"))
		moment, _ := strconv.Atoi(os.Getenv("BC_KILL_MOMENT"))
		r.Machine.Edge = &killer{Edge: r.Machine.Edge, moment: moment}
		r.Sync(t.Context(), wire.NodeSpec{Generation: 7, Units: units(t, os.Getenv("BC_KILL_WANT"))})
		return
	}
	t.Parallel()
	const machine = "amd-epp"
	still := newBench(t, machine)
	before := still.Files(t)
	statuses := lines(still.sync(units(t, everyHostUnit)))
	applied := still.Files(t)
	still.sync(wire.Units{})
	removed := still.Files(t)
	moments := killsUntilItLives(t, machine, statuses, applied, removed)
	if moments < 20 || cmp.Equal(before, applied) {
		t.Errorf("it was killed at %d moments", moments)
	}
}

// killsUntilItLives kills at one moment after the other until there is none left
// at which a process dies. It answers how many there were.
func killsUntilItLives(t *testing.T, machine, statuses string, applied, removed map[string]string) int {
	t.Helper()
	for moment := 1; ; moment++ {
		b := newBench(t, machine)
		killedApplying := b.killed(t, everyHostUnit, moment)
		b.Runner = runnerOf(hosttest.Open(t, b.Dir()), b.state)
		if got := lines(b.sync(units(t, everyHostUnit))); got != statuses {
			t.Fatalf("killed at moment %d: %s", moment, cmp.Diff(statuses, got))
		}
		if diff := cmp.Diff(applied, b.Files(t)); diff != "" {
			t.Fatalf("killed at moment %d, the machine (-never killed +killed):\n%s", moment, diff)
		}
		killedRemoving := b.killed(t, `{}`, moment)
		b.Runner = runnerOf(hosttest.Open(t, b.Dir()), b.state)
		b.sync(wire.Units{})
		if diff := cmp.Diff(removed, b.Files(t)); diff != "" {
			t.Fatalf("killed at moment %d while removing, the machine (-never killed +killed):\n%s", moment, diff)
		}
		if left := b.Ledger.Units(host.Priors); len(left) > 0 {
			t.Fatalf("killed at moment %d, the ledger still knows of %v", moment, left)
		}
		if !killedApplying && !killedRemoving {
			return moment - 1
		}
	}
}

func runnerOf(m *hosttest.Machine, state string) *unit.Runner {
	r := treeRunnerOf(m.Machine, state)
	r.Now = func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }
	return r
}

// killed runs a Sync in a process that is killed at a moment, if it comes that
// far.
func (b *bench) killed(t *testing.T, want string, moment int) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSIGKILLAtEachChange$")
	cmd.Env = append(os.Environ(), "BC_KILL_TREE="+b.Dir(), "BC_KILL_STATE="+b.state, "BC_KILL_WANT="+want, "BC_KILL_MOMENT="+strconv.Itoa(moment))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process to be killed at moment %d: %v\n%s", moment, err, out)
	}
	return true
}
