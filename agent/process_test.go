package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// The settings by which this test program, started once more, is an agent.
const (
	envServer  = "BC_TEST_AGENT_SERVER"
	envState   = "BC_TEST_AGENT_STATE"
	envRoot    = "BC_TEST_AGENT_ROOT"
	envLibrary = "BC_TEST_AGENT_NVML"
	envManage  = "BC_TEST_AGENT_MANAGES"
)

func TestMain(m *testing.M) {
	if server := os.Getenv(envServer); server != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		root, err := host.OpenRoot(os.Getenv(envRoot))
		if err == nil {
			a := &Agent{Server: server, StateDir: os.Getenv(envState), Root: root, GPUs: gpu.Open(os.Getenv(envLibrary)), Log: log, ManageHost: os.Getenv(envManage) != ""}
			err = a.Run(context.Background())
		}
		log.Error("agent", "err", err)
		os.Exit(1)
	}
	if pages := os.Getenv(hugeVariable); pages != "" {
		mapHugePages(pages)
	}
	os.Exit(m.Run())
}

// hugeVariable has this test program, started once more, ask for so many huge
// pages of 2Mi and say whether it got them.
const hugeVariable = "BC_TEST_HUGE_PAGES"

func mapHugePages(pages string) {
	n, _ := strconv.Atoi(pages)
	if _, err := unix.Mmap(-1, 0, n<<21, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("got them")
	}
	os.Exit(0)
}

// process is an agent in a process of its own, over the NVML library in C.
type process struct {
	socket, state string
	root          *host.Root
	library       string
}

func (p process) start(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServer+"=unix:"+p.socket, envState+"="+p.state, envRoot+"="+p.root.Dir(), envLibrary+"="+p.library)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

// A real process with the real NVML binding: it is killed in the middle, and
// goes on as the same node; a GPU falls off the bus, then NVML as a whole fails.
func TestAgentProcessIsKilledAndItsGPUsFail(t *testing.T) {
	if !hasNVML(t) {
		t.Skip("this build has no NVML")
	}
	machine := gputest.State(t, "l40s-4")
	c := newControl()
	p := process{socketPath(t), filepath.Join(t.TempDir(), "state"), testMachine(t, "b"), machine.Library}
	c.serve(t, p.socket)
	cmd := p.start(t)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	var gpus []wire.GPU
	c.look(func() { gpus = c.only().inventory.GPUs })
	if len(gpus) != 4 || gpus[0].Product != "NVIDIA L40S" {
		t.Fatalf("the inventory has %+v", gpus)
	}
	booked := func(generation int64) wire.NodeSpec {
		return wire.NodeSpec{
			Generation: generation,
			Acceptance: []wire.Check{{Kind: "diag.nvml"}},
			Bindings: []wire.Binding{
				{ReservationID: "res_0", Devices: devices(gpus[0].UUID)},
				{ReservationID: "res_1", Devices: devices(gpus[1].UUID)},
			},
		}
	}
	c.want(booked(1))
	c.await(t, "both in force, the machine accepted", func() bool {
		n := c.only()
		return len(n.confirmed()) == 2 && len(n.checks) == 1 && n.checks[0].Passed
	})

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	machine.Lose(1)
	c.change(func() { c.only().bindings = nil })
	cmd = p.start(t)
	c.await(t, "the lost GPU's binding failed, the other in force", func() bool {
		n := c.only()
		return slices.Equal(n.confirmed(), []string{"res_0"}) && strings.HasPrefix(n.bindings[1].Failed, gpus[1].UUID) &&
			!n.checks[0].Passed && strings.Contains(n.checks[0].Reason, gpus[1].UUID)
	})
	c.look(func() {
		if len(c.nodes) != 1 {
			t.Errorf("the killed agent came back as another node: there are %d", len(c.nodes))
		}
		var uuids []string
		for _, g := range c.only().inventory.GPUs {
			uuids = append(uuids, g.UUID)
		}
		if diff := cmp.Diff([]string{gpus[0].UUID, gpus[1].UUID, gpus[2].UUID, gpus[3].UUID}, uuids); diff != "" {
			t.Error(diff)
		}
	})

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	machine.Die("unknown")
	p.start(t)
	c.await(t, "NVML failed", func() bool { return c.only().inventory.GPULibrary.State == wire.GPULibraryFailed })
	c.look(func() {
		if n := c.only(); len(n.inventory.GPUs) != 4 || !slices.Equal(n.confirmed(), []string{"res_0"}) {
			t.Errorf("without NVML: %d GPUs, in force %v", len(n.inventory.GPUs), n.confirmed())
		}
	})
}

func hasNVML(t *testing.T) bool {
	return gpu.Open("").Snapshot(t.Context()).Library.State != wire.GPULibraryNoCGO
}

// Two agents with states of their own, and one machine: the second to manage it
// refuses, names the first, and changes nothing. It may look.
func TestSecondAgentThatWouldManageTheMachine(t *testing.T) {
	a := testAgent(t, socketPath(t), newTestGPUs(1))
	root, governor := governed(t)
	first := newControl()
	socket := socketPath(t)
	first.serve(t, socket)
	p := process{socket, filepath.Join(t.TempDir(), "first"), root, ""}
	t.Setenv(envManage, "yes")
	cmd := p.start(t)
	first.await(t, "a first heartbeat", func() bool { return len(first.beats) > 0 })
	before, _ := root.String(governor)

	a.Root, a.ManageHost = root, true
	err := a.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("managed by another agent, process %d (%s", cmd.Process.Pid, os.Args[0])) {
		t.Fatalf("the second says %v", err)
	}
	if now, _ := root.String(governor); now != before {
		t.Errorf("the governor was %s and is %s", before, now)
	}

	cmd.Process.Kill()
	cmd.Wait()
	lock, err := root.LockMachine()
	if err != nil {
		t.Fatalf("after the first was killed: %v", err)
	}
	lock.Close()
}
