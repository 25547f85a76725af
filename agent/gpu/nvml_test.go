//go:build cgo

package gpu

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/wire"
)

func ptr[T any](v T) *T { return &v }

func TestDGXH100GivesEveryFact(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	l := Open(m.Library)
	s := known(t, l)
	wantLibrary := wire.GPULibrary{State: wire.GPULibraryReady, Driver: "535.161.08", CUDA: "12.2", Version: "12.535.161.08"}
	if diff := cmp.Diff(wantLibrary, s.Library); diff != "" {
		t.Error(diff)
	}
	addresses := []string{
		"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0",
		"0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0",
	}
	if len(s.GPUs) != len(addresses) || len(s.Notes) != 0 {
		t.Fatalf("%d GPUs, notes %q", len(s.GPUs), s.Notes)
	}
	hashes := map[string]bool{}
	for i, g := range s.GPUs {
		if len(g.SerialHash) != 16 || hashes[g.SerialHash] {
			t.Errorf("GPU %d: serial hash %q is not 16 digits of its own", i, g.SerialHash)
		}
		hashes[g.SerialHash] = true
		var peers []wire.NVLinkPeer
		for j := range addresses {
			if j != i {
				peers = append(peers, wire.NVLinkPeer{UUID: m.Get(j, "uuid"), Links: 18})
			}
		}
		want := wire.GPU{
			UUID: m.Get(i, "uuid"), Index: i, Minor: i, Address: addresses[i],
			PCIID: "2330:10de", PCISubID: "16c1:10de", Product: "NVIDIA H100 80GB HBM3", SerialHash: g.SerialHash,
			MemoryMiB: 81559, NUMANode: i / 4, Architecture: "Hopper", Compute: "9.0", Health: wire.GPUHealthy,
			NVLinkPeers: peers, MIG: &wire.MIGInfo{},
			Power: &wire.PowerInfo{LimitWatts: 700, EnforcedWatts: 700, DefaultWatts: 700, MinWatts: 200, MaxWatts: 700},
			ECC:   &wire.ECCInfo{Enabled: true, Pending: true}, ClockMHz: ptr(1980),
			Persistence: ptr(true), ComputeMode: "default",
		}
		if diff := cmp.Diff(want, g); diff != "" {
			t.Errorf("GPU %d: %s", i, diff)
		}
	}
}

func TestReadingsOfDGXH100(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "dgx-h100")
	m.Set(3, "temperature", "84")
	m.Set(3, "power-usage-mw", "698123")
	m.Set(3, "utilization-gpu", "97")
	m.Set(3, "utilization-memory", "41")
	m.Set(3, "memory-used-mib", "60000")
	m.Set(3, "ecc-volatile-corrected", "2")
	m.Set(3, "ecc-aggregate-uncorrected", "5")
	m.Set(3, "remapped", "1 2 1 0")
	m.Set(3, "process.4711", "compute 59000")
	m.Set(3, "process.815", "graphics 12")
	r := Open(m.Library).Readings(within(t))
	wantState(t, r.Library, wire.GPULibraryReady)
	if len(r.GPUs) != 8 {
		t.Fatalf("%d readings", len(r.GPUs))
	}
	want := Reading{
		UUID: m.Get(3, "uuid"), Index: 3, Product: "NVIDIA H100 80GB HBM3", Address: "0000:61:00.0", Health: wire.GPUHealthy,
		TemperatureCelsius: ptr(84), PowerMilliwatts: ptr(698123), GPUUtilization: ptr(97), MemoryUtilization: ptr(41),
		MemoryUsedMiB: ptr(60000), MemoryFreeMiB: ptr(21059), MemoryTotalMiB: ptr(81559), SMClockMHz: ptr(210), MemoryClockMHz: ptr(2619),
		ECC:   &ECCCounts{VolatileCorrected: 2, AggregateUncorrected: 5},
		Remap: &Remap{Corrected: 1, Uncorrected: 2, Pending: true},
		Processes: &[]Process{
			{PID: 4711, MemoryUsedMiB: ptr(59000), GPUInstance: -1},
			{PID: 815, Graphics: true, MemoryUsedMiB: ptr(12), GPUInstance: -1},
		},
	}
	if diff := cmp.Diff(want, r.GPUs[3]); diff != "" {
		t.Error(diff)
	}
	if p := r.GPUs[2].Processes; p == nil || len(*p) != 0 {
		t.Errorf("an idle GPU has processes %v, want a known empty list", p)
	}
}

