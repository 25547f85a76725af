package unit_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// treeRunner applies units to the files of a machine.
func treeRunner(t *testing.T, tree, state string) *unit.Runner {
	t.Helper()
	root, err := host.OpenRoot(tree)
	if err != nil {
		t.Fatal(err)
	}
	return treeRunnerOf(host.NewMachine(root), state)
}

func treeRunnerOf(m *host.Machine, state string) *unit.Runner {
	return &unit.Runner{
		Machine: m, Ledger: host.OpenLedger(state), Manage: true, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	}
}

const killedUnits = `{"kernel-modules":{"options":{"vfio_pci":"disable_idle_d3=1"}},"hugepages":{"sizeKiB":2048,"count":100,"perNuma":true},"cpu":{"governor":"performance"}}`

// A process that applies and removes for ever is killed, at ever later moments.
// The next one brings the machine where it belongs, and back to where it was.
func TestKilledProcess(t *testing.T) {
	want := units(t, killedUnits)
	if tree := os.Getenv("UNIT_TEST_TREE"); tree != "" { // the process that is killed
		r := treeRunner(t, tree, os.Getenv("UNIT_TEST_STATE"))
		os.Stdout.WriteString("ready\n")
		for generation := int64(1); ; generation++ {
			r.Sync(context.Background(), wire.NodeSpec{Generation: generation, Units: want})
			r.Sync(context.Background(), wire.NodeSpec{Generation: generation})
		}
	}
	b := newBench(t, "debian-amd")
	b.Runner = treeRunner(t, b.Dir(), b.state)
	before := b.Files(t)
	applied := afterSync(t, b, want)
	b.sync(wire.Units{})
	for i := range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
		cmd.Env = append(os.Environ(), "UNIT_TEST_TREE="+b.Dir(), "UNIT_TEST_STATE="+b.state)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*i) * time.Millisecond) // the moment is what differs
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		mendKernel(t, b.Dir())
		b.Runner = treeRunner(t, b.Dir(), b.state) // the next process, which has seen no fights
		if diff := cmp.Diff(applied, afterSync(t, b, want)); diff != "" {
			t.Fatalf("killed after %d ms (-never killed +killed):\n%s", i*i, diff)
		}
		if diff := cmp.Diff(before, afterSync(t, b, wire.Units{})); diff != "" {
			t.Fatalf("killed after %d ms, removed (-before +after):\n%s", i*i, diff)
		}
	}
}

func afterSync(t *testing.T, b *bench, want wire.Units) map[string]string {
	t.Helper()
	b.sync(want)
	return b.Files(t)
}

// mendKernel makes the imitated kernel's counts agree again. A kernel changes
// them together; the imitation writes a file after the other, and can be killed
// in between, which would look like pages in use. Nothing uses pages here.
func mendKernel(t *testing.T, tree string) {
	t.Helper()
	if err := os.Remove(tree + "/.better-compute.new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, dir := range []string{"/sys/devices/system/node/node*/hugepages/*/", "/sys/kernel/mm/hugepages/*/"} {
		pools, err := filepath.Glob(tree + dir + "nr_hugepages")
		if err != nil {
			t.Fatal(err)
		}
		for _, nr := range pools {
			count, err := os.ReadFile(nr)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(filepath.Dir(nr), "free_hugepages"), count, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
