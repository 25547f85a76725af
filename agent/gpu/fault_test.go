//go:build cgo

package gpu

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/wire"
)

func TestLibraryThatDoesNotInitialiseIsNoEmptyList(t *testing.T) {
	for word, want := range map[string]wire.GPULibraryState{
		"library_not_found": wire.GPULibraryMissing,
		"driver_not_loaded": wire.GPULibraryNoDriver,
		"mismatch":          wire.GPULibraryMismatch,
		"no_permission":     wire.GPULibraryDenied,
		"unknown":           wire.GPULibraryFailed,
		"irq_issue":         wire.GPULibraryFailed,
	} {
		t.Run(word, func(t *testing.T) {
			if !alone(t) {
				return
			}
			m := gputest.State(t, "dgx-h100")
			m.Fail(word)
			l := Open(m.Library)
			// Again and again, as an agent asks: no call after a failed one may
			// reach a function that is not there.
			for range 3 {
				unknown(t, l, want)
				wantState(t, l.Readings(within(t)).Library, want)
			}
			m.Fail("ok")
			if s := known(t, l); len(s.GPUs) != 8 {
				t.Errorf("%d GPUs after the driver came", len(s.GPUs))
			}
		})
	}
}

func TestLibraryThatAppearsLaterIsFound(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "l40s-4")
	away := m.Library + ".not-installed"
	if err := os.Rename(m.Library, away); err != nil {
		t.Fatal(err)
	}
	l := Open(m.Library)
	for range 2 {
		s := unknown(t, l, wire.GPULibraryMissing)
		if !strings.Contains(s.Library.Reason, m.Library) {
			t.Errorf("the reason does not name the path: %s", s.Library.Reason)
		}
		wantState(t, l.Readings(within(t)).Library, wire.GPULibraryMissing)
		if err := l.Release(within(t)); err != nil {
			t.Error(err)
		}
	}
	if err := os.Rename(away, m.Library); err != nil {
		t.Fatal(err)
	}
	if s := known(t, l); len(s.GPUs) != 4 {
		t.Errorf("%d GPUs", len(s.GPUs))
	}
}

func TestSystemWithoutLibrarySaysSo(t *testing.T) {
	if !alone(t) {
		return
	}
	s := Open("").Snapshot(within(t))
	if s.Known() {
		t.Skip("this machine has an NVIDIA driver")
	}
	if s.Library.State == wire.GPULibraryMissing && !strings.Contains(s.Library.Reason, "install the NVIDIA driver") {
		t.Error(s.Library.Reason)
	}
}

func TestFileThatIsNoNVMLIsRefused(t *testing.T) {
	for name, file := range map[string]func(*testing.T) string{
		"no library": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
			if err := os.WriteFile(path, []byte("not an ELF file\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			return path
		},
		"other library":  func(*testing.T) string { return "libm.so.6" },
		"half a library": func(t *testing.T) string { return gputest.LibraryWithout(t, "nvmlDeviceGetUUID") },
	} {
		t.Run(name, func(t *testing.T) {
			if !alone(t) {
				return
			}
			l := Open(file(t))
			for range 2 {
				unknown(t, l, wire.GPULibraryFailed)
			}
		})
	}
}

func TestSecondLibraryInOneProcessIsRefused(t *testing.T) {
	if !alone(t) {
		return
	}
	one, two := gputest.State(t, "dgx-h100"), gputest.State(t, "l40s-4")
	known(t, Open(one.Library))
	s := unknown(t, Open(two.Library), wire.GPULibraryFailed)
	if !strings.Contains(s.Library.Reason, one.Library) {
		t.Errorf("the reason does not name the library in use: %s", s.Library.Reason)
	}
}

func TestLostGPUKeepsItsFactsAndItsNeighbours(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	before := known(t, l)
	m.Lose(5)
	after := known(t, l)
	if len(after.GPUs) != 8 {
		t.Fatalf("%d GPUs after one was lost", len(after.GPUs))
	}
	for i, g := range after.GPUs {
		want := before.GPUs[i]
		if i == 5 {
			if g.Health != wire.GPULost || g.HealthReason == "" {
				t.Errorf("the lost GPU is %q: %q", g.Health, g.HealthReason)
			}
			g.Health, g.HealthReason = want.Health, want.HealthReason
		} else {
			// The links to the lost GPU are down with it.
			want.NVLinkPeers = slices.DeleteFunc(slices.Clone(want.NVLinkPeers), func(p wire.NVLinkPeer) bool {
				return p.UUID == before.GPUs[5].UUID
			})
		}
		if diff := cmp.Diff(want, g); diff != "" {
			t.Errorf("GPU %d: %s", i, diff)
		}
	}
	r := l.Readings(within(t))
	if len(r.GPUs) != 8 || r.GPUs[5].Health != wire.GPULost || r.GPUs[5].UUID != before.GPUs[5].UUID || len(r.GPUs[5].Failures) == 0 {
		t.Errorf("reading of the lost GPU: %+v", r.GPUs[5])
	}
	if r.GPUs[4].TemperatureCelsius == nil || r.GPUs[6].TemperatureCelsius == nil {
		t.Error("its neighbours do not read")
	}
	m.Find(5)
	if diff := cmp.Diff(before, known(t, l)); diff != "" {
		t.Errorf("after it came back: %s", diff)
	}
}

func TestGPULostBeforeTheStartIsNotGuessed(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	m.Lose(2)
	l := Open(m.Library)
	s := known(t, l)
	if len(s.GPUs) != 7 || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "GPU 2") {
		t.Fatalf("%d GPUs, notes %q", len(s.GPUs), s.Notes)
	}
	if slices.ContainsFunc(s.GPUs, func(g wire.GPU) bool { return g.Index == 2 || g.Health != wire.GPUHealthy }) {
		t.Error("a healthy GPU stands in the place of the lost one")
	}
}

