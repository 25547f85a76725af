package agent

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/otlp"
	"github.com/bettercompute/bc/agent/wire"
)

// facts are what metrics are labelled with, and what the node knows anyway.
type facts struct {
	nodeID, poolID, hostname string
	gpus                     []wire.GPU
	units                    []wire.UnitStatus
}

// xids are the Xid errors of one GPU since the agent began.
type xids struct {
	last  int
	times map[int]int // by code
}

// gpuMetric is one number that each GPU reads.
type gpuMetric struct {
	name, description string
	counted           bool // since the driver was loaded, or in the board's life
	of                func(gpu.Reading) (float64, bool)
}

// gpuMetrics are named as NVIDIA's DCGM exporter names them, and have its units.
var gpuMetrics = []gpuMetric{
	{"DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", false, reading(func(r gpu.Reading) *int { return r.GPUUtilization })},
	{"DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", false, reading(func(r gpu.Reading) *int { return r.MemoryUtilization })},
	{"DCGM_FI_DEV_FB_TOTAL", "Total framebuffer memory (in MiB).", false, reading(func(r gpu.Reading) *int { return r.MemoryTotalMiB })},
	{"DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", false, reading(func(r gpu.Reading) *int { return r.MemoryUsedMiB })},
	{"DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", false, reading(func(r gpu.Reading) *int { return r.MemoryFreeMiB })},
	{"DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", false, reading(func(r gpu.Reading) *int { return r.TemperatureCelsius })},
	{"DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", false, func(r gpu.Reading) (float64, bool) {
		if r.PowerMilliwatts == nil {
			return 0, false
		}
		return float64(*r.PowerMilliwatts) / 1000, true
	}},
	{"DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", false, reading(func(r gpu.Reading) *int { return r.SMClockMHz })},
	{"DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", false, reading(func(r gpu.Reading) *int { return r.MemoryClockMHz })},
	{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "Corrected memory errors since the driver was loaded.", true, ecc(func(c gpu.ECCCounts) uint64 { return c.VolatileCorrected })},
	{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Uncorrected memory errors since the driver was loaded.", true, ecc(func(c gpu.ECCCounts) uint64 { return c.VolatileUncorrected })},
	{"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "Corrected memory errors in the board's life.", true, ecc(func(c gpu.ECCCounts) uint64 { return c.AggregateCorrected })},
	{"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "Uncorrected memory errors in the board's life.", true, ecc(func(c gpu.ECCCounts) uint64 { return c.AggregateUncorrected })},
	{"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for corrected errors.", true, remap(func(m gpu.Remap) int { return m.Corrected })},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrected errors.", true, remap(func(m gpu.Remap) int { return m.Uncorrected })},
	{"DCGM_FI_DEV_ROW_REMAP_PENDING", "1 if a row remap waits for a reset.", false, remap(func(m gpu.Remap) int { return one(m.Pending) })},
	{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 if a row remap has failed.", false, remap(func(m gpu.Remap) int { return one(m.Failed) })},
	{"DCGM_FI_DEV_RETIRED_PENDING", "1 if pages wait for a reset to be retired.", false, func(r gpu.Reading) (float64, bool) {
		return truth(r.RetirementPending != nil && *r.RetirementPending), r.RetirementPending != nil
	}},
}

// The other metrics. Those without a counterpart at DCGM begin with bc_.
const (
	metricXID     = "DCGM_FI_DEV_XID_ERRORS"
	metricXIDs    = "bc_gpu_xid_errors"
	metricHealthy = "bc_gpu_healthy"
	metricDriver  = "bc_gpu_driver_ready"
	metricUnit    = "bc_unit_in_sync"
	metricLost    = "bc_telemetry_samples_lost"
)

func reading(of func(gpu.Reading) *int) func(gpu.Reading) (float64, bool) {
	return func(r gpu.Reading) (float64, bool) {
		if n := of(r); n != nil {
			return float64(*n), true
		}
		return 0, false
	}
}

func ecc(of func(gpu.ECCCounts) uint64) func(gpu.Reading) (float64, bool) {
	return func(r gpu.Reading) (float64, bool) {
		if r.ECC == nil {
			return 0, false
		}
		return float64(of(*r.ECC)), true
	}
}

func remap(of func(gpu.Remap) int) func(gpu.Reading) (float64, bool) {
	return func(r gpu.Reading) (float64, bool) {
		if r.Remap == nil {
			return 0, false
		}
		return float64(of(*r.Remap)), true
	}
}

func truth(b bool) float64 { return float64(one(b)) }

// measured makes a batch of readings. A GPU that does not answer has its health
// and nothing else; what a board does not read has no point. No process, user or
// command is ever in it.
func measured(f facts, r gpu.Readings, errors map[string]xids, lost int, began, at time.Time) otlp.Batch {
	b := otlp.Batch{Scope: "bcd", At: at}
	read := make(map[string]gpu.Reading)
	for _, g := range r.GPUs {
		read[g.UUID] = g
	}
	for _, m := range gpuMetrics {
		b.Metrics = append(b.Metrics, m.points(f, read))
	}
	b.Metrics = append(b.Metrics, xidMetrics(f, errors, began)...)
	healthy := otlp.Metric{Name: metricHealthy, Description: "1 if the GPU can be booked as far as its health goes."}
	for _, g := range f.gpus {
		health := g.Health // as it was found last; a reading is newer
		if now, ok := read[g.UUID]; ok {
			health = now.Health
		}
		healthy.Points = append(healthy.Points, otlp.Point{Labels: gpuLabels(f, g), Value: truth(health == wire.GPUHealthy)})
	}
	b.Metrics = append(b.Metrics, healthy)
	if len(f.gpus) > 0 {
		b.Metrics = append(b.Metrics, otlp.Metric{
			Name: metricDriver, Description: "1 if the NVIDIA driver answers.",
			Points: []otlp.Point{{Labels: f.labels(), Value: truth(r.Library.State == wire.GPULibraryReady)}},
		})
	}
	b.Metrics = append(b.Metrics, unitMetric(f), otlp.Metric{
		Name: metricLost, Description: "Samples that the collector has not got since the agent began.", Sum: true, Since: began,
		Points: []otlp.Point{{Labels: f.labels(), Value: float64(lost)}},
	})
	return b
}

// points are those of every GPU that has the reading, and of the instances of
// those in MIG mode, of which NVML reads the memory alone.
func (m gpuMetric) points(f facts, read map[string]gpu.Reading) otlp.Metric {
	out := otlp.Metric{Name: m.name, Description: m.description, Sum: m.counted}
	for _, g := range f.gpus {
		r := read[g.UUID]
		if v, ok := m.of(r); ok {
			out.Points = append(out.Points, otlp.Point{Labels: gpuLabels(f, g), Value: v})
		}
		for _, i := range r.Instances {
			v, ok := m.of(gpu.Reading{MemoryTotalMiB: i.MemoryTotalMiB, MemoryUsedMiB: i.MemoryUsedMiB, MemoryFreeMiB: i.MemoryFreeMiB})
			if ok {
				out.Points = append(out.Points, otlp.Point{Labels: instanceLabels(f, g, i), Value: v})
			}
		}
	}
	return out
}

func xidMetrics(f facts, errors map[string]xids, began time.Time) []otlp.Metric {
	last := otlp.Metric{Name: metricXID, Description: "The last Xid error since the agent began, 0 for none."}
	times := otlp.Metric{Name: metricXIDs, Description: "Xid errors by their code.", Sum: true, Since: began}
	for _, g := range f.gpus {
		e := errors[g.UUID]
		last.Points = append(last.Points, otlp.Point{Labels: gpuLabels(f, g), Value: float64(e.last)})
		for _, code := range slices.Sorted(maps.Keys(e.times)) {
			labels := gpuLabels(f, g)
			labels["xid"] = strconv.Itoa(code)
			times.Points = append(times.Points, otlp.Point{Labels: labels, Value: float64(e.times[code])})
		}
	}
	return []otlp.Metric{last, times}
}

// unitMetric leaves out this unit itself: who reads the metric knows.
func unitMetric(f facts) otlp.Metric {
	out := otlp.Metric{Name: metricUnit, Description: "1 if the config unit is as its pool wants it, or does not apply here."}
	for _, u := range f.units {
		if u.Kind == wire.UnitTelemetry {
			continue
		}
		labels := f.labels()
		labels["unit"] = string(u.Kind)
		out.Points = append(out.Points, otlp.Point{Labels: labels, Value: truth(u.State == wire.InSync || u.State == wire.NotApplicable)})
	}
	return out
}

// resource describes this agent. The policy's attributes add to it, and may call
// the service otherwise; the node and the pool are what they are.
func resource(f facts, attributes map[string]string) map[string]string {
	out := map[string]string{"service.name": "bcd", "host.name": f.hostname}
	maps.Copy(out, attributes)
	out["service.instance.id"], out["bc.node.id"], out["bc.pool.id"] = f.nodeID, f.nodeID, f.poolID
	return out
}

func (f facts) labels() map[string]string {
	return map[string]string{"node": f.nodeID, "pool": f.poolID, "Hostname": f.hostname}
}

// gpuLabels are those of the DCGM exporter, and the node and the pool.
func gpuLabels(f facts, g wire.GPU) map[string]string {
	labels := f.labels()
	labels["gpu"], labels["UUID"], labels["modelName"] = strconv.Itoa(g.Index), g.UUID, g.Product
	if g.Minor >= 0 {
		labels["device"] = "nvidia" + strconv.Itoa(g.Minor)
	}
	if g.Address != "" { // 0000:3b:00.0 is 00000000:3B:00.0 to NVML
		labels["pci_bus_id"] = "0000" + strings.ToUpper(g.Address)
	}
	return labels
}

func instanceLabels(f facts, g wire.GPU, i gpu.InstanceReading) map[string]string {
	labels := gpuLabels(f, g)
	labels["GPU_I_ID"], labels["MIG_UUID"] = strconv.Itoa(i.GPUInstance), i.UUID
	if g.MIG != nil {
		for _, known := range g.MIG.Instances {
			if known.UUID == i.UUID {
				labels["GPU_I_PROFILE"] = known.Profile
			}
		}
	}
	return labels
}
