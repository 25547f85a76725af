package appliance

import (
	"slices"
	"strconv"
	"strings"
)

// MaxCount is the largest count anywhere; as a quota it is effectively
// unlimited.
const MaxCount = 2147483647

// What is booked: atoms of GPUs, and counted host resources ("scalars").
const (
	ResourceGPU          = "gpu"
	ResourceMIG          = "gpu.mig"
	ResourceSlot         = "gpu.slot"
	ResourceVCPU         = "vcpu"
	ResourceMemoryGiB    = "memoryGiB"
	ResourceHugepages2Mi = "hugepages2Mi"
	ResourceHugepages1Gi = "hugepages1Gi"
	ResourceDiskGiB      = "diskGiB"
)

// Scalars lists the counted host resources, in the order in which they are
// shown.
var Scalars = []string{ResourceVCPU, ResourceMemoryGiB, ResourceHugepages2Mi, ResourceHugepages1Gi, ResourceDiskGiB}

// GPUResources lists the atoms.
var GPUResources = []string{ResourceGPU, ResourceMIG, ResourceSlot}

// IsScalar tells whether the resource is a counted host resource.
func IsScalar(r string) bool { return slices.Contains(Scalars, r) }

// IsGPUResource tells whether the resource is an atom of a GPU.
func IsGPUResource(r string) bool { return slices.Contains(GPUResources, r) }

// IsResource tells whether the resource is any that can be booked.
func IsResource(r string) bool { return IsScalar(r) || IsGPUResource(r) }

// Amounts counts resources by name.
type Amounts map[string]int

// Names lists the resources in the order in which they are shown: atoms first.
func (a Amounts) Names() []string {
	var out []string
	for _, group := range [][]string{GPUResources, Scalars} {
		for _, r := range group {
			if _, ok := a[r]; ok {
				out = append(out, r)
			}
		}
	}
	return out
}

// String writes the amounts for people: gpu=2 vcpu=16.
func (a Amounts) String() string {
	var b strings.Builder
	for i, r := range a.Names() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(r + "=" + strconv.Itoa(a[r]))
	}
	return b.String()
}

// QuotaMap is resource to limit, as an offer or a pool's owner gives it.
type QuotaMap map[string]int

// Validate refuses unknown resources and counts out of range.
func (q QuotaMap) Validate(field string) error {
	for r, n := range q {
		if !IsResource(r) {
			return Invalid(field, "%q is not a resource; resources are gpu, gpu.mig, gpu.slot, %s", r, strings.Join(Scalars, ", "))
		}
		if n < 0 || n > MaxCount {
			return Invalid(field+"."+r, "%d is not 0 to %d", n, MaxCount)
		}
	}
	return nil
}

// Quota is the most that a tenant may hold of one resource in one pool. A
// missing row is 0.
type Quota struct {
	TenantID  string `json:"tenantId"`
	PoolID    string `json:"poolId"`
	Resource  string `json:"resource" example:"gpu"`
	Max       int    `json:"max"`
	Used      int    `json:"used" doc:"The sum of live bookings."`
	Available int    `json:"available" doc:"max(0, max - used)."`
}

// SetQuota is the input of quotas.set: the pool's owner sets a row. Below use
// is legal: what runs stays, nothing new fits.
type SetQuota struct {
	TenantID    string `json:"tenantId" doc:"The pool's owner."`
	PoolID      string `json:"poolId"`
	ForTenantID string `json:"forTenantId,omitempty" doc:"Whose row. Default: the owner's own."`
	Resource    string `json:"resource" example:"gpu"`
	Max         int    `json:"max" minimum:"0" maximum:"2147483647"`
}

// Validate refuses unknown resources and counts out of range.
func (in SetQuota) Validate() error {
	if !IsResource(in.Resource) {
		return Invalid("resource", "%q is not a resource; resources are gpu, gpu.mig, gpu.slot, %s", in.Resource, strings.Join(Scalars, ", "))
	}
	if in.Max < 0 || in.Max > MaxCount {
		return Invalid("max", "%d is not 0 to %d", in.Max, MaxCount)
	}
	return nil
}

// ListQuotas is the input of quotas.list: the tenant's own rows, and those it
// granted in pools that it owns.
type ListQuotas struct {
	TenantID    string `json:"tenantId"`
	PoolID      string `json:"poolId,omitempty"`
	ForTenantID string `json:"forTenantId,omitempty"`
	Page
}
