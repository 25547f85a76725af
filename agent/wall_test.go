package agent

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/testdata/hosts"
)

var update = flag.Bool("update", false, "write the golden files again")

func recordedGPUs(t *testing.T, machine string) []wire.GPU {
	t.Helper()
	text, err := hosts.Read(machine)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	gpus, found, err := inventory.RecordedGPUs(archive.Root())
	if err != nil || !found {
		t.Fatalf("%s has no recorded GPUs: %v", machine, err)
	}
	return gpus.Devices
}

// migMinorsText is the table that the NVIDIA driver prints for 8 GPUs: 15 GPU
// instances a GPU, 8 compute instances each (MIG user guide, "Device nodes and
// capabilities").
func migMinorsText() string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	next := 3
	for g := range 8 {
		for gi := range 15 {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", g, gi, next)
			next++
			for ci := range 8 {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", g, gi, ci, next)
				next++
			}
		}
	}
	return b.String()
}

func slot(n int) *int { return &n }

func noMPS(string) bool { return false }

func allMPS(string) bool { return true }

func TestWallOfEachKindOfBinding(t *testing.T) {
	whole, mig := recordedGPUs(t, "dgx-h100"), recordedGPUs(t, "h100-mig")
	for _, c := range []struct {
		name    string
		gpus    []wire.GPU
		binding wire.Binding
		mps     func(string) bool
	}{
		{name: "whole-gpus", gpus: whole, binding: wire.Binding{
			ReservationID: "res_01jcwhole", TenantID: "acme", Kind: "hold", CPUs: "0-3,8-11,112-115", NUMANodes: "0", VCPU: 12, MemoryGiB: 256,
			Devices: []wire.Device{{UUID: whole[3].UUID}, {UUID: whole[1].UUID}},
		}},
		{name: "mig-instances-of-two-gpus", gpus: mig, binding: wire.Binding{
			ReservationID: "res_01jcmig", TenantID: "acme", Kind: "hold", CPUs: "4", NUMANodes: "0", MemoryGiB: 16,
			Devices: []wire.Device{
				{UUID: mig[0].UUID, Instance: mig[0].MIG.Instances[2].UUID},
				{UUID: mig[1].UUID, Instance: mig[1].MIG.Instances[0].UUID},
				{UUID: mig[0].UUID, Instance: mig[0].MIG.Instances[0].UUID},
			},
		}},
		{name: "slots", gpus: whole, binding: wire.Binding{
			ReservationID: "res_01jcslot", TenantID: "uni", Kind: "hold", VCPU: 2,
			Devices: []wire.Device{{UUID: whole[0].UUID, Slot: slot(2)}, {UUID: whole[0].UUID, Slot: slot(3)}},
		}},
		{name: "host-only", binding: wire.Binding{
			ReservationID: "res_01jchost", TenantID: "uni", Kind: "hold", CPUs: "0-1", MemoryGiB: 4, Hugepages2Mi: 512, Hugepages1Gi: 2,
		}},
		{name: "mps-slots-of-two-gpus", gpus: whole, mps: allMPS, binding: wire.Binding{
			ReservationID: "res_01jcmps", TenantID: "uni", Kind: "hold", CPUs: "2",
			Devices: []wire.Device{{UUID: whole[5].UUID, Slot: slot(0)}, {UUID: whole[4].UUID, Slot: slot(7)}},
		}},
		{name: "whole-gpu-of-an-mps-pool", gpus: whole, mps: allMPS, binding: wire.Binding{
			ReservationID: "res_01jcwide", TenantID: "uni", Kind: "hold", Devices: []wire.Device{{UUID: whole[0].UUID}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mps == nil {
				c.mps = noMPS
			}
			w, err := wallOf(c.binding, c.gpus, migMinorsText(), c.mps)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "walls", c.name+".txt"), describe(&w))
		})
	}
}

