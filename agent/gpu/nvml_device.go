//go:build cgo

package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bettercompute/bc/agent/wire"
)

// probe asks one GPU. It calls no function that the library lacks, keeps what
// failed, and stops asking once the GPU is lost: each such call can take long.
type probe struct {
	*binding
	device   nvml.Device
	failures []failure
	gone     bool
	code     code // why it is gone
}

func (l *Library) probe(h handle) *probe {
	p := &probe{binding: &l.binding, device: h.device}
	p.note("handle", h.code, true)
	p.gone, p.code = h.code != success, h.code
	return p
}

// note keeps a failure and answers whether the question was answered.
func (p *probe) note(what string, c code, essential bool) bool {
	if c == success {
		return true
	}
	if c == gpuIsLost || c == uninitialized {
		p.gone, p.code = true, c
	}
	if essential || !c.absent() {
		p.failures = append(p.failures, failure{what, c, essential})
	}
	return false
}

// lacksEssential says whether a question of need got no answer.
func (p *probe) lacksEssential() bool {
	return slices.ContainsFunc(p.failures, func(f failure) bool { return f.essential })
}

// ask puts one question, unless the GPU is gone or the library lacks the
// function. It answers nil without an answer.
func ask[T any](p *probe, what, symbol string, f func() (T, nvml.Return)) *T {
	if p.gone || !p.has(symbol) {
		return nil
	}
	v, ret := f()
	if !p.note(what, code(ret), false) {
		return nil
	}
	return &v
}

// need is ask for what makes a GPU usable; its function is always there.
func need[T any](p *probe, what string, f func() (T, nvml.Return)) T {
	var none T
	if p.gone {
		return none
	}
	v, ret := f()
	if !p.note(what, code(ret), true) {
		return none
	}
	return v
}

// or is the value of an answer, or what stands for none.
func or[T any](v *T, none T) T {
	if v == nil {
		return none
	}
	return *v
}

// facts are the static facts, but for NVLink peers.
func (p *probe) facts(index int) wire.GPU {
	g := p.identity(index)
	p.settings(&g)
	g.MIG = p.mig()
	g.Health, g.HealthReason = healthOf(p.failures, p.remap())
	return g
}

// identity is what a board is, whatever is set on it.
func (p *probe) identity(index int) wire.GPU {
	d := p.device
	g := wire.GPU{Index: index, Minor: -1, NUMANode: -1}
	g.UUID = text(need(p, "UUID", func() (string, nvml.Return) { return d.GetUUID() }))
	g.Product = text(need(p, "name", func() (string, nvml.Return) { return d.GetName() }))
	g.Display = isDisplay(g.Product)
	pci := need(p, "PCI address", func() (nvml.PciInfo, nvml.Return) { return d.GetPciInfo() })
	if !p.gone {
		g.Address = pciAddress(pci.Domain, pci.Bus, pci.Device)
		g.PCIID, g.PCISubID = pciID(pci.PciDeviceId), pciID(pci.PciSubSystemId)
	}
	if total, _, _ := p.memoryMiB(); total != nil {
		g.MemoryMiB = *total
	}
	g.SerialHash = hashSerial(text(or(ask(p, "serial number", "nvmlDeviceGetSerial", d.GetSerial), "")))
	g.Minor = or(ask(p, "minor number", "nvmlDeviceGetMinorNumber", d.GetMinorNumber), -1)
	g.NUMANode = onlyNode(or(ask(p, "NUMA node", "nvmlDeviceGetMemoryAffinity", func() ([]uint, nvml.Return) {
		return d.GetMemoryAffinity(256, nvml.AFFINITY_SCOPE_NODE)
	}), nil))
	arch := ask(p, "architecture", "nvmlDeviceGetArchitecture", d.GetArchitecture)
	g.Architecture = architectures[int(or(arch, 0))]
	g.Compute = or(ask(p, "compute capability", "nvmlDeviceGetCudaComputeCapability", func() (string, nvml.Return) {
		major, minor, ret := d.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	}), "")
	return g
}

