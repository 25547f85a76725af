//go:build cgo

package gpu

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/wire"
)

// settable opens a recorded machine for changes.
func settable(t *testing.T, name string) (*gputest.Machine, *Library) {
	t.Helper()
	m := gputest.State(t, name)
	return m, Open(m.Library)
}

// refuses checks what a refusal comes down to, and that it says some words.
func refuses(t *testing.T, err, want error, words ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want one that is %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func stateOf(t *testing.T, l *Library, index int) State {
	t.Helper()
	s := l.States(within(t))
	wantState(t, s.Library, wire.GPULibraryReady)
	one, err := l.StateOf(within(t), s.GPUs[index].UUID)
	noError(t, err)
	if diff := cmp.Diff(s.GPUs[index], one); diff != "" {
		t.Errorf("asked alone, GPU %d says otherwise: %s", index, diff)
	}
	return one
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPowerLimitIsSetExactlyOrRefused(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "dgx-h100")
	m.Set(2, "power-min-mw", "199500") // not a whole watt
	uuid := m.Get(2, "uuid")
	for _, mw := range []int{199500, 450001, 700000} {
		noError(t, l.SetPowerLimitMilliwatts(within(t), uuid, mw))
		if got := stateOf(t, l, 2).Power; got.Limit != mw || got.Default != 700000 || got.Min != 199500 {
			t.Errorf("set to %d: reads %+v", mw, got)
		}
	}
	for _, mw := range []int{-1, 0, 199499, 700001, 1 << 33} {
		refuses(t, l.SetPowerLimitMilliwatts(within(t), uuid, mw), ErrOutOfRange, uuid, "199500", "700000", "default")
	}
	if got := m.Get(2, "power-limit-mw"); got != "700000" {
		t.Errorf("a refused limit left %s mW", got)
	}
	if got := m.Get(1, "power-limit-mw"); got != "" {
		t.Errorf("the neighbour has %s mW", got)
	}
}

func TestSettersRefuseInWords(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		spoil func(*testing.T, *gputest.Machine)
		want  error
		words string
	}{
		"no power cap": {"gb10", nil, ErrNotSupported, "not supported"},
		"no permission": {"dgx-h100", func(_ *testing.T, m *gputest.Machine) {
			m.Set(0, "error.nvmlDeviceSetPowerManagementLimit", "no_permission")
		}, ErrNoPermission, "as root"},
		"range not readable": {"dgx-h100", func(_ *testing.T, m *gputest.Machine) {
			m.Set(0, "error.nvmlDeviceGetPowerManagementLimitConstraints", "unknown")
		}, nil, "unknown error (NVML 999)"},
		"lost":            {"dgx-h100", func(_ *testing.T, m *gputest.Machine) { m.Lose(0) }, ErrNoGPU, "lists no GPU"},
		"lost on the way": {"dgx-h100", func(_ *testing.T, m *gputest.Machine) { m.Set(0, "error.nvmlDeviceSetPowerManagementLimit", "lost") }, ErrNoGPU, "fallen off the bus"},
		"no driver":       {"dgx-h100", func(_ *testing.T, m *gputest.Machine) { m.Fail("driver_not_loaded") }, ErrLibrary, "modprobe"},
		"old driver": {"dgx-h100", func(t *testing.T, m *gputest.Machine) {
			m.Use(gputest.LibraryWithout(t, "nvmlDeviceSetPowerManagementLimit"))
		}, ErrNotSupported, "lacks the function"},
	} {
		t.Run(name, func(t *testing.T) {
			if !alone(t) {
				return
			}
			m, l := settable(t, c.state)
			if c.spoil != nil {
				c.spoil(t, m)
			}
			err := l.SetPowerLimitMilliwatts(within(t), m.Get(0, "uuid"), 500000)
			if err == nil {
				t.Fatal("set all the same")
			}
			if c.want != nil {
				refuses(t, err, c.want)
			}
			if !strings.Contains(err.Error(), c.words) {
				t.Errorf("%q does not say %q", err, c.words)
			}
		})
	}
}

