//go:build cgo

package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/wire"
)

// Every board that NVML is imitated of is accepted, and each fault that NVML can
// show is refused by the name of its device and what it answered.
func TestAcceptanceAsksNVML(t *testing.T) {
	if !gputest.Alone(t) {
		return
	}
	states, err := filepath.Glob("../testdata/nvml/states/*.state")
	if err != nil || len(states) < 5 {
		t.Fatalf("%d states: %v", len(states), err)
	}
	m := gputest.State(t, "dgx-h100")
	sound, err := os.ReadFile(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	lib := gpu.Open(m.Library)
	accepted := func(with string, change func()) error {
		t.Helper()
		snapshot := lib.Snapshot(t.Context())
		inv := wire.Inventory{GPULibrary: snapshot.Library, GPUs: snapshot.GPUs}
		change()
		return accept(wire.Check{Kind: wire.CheckNVML, With: json.RawMessage(with)}, &inv, lib.Readings(t.Context()))
	}
	// put makes the machine another: a driver that was loaded anew.
	put := func(state []byte) {
		t.Helper()
		if err := os.WriteFile(m.Path, state, 0o644); err != nil {
			t.Fatal(err)
		}
		m.Reload()
	}
	for _, file := range states {
		state, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		put(state)
		if err := accepted(`{}`, func() {}); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
	for _, c := range []struct {
		name, with string
		change     func()
		want       []string
	}{
		{"all limits met", `{"minDriver":"535.161.08","minDevices":8,"maxTemperatureC":150}`, func() {}, nil},
		{"driver too old", `{"minDriver":"535.161.09"}`, func() {}, []string{"the driver is 535.161.08, at least 535.161.09"}},
		{"too few", `{"minDevices":9}`, func() {}, []string{"8 GPUs, at least 9"}},
		{"too hot", `{"maxTemperatureC":90}`, func() { m.Set(5, "temperature", "91") }, []string{m.Get(5, "pci"), "91 °C", "90 °C"}},
		{"hot, no limit", `{}`, func() { m.Set(5, "temperature", "91") }, nil},
		{"lost", `{}`, func() { m.Lose(3) }, []string{m.Get(3, "pci"), "lost", "fallen off the bus"}},
		{"gone", `{}`, func() { m.Remove(7) }, []string{m.Get(7, "pci"), "gives no readings"}},
		{"driver died", `{}`, func() { m.Die("unknown") }, []string{"NVML does not answer: unknown error"}},
		{"needs a reset", `{}`, func() { m.Set(2, "error.nvmlDeviceGetTemperature", "reset_required") }, []string{m.Get(2, "pci"), "needs a reset"}},
		{"pages to retire", `{}`, func() { m.Set(1, "retired-pending", "on") }, []string{m.Get(1, "pci"), "wait to be retired"}},
		{"rows to remap", `{}`, func() { m.Set(1, "remapped", "1 0 1 0") }, []string{m.Get(1, "pci"), "wait to be remapped"}},
		{"rows remapped", `{}`, func() { m.Set(1, "remapped", "1 0 0 0") }, nil},
		{"rows that cannot be remapped", `{}`, func() { m.Set(1, "remapped", "0 1 0 1") }, []string{m.Get(1, "pci"), "could not be remapped"}},
		{"another name", `{}`, func() { m.Set(4, "name", "NVIDIA H200") }, []string{m.Get(4, "pci"), `"NVIDIA H200"`, `"NVIDIA H100 80GB HBM3"`}},
		{"another address", `{}`, func() { m.Set(4, "pci", "0000:99:00.0") }, []string{m.Get(4, "pci"), "0000:99:00.0"}},
		{"no name", `{}`, func() { m.Set(4, "error.nvmlDeviceGetName", "unknown") }, []string{m.Get(4, "pci"), "name: unknown error (NVML 999)"}},
		{"no UUID", `{}`, func() { m.Set(4, "error.nvmlDeviceGetUUID", "unknown") }, []string{m.Get(4, "pci"), "UUID: unknown error (NVML 999)"}},
		{"no address told", `{}`, func() { m.Set(4, "error.nvmlDeviceGetPciInfo_v3", "unknown") }, []string{m.Get(4, "pci"), "PCI address: unknown error (NVML 999)"}},
		{"no memory told", `{}`, func() {
			m.Set(4, "error.nvmlDeviceGetMemoryInfo", "no_permission")
			m.Set(4, "error.nvmlDeviceGetMemoryInfo_v2", "no_permission")
		}, []string{m.Get(4, "pci"), "memory: no permission (NVML 4)"}},
		{"no temperature told", `{}`, func() { m.Set(4, "error.nvmlDeviceGetTemperature", "no_permission") }, []string{m.Get(4, "pci"), "temperature: no permission (NVML 4)"}},
		{"no ECC errors told", `{}`, func() { m.Set(4, "error.nvmlDeviceGetTotalEccErrors", "no_permission") }, []string{m.Get(4, "pci"), "ECC errors: no permission (NVML 4)"}},
		{"no page retirement told", `{}`, func() { m.Set(4, "error.nvmlDeviceGetRetiredPagesPendingStatus", "no_permission") }, []string{m.Get(4, "pci"), "page retirement: no permission (NVML 4)"}},
		{"no row remapping told", `{}`, func() { m.Set(4, "error.nvmlDeviceGetRemappedRows", "no_permission") }, []string{m.Get(4, "pci"), "row remapping: no permission (NVML 4)"}},
	} {
		put(sound)
		err := accepted(c.with, c.change)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, word := range c.want {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", c.name, err, word)
			}
		}
	}
}