// settings are what can be set on a board.
func (p *probe) settings(g *wire.GPU) {
	d := p.device
	g.Power = p.power()
	p.modes(g)
	g.ClockMHz = ask(p, "maximum clock", "nvmlDeviceGetMaxClockInfo", func() (int, nvml.Return) {
		mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_SM)
		return int(mhz), ret
	})
}

// modes are the settings of a board that are on or off, or a word.
func (p *probe) modes(g *wire.GPU) {
	d := p.device
	g.ECC = ask(p, "ECC mode", "nvmlDeviceGetEccMode", func() (wire.ECCInfo, nvml.Return) {
		now, pending, ret := d.GetEccMode()
		return wire.ECCInfo{Enabled: now == nvml.FEATURE_ENABLED, Pending: pending == nvml.FEATURE_ENABLED}, ret
	})
	g.Persistence = ask(p, "persistence mode", "nvmlDeviceGetPersistenceMode", func() (bool, nvml.Return) {
		mode, ret := d.GetPersistenceMode()
		return mode == nvml.FEATURE_ENABLED, ret
	})
	if mode := ask(p, "compute mode", "nvmlDeviceGetComputeMode", d.GetComputeMode); mode != nil {
		g.ComputeMode = computeModes[int(*mode)]
	}
}

// memoryMiB answers the board's memory, and what is allocated and free of it. The
// first version of the call counts the driver's own share as used.
func (p *probe) memoryMiB() (total, used, free *int) {
	type amounts struct{ total, used, free uint64 }
	a := ask(p, "memory", "nvmlDeviceGetMemoryInfo_v2", func() (amounts, nvml.Return) {
		m, ret := p.device.GetMemoryInfo_v2()
		return amounts{m.Total, m.Used, m.Free}, ret
	})
	if a == nil && !p.has("nvmlDeviceGetMemoryInfo_v2") {
		a = ask(p, "memory", "nvmlDeviceGetMemoryInfo", func() (amounts, nvml.Return) {
			m, ret := p.device.GetMemoryInfo()
			return amounts{m.Total, m.Used, m.Free}, ret
		})
	}
	if a == nil {
		return nil, nil, nil
	}
	t, u, f := int(a.total>>20), int(a.used>>20), int(a.free>>20)
	return &t, &u, &f
}

// power is nil for a board whose cap cannot be read or has no range.
func (p *probe) power() *wire.PowerInfo {
	l := p.limits()
	if l == nil {
		return nil
	}
	return &wire.PowerInfo{
		LimitWatts: watts(l.Limit), EnforcedWatts: watts(l.Enforced), DefaultWatts: watts(l.Default),
		MinWatts: watts(l.Min), MaxWatts: watts(l.Max),
	}
}

// remap is nil on a board that does not remap rows, and in MIG mode with
// instances, where the driver does not tell.
func (p *probe) remap() *Remap {
	return ask(p, "row remapping", "nvmlDeviceGetRemappedRows", func() (Remap, nvml.Return) {
		corrected, uncorrected, pending, failed, ret := p.device.GetRemappedRows()
		return Remap{corrected, uncorrected, pending, failed}, ret
	})
}

// links counts the active NVLinks by what is at their other end.
func (p *probe) links() links {
	found := links{toGPU: map[string]int{}}
	if !p.has("nvmlDeviceGetNvLinkState") ||
		!p.has(p.oneOf("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo")) {
		return found
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		if p.gone {
			break
		}
		state, ret := p.device.GetNvLinkState(link)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // past the links that this driver knows
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		pci, ret := p.device.GetNvLinkRemotePciInfo(link)
		address := pciAddress(pci.Domain, pci.Bus, pci.Device)
		if p.toSwitch(link) {
			found.toSwitch++
		} else if ret == nvml.SUCCESS {
			found.toGPU[address]++
		}
	}
	return found
}

// toSwitch is false for a driver too old to tell, which then counts links
// between GPUs only.
func (p *probe) toSwitch(link int) bool {
	if !p.has("nvmlDeviceGetNvLinkRemoteDeviceType") {
		return false
	}
	kind, ret := p.device.GetNvLinkRemoteDeviceType(link)
	return ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH
}

