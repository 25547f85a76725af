//go:build cgo

package gpu

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/gpu/gputest"
)

// These tests prove the library of testdata/nvml itself, which stands in for a
// driver in the tests of this and other packages.

// driver opens a recorded machine with go-nvml alone.
func driver(t *testing.T, state string) (*gputest.Machine, nvml.Interface) {
	t.Helper()
	m := gputest.State(t, state)
	n := nvml.New(nvml.WithLibraryPath(m.Library))
	ok(t, n.Init())
	return m, n
}

func ok(t *testing.T, ret nvml.Return) { t.Helper(); is(t, ret, nvml.SUCCESS) }

func is(t *testing.T, got, want nvml.Return) {
	t.Helper()
	if got != want {
		t.Fatalf("NVML answers %s, want %s", code(got), code(want))
	}
}

func device(t *testing.T, n nvml.Interface, i int) nvml.Device {
	t.Helper()
	d, ret := n.DeviceGetHandleByIndex(i)
	ok(t, ret)
	return d
}

func TestDriverTakesPowerLimitsOfTheBoardOnly(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	d := device(t, n, 3)
	for limit, want := range map[uint32]nvml.Return{
		199999: nvml.ERROR_INVALID_ARGUMENT, 200000: nvml.SUCCESS, 450000: nvml.SUCCESS,
		700000: nvml.SUCCESS, 700001: nvml.ERROR_INVALID_ARGUMENT,
	} {
		is(t, d.SetPowerManagementLimit(limit), want)
		got, ret := d.GetPowerManagementLimit()
		ok(t, ret)
		if (got == limit) != (want == nvml.SUCCESS) {
			t.Errorf("set to %d: reads %d", limit, got)
		}
	}
	ok(t, d.SetPowerManagementLimit(450000))
	m.Set(3, "power-enforced-mw", "400000")
	if got, ret := d.GetEnforcedPowerLimit(); ret != nvml.SUCCESS || got != 400000 {
		t.Errorf("enforced %d", got)
	}
	if got, _ := device(t, n, 2).GetPowerManagementLimit(); got != 700000 {
		t.Errorf("the neighbour has %d", got)
	}
	if got := m.Get(3, "power-limit-mw"); got != "450000" {
		t.Errorf("the file has %q", got)
	}
	m.Reset(3)
	if got, _ := d.GetPowerManagementLimit(); got != 700000 {
		t.Errorf("after a reset: %d", got)
	}
}

func TestDriverAppliesECCAtTheReset(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	d := device(t, n, 0)
	want := func(now, pending nvml.EnableState) {
		t.Helper()
		gotNow, gotPending, ret := d.GetEccMode()
		ok(t, ret)
		if gotNow != now || gotPending != pending {
			t.Errorf("ECC %d, pending %d; want %d, %d", gotNow, gotPending, now, pending)
		}
	}
	want(nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED)
	ok(t, d.SetEccMode(nvml.FEATURE_DISABLED))
	want(nvml.FEATURE_ENABLED, nvml.FEATURE_DISABLED)
	m.Reset(0)
	want(nvml.FEATURE_DISABLED, nvml.FEATURE_DISABLED)
	_, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC)
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

func TestDriverKeepsModesItIsGiven(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "t4-1")
	d := device(t, n, 0)
	ok(t, d.SetPersistenceMode(nvml.FEATURE_DISABLED))
	ok(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	is(t, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD), nvml.ERROR_INVALID_ARGUMENT)
	if p, c := m.Get(0, "persistence"), m.Get(0, "compute-mode"); p != "off" || c != "3" {
		t.Errorf("persistence %q, compute mode %q", p, c)
	}
	_, _, ret := d.GetMigMode()
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
	m.Set(0, "error.nvmlDeviceSetPersistenceMode", "no_permission")
	is(t, d.SetPersistenceMode(nvml.FEATURE_ENABLED), nvml.ERROR_NO_PERMISSION)
}

func TestDriverSwitchesMIGAsTheBoardCan(t *testing.T) {
	for _, c := range []struct {
		state      string
		busy       bool
		activation nvml.Return
		after      int // the mode in force
	}{
		{"dgx-h100", false, nvml.SUCCESS, nvml.DEVICE_MIG_ENABLE},
		{"dgx-h100", true, nvml.ERROR_IN_USE, nvml.DEVICE_MIG_DISABLE},
		{"dgx-a100", false, nvml.ERROR_RESET_REQUIRED, nvml.DEVICE_MIG_DISABLE},
	} {
		t.Run(fmt.Sprintf("%s-%v", c.state, c.busy), func(t *testing.T) {
			if !alone(t) {
				return
			}
			m, n := driver(t, c.state)
			if c.busy {
				m.Set(1, "process.99", "compute 100")
			}
			d := device(t, n, 1)
			activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			ok(t, ret)
			is(t, activation, c.activation)
			now, pending, ret := d.GetMigMode()
			ok(t, ret)
			if now != c.after || pending != nvml.DEVICE_MIG_ENABLE {
				t.Errorf("mode %d, pending %d", now, pending)
			}
			m.Reset(1)
			if now, _, _ := d.GetMigMode(); now != nvml.DEVICE_MIG_ENABLE {
				t.Errorf("mode %d after a reset", now)
			}
		})
	}
}

