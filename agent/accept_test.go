package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/testdata/hosts"
)

func ptr[T any](v T) *T { return &v }

// Each case spoils one thing on a sound machine of four GPUs.
func TestAcceptance(t *testing.T) {
	type machine struct {
		inv      wire.Inventory
		readings gpu.Readings
	}
	for _, c := range []struct {
		name  string
		kind  string // empty: diag.nvml
		with  string
		spoil func(*machine)
		want  string // "": passed
	}{
		{name: "sound"},
		{name: "sound, all limits met", with: `{"minDriver":"535.86","minDevices":4,"maxTemperatureC":35}`},
		{name: "display boards do not count", with: `{"minDevices":4}`, spoil: func(m *machine) { m.inv.GPUs[3].Display = true },
			want: "3 GPUs, at least 4 are wanted"},
		{name: "unknown kind", kind: "diag.dcgm", want: `this agent has no check "diag.dcgm"`},
		{name: "unknown limit", with: `{"minMemory":1}`, want: `with: json: unknown field "minMemory"`},
		{name: "limit of the wrong type", with: `{"minDevices":"4"}`, want: "with: json: cannot unmarshal"},
		{name: "limit out of range", with: `{"maxTemperatureC":400}`, want: "with: maxTemperatureC: 400 is not 1 to 150"},
		{name: "version that is none", with: `{"minDriver":"newest"}`, want: `with: minDriver: "newest" is not a driver version`},
		{name: "two objects", with: `{} {}`, want: "with: one object is expected"},

		{name: "library away", spoil: func(m *machine) {
			m.inv.GPULibrary = wire.GPULibrary{State: wire.GPULibraryNoDriver, Reason: "the driver is not loaded"}
		}, want: "the driver is not loaded"},
		{name: "library and driver differ", spoil: func(m *machine) { m.inv.GPULibrary = wire.GPULibrary{State: wire.GPULibraryMismatch} },
			want: "the GPU library is mismatch"},
		{name: "library gone between the questions", spoil: func(m *machine) {
			m.readings = gpu.Readings{Library: wire.GPULibrary{State: wire.GPULibraryFailed, Reason: "unknown error"}}
		}, want: "unknown error"},

		{name: "library of another driver", spoil: func(m *machine) { m.inv.GPULibrary.Version = "12.550.54.14" },
			want: "the NVML library is of driver 550.54.14 and the kernel driver is 535.161.08"},
		{name: "library of almost the same driver", spoil: func(m *machine) { m.inv.GPULibrary.Version = "12.535.16" },
			want: "the NVML library is of driver 535.16 and the kernel driver is 535.161.08"},
		{name: "library without the last number", spoil: func(m *machine) { m.inv.GPULibrary.Version = "12.535.161" }},
		{name: "library without a version", spoil: func(m *machine) { m.inv.GPULibrary.Version = "" }},

		{name: "driver too old", with: `{"minDriver":"535.161.09"}`, want: "the driver is 535.161.08, at least 535.161.09 is wanted"},
		{name: "versions compare by numbers", with: `{"minDriver":"535.99"}`},
		{name: "driver's version not told", with: `{"minDriver":"535"}`, spoil: func(m *machine) { m.inv.GPULibrary.Driver = "" },
			want: `the driver's version "" cannot be compared with the wanted 535`},
		{name: "too few", with: `{"minDevices":5}`, want: "4 GPUs, at least 5 are wanted"},

		{name: "lost", spoil: func(m *machine) { m.inv.GPUs[1].Health = wire.GPULost }, want: "GPU-b (0000:11:00.0) is lost"},
		{name: "missing", spoil: func(m *machine) {
			m.inv.GPUs[3].Health, m.inv.GPUs[3].HealthReason = wire.GPUMissing, "NVML no longer lists it"
		}, want: "GPU-d (0000:13:00.0) is missing: NVML no longer lists it"},
		{name: "no name", spoil: func(m *machine) { m.inv.GPUs[0].Product = "" }, want: "GPU-a (0000:10:00.0) does not say its name"},
		{name: "no memory", spoil: func(m *machine) { m.inv.GPUs[0].MemoryMiB = 0 }, want: "GPU-a (0000:10:00.0) does not say its memory"},
		{name: "no address", spoil: func(m *machine) { m.inv.GPUs[2].Address = "" }, want: "GPU-c does not say its PCI address"},

		{name: "on the bus and not listed", spoil: func(m *machine) { m.inv.PCI[3].Address = "0000:99:00.0" },
			want: "the GPU at 0000:99:00.0 (2330:10de) is on the PCI bus and NVML does not list it"},
		{name: "given to virtual machines", spoil: func(m *machine) { m.inv.PCI[3].Address, m.inv.PCI[3].Driver = "0000:99:00.0", "vfio-pci" }},
		{name: "another board on the bus", spoil: func(m *machine) { m.inv.PCI[2].Device = "20b5" },
			want: "GPU-c (0000:12:00.0) is a 2330:10de for NVML, and the PCI bus has a 20b5:10de there"},

		{name: "another model than before", spoil: func(m *machine) { m.readings.GPUs[1].Product = "NVIDIA H200" },
			want: `GPU-b (0000:11:00.0) says that it is a "NVIDIA H200", and the inventory has a "NVIDIA H100 80GB HBM3"`},
		{name: "at another place than before", spoil: func(m *machine) { m.readings.GPUs[1].Address = "0000:99:00.0" },
			want: "GPU-b (0000:11:00.0) says that it is at 0000:99:00.0"},
		{name: "memory that is the host's", spoil: func(m *machine) { m.inv.GPUs[0].MemoryMiB, m.readings.GPUs[0].MemoryTotalMiB = 0, nil }},
		{name: "memory not answered", spoil: func(m *machine) {
			m.inv.GPUs[0].MemoryMiB, m.readings.GPUs[0].MemoryTotalMiB = 0, nil
			m.readings.GPUs[0].Failures = []string{"memory: unknown error (NVML 999)"}
		}, want: "GPU-a (0000:10:00.0) does not answer for its memory: unknown error (NVML 999)"},

		{name: "no readings of one", spoil: func(m *machine) { m.readings.GPUs = m.readings.GPUs[:3] },
			want: "GPU-d (0000:13:00.0) is in the inventory and gives no readings"},
		{name: "readings of a stranger", spoil: func(m *machine) { m.readings.GPUs[2].UUID = "GPU-x" }, want: "GPU 2 GPU-x answers and is not in the inventory"},
		{name: "lost between the questions", spoil: func(m *machine) {
			m.readings.GPUs[2].Health, m.readings.GPUs[2].HealthReason = wire.GPULost, "fallen off the bus"
		}, want: "GPU-c (0000:12:00.0) is lost: fallen off the bus"},
		{name: "temperature not answered", spoil: func(m *machine) { m.readings.GPUs[2].Failures = []string{"temperature: unknown error (NVML 999)"} },
			want: "GPU-c (0000:12:00.0) does not answer for its temperature: unknown error (NVML 999)"},
		{name: "ECC not answered", spoil: func(m *machine) { m.readings.GPUs[0].Failures = []string{"ECC errors: timed out (NVML 10)"} },
			want: "GPU-a (0000:10:00.0) does not answer for its ECC errors: timed out (NVML 10)"},
		{name: "a reading that is not asked for", spoil: func(m *machine) { m.readings.GPUs[0].Failures = []string{"memory clock: no permission (NVML 4)"} }},
		{name: "pages to retire", spoil: func(m *machine) { m.readings.GPUs[1].RetirementPending = ptr(true) },
			want: "GPU-b (0000:11:00.0) has memory pages that wait to be retired"},
		{name: "rows to remap", spoil: func(m *machine) { m.readings.GPUs[1].Remap = &gpu.Remap{Pending: true} },
			want: "GPU-b (0000:11:00.0) has memory rows that wait to be remapped"},
		{name: "rows that cannot be remapped", spoil: func(m *machine) { m.readings.GPUs[1].Remap = &gpu.Remap{Failed: true} },
			want: "GPU-b (0000:11:00.0) could not remap a faulty memory row"},
		{name: "rows remapped, none pending", spoil: func(m *machine) { m.readings.GPUs[1].Remap = &gpu.Remap{Corrected: 2} }},
		{name: "too hot", with: `{"maxTemperatureC":84}`, spoil: func(m *machine) { m.readings.GPUs[3].TemperatureCelsius = ptr(85) },
			want: "GPU-d (0000:13:00.0) is at 85 °C, at most 84 °C are allowed"},
		{name: "hot, no limit", spoil: func(m *machine) { m.readings.GPUs[3].TemperatureCelsius = ptr(85) }},
		{name: "no temperature, a limit", with: `{"maxTemperatureC":80}`, spoil: func(m *machine) { m.readings.GPUs[3].TemperatureCelsius = nil },
			want: "GPU-d (0000:13:00.0) has no temperature to compare with the 80 °C allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gpus := newTestGPUs(4)
			m := &machine{wire.Inventory{GPULibrary: gpus.snapshot.Library, GPUs: gpus.snapshot.GPUs}, gpus.readings}
			for _, g := range m.inv.GPUs {
				m.inv.PCI = append(m.inv.PCI, wire.PCIDevice{Address: g.Address, Class: "030200", Vendor: "10de", Device: "2330", Driver: "nvidia"})
			}
			if c.spoil != nil {
				c.spoil(m)
			}
			kind := c.kind
			if kind == "" {
				kind = "diag.nvml"
			}
			err := accept(wire.Check{Kind: kind, With: json.RawMessage(c.with)}, &m.inv, m.readings)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && err == nil:
				t.Errorf("accepted, want: %s", c.want)
			case c.want != "" && !strings.HasPrefix(err.Error(), c.want):
				t.Errorf("got:  %v\nwant: %s", err, c.want)
			}
		})
	}
}

// Every recorded machine with GPUs passes, also as one of a fleet.
func TestRecordedMachinesAreAccepted(t *testing.T) {
	for _, name := range hosts.Names() {
		inv := recorded(t, name)
		if len(inv.GPUs) == 0 {
			continue
		}
		inv = inventory.Personalise(inv, "test", 7)
		check := wire.Check{Kind: "diag.nvml", With: json.RawMessage(`{"minDevices":1,"maxTemperatureC":80}`)}
		if err := accept(check, &inv, gpu.Readings{Library: inv.GPULibrary, GPUs: recordedReadings(inv.GPUs)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

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