func TestSettersFindADriverThatWasLoadedAgain(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "dgx-h100")
	uuid := m.Get(0, "uuid")
	noError(t, l.SetPowerLimitMilliwatts(within(t), uuid, 400000))
	m.Reload()
	noError(t, l.SetPowerLimitMilliwatts(within(t), uuid, 500000))
	m.Reload()
	if got := stateOf(t, l, 0).Power.Limit; got != 500000 {
		t.Errorf("limit %d", got)
	}
}

func TestSetterEndsWithItsContext(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "l40s-4")
	stateOf(t, l, 0)
	m.SetMachine("delay-ms", "1000")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	refuses(t, l.SetECC(ctx, m.Get(0, "uuid"), false), ErrLibrary, "has not answered")
	if took := time.Since(began); took > 700*time.Millisecond {
		t.Errorf("came back after %s", took)
	}
}

func TestModesAreSet(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "l40s-4")
	uuid := m.Get(1, "uuid")
	noError(t, l.SetECC(within(t), uuid, false))
	noError(t, l.SetComputeMode(within(t), uuid, "exclusiveProcess"))
	noError(t, l.SetPersistence(within(t), uuid, false))
	got := stateOf(t, l, 1)
	if diff := cmp.Diff(&wire.ECCInfo{Enabled: true, Pending: false}, got.ECC); diff != "" {
		t.Error(diff)
	}
	if got.ComputeMode != "exclusiveProcess" || got.Persistence == nil || *got.Persistence {
		t.Errorf("compute mode %q, persistence %v", got.ComputeMode, got.Persistence)
	}
	m.Reset(1)
	if e := stateOf(t, l, 1).ECC; e.Enabled {
		t.Error("ECC is still on after the reset")
	}
	if err := l.SetComputeMode(within(t), uuid, "exclusiveThread"); err == nil {
		t.Error("took a compute mode that there is not")
	}
	refuses(t, l.SetMIGMode(within(t), uuid, true), ErrNotSupported)
}

func TestMIGModeIsInForceOrSaysWhatItWaitsFor(t *testing.T) {
	for _, c := range []struct {
		state   string
		busy    bool
		want    error
		inForce bool
	}{
		{"dgx-h100", false, nil, true},
		{"dgx-h100", true, ErrInUse, false},
		{"dgx-a100", false, ErrResetRequired, false},
	} {
		name := c.state
		if c.busy {
			name += "-busy"
		}
		t.Run(name, func(t *testing.T) {
			if !alone(t) {
				return
			}
			m, l := settable(t, c.state)
			if c.busy {
				m.Set(0, "process.99", "compute 100")
			}
			if err := l.SetMIGMode(within(t), m.Get(0, "uuid"), true); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if got := stateOf(t, l, 0).MIG; got.Enabled != c.inForce || !got.Pending {
				t.Errorf("MIG is %+v", got)
			}
		})
	}
}

// placements are the instances of a GPU as they would be asked for.
func placements(s State) (out []wire.MIGPlacement) {
	for _, i := range s.MIG.Instances {
		out = append(out, wire.MIGPlacement{Profile: i.Profile, Start: i.Start, Size: i.Size})
	}
	return out
}

