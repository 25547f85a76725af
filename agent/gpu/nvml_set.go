//go:build cgo

package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bettercompute/bc/agent/wire"
)

// states implements States; the caller has the token.
func (l *Library) states() States {
	list, lib := l.handles()
	if lib.State != wire.GPULibraryReady {
		return States{Library: lib}
	}
	out := States{Library: l.versions()}
	for _, h := range list {
		p := l.probe(h)
		s := p.state(h.index)
		if p.code == uninitialized {
			l.drop() // the driver went away between two questions
			return States{Library: p.code.ofLibrary()}
		}
		if s.UUID == "" {
			out.Silent++
			continue
		}
		out.GPUs = append(out.GPUs, s)
	}
	return out
}

// stateOf implements StateOf; the caller has the token.
func (l *Library) stateOf(uuid string) (State, *SetError) {
	var out State
	err := l.changeOne(uuid, func(s *setter) *SetError {
		out = s.state(s.index)
		if s.code == uninitialized {
			l.drop()
			return &SetError{Why: s.code.ofLibrary().Reason, kind: ErrLibrary}
		}
		if s.gone {
			return refused(s.code)
		}
		return nil
	})
	return out, err
}

// state asks for what can be set, and for what decides whether it may.
func (p *probe) state(index int) State {
	g := p.identity(index)
	p.modes(&g)
	mig := p.migMode()
	s := State{
		UUID: g.UUID, Index: index, Minor: g.Minor, Address: g.Address, Product: g.Product, MemoryMiB: g.MemoryMiB,
		Architecture: g.Architecture, Compute: g.Compute, Display: g.Display,
		ECC: g.ECC, Persistence: g.Persistence, ComputeMode: g.ComputeMode,
		Power: p.limits(), Processes: p.processes(),
	}
	if mig != nil && !p.gone {
		s.MIG = p.cutState(mig)
	}
	for _, f := range p.failures {
		s.Failures = append(s.Failures, f.String())
	}
	return s
}

func (p *probe) cutState(mode *wire.MIGInfo) *MIGState {
	s := &MIGState{Enabled: mode.Enabled, Pending: mode.Pending}
	offered, c := p.cuts()
	if c == success {
		for _, o := range offered {
			s.Profiles = append(s.Profiles, o.name)
		}
	}
	if !s.Enabled {
		return s
	}
	found, c := p.instances(offered, c)
	p.note("GPU instances", c, true)
	for _, i := range found {
		s.Instances = append(s.Instances, i.GPUInstance)
	}
	return s
}