func TestBoardWithoutFeatureHasNoField(t *testing.T) {
	for name, check := range map[string]func(*testing.T, Snapshot, Readings){
		"l40s-4": func(t *testing.T, s Snapshot, r Readings) {
			if g := s.GPUs[0]; g.MIG != nil || g.NVLinkPeers != nil || g.Product != "NVIDIA L40S" || len(s.GPUs) != 4 {
				t.Errorf("L40S has MIG %v, peers %v", g.MIG, g.NVLinkPeers)
			}
		},
		"t4-1": func(t *testing.T, s Snapshot, r Readings) {
			if p := r.GPUs[0]; p.Remap != nil || p.RetirementPending == nil || *p.RetirementPending {
				t.Errorf("T4: remap %v, retirement pending %v", p.Remap, p.RetirementPending)
			}
		},
		"gb10": func(t *testing.T, s Snapshot, r Readings) {
			g := s.GPUs[0]
			if g.MemoryMiB != 0 || g.Power != nil || g.ECC != nil || g.Display || g.Address != "000f:01:00.0" {
				t.Errorf("GB10 reads %+v", g)
			}
			if r.GPUs[0].MemoryUsedMiB != nil || r.GPUs[0].PowerMilliwatts != nil {
				t.Errorf("GB10 measures %+v", r.GPUs[0])
			}
		},
		"none": func(t *testing.T, s Snapshot, r Readings) {
			if len(s.GPUs) != 0 || len(r.GPUs) != 0 {
				t.Errorf("a machine without GPUs lists %v", s.GPUs)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !alone(t) {
				return
			}
			l := Open(gputest.State(t, name).Library)
			s, r := known(t, l), l.Readings(within(t))
			for _, g := range s.GPUs {
				if g.Health != wire.GPUHealthy {
					t.Errorf("%s is %s: %s", g.Product, g.Health, g.HealthReason)
				}
			}
			for _, g := range r.GPUs {
				if len(g.Failures) != 0 {
					t.Errorf("%q: not supported is no failure", g.Failures)
				}
			}
			check(t, s, r)
		})
	}
}

