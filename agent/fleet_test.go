package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
)

// Five hundred nodes join, take up a NodeSpec each and confirm its binding; the
// control plane restarts, and all go on without joining again.
func TestFleetJoinsAndConfirms(t *testing.T) {
	const nodes = 500
	c, socket := newControl(), socketPath(t)
	c.lean = true
	machine := recorded(t, "l40s-4")
	c.onJoin = func(n *fakeNode) {
		n.retrySeconds = 1
		n.want(wire.NodeSpec{
			Acceptance: []wire.Check{{Kind: "diag.nvml"}},
			Bindings:   []wire.Binding{{ReservationID: "res_" + n.id}},
		})
	}
	stop := c.serve(t, socket)
	f := &Fleet{
		Server: "unix:" + socket, PoolID: "pool_1", Nodes: nodes, Machine: machine, Group: "test",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	all := func(generation int64) func() bool {
		return func() bool {
			n := 0
			for _, node := range c.nodes {
				if node.taken == generation && len(node.bindings) == 1 && node.bindings[0].Failed == "" &&
					len(node.checks) == 1 && node.checks[0].Passed {
					n++
				}
			}
			return n == nodes
		}
	}
	c.await(t, "every node confirmed and accepted", all(1))
	c.look(func() {
		if len(c.hellos) != nodes || len(c.nodes) != nodes {
			t.Errorf("%d hellos made %d nodes, want %d of each", len(c.hellos), len(c.nodes), nodes)
		}
	})
	stop()
	c.change(func() {
		for _, n := range c.nodes {
			n.want(wire.NodeSpec{Acceptance: n.spec.Acceptance, Bindings: []wire.Binding{{ReservationID: "res_2"}}})
		}
	})
	c.serve(t, socket)
	c.await(t, "every node confirmed again", all(2))
	if f.Joined() != nodes {
		t.Errorf("%d joined by the fleet's own account, want %d", f.Joined(), nodes)
	}
	c.look(func() {
		if len(c.hellos) != nodes {
			t.Errorf("%d hellos in all, want %d: a restart needs none", len(c.hellos), nodes)
		}
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFleetNeedsARecordedMachine(t *testing.T) {
	f := &Fleet{Server: "unix:/nowhere", Nodes: 1, Log: slog.New(slog.DiscardHandler)}
	if err := f.Run(t.Context()); err == nil {
		t.Error("a fleet over a real machine ran")
	}
}

// A node that has joined and holds a binding takes at most 30 KiB, its share of
// the connections and workers included.
func TestFleetMemory(t *testing.T) {
	const nodes, most = 200, 30 << 10
	l, err := dial("unix:/nowhere", nil, fleetConns)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dgx-h100", "h100-mig"} {
		f := &Fleet{Machine: recorded(t, name), Group: "test"}
		before := inUse()
		fleet := make([]*node, nodes)
		for i := range fleet {
			n := f.node(l, i)
			n.book.NodeID = fmt.Sprintf("node_%d", i)
			spec := fmt.Sprintf(`{"nodeId":%q,"generation":1,"acceptance":[{"kind":"diag.nvml"}],`+
				`"bindings":[{"reservationId":"res_1","devices":[{"uuid":%q}]}]}`, n.book.NodeID, n.inv.GPUs[0].UUID)
			if err := n.take([]byte(spec)); err != nil {
				t.Fatal(err)
			}
			fleet[i] = n
		}
		each := (inUse() - before) / nodes
		t.Logf("%s: %d bytes a node", name, each)
		if each > most {
			t.Errorf("%s: a node takes %d bytes, at most %d are allowed", name, each, most)
		}
		if s := fleet[nodes-1].book.Bindings; len(s) != 1 || s[0].Failed != "" {
			t.Errorf("%s: bindings %+v", name, s)
		}
		runtime.KeepAlive(fleet)
	}
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