// describe prints a wall for a golden file.
func describe(w *wall) string {
	var b strings.Builder
	fmt.Fprintf(&b, "slice     %s\nsays      %s\ncpus      %s\nmemory    nodes %s, %d bytes\nhugepages %d of 2Mi, %d of 1Gi\n", w.Slice.Name, w.Slice.Description,
		w.Slice.CPUs, w.Slice.MemoryNodes, w.Slice.MemoryMax, w.Slice.Hugepages2Mi, w.Slice.Hugepages1Gi)
	for _, n := range w.Nodes {
		fmt.Fprintf(&b, "node      %s %v %d %#o\n", n.Path, n.Drivers, n.Minor, n.Mode)
	}
	fmt.Fprintf(&b, "atoms     %v\nat its end free of holders: %v\nnote      %s\n\n%s", w.Atoms, w.exclusiveNodes(), w.Note, w.cdi())
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatalf("%v; make it with: go test ./agent -update", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

// What would open more than is booked, or name a file elsewhere, is refused.
func TestWallRefusesWhatItCannotTell(t *testing.T) {
	mig := recordedGPUs(t, "h100-mig")
	first := wire.Device{UUID: mig[0].UUID, Instance: mig[0].MIG.Instances[0].UUID}
	unknownMinor := slices.Clone(mig)
	unknownMinor[0].Minor = -1
	for _, c := range []struct {
		name, id, minors, want string
		gpus                   []wire.GPU
		device                 wire.Device
	}{
		{"a path as id", "../../etc/x", migMinorsText(), "cannot be the name of a slice", mig, first},
		{"a dash in the id", "res-1", migMinorsText(), "cannot be the name of a slice", mig, first},
		{"an empty id", "", migMinorsText(), "cannot be the name of a slice", mig, first},
		{"a GPU elsewhere", "res_1", migMinorsText(), "GPU-z is not in this machine", mig, wire.Device{UUID: "GPU-z"}},
		{"an instance that is gone", "res_1", migMinorsText(), "has no MIG instance MIG-z", mig, wire.Device{UUID: mig[0].UUID, Instance: "MIG-z"}},
		{"a driver without the table", "res_1", "", "names no capability gpu0/gi7/access", mig, first},
		{"a GPU without a minor", "res_1", migMinorsText(), "which /dev/nvidiaN", unknownMinor, wire.Device{UUID: mig[0].UUID}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := wallOf(wire.Binding{ReservationID: c.id, Devices: []wire.Device{c.device}}, c.gpus, c.minors, noMPS)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v; want an error with %q", w, err, c.want)
			}
		})
	}
}

// The capability to change layouts is minor 1 and the one to watch them minor
// 2: no binding of any instance gets either, nor another GPU's node.
func TestNoMIGWallLetsConfigThrough(t *testing.T) {
	gpus := recordedGPUs(t, "h100-mig")
	for _, g := range gpus {
		if g.MIG == nil {
			continue
		}
		for _, m := range g.MIG.Instances {
			w, err := wallOf(wire.Binding{ReservationID: "res_1", Devices: []wire.Device{{UUID: g.UUID, Instance: m.UUID}}}, gpus, migMinorsText(), noMPS)
			if err != nil {
				t.Fatal(err)
			}
			want := 3 + g.Minor*135 + m.GPUInstance*9
			if diff := cmp.Diff([]string{
				fmt.Sprintf("/dev/nvidia%d", g.Minor),
				fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", want),
				fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", want+1+m.ComputeInstance),
				"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
			}, w.Slice.Devices); diff != "" {
				t.Errorf("%s: %s", m.UUID, diff)
			}
		}
	}
}

func TestWhoMayGoOnHoldingAReleasedDevice(t *testing.T) {
	w := wall{Slice: host.Slice{Name: "bc-res_1.slice"}}
	for cgroup, outsider := range map[string]bool{
		"/system.slice/nvidia-dcgm.service":                         false, // the operator's monitor
		"/system.slice/nvidia-dcgm.service/sub":                     false,
		`/system.slice/system-bc\x2dmps.slice/bc-mps@GPU-a.service`: false, // the MPS daemon and its server
		`/system.slice/system-job.slice/job-1.scope`:                true,
		"/system.slice/system-x.slice":                              true,
		"/bc.slice/bc-res_2.slice/bc-run-7.scope":                   false, // walled in by another reservation
		"/bc.slice/bc-res_1.slice/bc-run-7.scope":                   true,
		"/system.slice/docker-0123.scope":                           true, // a container beside the wall
		"/user.slice/user-1000.slice/session-2.scope":               true,
		"/kubepods.slice/kubepods-pod1.slice/cri-0123.scope":        true,
		"": true, // cgroup v1 says nothing
	} {
		if got := w.outsider(host.Holder{PID: 7, Cgroup: cgroup}, 1); got != outsider {
			t.Errorf("%q keeps the device: %v, want %v", cgroup, got, outsider)
		}
	}
	if w.outsider(host.Holder{PID: 1, Cgroup: "/user.slice"}, 1) {
		t.Error("the agent keeps the device itself")
	}
}