func TestLostGPUIsNotTakenForAnotherAfterARemoval(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	known(t, l)
	// GPU 3 leaves, so GPU 4 now has its index; and GPU 4 is lost.
	m.Remove(3)
	m.Lose(4)
	s := known(t, l)
	if len(s.GPUs) != 6 || len(s.Notes) != 1 {
		t.Fatalf("%d GPUs, notes %q", len(s.GPUs), s.Notes)
	}
	for _, g := range s.GPUs {
		if g.Health == wire.GPULost {
			t.Errorf("%s is called lost on the strength of an index", g.UUID)
		}
	}
}

func TestWhenAllGPUsAreLostTheListStays(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "l40s-4")
	l := Open(m.Library)
	known(t, l)
	m.Lose(gputest.Every)
	s := known(t, l)
	if len(s.GPUs) != 4 {
		t.Fatalf("%d GPUs", len(s.GPUs))
	}
	for _, g := range s.GPUs {
		if g.Health != wire.GPULost {
			t.Errorf("%s is %s", g.UUID, g.Health)
		}
	}
	// A process that starts now knows none of them: that is no list.
	fresh := Open(m.Library)
	unknown(t, fresh, wire.GPULibraryFailed)
}

func TestDriverThatDiesIsNoEmptyListAndIsFoundAgain(t *testing.T) {
	for _, word := range []string{"unknown", "lost", "uninitialized", "driver_not_loaded"} {
		t.Run(word, func(t *testing.T) {
			if !alone(t) {
				return
			}
			m := gputest.State(t, "dgx-h100")
			l := Open(m.Library)
			before := known(t, l)
			m.Die(word)
			for range 3 {
				unknown(t, l, code(map[string]code{
					"unknown": unknownError, "lost": gpuIsLost, "uninitialized": uninitialized, "driver_not_loaded": driverNotLoaded,
				}[word]).ofLibrary().State)
				if r := l.Readings(within(t)); r.GPUs != nil {
					t.Errorf("a dead driver reads %v", r.GPUs)
				}
			}
			m.Reload()
			if diff := cmp.Diff(before, known(t, l)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhenNoGPUGivesAHandleTheLibraryHasFailed(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "l40s-4")
	l := Open(m.Library)
	before := known(t, l)
	for word, want := range map[string]wire.GPULibraryState{"unknown": wire.GPULibraryFailed, "no_permission": wire.GPULibraryDenied} {
		m.Set(gputest.Every, "error", word)
		unknown(t, l, want)
		wantState(t, l.Readings(within(t)).Library, want)
	}
	// One that answers is enough to have a list; the others keep their facts.
	m.Find(2)
	s := known(t, l)
	if len(s.GPUs) != 4 || s.GPUs[2].Health != wire.GPUHealthy || s.GPUs[3].Health != wire.GPUUnhealthy ||
		s.GPUs[3].Address != before.GPUs[3].Address {
		t.Errorf("%+v", s.GPUs)
	}
}

func TestStateFileOfTheEnvironmentGoesFirst(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "a6000-pair")
	name, path, _ := strings.Cut(m.Env(), "=")
	t.Setenv(name, path)
	if s := known(t, Open(gputest.Library(t))); len(s.GPUs) != 2 {
		t.Errorf("%d GPUs", len(s.GPUs))
	}
}

func TestReloadedDriverIsOpenedAnewAtOnce(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	known(t, l)
	m.Reload()
	known(t, l)
	m.Reload()
	wantState(t, l.Readings(within(t)).Library, wire.GPULibraryReady)
}

func TestReleaseLetsGoAndTheNextQuestionTakesHold(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	before := known(t, l)
	for range 3 {
		if err := l.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		if l.opened {
			t.Fatal("the driver is still held")
		}
		if diff := cmp.Diff(before, known(t, l)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestReplacedLibraryFileIsNoticed(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	known(t, l)
	m.Fail("mismatch")
	m.Reload() // keeps init, so the upgraded driver refuses the old library
	m.Fail("mismatch")
	if s := unknown(t, l, wire.GPULibraryMismatch); s.StaleLibrary {
		t.Error("called stale while the file is the one in use")
	}
	m.Use(gputest.Library(t))
	if s := unknown(t, l, wire.GPULibraryMismatch); !s.StaleLibrary || !strings.Contains(s.Library.Reason, "restart") {
		t.Errorf("stale %v: %s", s.StaleLibrary, s.Library.Reason)
	}
}

func TestDriverThatHangsDoesNotHangTheCaller(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "l40s-4")
	l := Open(m.Library)
	known(t, l)
	m.SetMachine("delay-ms", "400")
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		began := time.Now()
		s := l.Snapshot(ctx)
		cancel()
		wantState(t, s.Library, wire.GPULibraryFailed)
		if s.GPUs != nil || time.Since(began) > 300*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(began), s.GPUs)
		}
	}
	m.SetMachine("delay-ms", "-")
	known(t, l)
}

// optional lists what a library has and may lack.
func optional(t *testing.T) []string {
	t.Helper()
	f, err := elf.Open(gputest.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "nvml") && s.Section != elf.SHN_UNDEF && !slices.Contains(required, s.Name) {
			out = append(out, s.Name)
		}
	}
	if len(out) < 50 {
		t.Fatalf("only %d optional functions: %q", len(out), out)
	}
	slices.Sort(out)
	return out
}

// Every bit of a function's number splits the functions in two halves, and a
// library that lacks one half is built for each: so for any two functions there
// is a library that has the one and lacks the other.
func TestMissingFunctionIsNeverCalled(t *testing.T) {
	for bit := range 7 {
		for want := range 2 {
			t.Run(fmt.Sprintf("bit%d-%d", bit, want), func(t *testing.T) {
				if !alone(t) {
					return
				}
				var without []string
				for i, s := range optional(t) {
					if i>>bit&1 == want {
						without = append(without, s)
					}
				}
				if len(without) == 0 {
					t.Fatal("nothing is missing")
				}
				askEverything(t, without)
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		if alone(t) {
			s := askEverything(t, optional(t))
			if s.GPUs[0].MIG != nil || s.GPUs[0].Power != nil || s.Library.Driver != "" {
				t.Errorf("facts from nowhere: %+v", s.GPUs[0])
			}
		}
	})
}

func askEverything(t *testing.T, without []string) Snapshot {
	m := gputest.State(t, "h100-mig").Use(gputest.LibraryWithout(t, without...))
	l := Open(m.Library)
	ctx, cancel := context.WithCancel(t.Context())
	events := l.Events(ctx)
	s := known(t, l)
	if len(s.GPUs) != 8 || s.GPUs[7].UUID != m.Get(7, "uuid") || s.GPUs[7].Health != wire.GPUHealthy {
		t.Errorf("%d GPUs: %+v", len(s.GPUs), s.GPUs)
	}
	r := l.Readings(within(t))
	if len(r.GPUs) != 8 || len(r.GPUs[0].Failures) != 0 {
		t.Errorf("%d readings: %+v", len(r.GPUs), r.GPUs)
	}
	m.Lose(0)
	known(t, l)
	m.Find(0)
	// The watcher runs until the driver is let go, and registers again.
	if err := l.Release(within(t)); err != nil {
		t.Error(err)
	}
	known(t, l)
	cancel()
	for range events {
	}
	return s
}

func TestErrorOfOneFunctionIsJudgedByItsCode(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	m.Set(0, "error.nvmlDeviceGetPowerManagementLimit", "unknown")
	m.Set(1, "error.nvmlDeviceGetEccMode", "no_permission")
	m.Set(2, "error.nvmlDeviceGetName", "unknown")
	m.Set(3, "error.nvmlDeviceGetPersistenceMode", "reset_required")
	m.Set(4, "remapped", "0 9 0 1")
	m.Set(5, "error.nvmlDeviceGetTemperature", "unknown")
	m.Set(6, "error.nvmlDeviceGetPowerManagementLimit", "lost")
	l := Open(m.Library)
	s := known(t, l)
	byIndex := map[int]wire.GPU{}
	for _, g := range s.GPUs {
		byIndex[g.Index] = g
	}
	for i, want := range map[int]struct {
		health wire.GPUHealth
		words  string
	}{
		0: {wire.GPUUnhealthy, "power limit"},
		1: {wire.GPUHealthy, ""},
		2: {wire.GPUUnhealthy, "name"},
		3: {wire.GPUUnhealthy, "reset"},
		4: {wire.GPUUnhealthy, "replaced"},
		5: {wire.GPUHealthy, ""}, // a reading, not a fact
		7: {wire.GPUHealthy, ""},
	} {
		if g := byIndex[i]; g.Health != want.health || !strings.Contains(g.HealthReason, want.words) {
			t.Errorf("GPU %d is %q: %q, want %q with %q", i, g.Health, g.HealthReason, want.health, want.words)
		}
	}
	if byIndex[1].ECC != nil || !slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "ECC mode: no permission") }) {
		t.Errorf("ECC without permission: %v, notes %q", byIndex[1].ECC, s.Notes)
	}
	// GPU 6 got lost while it was asked: it had said who it is.
	if g := byIndex[6]; g.Health != wire.GPULost || g.UUID != m.Get(6, "uuid") {
		t.Errorf("GPU 6 is %+v", g)
	}
	// Facts once known outlive the answer.
	m.Set(7, "error.nvmlDeviceGetPciInfo_v3", "lost")
	if g := known(t, l).GPUs[7]; g.Health != wire.GPULost || g.Address != "0000:df:00.0" || g.MemoryMiB != 81559 {
		t.Errorf("GPU 7 is %+v", g)
	}
	r := l.Readings(within(t))
	if f := r.GPUs[5].Failures; len(f) != 1 || f[0] != "temperature: unknown error (NVML 999)" || r.GPUs[5].Health != wire.GPUUnhealthy {
		t.Errorf("GPU 5 reads %+v", r.GPUs[5])
	}
}