// mig is nil on a board without MIG.
func (p *probe) mig() *wire.MIGInfo {
	info := p.migMode()
	if info == nil || !info.Enabled {
		return info
	}
	names := map[uint32]profile{}
	for _, m := range p.migDevices() {
		if instance, ok := p.migInstance(m, names); ok {
			info.Instances = append(info.Instances, instance)
		}
	}
	return info
}

// migDevices lists the MIG devices of a GPU in MIG mode.
func (p *probe) migDevices() (devices []nvml.Device) {
	if !p.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	most := or(ask(p, "number of MIG devices", "nvmlDeviceGetMaxMigDeviceCount", p.device.GetMaxMigDeviceCount), 0)
	for i := range most {
		m, ret := p.device.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // the numbers have holes
		}
		if p.note("MIG device", code(ret), false) {
			devices = append(devices, m)
		}
	}
	return devices
}

func (p *probe) migMode() *wire.MIGInfo {
	return ask(p, "MIG mode", "nvmlDeviceGetMigMode", func() (wire.MIGInfo, nvml.Return) {
		now, pending, ret := p.device.GetMigMode()
		return wire.MIGInfo{Enabled: now == nvml.DEVICE_MIG_ENABLE, Pending: pending == nvml.DEVICE_MIG_ENABLE}, ret
	})
}

// profile is a kind of GPU instance, by the name the driver gives it.
type profile struct {
	name   string
	slices int
}

// migInstance describes one MIG device. One that vanishes meanwhile is left out.
func (p *probe) migInstance(m nvml.Device, names map[uint32]profile) (wire.MIGInstance, bool) {
	out := wire.MIGInstance{GPUInstance: -1, ComputeInstance: -1, Start: -1}
	out.UUID = text(or(ask(p, "MIG device UUID", "nvmlDeviceGetUUID", m.GetUUID), ""))
	out.GPUInstance = or(ask(p, "GPU instance", "nvmlDeviceGetGpuInstanceId", m.GetGpuInstanceId), -1)
	out.ComputeInstance = or(ask(p, "compute instance", "nvmlDeviceGetComputeInstanceId", m.GetComputeInstanceId), -1)
	attributes := or(ask(p, "MIG device attributes", "nvmlDeviceGetAttributes_v2", m.GetAttributes), nvml.DeviceAttributes{})
	out.MemoryMiB = int(attributes.MemorySizeMB)
	name := or(ask(p, "MIG device name", "nvmlDeviceGetName", m.GetName), "")

	var kind profile
	if info := p.instanceInfo(out.GPUInstance); info != nil {
		out.Start, out.Size = int(info.Placement.Start), int(info.Placement.Size)
		kind = p.profileOf(info.ProfileId, names)
	}
	out.Profile = migProfile(kind.name, name, int(attributes.ComputeInstanceSliceCount), kind.slices)
	return out, out.UUID != "" && out.GPUInstance >= 0
}

// instanceInfo is nil where the driver lets only a privileged process see it.
func (p *probe) instanceInfo(id int) *nvml.GpuInstanceInfo {
	if id < 0 || !p.has("nvmlGpuInstanceGetInfo") {
		return nil
	}
	return ask(p, "GPU instance placement", "nvmlDeviceGetGpuInstanceById", func() (nvml.GpuInstanceInfo, nvml.Return) {
		instance, ret := p.device.GetGpuInstanceById(id)
		if ret != nvml.SUCCESS {
			return nvml.GpuInstanceInfo{}, ret
		}
		return instance.GetInfo()
	})
}

// profileOf finds the name of a profile id, reading the board's list once. A
// driver before R470 has no names; then the MIG device's own name must do.
func (p *probe) profileOf(id uint32, names map[uint32]profile) profile {
	if len(names) == 0 && p.has("nvmlDeviceGetGpuInstanceProfileInfoV") {
		for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			if info, ret := p.device.GetGpuInstanceProfileInfoV(number).V2(); ret == nvml.SUCCESS {
				names[info.Id] = profile{bytesText(info.Name[:]), int(info.SliceCount)}
			}
		}
	}
	return names[id]
}

// bytesText is the string of a C array.
func bytesText(raw []int8) string {
	var b strings.Builder
	for _, c := range raw {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