// limits is nil for a board whose cap cannot be read or has no range.
func (p *probe) limits() *PowerLimits {
	d := p.device
	limit := ask(p, "power limit", "nvmlDeviceGetPowerManagementLimit", d.GetPowerManagementLimit)
	span := ask(p, "power limit range", "nvmlDeviceGetPowerManagementLimitConstraints", func() ([2]uint32, nvml.Return) {
		lo, hi, ret := d.GetPowerManagementLimitConstraints()
		return [2]uint32{lo, hi}, ret
	})
	usual := ask(p, "default power limit", "nvmlDeviceGetPowerManagementDefaultLimit", d.GetPowerManagementDefaultLimit)
	if limit == nil || span == nil || usual == nil {
		return nil
	}
	enforced := ask(p, "enforced power limit", "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit)
	return &PowerLimits{
		Limit: int(*limit), Enforced: int(or(enforced, 0)), Default: int(*usual), Min: int(span[0]), Max: int(span[1]),
	}
}

// setter changes one GPU.
type setter struct {
	*probe
	index int
}

// changeOne finds the GPU by a fresh handle, since turning persistence off can make
// an old one invalid, and changes it; the caller has the token.
func (l *Library) changeOne(uuid string, set func(*setter) *SetError) *SetError {
	list, lib := l.handles()
	if lib.State != wire.GPULibraryReady {
		return &SetError{Why: lib.Reason, kind: ErrLibrary}
	}
	for _, h := range list {
		p := l.probe(h)
		if got := text(need(p, "UUID", func() (string, nvml.Return) { return p.device.GetUUID() })); got != uuid || got == "" {
			continue
		}
		return set(&setter{p, h.index})
	}
	return &SetError{Why: "NVML lists no GPU that answers to this UUID", kind: ErrNoGPU}
}

// do calls one function that a driver may lack.
func (s *setter) do(symbol string, f func() nvml.Return) *SetError {
	if !s.has(symbol) {
		return refused(functionNotFound)
	}
	return refused(code(f()))
}

func (s *setter) power(milliwatts int) *SetError {
	l := s.limits()
	if l == nil {
		return s.unread(refused(notSupported))
	}
	if milliwatts < l.Min || milliwatts > l.Max {
		return &SetError{kind: ErrOutOfRange, Why: fmt.Sprintf(
			"the board takes %d to %d mW (default %d)", l.Min, l.Max, l.Default)}
	}
	return s.do("nvmlDeviceSetPowerManagementLimit", func() nvml.Return {
		return s.device.SetPowerManagementLimit(uint32(milliwatts))
	})
}

// unread answers the failure that hid a value, if there is one.
func (s *setter) unread(otherwise *SetError) *SetError {
	if n := len(s.failures); n > 0 {
		return refused(s.failures[n-1].code)
	}
	return otherwise
}

func (s *setter) ecc(on bool) *SetError {
	return s.do("nvmlDeviceSetEccMode", func() nvml.Return { return s.device.SetEccMode(enabled(on)) })
}

func (s *setter) persistence(on bool) *SetError {
	return s.do("nvmlDeviceSetPersistenceMode", func() nvml.Return { return s.device.SetPersistenceMode(enabled(on)) })
}

func enabled(on bool) nvml.EnableState {
	if on {
		return nvml.FEATURE_ENABLED
	}
	return nvml.FEATURE_DISABLED
}

func (s *setter) computeMode(mode string) *SetError {
	for number, name := range computeModes {
		if name == mode {
			return s.do("nvmlDeviceSetComputeMode", func() nvml.Return {
				return s.device.SetComputeMode(nvml.ComputeMode(number))
			})
		}
	}
	return &SetError{Why: "there is no such compute mode"}
}

// migMode answers the activation status where the call itself succeeded.
func (s *setter) migMode(on bool) *SetError {
	mode := nvml.DEVICE_MIG_DISABLE
	if on {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	activation := nvml.SUCCESS
	err := s.do("nvmlDeviceSetMigMode", func() (ret nvml.Return) {
		activation, ret = s.device.SetMigMode(mode)
		return ret
	})
	if err != nil {
		return err
	}
	return refused(code(activation))
}

// cut is a profile of GPU instance that the device offers.
type cut struct {
	name string
	info nvml.GpuInstanceProfileInfo
}

// migSymbols are the functions without which MIG cannot be managed. Drivers
// before R470 lack the names of profiles.
var migSymbols = []string{
	"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstances",
	"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances",
}

// cuts lists the profiles that the device offers, by the names it gives them.
func (p *probe) cuts() ([]cut, code) {
	for _, symbol := range migSymbols {
		if !p.has(symbol) {
			return nil, functionNotFound
		}
	}
	var out []cut
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		named, ret := p.device.GetGpuInstanceProfileInfoV(number).V2()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // numbers that this board or this driver does not have
		}
		if ret != nvml.SUCCESS {
			return nil, code(ret)
		}
		info, ret := p.device.GetGpuInstanceProfileInfo(number)
		if ret != nvml.SUCCESS {
			return nil, code(ret)
		}
		if info.InstanceCount == 0 {
			continue
		}
		out = append(out, cut{strings.TrimPrefix(bytesText(named.Name[:]), "MIG "), info})
	}
	return out, success
}

// instance is a GPU instance with the means to take it away.
type instance struct {
	GPUInstance
	handle  nvml.GpuInstance
	compute []nvml.ComputeInstance
}

