package wire

import (
	"encoding/json"
	"slices"
)

// NodeSpec is what the control plane wants of one node. The generation rises
// if, and only if, the content differs from the one before.
type NodeSpec struct {
	Version    int       `json:"version"`
	NodeID     string    `json:"nodeId"`
	PoolID     string    `json:"poolId"`
	Generation int64     `json:"generation"`
	Units      Units     `json:"units"`
	Acceptance []Check   `json:"acceptance,omitempty"`
	Bindings   []Binding `json:"bindings"`
	Reboot     *Reboot   `json:"reboot,omitempty"`
}

// Check is one acceptance check that the agent runs before the node takes work.
// The kind diag.nvml takes minDriver (a dotted version), minDevices (a count)
// and maxTemperatureC (degrees Celsius) in With.
type Check struct {
	Kind string          `json:"kind"`
	With json.RawMessage `json:"with,omitempty"`
}

// Units are the config units of a node, at most one of each. An absent unit
// means: put back what you changed.
type Units struct {
	KernelModules *KernelModules `json:"kernel-modules,omitempty"`
	Hugepages     *Hugepages     `json:"hugepages,omitempty"`
	CPU           *CPU           `json:"cpu,omitempty"`
	IOMMU         *IOMMU         `json:"iommu,omitempty"`
	GPUSettings   *GPUSettings   `json:"gpu-settings,omitempty"`
	GPUSharing    *GPUSharing    `json:"gpu-sharing,omitempty"`
	MIGLayout     *MIGLayout     `json:"mig-layout,omitempty"`
	K8sJoin       *K8sJoin       `json:"k8s-join,omitempty"`
	Telemetry     *Telemetry     `json:"telemetry,omitempty"`

	// Unknown names the units this binary has no word for. The agent reports
	// them as Unsupported.
	Unknown []string `json:"-"`
}

// UnmarshalJSON keeps the names of units that this binary does not know.
func (u *Units) UnmarshalJSON(b []byte) error {
	type plain Units
	var p plain
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	for name := range all {
		if !slices.Contains(UnitKinds, UnitKind(name)) {
			p.Unknown = append(p.Unknown, name)
		}
	}
	slices.Sort(p.Unknown)
	*u = Units(p)
	return nil
}

// UnitKind names a config unit, as it stands in the NodeSpec, in the API, and
// behind bc- in systemd.
type UnitKind string

// The config units, in the order in which the agent applies them: modules
// before what they bring, memory before its users, the GPU's mode before its
// sharing, the cluster last.
const (
	UnitKernelModules UnitKind = "kernel-modules"
	UnitHugepages     UnitKind = "hugepages"
	UnitCPU           UnitKind = "cpu"
	UnitIOMMU         UnitKind = "iommu"
	UnitMIGLayout     UnitKind = "mig-layout"
	UnitGPUSettings   UnitKind = "gpu-settings"
	UnitGPUSharing    UnitKind = "gpu-sharing"
	UnitK8sJoin       UnitKind = "k8s-join"
	UnitTelemetry     UnitKind = "telemetry"
)

// UnitKinds lists every unit this binary knows, in order of application.
var UnitKinds = []UnitKind{
	UnitKernelModules, UnitHugepages, UnitCPU, UnitIOMMU, UnitMIGLayout,
	UnitGPUSettings, UnitGPUSharing, UnitK8sJoin, UnitTelemetry,
}

// Wanted lists the kinds that are set, in order of application.
func (u Units) Wanted() []UnitKind {
	set := map[UnitKind]bool{
		UnitKernelModules: u.KernelModules != nil,
		UnitHugepages:     u.Hugepages != nil,
		UnitCPU:           u.CPU != nil,
		UnitIOMMU:         u.IOMMU != nil,
		UnitMIGLayout:     u.MIGLayout != nil,
		UnitGPUSettings:   u.GPUSettings != nil,
		UnitGPUSharing:    u.GPUSharing != nil,
		UnitK8sJoin:       u.K8sJoin != nil,
		UnitTelemetry:     u.Telemetry != nil,
	}
	var out []UnitKind
	for _, k := range UnitKinds {
		if set[k] {
			out = append(out, k)
		}
	}
	return out
}

