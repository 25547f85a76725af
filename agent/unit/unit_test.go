package unit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// bench is a machine with a runner and a clock that only a test moves.
type bench struct {
	*hosttest.Machine
	*unit.Runner
	state string
	now   time.Time
}

func newBench(t *testing.T, name string) *bench {
	t.Helper()
	var text []byte
	var err error
	for _, dir := range []string{"testdata/hosts", "../../testdata/hosts", "../inventory/testdata/odd"} {
		if text, err = os.ReadFile(filepath.Join(dir, name+".txtar")); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Machine: hosttest.New(t, a), state: hosttest.Dir(t), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	b.Runner = &unit.Runner{
		Machine: b.Machine.Machine, Ledger: host.OpenLedger(b.state), Manage: true,
		Now: func() time.Time { return b.now }, Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)),
	}
	return b
}

func units(t *testing.T, text string) wire.Units {
	t.Helper()
	var u wire.Units
	if err := json.Unmarshal([]byte(text), &u); err != nil {
		t.Fatal(err)
	}
	return u
}

// sync is a NodeSpec taken up. Generations rise as the content differs.
func (b *bench) sync(u wire.Units) []wire.UnitStatus {
	return b.Sync(context.Background(), wire.NodeSpec{Generation: 7, Units: u})
}

func lines(statuses []wire.UnitStatus) string {
	var out strings.Builder
	for _, s := range statuses {
		fmt.Fprintf(&out, "%s %s", s.Kind, s.State)
		for _, part := range []struct{ name, text string }{{"wanted", s.Wanted}, {"got", s.Got}, {"reason", s.Reason}} {
			if part.text != "" {
				fmt.Fprintf(&out, "\n  %s: %s", part.name, part.text)
			}
		}
		out.WriteString("\n")
	}
	return out.String()
}

// A case names a machine and what is wanted of it, and holds the plan, the
// status that follows from it, and the status after the next boot. That a second plan
// is empty, and that the machine is as before once the units are removed, is
// proven of each.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runCase(t, file)
		})
	}
}

func runCase(t *testing.T, file string) {
	in, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	section := func(name string) string {
		for _, f := range in.Files {
			if f.Name == name {
				return string(f.Data)
			}
		}
		return ""
	}
	b := newBench(t, strings.TrimSpace(section("host")))
	for line := range strings.Lines(section("files")) { // PATH TEXT
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		b.Put(name, text)
	}
	for line := range strings.Lines(section("machine")) {
		b.prepare(t, strings.Fields(line))
	}
	want := units(t, section("want.json"))
	before := b.Files(t)

	var plan strings.Builder
	for _, kind := range want.Wanted() {
		p, err := b.Preview(kind, unit.Desired{Units: want})
		if err != nil {
			t.Fatal(err)
		}
		plan.WriteString(p.Lines())
	}
	if diff := cmp.Diff(before, b.Files(t)); diff != "" {
		t.Fatalf("planning changed the machine (-before +after):\n%s", diff)
	}
	statuses := lines(b.sync(want))
	got := map[string]string{"plan": plan.String(), "status": statuses, "ran": strings.Join(b.Ran(), "\n")}

	for _, kind := range want.Wanted() {
		p, err := b.Preview(kind, unit.Desired{Units: want})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Steps) > 0 && !strings.Contains(statuses, string(kind)+" "+string(wire.Failed)) {
			t.Errorf("the plan after the first was applied is not empty:\n%s", p.Lines())
		}
	}
	if again := lines(b.sync(want)); again != statuses {
		t.Errorf("a second look says otherwise:\n%s", cmp.Diff(statuses, again))
	}
	if ran := b.Ran(); len(ran) > 0 {
		t.Errorf("a second look ran %q", ran)
	}

	b.Works("modprobe")
	b.Works("update-grub")
	b.sync(wire.Units{})
	after := b.Files(t)
	for _, files := range []map[string]string{before, after} { // modules stay loaded until the next boot
		maps.DeleteFunc(files, func(name, _ string) bool {
			return name == "/proc/modules" || strings.HasSuffix(name, "/scaling_available_governors")
		})
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("removed, the machine is not as before (-before +after):\n%s", diff)
	}
	left, err := filepath.Glob(filepath.Join(b.Ledger.Dir(), "*", "*.json"))
	if err != nil || len(left) > 0 {
		t.Errorf("removed, the ledger still has %v %v", left, err)
	}

	if section("reboot") != "" {
		b.sync(want)
		b.Reboot()
		got["reboot"] = lines(b.sync(want))
	}
	golden(t, file, in, got)
}

