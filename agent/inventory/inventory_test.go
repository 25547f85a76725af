package inventory_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/testdata/hosts"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func recorded(t testing.TB, name string) wire.Inventory {
	t.Helper()
	archive, err := hosts.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Recorded(name, archive)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestOddMachines(t *testing.T) {
	files, err := filepath.Glob("testdata/odd/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no machines: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			archive, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			inv, err := inventory.Recorded(name, archive)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.MarshalIndent(inv, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "testdata/odd/"+name+".json", append(data, '\n'))
		})
	}
}

// A recorded machine is the machine: recorded, unpacked and read again it has
// the same inventory, but for what a recording leaves out on purpose.
func TestRecordingAMachineKeepsItsInventory(t *testing.T) {
	for _, name := range hosts.Names() {
		t.Run(name, func(t *testing.T) {
			want := recorded(t, name)
			archive, err := hosts.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			a, err := host.ParseArchive(archive)
			if err != nil {
				t.Fatal(err)
			}
			c, err := host.ParseArchive(host.Capture(a.Root(), "").Format())
			if err != nil {
				t.Fatal(err)
			}
			gpus := inventory.GPUs{Library: want.GPULibrary, Devices: want.GPUs}
			got := inventory.Collect(c.Root(), gpus)
			got.Recorded = name
			for _, note := range got.Notes {
				if !strings.Contains(note, "has no id") {
					t.Errorf("note %q", note)
				}
			}
			got.Notes = nil
			if got.Hostname != "" || got.MachineID != "" || got.BootID != "" {
				t.Errorf("the recording knows the machine: %q %q %q", got.Hostname, got.MachineID, got.BootID)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(wire.Inventory{}, "Hostname", "MachineID", "BootID")); diff != "" {
				t.Errorf("(-machine +recording):\n%s", diff)
			}
		})
	}
}

