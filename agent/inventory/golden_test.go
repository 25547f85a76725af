package inventory_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/testdata/hosts"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the recorded machines and the golden files again (twice when machines change)")

// golden compares with a file, or writes it with -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v; make it with: go test ./agent/inventory -update", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got), update with: go test ./agent/inventory -update\n%s", name, diff)
	}
}

func TestMachinesAreAsComposed(t *testing.T) {
	for _, m := range machines {
		t.Run(m.name, func(t *testing.T) {
			golden(t, "../../testdata/hosts/"+m.name+".txtar", compose(m).Format())
		})
	}
}

func TestInventoryOfEachMachine(t *testing.T) {
	if len(hosts.Names()) != len(machines) {
		t.Errorf("%d machines are embedded, %d composed", len(hosts.Names()), len(machines))
	}
	for _, name := range hosts.Names() {
		t.Run(name, func(t *testing.T) {
			archive, err := hosts.Read(name)
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
			golden(t, filepath.Join("testdata", name+".json"), append(data, '\n'))
			var text bytes.Buffer
			inventory.Text(&text, inv)
			golden(t, filepath.Join("testdata", name+".txt"), text.Bytes())
		})
	}
}