func TestBindingFollowsItsWall(t *testing.T) {
	b := []wire.Binding{{ReservationID: "res_1"}}
	before := []wire.BindingStatus{{ReservationID: "res_1"}}
	since := time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)
	holders := []wire.Holder{{PID: 7, Command: "sleep", User: "alice", Device: "/dev/nvidia0"}}
	states := func(s wallState) wallReport { return wallReport{states: map[string]wallState{"res_1": s}} }
	for _, c := range []struct {
		name   string
		report wallReport
		wanted []wire.Binding
		before []wire.BindingStatus
		want   []wire.BindingStatus
	}{
		{"up", states(wallState{}), b, nil, []wire.BindingStatus{{ReservationID: "res_1"}}},
		{"not decided", wallReport{}, b, nil, []wire.BindingStatus{}},
		{"not decided again after a restart", wallReport{}, b, before, before},
		{"no walls here", wallReport{refusal: "cgroup v1"}, b, before, []wire.BindingStatus{{ReservationID: "res_1", Unenforced: true, Note: "cgroup v1"}}},
		{"a part is not in force", states(wallState{lacks: "no cpuset", note: "huge pages"}), b, nil, []wire.BindingStatus{{ReservationID: "res_1", Unenforced: true, Note: "no cpuset"}}},
		{"a part has no limit", states(wallState{note: "huge pages"}), b, nil, []wire.BindingStatus{{ReservationID: "res_1", Note: "huge pages"}}},
		{"not up", states(wallState{failed: "no node"}), b, before, []wire.BindingStatus{{ReservationID: "res_1", Failed: "no node"}}},
		{"coming down", states(wallState{ending: true, since: since}), nil, before, []wire.BindingStatus{{ReservationID: "res_1", Ending: true, EndingSince: since}}},
		{
			"held", states(wallState{ending: true, since: since, held: "/dev/nvidia0 is held by sleep", by: holders}), nil, before,
			[]wire.BindingStatus{{ReservationID: "res_1", Ending: true, EndingSince: since, Note: "/dev/nvidia0 is held by sleep", Holders: holders}},
		},
		{"gone", wallReport{}, nil, before, []wire.BindingStatus{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := confirm(c.wanted, &wire.Inventory{}, c.before, c.report)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// On a machine whose cgroups are v1 or both, reservations are booked only, and
// say so.
func TestNoWallsOnCgroupV1(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another reason comes first: not root")
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("this machine has cgroup v2 alone")
	}
	root, err := host.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	w := newWalls(root, host.OpenLedger(t.TempDir()), slog.New(slog.DiscardHandler))
	w.want([]wire.Binding{{ReservationID: "res_1"}}, nil)
	w.round(t.Context())
	got := confirm([]wire.Binding{{ReservationID: "res_1"}}, &wire.Inventory{}, nil, w.state())
	if len(got) != 1 || !got[0].Unenforced || !strings.Contains(got[0].Note, "cgroup v2") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(cdiFile("res_1")); err == nil {
		t.Error("containers are offered devices that nothing walls in")
	}
}

// A slice's name leads back to its reservation, and a stranger's leads to none.
func TestSliceNames(t *testing.T) {
	if got := reservationOf(sliceName("res_01jc")); got != "res_01jc" {
		t.Errorf("res_01jc comes back as %q", got)
	}
	for _, name := range []string{"bc-res_1-x.slice", "bc-.slice", "res_1.slice", "bc-res_1.service", "bc-..slice"} {
		if got := reservationOf(name); got != "" {
			t.Errorf("%s is taken for reservation %q", name, got)
		}
	}
}