// instances lists the GPU instances in order of their place, given the answer
// of cuts.
func (p *probe) instances(offered []cut, c code) ([]instance, code) {
	if c != success {
		return nil, c
	}
	var out []instance
	for _, o := range offered {
		handles, ret := p.device.GetGpuInstances(&o.info)
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, code(ret)
		}
		for _, h := range handles {
			info, ret := h.GetInfo()
			if ret == nvml.ERROR_NOT_FOUND {
				continue // destroyed meanwhile
			}
			if ret != nvml.SUCCESS {
				return nil, code(ret)
			}
			i := instance{handle: h, GPUInstance: GPUInstance{
				ID: int(info.Id), Profile: o.name, Start: int(info.Placement.Start), Size: int(info.Placement.Size),
			}}
			if c := i.findCompute(o.info.SliceCount); c != success {
				return nil, c
			}
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b instance) int { return cmp.Compare(a.Start, b.Start) })
	return out, success
}

// findCompute lists the compute instances of every width, given the width of
// the whole GPU instance.
func (i *instance) findCompute(whole uint32) code {
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := i.handle.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return code(ret)
		}
		if info.InstanceCount == 0 {
			continue
		}
		list, ret := i.handle.GetComputeInstances(&info)
		if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return code(ret)
		}
		i.compute = append(i.compute, list...)
		i.Whole = i.Whole || len(list) == 1 && info.SliceCount == whole
	}
	i.Compute = len(i.compute)
	return success
}

func (s *setter) create(at wire.MIGPlacement) *SetError {
	offered, c := s.cuts()
	if c != success {
		return refused(c)
	}
	i := slices.IndexFunc(offered, func(o cut) bool { return o.name == at.Profile })
	if i < 0 {
		return &SetError{kind: ErrNotSupported, Why: "the device has no such profile; it has " + names(offered)}
	}
	whole := offered[i].info
	if !s.has("nvmlDeviceCreateGpuInstanceWithPlacement") || !s.has("nvmlGpuInstanceCreateComputeInstance") {
		return refused(functionNotFound)
	}
	place := nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
	made, ret := s.device.CreateGpuInstanceWithPlacement(&whole, &place)
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		return &SetError{kind: ErrNoRoom, Why: fmt.Sprintf("the profile cannot begin there with %d memory slices", at.Size)}
	}
	if ret != nvml.SUCCESS {
		return refused(code(ret))
	}
	err := s.createCompute(made, whole.SliceCount)
	if err == nil {
		return nil
	}
	err.Why = "its compute instance: " + err.Why
	if ret := made.Destroy(); ret != nvml.SUCCESS {
		err.Why += ", and the GPU instance without it does not go either: " + code(ret).String()
	}
	return err
}

// createCompute makes the one compute instance that takes a whole GPU instance.
func (s *setter) createCompute(of nvml.GpuInstance, width uint32) *SetError {
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := of.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && info.SliceCount == width {
			_, ret := of.CreateComputeInstance(&info)
			return refused(code(ret))
		}
	}
	return &SetError{kind: ErrNotSupported, Why: fmt.Sprintf("the device offers none with %d slices", width)}
}

func names(offered []cut) string {
	var out []string
	for _, o := range offered {
		out = append(out, o.name)
	}
	return strings.Join(out, ", ")
}

func (s *setter) destroy() *SetError {
	if !s.has("nvmlGpuInstanceDestroy") || !s.has("nvmlComputeInstanceDestroy") {
		return refused(functionNotFound)
	}
	all, c := s.instances(s.cuts())
	if c != success {
		return refused(c)
	}
	for _, i := range all {
		for _, compute := range i.compute {
			if err := refused(code(compute.Destroy())); err != nil {
				return i.stays(err)
			}
		}
		if err := refused(code(i.handle.Destroy())); err != nil {
			return i.stays(err)
		}
	}
	return nil
}

func (i instance) stays(err *SetError) *SetError {
	err.Why = fmt.Sprintf("%s at slice %d stays: %s", i.Profile, i.Start, err.Why)
	return err
}