// Hugepages asks for huge pages: Count pages of SizeKiB on the whole host, or
// on each NUMA node that has both CPUs and memory with PerNUMA.
type Hugepages struct {
	SizeKiB int  `json:"sizeKiB"` // 2048 or 1048576
	Count   int  `json:"count"`   // 0 to 2^24
	PerNUMA bool `json:"perNuma,omitempty"`
}

// KernelModules asks for modules to be loaded, and for options of modules.
type KernelModules struct {
	Load    []string          `json:"load,omitempty"`
	Options map[string]string `json:"options,omitempty"` // module -> "key=value key=value"
}

// CPU asks for a cpufreq governor and for CPUs isolated from the scheduler.
type CPU struct {
	Governor string `json:"governor,omitempty"` // performance, schedutil, ondemand, powersave
	Isolate  string `json:"isolate,omitempty"`  // a cpulist, never CPU 0
}

// IOMMU asks for the IOMMU on, in passthrough mode for the host's own devices.
type IOMMU struct {
	Passthrough bool `json:"passthrough"`
}

// GPUSettings asks for a power cap and an ECC mode on every GPU of the node.
type GPUSettings struct {
	PowerLimitWatts int   `json:"powerLimitWatts,omitempty"` // 1 to 10000, 0: leave alone
	ECC             *bool `json:"ecc,omitempty"`
}

// GPUSharing asks for each GPU to be shared in one way.
type GPUSharing struct {
	Mode     string `json:"mode"`     // mps or timeslice
	Replicas int    `json:"replicas"` // slots per GPU, 1 to 48
}

// MIGLayout asks for the same GPU instances on every GPU of the node.
type MIGLayout struct {
	Layout   string   `json:"layout"`   // as in the policy, such as all-1g.10gb
	Profiles []string `json:"profiles"` // one entry for each instance, in order of creation
	// Hold lists UUIDs of GPUs with live bookings, which keep what they have.
	Hold []string `json:"hold,omitempty"`
}

// K8sJoin asks for the host to join a Kubernetes cluster.
type K8sJoin struct {
	APIServer         string            `json:"apiServer"`
	CACertSHA256      string            `json:"caCertSha256"`
	TokenRef          string            `json:"tokenRef"`
	Labels            map[string]string `json:"labels,omitempty"`
	Taints            []string          `json:"taints,omitempty"`
	KubernetesVersion string            `json:"kubernetesVersion,omitempty"`
}

// Telemetry asks for the node's metrics to be exported over OTLP.
type Telemetry struct {
	OTLPEndpoint       string            `json:"otlpEndpoint"`
	IntervalSeconds    int               `json:"intervalSeconds"` // 5 to 3600
	HeadersRef         string            `json:"headersRef,omitempty"`
	ResourceAttributes map[string]string `json:"resourceAttributes,omitempty"`
}

// Binding is one reservation's share of the node, to be enforced until it is
// no longer listed.
type Binding struct {
	ReservationID string   `json:"reservationId"`
	TenantID      string   `json:"tenantId"`
	Kind          string   `json:"kind"` // hold, node, kubernetes or instance
	Devices       []Device `json:"devices,omitempty"`
	CPUs          string   `json:"cpus,omitempty"`      // a cpulist, empty: no CPUs booked
	NUMANodes     string   `json:"numaNodes,omitempty"` // a list like a cpulist
	VCPU          int      `json:"vcpu,omitempty"`
	MemoryGiB     int      `json:"memoryGiB,omitempty"`
	Hugepages2Mi  int      `json:"hugepages2Mi,omitempty"`
	Hugepages1Gi  int      `json:"hugepages1Gi,omitempty"`
}

// Device is one booked atom: a whole GPU, a MIG instance of it, or a slot of it.
type Device struct {
	UUID     string `json:"uuid"`               // the physical GPU
	Instance string `json:"instance,omitempty"` // the MIG device's UUID
	Slot     *int   `json:"slot,omitempty"`     // 0 to replicas-1
}
