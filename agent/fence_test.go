package agent

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// smt is a machine of so many cores with two threads each: CPU n and n+cores.
func smt(cores int, isolated string) host.CPUTopology {
	t := host.CPUTopology{Isolated: cpuSet(isolated)}
	all := make([]int, 2*cores)
	for i := range all {
		all[i] = i
	}
	t.Online = wire.NewCPUSet(all...)
	t.Core = func(cpu int) wire.CPUSet { return wire.NewCPUSet(cpu%cores, cpu%cores+cores) }
	return t
}

func cpuSet(list string) wire.CPUSet {
	set, err := wire.ParseCPUList(list)
	if err != nil {
		panic(err)
	}
	return set
}

func TestHousekeepingIsWhatIsNotBooked(t *testing.T) {
	for _, c := range []struct {
		name                           string
		cores                          int
		isolated, booked, keep, shared string
	}{
		{"some are booked", 8, "", "4-7,12-15", "0-3,8-11", ""},
		{"isolated and booked", 8, "4-7,12-15", "4-5,12-13", "0-3,6-11,14-15", ""},
		{"all are booked: the first core is shared", 4, "", "0-7", "0,4", "0,4"},
		{"one CPU is left: with its sibling they are two", 4, "", "0-6", "0,4,7", "0,4"},
		{"only isolated ones are left", 4, "2-3,6-7", "0-1,4-5", "0,2-4,6-7", "0,4"},
		{"all are isolated, as on no sane machine", 2, "0-3", "0-3", "0-3", "0-3"},
		{"CPUs that are not there", 2, "", "1,3,100-127", "0,2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep, shared := housekeeping(smt(c.cores, c.isolated), cpuSet(c.booked))
			if keep.String() != c.keep || shared.String() != c.shared {
				t.Errorf("the host keeps %q and shares %q, want %q and %q", keep, shared, c.keep, c.shared)
			}
		})
	}
}

// Whatever is booked, the host is never left without CPUs that the scheduler
// uses, gets nothing that is offline, and loses nothing that nobody booked.
func TestHousekeepingLeavesTheHostEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores := rapid.IntRange(1, 64).Draw(t, "cores")
		any := func(name string) wire.CPUSet {
			return wire.NewCPUSet(rapid.SliceOf(rapid.IntRange(0, 2*cores+3)).Draw(t, name)...)
		}
		m := smt(cores, any("isolated").String())
		booked := any("booked")
		keep, shared := housekeeping(m, booked)
		usable := m.Online.Minus(m.Isolated)
		switch {
		case keep.IsEmpty() || !keep.SubsetOf(m.Online):
			t.Fatalf("the host keeps %q of %q", keep, m.Online)
		case !m.Online.Minus(booked).SubsetOf(keep):
			t.Fatalf("the host lost what nobody booked: it keeps %q, booked is %q", keep, booked)
		case keep.Intersect(usable).Count() < min(minFree, usable.Count()):
			t.Fatalf("the scheduler is left with %q", keep.Intersect(usable))
		case !shared.Equal(keep.Intersect(booked)):
			t.Fatalf("%q is shared and not said: %q", keep.Intersect(booked), shared)
		case m.Online.Minus(booked).Intersect(usable).Count() >= minFree && !shared.IsEmpty():
			t.Fatalf("%q is shared, although enough is free", shared)
		}
	})
}
