//go:build cgo

package gpu

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/bettercompute/bc/agent/wire"
)

// readings implements Readings; the caller has the token.
func (l *Library) readings() Readings {
	list, lib := l.handles()
	if lib.State != wire.GPULibraryReady {
		return Readings{Library: lib}
	}
	out := Readings{Library: l.versions()}
	var answered []string
	for _, h := range list {
		p := l.probe(h)
		r := Reading{Index: h.index}
		p.read(&r)
		if p.code == uninitialized {
			l.drop() // the driver went away between two questions
			return Readings{Library: p.code.ofLibrary()}
		}
		if r.UUID != "" {
			answered = append(answered, r.UUID)
		}
		for _, f := range p.failures {
			r.Failures = append(r.Failures, f.String())
		}
		r.Health, r.HealthReason = healthOf(p.failures, r.Remap)
		out.GPUs = append(out.GPUs, r)
	}
	for i := range out.GPUs {
		if r := &out.GPUs[i]; r.UUID == "" {
			g, _ := l.memory.recall(r.Index, len(list), answered)
			r.UUID = g.UUID
		}
	}
	return out
}

func (p *probe) read(r *Reading) {
	d := p.device
	r.UUID = text(need(p, "UUID", func() (string, nvml.Return) { return d.GetUUID() }))
	r.Product = text(need(p, "name", func() (string, nvml.Return) { return d.GetName() }))
	if pci := need(p, "PCI address", func() (nvml.PciInfo, nvml.Return) { return d.GetPciInfo() }); !p.gone && pci.PciDeviceId != 0 {
		r.Address = pciAddress(pci.Domain, pci.Bus, pci.Device)
	}
	r.MemoryTotalMiB, r.MemoryUsedMiB, r.MemoryFreeMiB = p.memoryMiB()
	r.TemperatureCelsius = ask(p, "temperature", "nvmlDeviceGetTemperature", func() (int, nvml.Return) {
		celsius, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
		return int(celsius), ret
	})
	r.PowerMilliwatts = ask(p, "power", "nvmlDeviceGetPowerUsage", func() (int, nvml.Return) {
		mw, ret := d.GetPowerUsage()
		return int(mw), ret
	})
	if u := ask(p, "utilisation", "nvmlDeviceGetUtilizationRates", d.GetUtilizationRates); u != nil {
		gpu, memory := int(u.Gpu), int(u.Memory)
		r.GPUUtilization, r.MemoryUtilization = &gpu, &memory
	}
	r.SMClockMHz = p.clock("SM clock", nvml.CLOCK_SM)
	r.MemoryClockMHz = p.clock("memory clock", nvml.CLOCK_MEM)
	r.ECC = p.eccCounts()
	r.RetirementPending = ask(p, "page retirement", "nvmlDeviceGetRetiredPagesPendingStatus", func() (bool, nvml.Return) {
		pending, ret := d.GetRetiredPagesPendingStatus()
		return pending == nvml.FEATURE_ENABLED, ret
	})
	r.Remap = p.remap()
	r.Processes = p.processes()
	if mode := p.migMode(); mode != nil && mode.Enabled {
		for _, m := range p.migDevices() {
			if i, ok := p.instance(m); ok {
				r.Instances = append(r.Instances, i)
			}
		}
	}
}

// instance reads one MIG device. One that vanishes meanwhile is left out.
func (p *probe) instance(m nvml.Device) (InstanceReading, bool) {
	of := &probe{binding: p.binding, device: m}
	out := InstanceReading{
		UUID:        text(or(ask(of, "MIG device UUID", "nvmlDeviceGetUUID", m.GetUUID), "")),
		GPUInstance: or(ask(of, "GPU instance", "nvmlDeviceGetGpuInstanceId", m.GetGpuInstanceId), -1),
	}
	out.MemoryTotalMiB, out.MemoryUsedMiB, out.MemoryFreeMiB = of.memoryMiB()
	return out, out.UUID != "" && out.GPUInstance >= 0
}

func (p *probe) clock(what string, kind nvml.ClockType) *int {
	return ask(p, what, "nvmlDeviceGetClockInfo", func() (int, nvml.Return) {
		mhz, ret := p.device.GetClockInfo(kind)
		return int(mhz), ret
	})
}

// eccCounts is nil without ECC, or if one of the four counts is.
func (p *probe) eccCounts() *ECCCounts {
	return ask(p, "ECC errors", "nvmlDeviceGetTotalEccErrors", func() (ECCCounts, nvml.Return) {
		var c ECCCounts
		for _, q := range []struct {
			to      *uint64
			kind    nvml.MemoryErrorType
			counter nvml.EccCounterType
		}{
			{&c.VolatileCorrected, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
			{&c.VolatileUncorrected, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC},
			{&c.AggregateCorrected, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC},
			{&c.AggregateUncorrected, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC},
		} {
			n, ret := p.device.GetTotalEccErrors(q.kind, q.counter)
			if ret != nvml.SUCCESS {
				return c, ret
			}
			*q.to = n
		}
		return c, nvml.SUCCESS
	})
}

// processes lists who holds the GPU, nil if the driver tells neither kind.
func (p *probe) processes() *[]Process {
	var out []Process
	told := false
	for _, q := range []struct {
		graphics bool
		what     string
		symbols  []string
		list     func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{false, "compute processes", versions("nvmlDeviceGetComputeRunningProcesses"), p.device.GetComputeRunningProcesses},
		{true, "graphics processes", versions("nvmlDeviceGetGraphicsRunningProcesses"), p.device.GetGraphicsRunningProcesses},
	} {
		list := ask(p, q.what, p.oneOf(q.symbols...), q.list)
		if list == nil {
			continue
		}
		told = true
		for _, i := range *list {
			out = append(out, process(i, q.graphics))
		}
	}
	if !told {
		return nil
	}
	return &out
}

func versions(name string) []string { return []string{name + "_v3", name + "_v2", name} }

func process(i nvml.ProcessInfo, graphics bool) Process {
	out := Process{PID: int(i.Pid), Graphics: graphics, GPUInstance: -1}
	if i.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
		mib := int(i.UsedGpuMemory >> 20)
		out.MemoryUsedMiB = &mib
	}
	if i.GpuInstanceId != math.MaxUint32 {
		out.GPUInstance = int(i.GpuInstanceId)
	}
	return out
}