func TestUnpackedMachineReadsAsFromItsArchive(t *testing.T) {
	const name = "cpu-only" // the smallest: every file is written to disk
	archive, err := hosts.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	a, err := host.ParseArchive(archive)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := host.Unpack(a, dir); err != nil {
		t.Fatal(err)
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	gpus, found, err := inventory.RecordedGPUs(root)
	if err != nil || !found {
		t.Fatalf("recorded GPUs: found %v, %v", found, err)
	}
	got := inventory.Collect(root, gpus)
	got.Recorded = name
	if diff := cmp.Diff(recorded(t, name), got); diff != "" {
		t.Errorf("(-archive +folder):\n%s", diff)
	}
}

func TestThisMachineHasAnInventory(t *testing.T) {
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	if _, found, err := inventory.RecordedGPUs(root); found || err != nil {
		t.Errorf("the real machine has recorded GPUs: %v, %v", found, err)
	}
	inv := inventory.Collect(root, inventory.GPUs{})
	if inv.CPU.Logical < 1 || inv.CPU.Cores < 1 || inv.CPU.Cores > inv.CPU.Logical || inv.MemoryKiB == 0 || len(inv.NUMA) == 0 || inv.Kernel == "" {
		t.Errorf("inventory of this machine: %+v", inv)
	}
	set, err := wire.ParseCPUList(inv.CPU.Online)
	if err != nil || set.Count() != inv.CPU.Logical {
		t.Errorf("online %q, %v; %d logical CPUs", inv.CPU.Online, err, inv.CPU.Logical)
	}
	for _, c := range inv.MachineID {
		if !strings.ContainsRune("0123456789abcdef", c) {
			t.Fatalf("machine id %q", inv.MachineID)
		}
	}
	if raw, err := os.ReadFile("/etc/machine-id"); err == nil && len(raw) > 32 && inv.MachineID == string(raw[:32]) {
		t.Error("the machine id itself is in the inventory")
	}
}

func TestHashMovesWithTheMachineAndNotWithItsReadings(t *testing.T) {
	base := recorded(t, "dgx-h100")
	hash := inventory.Hash(base)
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(hash) {
		t.Errorf("hash %q is not 16 hex digits", hash)
	}
	if again := inventory.Hash(recorded(t, "dgx-h100")); again != hash {
		t.Errorf("the same machine hashes as %s and %s", hash, again)
	}
	for what, change := range map[string]struct {
		do    func(*wire.Inventory)
		moves bool
	}{
		"free huge pages":         {func(i *wire.Inventory) { i.Hugepages[0].Free += 3 }, false},
		"free pages of a node":    {func(i *wire.Inventory) { i.NUMA[1].Hugepages[1].Free += 3 }, false},
		"surplus pages":           {func(i *wire.Inventory) { i.Hugepages[0].Total += 2; i.Hugepages[0].Surplus += 2 }, false},
		"the enforced power":      {func(i *wire.Inventory) { i.GPUs[2].Power.EnforcedWatts = 450 }, false},
		"pages":                   {func(i *wire.Inventory) { i.NUMA[1].Hugepages[1].Total++ }, true},
		"the power limit":         {func(i *wire.Inventory) { i.GPUs[2].Power.LimitWatts = 450 }, true},
		"a GPU's health":          {func(i *wire.Inventory) { i.GPUs[2].Health = wire.GPULost }, true},
		"a GPU less":              {func(i *wire.Inventory) { i.GPUs = i.GPUs[:7] }, true},
		"a boot":                  {func(i *wire.Inventory) { i.BootID = "other" }, true},
		"a governor":              {func(i *wire.Inventory) { i.CPU.Cpufreq[0].Governor = "powersave" }, true},
		"memory":                  {func(i *wire.Inventory) { i.MemoryKiB-- }, true},
		"a note":                  {func(i *wire.Inventory) { i.Notes = append(i.Notes, "new") }, true},
		"the state of the driver": {func(i *wire.Inventory) { i.GPULibrary.State = wire.GPULibraryMismatch }, true},
	} {
		inv := recorded(t, "dgx-h100")
		change.do(&inv)
		before := mustJSON(t, inv)
		if moved := inventory.Hash(inv) != hash; moved != change.moves {
			t.Errorf("%s: the hash moved %v, want %v", what, moved, change.moves)
		}
		if mustJSON(t, inv) != before {
			t.Errorf("%s: Hash changed the inventory", what)
		}
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPersonalisedMachinesShareNoIdentity(t *testing.T) {
	base := recorded(t, "h100-mig")
	before := mustJSON(t, base)
	seen := make(map[string]string)
	claim := func(id, who string) {
		t.Helper()
		if other, taken := seen[id]; taken {
			t.Fatalf("%s is of %s and of %s", id, other, who)
		}
		seen[id] = who
	}
	for _, group := range []string{"pool_a", "pool_b", ""} {
		for n := range 20 {
			inv := inventory.Personalise(base, group, n)
			who := group + " " + inv.Hostname
			claim(inv.MachineID, who+" machine")
			claim(inv.BootID, who+" boot")
			own := make(map[string]bool)
			for _, gpu := range inv.GPUs {
				own[gpu.UUID] = true
			}
			for i, gpu := range inv.GPUs {
				claim(gpu.UUID, who+" GPU")
				claim(gpu.SerialHash, who+" serial")
				if len(gpu.UUID) != len(base.GPUs[i].UUID) || !strings.HasPrefix(gpu.UUID, "GPU-") {
					t.Errorf("UUID %q", gpu.UUID)
				}
				for _, peer := range gpu.NVLinkPeers {
					if !own[peer.UUID] || peer.UUID == gpu.UUID {
						t.Fatalf("%s: GPU %d has the peer %s, which is none of the machine's others", who, i, peer.UUID)
					}
				}
				for _, instance := range gpu.MIG.Instances {
					claim(instance.UUID, who+" MIG")
				}
			}
			if mustJSON(t, inventory.Personalise(base, group, n)) != mustJSON(t, inv) {
				t.Errorf("%s differs from itself", who)
			}
			// All else is the machine's.
			inv.Hostname, inv.MachineID, inv.BootID, inv.GPUs = base.Hostname, base.MachineID, base.BootID, base.GPUs
			if diff := cmp.Diff(base, inv); diff != "" {
				t.Fatalf("%s (-machine +persona):\n%s", who, diff)
			}
		}
	}
	if mustJSON(t, base) != before {
		t.Error("Personalise changed the machine it was given")
	}
}

func TestRecordedMachinesHaveTheirOwnIDs(t *testing.T) {
	seen := make(map[string]string)
	for _, name := range hosts.Names() {
		inv := recorded(t, name)
		if inv.Recorded != name {
			t.Errorf("%s is marked as %q", name, inv.Recorded)
		}
		ids := []string{inv.MachineID, inv.BootID}
		for _, gpu := range inv.GPUs {
			ids = append(ids, gpu.UUID, gpu.SerialHash)
		}
		for _, id := range ids {
			if other, taken := seen[id]; taken || id == "" {
				t.Errorf("%s: id %q is also of %s", name, id, other)
			}
			seen[id] = name
		}
	}
	if _, err := hosts.Read("dgx-h200"); err == nil || !strings.Contains(err.Error(), "dgx-h100") {
		t.Errorf("an unknown machine gives %v, want the names there are", err)
	}
}

func TestRecordedRefusesWhatIsNoMachine(t *testing.T) {
	for _, text := range []string{"-- links --\nx\n", "-- nvml.json --\n{\n", "-- nvml.json --\n[]\n"} {
		if _, err := inventory.Recorded("x", []byte(text)); err == nil {
			t.Errorf("%q is taken for a machine", text)
		}
	}
}

// A report fits a terminal and does not steer it, whatever the names are.
func TestTextFitsTheTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringN(0, 150, -1)
		inv := wire.Inventory{
			Hostname: word.Draw(t, "hostname"),
			DMI:      wire.DMI{Product: "\x1b[31m" + word.Draw(t, "product")},
			CPU:      wire.CPUInfo{Model: word.Draw(t, "model"), Online: "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54"},
			Boot:     wire.BootInfo{CommandLine: word.Draw(t, "arguments")},
			NUMA:     []wire.NUMANode{{CPUs: word.Draw(t, "cpus")}},
			GPUs: []wire.GPU{{UUID: word.Draw(t, "uuid"), Product: word.Draw(t, "gpu"), NUMANode: -1,
				NVLinkPeers: []wire.NVLinkPeer{{UUID: "other", Links: 4}}}},
			PCI:   []wire.PCIDevice{{Address: word.Draw(t, "address"), Class: "068000"}},
			NICs:  []wire.NIC{{Name: word.Draw(t, "nic")}},
			Disks: []wire.Disk{{Model: word.Draw(t, "disk")}},
			Notes: []string{word.Draw(t, "note")},
		}
		var b bytes.Buffer
		if err := inventory.Text(&b, inv); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if n := utf8.RuneCountInString(line); n > 100 {
				t.Fatalf("%d columns: %q", n, line)
			}
			if strings.ContainsAny(line, "\x1b\r\t\x00") || !utf8.ValidString(line) {
				t.Fatalf("%q has characters that steer a terminal", line)
			}
		}
	})
}

func FuzzRecorded(f *testing.F) {
	files, err := filepath.Glob("testdata/odd/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		inv, err := inventory.Recorded("fuzz", archive)
		if err != nil {
			return
		}
		online, err := wire.ParseCPUList(inv.CPU.Online)
		if err != nil || online.Count() != inv.CPU.Logical || inv.CPU.Cores > inv.CPU.Logical || inv.CPU.Sockets > inv.CPU.Logical {
			t.Fatalf("CPUs do not add up: %+v", inv.CPU)
		}
		for _, node := range inv.NUMA {
			if set, err := wire.ParseCPUList(node.CPUs); err != nil || !set.SubsetOf(online) {
				t.Fatalf("node %d has the CPUs %q of %q", node.ID, node.CPUs, inv.CPU.Online)
			}
		}
		if err := inventory.Text(&bytes.Buffer{}, inv); err != nil {
			t.Fatal(err)
		}
		inventory.Hash(inventory.Personalise(inv, "", 1))
	})
}

func BenchmarkRecorded(b *testing.B) {
	archive, err := hosts.Read("dgx-h100")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := inventory.Recorded("dgx-h100", archive); err != nil {
			b.Fatal(err)
		}
	}
}
