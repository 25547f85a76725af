package wire

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// What a policy's tests do not reach: units as an agent gets them, and what
// modprobe could be made to do.
func TestUnitsValidate(t *testing.T) {
	join := K8sJoin{APIServer: "https://[fd00::1]:6443", CACertSHA256: "sha256:" + strings.Repeat("0A", 32), TokenRef: "file:/etc/token"}
	for _, c := range []struct {
		what  string
		units Units
		want  string
	}{
		{"nothing", Units{}, ""},
		{"everything", Units{
			KernelModules: &KernelModules{Load: []string{"vfio-pci"}, Options: map[string]string{"vfio-pci": "ids=10de:2330"}},
			Hugepages:     &Hugepages{SizeKiB: Hugepage1GiKiB, Count: 16, PerNUMA: true},
			CPU:           &CPU{Governor: "powersave", Isolate: "2-31:2/8"},
			IOMMU:         &IOMMU{Passthrough: true},
			GPUSettings:   &GPUSettings{PowerLimitWatts: 350},
			GPUSharing:    &GPUSharing{Mode: "timeslice", Replicas: 4},
			MIGLayout:     &MIGLayout{Layout: "all-1g.10gb"},
			K8sJoin:       &join,
			Telemetry:     &Telemetry{OTLPEndpoint: "http://collector:4318", IntervalSeconds: 60},
		}, ""},
		{"page size", Units{Hugepages: &Hugepages{SizeKiB: 4, Count: 1}}, "hugepages: sizeKiB: 4 is not 2048 (2Mi) or 1048576 (1Gi)"},
		{"sharing mode", Units{GPUSharing: &GPUSharing{Mode: "mig", Replicas: 4}}, `gpu-sharing: mode: "mig" is not mps or timeslice`},
		{"layout", Units{MIGLayout: &MIGLayout{}}, "mig-layout: layout: has 0 characters, not 1 to 128"},
		{"endpoint", Units{Telemetry: &Telemetry{IntervalSeconds: 60}}, `telemetry: otlpEndpoint: "" is not an http or https URL`},
		{"no join set", Units{K8sJoin: &K8sJoin{}}, `k8s-join: apiServer: "" is not an https URL`},
		{"overlapping stride", Units{CPU: &CPU{Isolate: "2-31:2/8,30"}}, `cpu: isolate: "2-31:2/8,30" does not ascend; write it as 2-3,10-11,18-19,26-27,30`},
		{"in order of application", Units{CPU: &CPU{Isolate: "0"}, KernelModules: &KernelModules{Load: []string{"?"}}},
			`kernel-modules: load[0]: "?" is not a module name: 1 to 64 letters, digits, _ and -, not starting with -`},
	} {
		err := c.units.Validate()
		got := ""
		if err != nil {
			got = err.Error()
			var unit *UnitError
			if !errors.As(err, &unit) || unit.Field == "" {
				t.Errorf("%s: the error is a %T without a field", c.what, err)
			}
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
	}
}

// Nothing that modprobe.d, a shell or the kernel's command line could read as
// more than a word gets through.
func TestModuleOptionsAreWords(t *testing.T) {
	for _, legal := range []string{
		"modeset=1", "ids=10de:2330,10de:22a3 disable_vga=1", "NVreg_EnableGpuFirmware=0", "a.b=1", "map=0:1-3,5", "mask=0xff", "k=a=b",
	} {
		if err := (&KernelModules{Options: map[string]string{"m": legal}}).Validate(); err != nil {
			t.Errorf("%q is refused: %v", legal, err)
		}
	}
	for _, hostile := range []string{
		"modeset", "=1", "modeset=", " modeset=1", "modeset=1 ", "a=1  b=2", "a=1\tb=2", "a=1\nb=2", "a=1\ninstall m /bin/sh", "a=1\r", "a=1\x00",
		`a="b"`, "a='b'", `a=b\`, "a=1 #x", "a=#", "path=/lib/firmware", "a=$(id)", "a=`id`", "a=1;reboot", "a=1 && reboot", "a=1|b", "a=<f", "a={1}", "a=b!", "a=ü",
		"install m /bin/sh", "softdep m pre: n", strings.Repeat("a=1 ", 300) + "b=1", "a=1 a=2", "a-b=1 a_b=2", "k=" + strings.Repeat("x", 257),
	} {
		if err := (&KernelModules{Options: map[string]string{"m": hostile}}).Validate(); err == nil {
			t.Errorf("%q is taken", hostile)
		}
	}
	for _, name := range []string{"", "-f", "--force", "a/b", "../x", "a b", "a\n", "a.ko", "é", strings.Repeat("a", 65)} {
		if err := (&KernelModules{Load: []string{name}}).Validate(); err == nil {
			t.Errorf("the module %q is loaded", name)
		}
		if err := (&KernelModules{Options: map[string]string{name: "a=1"}}).Validate(); err == nil {
			t.Errorf("the module %q has options", name)
		}
	}
	if err := (&KernelModules{Options: map[string]string{"a-b": "x=1", "a_b": "x=1"}}).Validate(); err == nil {
		t.Error("one module has options under two spellings")
	}
}

func TestNVMLCheck(t *testing.T) {
	n, err := Check{Kind: CheckNVML, With: []byte(`{"minDriver": "550.54", "minDevices": 8}`)}.NVML()
	if err != nil || n.MinDriver != "550.54" || *n.MinDevices != 8 || n.MaxTemperatureC != nil {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := (Check{Kind: CheckNVML}).NVML(); err != nil || n != (NVMLCheck{}) {
		t.Errorf("without with: %+v, %v", n, err)
	}
	for _, c := range []Check{
		{Kind: "diag.dcgm"},
		{Kind: CheckNVML, With: []byte(`[]`)},
		{Kind: CheckNVML, With: []byte(`{} {}`)},
		{Kind: CheckNVML, With: []byte(`{"minDevices": 8, "minMemory": 1}`)},
		{Kind: CheckNVML, With: []byte(`{"minDriver": "x"}`)},
		{Kind: CheckNVML, With: []byte(`{"maxTemperatureC": 400}`)},
	} {
		if n, err := c.NVML(); err == nil {
			t.Errorf("%s %s reads as %+v", c.Kind, c.With, n)
		}
	}
}

func TestDriverVersionsCompareByNumber(t *testing.T) {
	ascending := []string{"470.82.01", "535", "535.54.03", "535.161.08", "550.54.14", "1000"}
	for i, s := range ascending {
		v, err := ParseDriverVersion(s)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		if before, _ := ParseDriverVersion(ascending[i-1]); slices.Compare(before, v) >= 0 {
			t.Errorf("%s is not below %s", ascending[i-1], s)
		}
	}
	for _, s := range []string{"", ".", "535.", "a", "-1", "1.2.3.4.5", "99999", "535.161.08-open", " 535"} {
		if v, err := ParseDriverVersion(s); err == nil {
			t.Errorf("%q reads as %v", s, v)
		}
	}
}

// Whatever is taken is one line of plain words for the module itself.
func FuzzKernelModules(f *testing.F) {
	for _, s := range []string{"modeset=1", "ids=10de:2330 disable_vga=1", "a=1\ninstall m /bin/sh", `a="b"`, "a=1 a=2", "a= b", "path=/x"} {
		f.Add("vfio-pci", s)
	}
	f.Fuzz(func(t *testing.T, module, options string) {
		k := KernelModules{Load: []string{module}, Options: map[string]string{module: options}}
		if k.Validate() != nil {
			return
		}
		line := "options " + module + " " + options
		if strings.ContainsAny(line, "\n\r\t\x00\"'`\\#$;|&<>(){}[]/!?~^") || strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q is taken", line)
		}
		words := strings.Split(line, " ")
		if words[1] != module || strings.HasPrefix(module, "-") {
			t.Fatalf("%q is the module %q", line, module)
		}
		for _, w := range words[2:] {
			if key, value, ok := strings.Cut(w, "="); !ok || key == "" || value == "" {
				t.Fatalf("%q has the word %q", line, w)
			}
		}
	})
}