func TestEveryLayoutOfABoardCanBeMade(t *testing.T) {
	for state, family := range map[string]string{"h100-mig": "H100", "a30-mig": "A30"} {
		t.Run(state, func(t *testing.T) {
			if !alone(t) {
				return
			}
			m, l := settable(t, state)
			uuid := m.Get(0, "uuid")
			s := stateOf(t, l, 0)
			layouts := append(wire.MIGLayouts(family), "3g.40gb,4x1g.10gb", "4g.40gb,3g.40gb")
			made := 0
			for _, layout := range layouts {
				want, err := wire.PlaceLayout(s.Product, s.MemoryMiB, layout)
				if err != nil {
					continue // of another memory size
				}
				made++
				noError(t, l.DestroyMIG(within(t), uuid))
				if left := stateOf(t, l, 0).MIG.Instances; len(left) != 0 {
					t.Fatalf("%v are left", left)
				}
				for _, at := range want {
					if err := l.CreateMIG(within(t), uuid, at); err != nil {
						t.Fatalf("%s: %v", layout, err)
					}
				}
				got := stateOf(t, l, 0)
				for _, i := range got.MIG.Instances {
					if !i.Whole || i.Compute != 1 {
						t.Errorf("%s: %+v is not one whole MIG device", layout, i)
					}
				}
				slices.SortFunc(want, func(a, b wire.MIGPlacement) int { return a.Start - b.Start })
				if diff := cmp.Diff(want, placements(got)); diff != "" {
					t.Errorf("%s: %s", layout, diff)
				}
			}
			if made < 4 {
				t.Errorf("only %d layouts were tried", made)
			}
		})
	}
}

func TestInstanceThatDoesNotFitIsRefusedWhole(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "h100-mig")
	uuid := m.Get(0, "uuid")
	before := stateOf(t, l, 0)
	small := wire.MIGPlacement{Profile: "1g.10gb", Start: 0, Size: 1}
	refuses(t, l.CreateMIG(within(t), uuid, small), ErrNoRoom, "insufficient resources", "1g.10gb at slice 0")
	refuses(t, l.CreateMIG(within(t), uuid, wire.MIGPlacement{Profile: "3g.40gb", Start: 2, Size: 4}), ErrNoRoom, "cannot begin there")
	refuses(t, l.CreateMIG(within(t), uuid, wire.MIGPlacement{Profile: "1g.5gb", Size: 1}), ErrNotSupported, "1g.10gb+me", "7g.80gb")
	if diff := cmp.Diff(before, stateOf(t, l, 0)); diff != "" {
		t.Errorf("refusals changed the GPU: %s", diff)
	}

	noError(t, l.DestroyMIG(within(t), uuid))
	m.Set(0, "error.nvmlGpuInstanceCreateComputeInstance", "insufficient_resources")
	refuses(t, l.CreateMIG(within(t), uuid, small), ErrNoRoom, "its compute instance")
	if left := stateOf(t, l, 0).MIG.Instances; len(left) != 0 {
		t.Errorf("a GPU instance is left without its compute instance: %+v", left)
	}
	m.Set(0, "error.nvmlGpuInstanceDestroy", "unknown")
	refuses(t, l.CreateMIG(within(t), uuid, small), ErrNoRoom, "does not go either")
	want := []GPUInstance{{ID: 7, Profile: "1g.10gb", Size: 1}}
	if diff := cmp.Diff(want, stateOf(t, l, 0).MIG.Instances); diff != "" {
		t.Errorf("what is left is not listed: %s", diff)
	}
	m.Set(0, "error.nvmlGpuInstanceDestroy", "-")
	noError(t, l.DestroyMIG(within(t), uuid))
}

func TestLostGPUIsCountedAndNotListed(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "l40s-4")
	m.Lose(2)
	if s := l.States(within(t)); len(s.GPUs) != 3 || s.Silent != 1 || s.GPUs[2].UUID != m.Get(3, "uuid") {
		t.Errorf("%d GPUs, %d silent", len(s.GPUs), s.Silent)
	}
}

func TestInstanceInUseStays(t *testing.T) {
	if !alone(t) {
		return
	}
	m, l := settable(t, "h100-mig")
	m.Set(0, "process.4711", "compute 100 9 0")
	refuses(t, l.DestroyMIG(within(t), m.Get(0, "uuid")), ErrInUse, "1g.10gb at slice 2 stays")
	s := stateOf(t, l, 0)
	if len(s.MIG.Instances) != 5 || s.Processes == nil || len(*s.Processes) != 1 {
		t.Errorf("%d instances, processes %v", len(s.MIG.Instances), s.Processes)
	}
}