func TestOnlyTheDisplayBoardOfAStationIsDisplay(t *testing.T) {
	if !alone(t) {
		return
	}
	s := known(t, Open(gputest.State(t, "station-a100").Library))
	var got []string
	for _, g := range s.GPUs {
		got = append(got, fmt.Sprintf("%s %v", g.Product, g.Display))
	}
	a := "NVIDIA A100-SXM4-80GB false"
	if diff := cmp.Diff([]string{a, a, a, a, "NVIDIA DGX Display true"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestNVLinkBridgeJoinsOnlyItsPair(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "a6000-pair")
	m.Set(0, "link.3", "down")
	l := Open(m.Library)
	s := known(t, l)
	if diff := cmp.Diff([]wire.NVLinkPeer{{UUID: s.GPUs[1].UUID, Links: 3}}, s.GPUs[0].NVLinkPeers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]wire.NVLinkPeer{{UUID: s.GPUs[0].UUID, Links: 4}}, s.GPUs[1].NVLinkPeers); diff != "" {
		t.Error(diff)
	}
}

func TestMIGInstancesHaveTheDeviceProfileNames(t *testing.T) {
	if !alone(t) {
		return
	}
	m := gputest.State(t, "h100-mig")
	// GPU 0: one media instance among the plain ones. GPU 1: 3g split in two.
	m.Set(0, "gi.9", "20 2")
	for gi := 7; gi < 14; gi++ {
		m.Set(1, fmt.Sprintf("ci.%d.0", gi), "-")
		m.Set(1, fmt.Sprintf("gi.%d", gi), "-")
	}
	m.Set(1, "gi.1", "9 4")
	m.Set(1, "ci.1.0", "0")
	m.Set(1, "ci.1.1", "1")
	m.Set(1, "gi.7", "15 0")
	m.Set(1, "ci.7.0", "0")
	s := known(t, Open(m.Library))

	seen := map[string]bool{}
	for _, g := range s.GPUs {
		if !g.MIG.Enabled || !g.MIG.Pending || g.Health != wire.GPUHealthy {
			t.Errorf("GPU %d: MIG %+v, %s", g.Index, g.MIG, g.HealthReason)
		}
		for i := range g.MIG.Instances {
			if seen[g.MIG.Instances[i].UUID] {
				t.Errorf("UUID %s twice", g.MIG.Instances[i].UUID)
			}
			seen[g.MIG.Instances[i].UUID] = true
			g.MIG.Instances[i].UUID = ""
		}
	}
	small := func(gi int, profile string) wire.MIGInstance {
		return wire.MIGInstance{Profile: profile, GPUInstance: gi, MemoryMiB: 9984, Start: gi - 7, Size: 1}
	}
	var want []wire.MIGInstance
	for gi := 7; gi < 14; gi++ {
		profile := "1g.10gb"
		if gi == 9 {
			profile = "1g.10gb+me"
		}
		want = append(want, small(gi, profile))
	}
	if diff := cmp.Diff(want, s.GPUs[0].MIG.Instances); diff != "" {
		t.Error(diff)
	}
	want = []wire.MIGInstance{
		{Profile: "1c.3g.40gb", GPUInstance: 1, MemoryMiB: 40448, Start: 4, Size: 4},
		{Profile: "2c.3g.40gb", GPUInstance: 1, ComputeInstance: 1, MemoryMiB: 40448, Start: 4, Size: 4},
		{Profile: "1g.20gb", GPUInstance: 7, MemoryMiB: 20096, Size: 2},
	}
	if diff := cmp.Diff(want, s.GPUs[1].MIG.Instances); diff != "" {
		t.Error(diff)
	}

	read := Open(m.Library).Readings(within(t))
	var got []InstanceReading
	for _, i := range read.GPUs[1].Instances {
		if !seen[i.UUID] {
			t.Errorf("a reading is of %q, which is not listed", i.UUID)
		}
		i.UUID = ""
		got = append(got, i)
	}
	half := InstanceReading{GPUInstance: 1, MemoryUsedMiB: ptr(0), MemoryFreeMiB: ptr(40448), MemoryTotalMiB: ptr(40448)}
	quarter := InstanceReading{GPUInstance: 7, MemoryUsedMiB: ptr(0), MemoryFreeMiB: ptr(20096), MemoryTotalMiB: ptr(20096)}
	if diff := cmp.Diff([]InstanceReading{half, half, quarter}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFourSliceBoardsNameTheirOwnProfiles(t *testing.T) {
	if !alone(t) {
		return
	}
	s := known(t, Open(gputest.State(t, "a30-mig").Library))
	var got []string
	for _, i := range s.GPUs[0].MIG.Instances {
		got = append(got, fmt.Sprintf("%s at %d of %d", i.Profile, i.Start, i.Size))
	}
	if diff := cmp.Diff([]string{"1g.6gb+me at 3 of 1", "1g.6gb at 2 of 1", "2g.12gb at 0 of 2"}, got); diff != "" {
		t.Error(diff)
	}
	if s.GPUs[1].MIG.Instances != nil {
		t.Errorf("an empty board lists %v", s.GPUs[1].MIG.Instances)
	}
}
