package plan

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Each file of testdata/units is a pool, a policy, and the units that a node
// of the pool gets.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("testdata/units/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			facts, gpus, hold := poolOf(t, section(archive, "pool"))
			c := metalPool(facts.Sharing)
			c.Class = facts.Class
			p, err := CheckPolicy(c, appliance.RawPolicy(strings.TrimSpace(section(archive, "policy"))))
			if err != nil {
				t.Fatal(err)
			}
			units := NodeUnits(Units(p, facts), facts, gpus, hold)
			if err := units.Validate(); err != nil {
				t.Errorf("the agent would refuse them: %v", err)
			}
			b, err := json.MarshalIndent(units, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got := string(b) + "\n"
			if *update {
				archive.Files = append(archive.Files[:2], txtar.File{Name: "units", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(section(archive, "units"), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// poolOf reads the lines "key: value" of a golden file.
func poolOf(t *testing.T, lines string) (f PoolFacts, gpus []wire.GPU, hold []string) {
	t.Helper()
	f.GPUModel = "H100"
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "class":
			f.Class = appliance.Class(value)
		case "sharing":
			f.Sharing = appliance.Sharing(value)
		case "collector":
			f.Telemetry = &wire.Telemetry{OTLPEndpoint: value, IntervalSeconds: 30, HeadersRef: "site-secret"}
		case "memory":
			gpus = append(gpus, wire.GPU{Product: "NVIDIA T400 4GB", MemoryMiB: 4096, Display: true})
			for field := range strings.FieldsSeq(value) {
				mib, err := strconv.Atoi(field)
				if err != nil {
					t.Fatal(err)
				}
				gpus = append(gpus, wire.GPU{Product: "NVIDIA H100", MemoryMiB: mib})
			}
		case "hold":
			hold = strings.Fields(value)
		default:
			t.Fatalf("%q is no line of a pool", line)
		}
	}
	return f, gpus, hold
}

func TestGenerationRisesOnlyWithContent(t *testing.T) {
	units := wire.Units{CPU: &wire.CPU{Governor: "performance"}, KernelModules: &wire.KernelModules{Options: map[string]string{"a": "x=1", "b": "y=2"}}}
	checks := []wire.Check{{Kind: wire.CheckNVML, With: []byte(`{ "minDevices": 8 }`)}}
	a, b := wire.Binding{ReservationID: "res_a"}, wire.Binding{ReservationID: "res_b", VCPU: 4}

	first := NodeSpec(wire.NodeSpec{}, "node_1", "pool_1", units, checks, []wire.Binding{b, a})
	if first.Generation != 1 || first.Version != wire.Version {
		t.Fatalf("the first spec is %+v", first)
	}
	stored, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	var back wire.NodeSpec
	if err := json.Unmarshal(stored, &back); err != nil {
		t.Fatal(err)
	}
	for _, prev := range []wire.NodeSpec{first, back} {
		if again := NodeSpec(prev, "node_1", "pool_1", units, checks, []wire.Binding{a, b}); again.Generation != 1 {
			t.Errorf("the same content in another order has generation %d", again.Generation)
		}
	}
	back.Version++
	if again := NodeSpec(back, "node_1", "pool_1", units, checks, []wire.Binding{a, b}); again.Generation != 1 {
		t.Errorf("another version of the contract has generation %d", again.Generation)
	}
	for what, next := range map[string]wire.NodeSpec{
		"a unit":       NodeSpec(first, "node_1", "pool_1", wire.Units{CPU: &wire.CPU{Governor: "powersave"}}, checks, []wire.Binding{a, b}),
		"a check":      NodeSpec(first, "node_1", "pool_1", units, nil, []wire.Binding{a, b}),
		"a binding":    NodeSpec(first, "node_1", "pool_1", units, checks, []wire.Binding{a}),
		"in a binding": NodeSpec(first, "node_1", "pool_1", units, checks, []wire.Binding{a, {ReservationID: "res_b", VCPU: 5}}),
		"the pool":     NodeSpec(first, "node_1", "pool_2", units, checks, []wire.Binding{a, b}),
	} {
		if next.Generation != 2 {
			t.Errorf("a change of %s has generation %d", what, next.Generation)
		}
	}
}

func TestSpecWithoutContentHasAGeneration(t *testing.T) {
	empty := NodeSpec(wire.NodeSpec{}, "node_1", "pool_1", wire.Units{}, nil, nil)
	if empty.Generation != 1 {
		t.Errorf("generation %d", empty.Generation)
	}
	if again := NodeSpec(empty, "node_1", "pool_1", wire.Units{}, nil, []wire.Binding{}); again.Generation != 1 {
		t.Errorf("no bindings twice: generation %d", again.Generation)
	}
	if b, _ := json.Marshal(empty); !strings.Contains(string(b), `"bindings":[]`) {
		t.Errorf("a spec without bindings does not say so: %s", b)
	}
}
