package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/testdata/hosts"
)

// Of a pool that the kernel left short the inventory, from which capacity is
// taken, has the pages that are there.
func TestInventoryHasThePagesThatAreThere(t *testing.T) {
	text, err := hosts.Read("cpu-only")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	m := hosttest.New(t, archive)
	nodes := m.Glob("/sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB")
	for _, node := range nodes {
		m.Fragment(node, 10)
	}
	r := &unit.Runner{Machine: m.Machine, Ledger: host.OpenLedger(t.TempDir()), Manage: true, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	got := r.Sync(t.Context(), wire.NodeSpec{Generation: 1, Units: wire.Units{Hugepages: &wire.Hugepages{SizeKiB: wire.Hugepage2MiKiB, Count: 1000}}})
	if len(got) != 1 || got[0].State != wire.Partial {
		t.Fatalf("%+v", got)
	}
	inv := inventory.Collect(m.Root, inventory.GPUs{})
	for _, pool := range inv.Hugepages {
		if pool.SizeKiB == wire.Hugepage2MiKiB && pool.Total != 10*len(nodes) {
			t.Errorf("it has %d pages, there are 10 on each of %d nodes", pool.Total, len(nodes))
		}
	}
	if len(nodes) == 0 || len(inv.Hugepages) == 0 {
		t.Errorf("%d nodes, %d pools", len(nodes), len(inv.Hugepages))
	}
}