func TestDriverFindsGPUsByUUIDAndAddress(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	a, ret := n.DeviceGetHandleByUUID(m.Get(4, "uuid"))
	ok(t, ret)
	b, ret := n.DeviceGetHandleByPciBusId("00000000:9D:00.0")
	ok(t, ret)
	if a != device(t, n, 4) || a != b {
		t.Error("one GPU has several handles")
	}
	_, ret = n.DeviceGetHandleByUUID("GPU-none")
	is(t, ret, nvml.ERROR_NOT_FOUND)
	_, ret = n.DeviceGetHandleByIndex(8)
	is(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	for other, want := range map[int]nvml.GpuTopologyLevel{5: nvml.TOPOLOGY_NODE, 0: nvml.TOPOLOGY_SYSTEM} {
		level, ret := a.GetTopologyCommonAncestor(device(t, n, other))
		ok(t, ret)
		if level != want {
			t.Errorf("GPU 4 to GPU %d: level %d, want %d", other, level, want)
		}
	}
	_, ret = a.GetNumaNodeId() // the node of its own memory, which an H100 is not
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

// kind is a profile of GPU instances and where the board allows it.
type kind struct {
	info   nvml.GpuInstanceProfileInfo
	places []nvml.GpuInstancePlacement
}

func kinds(t *testing.T, d nvml.Device, profiles ...int) []kind {
	t.Helper()
	var out []kind
	for _, p := range profiles {
		info, ret := d.GetGpuInstanceProfileInfo(p)
		ok(t, ret)
		places, ret := d.GetGpuInstancePossiblePlacements(&info)
		ok(t, ret)
		out = append(out, kind{info, places})
	}
	return out
}

// fit finds places for counts of each kind by trying them all.
func fit(all []kind, counts []int, used uint32, chosen [][2]int) [][2]int {
	for k := range all {
		if counts[k] == 0 {
			continue
		}
		for i, p := range all[k].places {
			mask := (uint32(1)<<p.Size - 1) << p.Start
			if used&mask != 0 {
				continue
			}
			left := slices.Clone(counts)
			left[k]--
			if found := fit(all, left, used|mask, append(slices.Clone(chosen), [2]int{k, i})); found != nil {
				return found
			}
		}
		return nil
	}
	return append([][2]int{}, chosen...)
}

// Of all combinations of 1g, 1g with double memory, 2g, 3g, 4g and 7g with at
// most seven slices, 77 have a place on a seven-slice board and 25 have not.
func TestDriverPlacesExactlyWhatASevenSliceBoardHolds(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	m.Set(0, "mig-mode", "on")
	d := device(t, n, 0)
	all := kinds(t, d, nvml.GPU_INSTANCE_PROFILE_7_SLICE, nvml.GPU_INSTANCE_PROFILE_4_SLICE, nvml.GPU_INSTANCE_PROFILE_3_SLICE,
		nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	placeable, unplaceable := 0, 0
	var try func(counts []int, k, slices int)
	try = func(counts []int, k, room int) {
		if k < len(all) {
			width := int(all[k].info.SliceCount)
			for c := 0; c*width <= room && c <= int(all[k].info.InstanceCount); c++ {
				counts[k] = c
				try(counts, k+1, room-c*width)
			}
			counts[k] = 0
			return
		}
		if slices.Max(counts) == 0 {
			return
		}
		var made []nvml.GpuInstance
		if places := fit(all, counts, 0, nil); places != nil {
			placeable++
			for _, p := range places {
				made = append(made, create(t, d, all[p[0]], &all[p[0]].places[p[1]]))
			}
		} else {
			unplaceable++
			refused := false
			for k, c := range counts {
				for range c {
					if g, ret := d.CreateGpuInstance(&all[k].info); ret == nvml.SUCCESS {
						made = append(made, g)
					} else {
						is(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
						refused = true
					}
				}
			}
			if !refused {
				t.Errorf("%v has no place and was made", counts)
			}
		}
		for _, g := range made {
			ok(t, g.Destroy())
		}
	}
	try(make([]int, len(all)), 0, 7)
	if placeable != 77 || unplaceable != 25 {
		t.Errorf("%d combinations have a place and %d have not, want 77 and 25", placeable, unplaceable)
	}
}

func create(t *testing.T, d nvml.Device, k kind, p *nvml.GpuInstancePlacement) nvml.GpuInstance {
	t.Helper()
	g, ret := d.CreateGpuInstanceWithPlacement(&k.info, p)
	ok(t, ret)
	info, ret := g.GetInfo()
	ok(t, ret)
	if info.Placement != *p || info.ProfileId != k.info.Id {
		t.Fatalf("made %+v at %+v, wanted %+v", info, info.Placement, p)
	}
	return g
}

func TestDriverHoldsGPUInstancesToTheirRules(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	d := device(t, n, 0)
	info, ret := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	ok(t, ret)
	_, ret = d.CreateGpuInstance(&info)
	is(t, ret, nvml.ERROR_NOT_SUPPORTED) // MIG is off
	_, ret = d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_8_SLICE)
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_COUNT)
	is(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	ok(t, ret)
	ok(t, activation)

	k := kinds(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE, nvml.GPU_INSTANCE_PROFILE_4_SLICE,
		nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1)
	three, fourS, one, media := k[0], k[1], k[2], k[3]
	_, ret = d.CreateGpuInstanceWithPlacement(&three.info, &nvml.GpuInstancePlacement{Start: 2, Size: 4})
	is(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	// A 3g at 0 leaves no place for a 4g, one at 4 does.
	low := create(t, d, three, &nvml.GpuInstancePlacement{Start: 0, Size: 4})
	_, ret = d.CreateGpuInstance(&fourS.info)
	is(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
	ok(t, low.Destroy())
	is(t, low.Destroy(), nvml.ERROR_INVALID_ARGUMENT) // it is gone
	high := create(t, d, three, &nvml.GpuInstancePlacement{Start: 4, Size: 4})
	if left, _ := d.GetGpuInstanceRemainingCapacity(&one.info); left != 4 {
		t.Errorf("room for %d 1g beside a 3g at 4, want 4", left)
	}
	_, ret = d.CreateGpuInstance(&media.info)
	ok(t, ret)
	_, ret = d.CreateGpuInstance(&media.info)
	is(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES) // one +me a GPU

	// The mode cannot change with instances, nor an instance go that is in use.
	activation, ret = d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
	ok(t, ret)
	is(t, activation, nvml.ERROR_IN_USE)
	small, ret := high.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	ok(t, ret)
	whole, ret := high.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	ok(t, ret)
	_, ret = high.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
	ci, ret := high.CreateComputeInstance(&small)
	ok(t, ret)
	_, ret = high.CreateComputeInstance(&whole)
	is(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
	is(t, high.Destroy(), nvml.ERROR_IN_USE)
	instance, ret := high.GetInfo()
	ok(t, ret)
	m.Set(0, "process.7", fmt.Sprintf("compute 10 %d 0", instance.Id))
	is(t, ci.Destroy(), nvml.ERROR_IN_USE)
	m.Set(0, "process.7", "-")

	mig, ret := d.GetMigDeviceHandleByIndex(0)
	ok(t, ret)
	parent, ret := mig.GetDeviceHandleFromMigDeviceHandle()
	ok(t, ret)
	name, ret := mig.GetName()
	ok(t, ret)
	if parent != d || name != "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb" {
		t.Errorf("MIG device %q", name)
	}
	_, ret = mig.GetPowerUsage()
	is(t, ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetMigDeviceHandleByIndex(1)
	is(t, ret, nvml.ERROR_NOT_FOUND)

	ok(t, ci.Destroy())
	ok(t, high.Destroy())
}

func TestDriverPutsAnUnplacedInstanceWhereItClosesLeast(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	m.Set(0, "mig-mode", "on")
	d := device(t, n, 0)
	k := kinds(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_4_SLICE)
	var got []uint32
	for _, one := range k {
		g, ret := d.CreateGpuInstance(&one.info)
		ok(t, ret)
		info, _ := g.GetInfo()
		got = append(got, info.Placement.Start)
	}
	// As "nvidia-smi mig -cgi 19,14,5" does.
	if diff := cmp.Diff([]uint32{6, 4, 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestDriverAndTestWriteOneFileTogether(t *testing.T) {
	if !alone(t) {
		return
	}
	m, n := driver(t, "dgx-h100")
	var wg sync.WaitGroup
	for i := range 8 {
		d := device(t, n, i)
		wg.Go(func() {
			for limit := range 20 {
				if ret := d.SetPowerManagementLimit(uint32(300000 + limit)); ret != nvml.SUCCESS {
					t.Errorf("GPU %d: %s", i, code(ret))
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 40 {
			m.Set(i%8, fmt.Sprintf("process.%d", i), "compute 1")
		}
	})
	wg.Wait()
	for i := range 8 {
		if got := m.Get(i, "power-limit-mw"); got != "300019" {
			t.Errorf("GPU %d has %q", i, got)
		}
		list, ret := device(t, n, i).GetComputeRunningProcesses()
		ok(t, ret)
		if len(list) != 5 {
			t.Errorf("GPU %d has %d processes, want 5", i, len(list))
		}
	}
}
