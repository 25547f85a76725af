package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
)

func openTestLedger(t *testing.T) *ledgerFile {
	t.Helper()
	f, err := openLedger(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.close() })
	return f
}

func book(credential string) ledger {
	return ledger{
		MachineID: "m", NodeID: "node_1", Credential: credential,
		Spec:     json.RawMessage(`{"generation":3,"units":{"fans":{"speed":"<&>"}}}`),
		Bindings: []wire.BindingStatus{{ReservationID: "res_1", Unenforced: true}},
	}
}

func TestLedgerReadsWhatWasWritten(t *testing.T) {
	f := openTestLedger(t)
	if l, err := f.read(); err != nil || l.NodeID != "" {
		t.Fatalf("an empty folder reads as %+v, %v", l, err)
	}
	if err := f.write(book("bcn_1")); err != nil {
		t.Fatal(err)
	}
	if err := f.write(book("bcn_2")); err != nil {
		t.Fatal(err)
	}
	got, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Units map[string]struct{ Speed string }
	}
	if err := json.Unmarshal(got.Spec, &spec); err != nil || spec.Units["fans"].Speed != "<&>" {
		t.Errorf("the spec with an unknown unit reads as %s", got.Spec)
	}
	want := book("bcn_2")
	got.Spec, want.Spec = nil, nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", e.Name(), info.Mode())
		}
	}
	if info, err := os.Stat(f.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, want 0700", info.Mode())
	}
}

func TestUnchangedLedgerIsNotWritten(t *testing.T) {
	f := openTestLedger(t)
	if err := f.write(book("bcn_1")); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(f.dir, ledgerName)
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.write(book("bcn_1")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(name); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same content replaced the file (%v)", err)
	}
}

// Whatever becomes of the newest file, the one before it is read and the damage
// is told; with both damaged the node starts anew.
func TestDamagedLedger(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(newest string) error
		quiet  bool
	}{
		{"cut short", func(n string) error { return os.Truncate(n, 40) }, false},
		{"empty", func(n string) error { return os.Truncate(n, 0) }, false},
		{"a bit flipped", func(n string) error { return flip(n) }, false},
		{"never renamed", os.Remove, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := openTestLedger(t)
			if err := errors.Join(f.write(book("bcn_1")), f.write(book("bcn_2"))); err != nil {
				t.Fatal(err)
			}
			newest := filepath.Join(f.dir, ledgerName)
			if err := c.damage(newest); err != nil {
				t.Fatal(err)
			}
			got, damage := f.read()
			if got.Credential != "bcn_1" {
				t.Errorf("read %q, want the one before", got.Credential)
			}
			if (damage == nil) != c.quiet {
				t.Errorf("damage: %v", damage)
			}
			if _, err := os.Stat(newest + ".damaged"); c.quiet != errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the damaged file put aside: %v", err)
			}

			if err := os.Truncate(filepath.Join(f.dir, backupName), 3); err != nil {
				t.Fatal(err)
			}
			got, damage = f.read()
			if got.NodeID != "" || damage == nil {
				t.Errorf("with both damaged: %+v, %v", got, damage)
			}
			if err := f.write(book("bcn_3")); err != nil {
				t.Error(err)
			}
		})
	}
}

// flip turns a letter inside the ledger's JSON into another, so that it still
// parses.
func flip(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	b[len(b)-len(`1","unenforced":true}]}}`)-1] ^= 1
	return os.WriteFile(name, b, 0o600)
}

func TestStateDirectoryIsOfOneAgent(t *testing.T) {
	f := openTestLedger(t)
	if second, err := openLedger(f.dir); err == nil {
		second.close()
		t.Fatal("a second agent took the same state directory")
	} else if want := fmt.Sprintf("process %d ", os.Getpid()); !strings.Contains(err.Error(), want) {
		t.Errorf("it does not say who has it: %v", err)
	}
	f.close()
	second, err := openLedger(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	second.close()
}