// prepare makes a machine special, as a line of a case says.
func (b *bench) prepare(t *testing.T, words []string) {
	t.Helper()
	switch words[0] {
	case "readonly":
		b.ReadOnly(words[1])
	case "full":
		b.Full(words[1], 1<<20)
	case "update-grub":
		if err := b.Machine.Run(context.Background(), words[0]); err != nil {
			t.Fatal(err)
		}
		b.Ran()
	case "fails":
		b.Fails(words[1], strings.Join(words[2:], " "))
	case "fragment", "use", "holes":
		var n int
		if _, err := fmt.Sscan(words[2], &n); err != nil {
			t.Fatal(err)
		}
		map[string]func(string, int){"fragment": b.Fragment, "use": b.Use, "holes": b.Holes}[words[0]](words[1], n)
	default:
		t.Fatalf("a case says %q", words)
	}
}

func golden(t *testing.T, file string, in *txtar.Archive, got map[string]string) {
	t.Helper()
	goldenOf(t, file, in, got, "plan", "status", "ran", "reboot")
}

// goldenOf compares a case with what came out, by the sections' names.
func goldenOf(t *testing.T, file string, in *txtar.Archive, got map[string]string, names ...string) {
	t.Helper()
	out := txtar.Archive{Comment: in.Comment}
	for _, f := range in.Files {
		if _, ours := got[f.Name]; !ours {
			out.Files = append(out.Files, f)
		}
	}
	for _, name := range names {
		if got[name] != "" {
			out.Files = append(out.Files, txtar.File{Name: name, Data: []byte(strings.TrimSuffix(got[name], "\n") + "\n")})
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(&out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(in)), string(txtar.Format(&out))); diff != "" {
		t.Errorf("%s (-file +got):\n%s", file, diff)
	}
}

// Free memory that is in pieces as well bounds a pool twice: what the kernel
// does not give is not asked for over and over.
func TestPoolIsShortOfFreeMemoryInOnePiece(t *testing.T) {
	const dir = "/sys/kernel/mm/hugepages/hugepages-2048kB"
	b := newBench(t, "no-numa")
	b.Available(4<<20 + 512<<10) // of 16 GiB: 2048 pages and the reserve
	b.Fragment(dir, 1000)
	want := units(t, `{"hugepages":{"sizeKiB":2048,"count":5120}}`)
	for range 5 {
		s := one(t, b.sync(want))
		if s.State != wire.Partial || s.Got != "1000 pages of 2Mi" || !strings.Contains(s.Reason, "no more memory in one piece") {
			t.Fatalf("%+v", s)
		}
		b.now = b.now.Add(4 * time.Minute)
	}
	b.Defragment(dir)
	b.now = b.now.Add(6 * time.Minute)
	if s := one(t, b.sync(want)); s.State != wire.Partial || s.Got != "2048 pages of 2Mi" || !strings.Contains(s.Reason, "that nothing uses") {
		t.Errorf("once it is in one piece: %+v", s)
	}
}

// A node that was too full gets its pages by the boot. They go when the policy
// does, at once, and someone else's stay.
func TestPagesOfABootGoWithThePolicy(t *testing.T) {
	const node0, node1 = "/sys/devices/system/node/node0/hugepages/hugepages-1048576kB", "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB"
	b := newBench(t, "debian-amd")
	b.Fragment(node0, 3)
	b.Fragment(node1, 3)
	want := units(t, `{"hugepages":{"sizeKiB":1048576,"count":8,"perNuma":true}}`)
	if s := one(t, b.sync(want)); s.State != wire.PendingReboot {
		t.Fatalf("%+v", s)
	}
	b.Reboot()
	if s := one(t, b.sync(want)); s.State != wire.InSync {
		t.Fatalf("after the boot: %+v", s)
	}
	b.Put(node1+"/nr_hugepages", "9")
	b.sync(wire.Units{})
	for dir, want := range map[string]int64{node0: 0, node1: 9} {
		if n, _ := b.Int(dir + "/nr_hugepages"); n != want {
			t.Errorf("%s has %d pages, want %d", dir, n, want)
		}
	}
}