func TestXidIsReportedOnceWithItsGPU(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	ctx, cancel := context.WithCancel(t.Context())
	events := l.Events(ctx)
	next := func() Xid {
		t.Helper()
		select {
		case x := <-events:
			return x
		case <-within(t).Done():
			t.Fatal("no event")
		}
		return Xid{}
	}
	known(t, l)
	m.Xid(6, 79)
	m.Lose(6) // Xid 79 is a GPU off the bus: it no longer says its UUID
	if x := next(); x.UUID != m.Get(6, "uuid") || x.Code != 79 || x.FromApplication() || x.GPUInstance != -1 || x.At.IsZero() {
		t.Errorf("%+v", x)
	}
	// After the driver was let go and taken again, new ones come and old ones do not.
	if err := l.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	m.Xid(1, 31)
	known(t, l)
	if x := next(); x.UUID != m.Get(1, "uuid") || x.Code != 31 || !x.FromApplication() {
		t.Errorf("%+v", x)
	}
	// And after the driver died and came back.
	m.Die("unknown")
	unknown(t, l, wire.GPULibraryFailed)
	m.Reload()
	known(t, l)
	m.Xid(2, 48)
	if x := next(); x.UUID != m.Get(2, "uuid") || x.Code != 48 {
		t.Errorf("%+v", x)
	}
	cancel()
	if x, open := <-events; open {
		t.Errorf("%+v after the end", x)
	}
}
