package appliance

import (
	"encoding/json"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

// Policy is the typed reading of a pool's policy: the fields that the code
// knows. A field that the policy does not have is zero: a nil pointer, list or
// map, an empty text. A text that is there is never empty.
// [RawPolicy] is what is stored and shown. Package plan reads one from the
// other, and holds every field to its range.
type Policy struct {
	Acceptance               []AcceptanceCheck  `json:"acceptance,omitempty" maxItems:"32" doc:"Checks that a node must pass before it becomes schedulable."`
	Overcommit               map[string]float64 `json:"overcommit,omitempty" doc:"Ratios of scalars such as vcpu and memoryGiB, above 0; applied clamped to 0.1 to 100. GPUs are never overcommitted."`
	LostAfter                Duration           `json:"lostAfter,omitempty" doc:"Provider pools: how long an unreachable node waits before it is lost."`
	DisruptionBudget         *float64           `json:"disruptionBudget,omitempty" minimum:"0" maximum:"1" doc:"The share of the pool that may be disrupted at once. Default 0.05."`
	PendingLimit             Duration           `json:"maxPending,omitempty" doc:"How long a reservation may stay pending. Default 24h."`
	HardwareProfile          string             `json:"hardwareProfile,omitempty" minLength:"1" maxLength:"200" doc:"The metal hardware profile whose driver bindings nodes inherit."`
	JoinAttestors            []string           `json:"joinAttestors,omitempty" minItems:"1" maxItems:"16" doc:"The attestors that may admit a machine, by id. Absent: any."`
	TrustProvisioningNetwork bool               `json:"trustProvisioningNetwork,omitempty" doc:"Bare metal: bind a proposed PXE MAC at once."`
	Sharing                  *SharingPolicy     `json:"sharing,omitempty"`
	HostReserve              *HostShare         `json:"hostReserve,omitempty" doc:"What each host keeps for itself, outside vps-host pools. Default 2 CPUs and 8 GiB."`
	PerGPU                   *HostShare         `json:"perGpu,omitempty" doc:"What a reservation books for each whole GPU when it asks for no host resources. Default: the smallest share that any GPU host of the pool can give."`
	Hugepages                *HugepagesPolicy   `json:"hugepages,omitempty" doc:"Huge pages that every host reserves."`
	KernelModules            *ModulesPolicy     `json:"kernelModules,omitempty" doc:"Kernel modules that every host loads."`
	CPU                      *CPUPolicy         `json:"cpu,omitempty"`
	IOMMU                    *IOMMUPolicy       `json:"iommu,omitempty"`
	GPU                      *GPUPolicy         `json:"gpu,omitempty"`
	Kubernetes               *KubernetesPolicy  `json:"kubernetes,omitempty" doc:"The pool's hosts work for a Kubernetes cluster."`
	Telemetry                *TelemetryPolicy   `json:"telemetry,omitempty" doc:"Where the pool's hosts export their metrics."`
	MIGLayout                string             `json:"migLayout,omitempty" minLength:"1" maxLength:"128" doc:"mig pools: a layout such as all-1g.10gb, or a list such as 3g.40gb,2x2g.20gb."`
	TenantRoot               bool               `json:"tenantRoot,omitempty" doc:"Reservations may use binding node."`
	SingleTenant             bool               `json:"singleTenant,omitempty" doc:"Offered to at most one tenant besides the owner, never with includeDescendants."`
	WorkloadIdentity         bool               `json:"workloadIdentity,omitempty" doc:"vps-host pools: instances may get workload identity tokens from their host."`
	Admission                *AdmissionPolicy   `json:"admission,omitempty"`
}

// Duration is a span as a policy writes it: 90s, 6h, 7d.
type Duration string

// Span is the duration, 0 if it is absent.
func (d Duration) Span() time.Duration {
	span, err := ParseDuration(string(d))
	if err != nil {
		return 0
	}
	return span
}

// AcceptanceCheck is a check that a node must pass on adoption.
type AcceptanceCheck struct {
	Kind string          `json:"kind" minLength:"1" enum:"diag.nvml"`
	With json.RawMessage `json:"with,omitempty" doc:"diag.nvml: minDriver, minDevices, maxTemperatureC."`
}

// SharingPolicy holds for timeslice and mps pools.
type SharingPolicy struct {
	Replicas *int `json:"replicas,omitempty" minimum:"1" maximum:"48" doc:"Slots of each GPU. Default 4 for timeslice, 10 for mps."`
}

// HostShare is an amount of a host's CPUs and memory. An absent one has its
// own default.
type HostShare struct {
	VCPU      *int `json:"vcpu,omitempty" minimum:"0" maximum:"2147483647"`
	MemoryGiB *int `json:"memoryGiB,omitempty" minimum:"0" maximum:"2147483647"`
}

// HugepagesPolicy becomes the hugepages unit.
type HugepagesPolicy struct {
	Size    string `json:"size" enum:"2Mi,1Gi" minLength:"1"`
	Count   *int   `json:"count" minimum:"0" maximum:"16777216"`
	PerNUMA bool   `json:"perNuma,omitempty" doc:"Count pages on each NUMA node that has CPUs and memory."`
}

// Resource is the scalar that the pages are booked as.
func (h HugepagesPolicy) Resource() string {
	if h.Size == "1Gi" {
		return ResourceHugepages1Gi
	}
	return ResourceHugepages2Mi
}

// ModulesPolicy becomes the kernel-modules unit.
type ModulesPolicy struct {
	Load    []string          `json:"load,omitempty" maxItems:"64"`
	Options map[string]string `json:"options,omitempty" doc:"Module to words key=value."`
}

// CPUPolicy becomes the cpu unit.
type CPUPolicy struct {
	Governor string `json:"governor,omitempty" minLength:"1" enum:"performance,schedutil,ondemand,powersave"`
	Isolate  string `json:"isolate,omitempty" minLength:"1" doc:"An ascending cpulist without CPU 0; in effect after a reboot."`
}

// IOMMUPolicy becomes the iommu unit.
type IOMMUPolicy struct {
	Passthrough bool `json:"passthrough,omitempty" doc:"The IOMMU on for GPU passthrough to VMs; in effect after a reboot."`
}

// GPUPolicy becomes the gpu-settings unit.
type GPUPolicy struct {
	PowerLimitWatts *int  `json:"powerLimitWatts,omitempty" minimum:"1" maximum:"10000"`
	ECC             *bool `json:"ecc,omitempty"`
}

// KubernetesPolicy marks the pool's hosts as nodes of a cluster. The join set
// (apiServer, caCertSha256 and joinTokenRef) becomes the k8s-join unit.
type KubernetesPolicy struct {
	APIServer         string            `json:"apiServer,omitempty" minLength:"1" doc:"An https URL."`
	CACertSHA256      string            `json:"caCertSha256,omitempty" minLength:"1" doc:"sha256: and 64 hex digits."`
	JoinTokenRef      string            `json:"joinTokenRef,omitempty" minLength:"1"`
	Labels            map[string]string `json:"labels,omitempty"`
	Taints            []string          `json:"taints,omitempty" maxItems:"64" doc:"key=value:effect"`
	KubernetesVersion string            `json:"kubernetesVersion,omitempty" minLength:"1"`
	GPU               json.RawMessage   `json:"gpu,omitempty" doc:"Stored; not read in this release."`
	GPUAPI            string            `json:"gpuApi,omitempty" minLength:"1" enum:"device-plugin,dra"`
	PlatformOperated  bool              `json:"platformOperated,omitempty"`
}

// Joins tells whether hosts join the cluster by themselves. CheckPolicy has
// seen to it that the three come together.
func (k *KubernetesPolicy) Joins() bool { return k != nil && k.APIServer != "" }

// TelemetryPolicy becomes the telemetry unit, over the site's default.
type TelemetryPolicy struct {
	OTLPEndpoint       string            `json:"otlpEndpoint,omitempty" minLength:"1"`
	IntervalSeconds    *int              `json:"intervalSeconds,omitempty" minimum:"5" maximum:"3600"`
	HeadersRef         string            `json:"headersRef,omitempty" minLength:"1"`
	ResourceAttributes map[string]string `json:"resourceAttributes,omitempty"`
}

// BudgetCheck is when an admission asks whether the budget is spent.
type BudgetCheck string

// With meter every reservation and instance asks.
const (
	BudgetCheckNone  BudgetCheck = "none"
	BudgetCheckMeter BudgetCheck = "meter"
)

// AdmissionPolicy adds checks to the admission of reservations.
type AdmissionPolicy struct {
	BudgetCheck BudgetCheck `json:"budgetCheck,omitempty" minLength:"1" enum:"none,meter"`
}

// The defaults of the guide's table of pool policy.
const (
	DefaultMaxPending       = 24 * time.Hour
	DefaultDisruptionBudget = 0.05
	DefaultReserveVCPU      = 2
	DefaultReserveMemoryGiB = 8
)

// MaxPending is how long a reservation may stay pending, by default 24 h.
func (p Policy) MaxPending() time.Duration {
	if p.PendingLimit == "" {
		return DefaultMaxPending
	}
	return p.PendingLimit.Span()
}

// DisruptionBudgetOrDefault is the share of the pool that may be disrupted at
// once, by default 0.05.
func (p Policy) DisruptionBudgetOrDefault() float64 {
	if p.DisruptionBudget == nil {
		return DefaultDisruptionBudget
	}
	return *p.DisruptionBudget
}

// Replicas is how many slots each GPU of the pool yields: by default 4 for
// timeslice and 10 for mps, 0 in pools that have no slots.
func (p Policy) Replicas(s Sharing) int {
	switch {
	case s != SharingTimeslice && s != SharingMPS:
		return 0
	case p.Sharing != nil && p.Sharing.Replicas != nil:
		return *p.Sharing.Replicas
	case s == SharingTimeslice:
		return 4
	default:
		return 10
	}
}

// Ratio is the overcommit ratio of a scalar as it is applied: by default 1,
// held to 0.1 to 100. Huge pages and GPUs are never overcommitted.
func (p Policy) Ratio(resource string) float64 {
	switch resource {
	case ResourceVCPU, ResourceMemoryGiB, ResourceDiskGiB:
	default:
		return 1
	}
	ratio, ok := p.Overcommit[resource]
	if !ok {
		return 1
	}
	return min(max(ratio, 0.1), 100)
}

// ReserveVCPU and ReserveMemoryGiB are what a host keeps for itself, by
// default 2 CPUs and 8 GiB.
func (p Policy) ReserveVCPU() int {
	if p.HostReserve == nil || p.HostReserve.VCPU == nil {
		return DefaultReserveVCPU
	}
	return *p.HostReserve.VCPU
}

// ReserveMemoryGiB is explained with [Policy.ReserveVCPU].
func (p Policy) ReserveMemoryGiB() int {
	if p.HostReserve == nil || p.HostReserve.MemoryGiB == nil {
		return DefaultReserveMemoryGiB
	}
	return *p.HostReserve.MemoryGiB
}

// ChecksBudget tells whether admission asks for the budget by policy alone;
// an offer can ask for it too.
func (p Policy) ChecksBudget() bool {
	return p.Admission != nil && p.Admission.BudgetCheck == BudgetCheckMeter
}

// Checks are the acceptance checks as a NodeSpec carries them.
func (p Policy) Checks() []wire.Check {
	var checks []wire.Check
	for _, c := range p.Acceptance {
		checks = append(checks, wire.Check{Kind: c.Kind, With: c.With})
	}
	return checks
}
