package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/testdata/hosts"
)

// unpackedMachine puts a recorded machine in a folder.
func unpackedMachine(t *testing.T, name string) string {
	t.Helper()
	text, err := hosts.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := host.Unpack(archive, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func hostCommandOutput(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("bc", append([]string{"host"}, args...)...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bc host %s: %v\n%s", strings.Join(args, " "), err, &failed)
	}
	return out
}

func TestHostInventoryThroughTheGPULibrary(t *testing.T) {
	dir, machine := unpackedMachine(t, "dgx-h100"), gputest.State(t, "dgx-h100")
	flags := []string{"inventory", "--host-root", dir, "--nvml-library", machine.Library}
	var inv wire.Inventory
	if err := json.Unmarshal(hostCommandOutput(t, append(flags, "-o", "json")...), &inv); err != nil {
		t.Fatal(err)
	}
	if inv.GPULibrary.State == wire.GPULibraryNoCGO {
		t.Skip("built without cgo, so NVML cannot be loaded: " + inv.GPULibrary.Reason)
	}
	if inv.GPULibrary.State != wire.GPULibraryReady || len(inv.GPUs) != 8 || inv.Recorded != "dgx-h100" || inv.CPU.Logical != 224 {
		t.Errorf("library %+v, %d GPUs, recorded %q, %d CPUs", inv.GPULibrary, len(inv.GPUs), inv.Recorded, inv.CPU.Logical)
	}
	text := string(hostCommandOutput(t, flags...))
	for _, want := range []string{"SIMULATED: the recorded machine dgx-h100, not this host", "NVIDIA H100 80GB HBM3"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}

	// A change in the library shows: it is the library that was asked.
	machine.Set(0, "name", "NVIDIA H200")
	if text := string(hostCommandOutput(t, flags...)); !strings.Contains(text, "NVIDIA H200") {
		t.Errorf("the text lacks the GPU that was changed:\n%s", text)
	}
}

func TestACapturedMachineIsFoundAgain(t *testing.T) {
	dir := unpackedMachine(t, "dgx-h100")
	var was wire.Inventory
	if err := json.Unmarshal(hostCommandOutput(t, "inventory", "--host-root", dir, "-o", "json"), &was); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.txtar")
	hostCommandOutput(t, "capture", file, "--host-root", dir, "--comment", "a copy")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	if err := host.Unpack(archive, again); err != nil {
		t.Fatal(err)
	}
	var is wire.Inventory
	if err := json.Unmarshal(hostCommandOutput(t, "inventory", "--host-root", again, "-o", "json"), &is); err != nil {
		t.Fatal(err)
	}
	if len(is.GPUs) != 8 || is.GPUs[3].Product != was.GPUs[3].Product || is.CPU.Logical != was.CPU.Logical || is.MemoryKiB != was.MemoryKiB || len(is.NUMA) != len(was.NUMA) {
		t.Errorf("found again: %d GPUs, %d CPUs, %d KiB, %d NUMA nodes; was %d, %d, %d, %d",
			len(is.GPUs), is.CPU.Logical, is.MemoryKiB, len(is.NUMA), len(was.GPUs), was.CPU.Logical, was.MemoryKiB, len(was.NUMA))
	}
	for _, g := range was.GPUs {
		if strings.Contains(string(text), g.UUID) {
			t.Errorf("the file holds %s, which tells the real GPU", g.UUID)
		}
	}
}
