package inventory_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// Where the GPU library does not tell a GPU's NUMA node, the kernel is asked. What
// the library says counts, and what neither says is not known.
func TestNUMANodeOfAGPUThatOnlyTheKernelTells(t *testing.T) {
	dir := t.TempDir()
	for address, node := range map[string]string{"0000:17:00.0": "1", "0000:65:00.0": "1", "0000:b3:00.0": "-1", "0001:3d:00.0": "0"} {
		file := filepath.Join(dir, "sys/bus/pci/devices", address, "numa_node")
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(node+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	said := []wire.GPU{
		{Address: "0000:17:00.0", NUMANode: -1},
		{Address: "0000:65:00.0", NUMANode: 0},  // the library says another
		{Address: "0000:b3:00.0", NUMANode: -1}, // the firmware does not say
		{Address: "0001:3D:00.0", NUMANode: -1},
		{Address: "0000:ff:00.0", NUMANode: -1}, // fell off the bus
		{Address: "../../etc", NUMANode: -1},
	}
	inv := inventory.Collect(root, inventory.GPUs{Devices: said})
	for i, want := range []int{1, 0, -1, 0, -1, -1} {
		if got := inv.GPUs[i].NUMANode; got != want {
			t.Errorf("GPU at %s: node %d, want %d", said[i].Address, got, want)
		}
	}
	if said[0].NUMANode != -1 {
		t.Error("what the library said was changed")
	}
}
