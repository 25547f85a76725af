package appliance

import (
	"bytes"
	"encoding/json"
)

// Class is what a pool's machines are for. It sets the role that joining
// machines get and never changes.
type Class string

// Only host nodes add reservable capacity; metal-dedicated pools hold
// dedicated ones.
const (
	ClassMetalHost      Class = "metal-host"
	ClassMetalDedicated Class = "metal-dedicated"
	ClassVPSHost        Class = "vps-host"
	ClassProvider       Class = "provider"
)

// NodeRole is the role a machine gets when it joins a pool of the class.
func (c Class) NodeRole() NodeRole {
	if c == ClassMetalDedicated {
		return RoleDedicated
	}
	return RoleHost
}

// Sharing is how a pool's GPUs are handed out. It never changes.
type Sharing string

// Whole GPUs, MIG instances, or slots without isolation between them.
const (
	SharingExclusive Sharing = "exclusive"
	SharingMIG       Sharing = "mig"
	SharingTimeslice Sharing = "timeslice"
	SharingMPS       Sharing = "mps"
)

// Resource is the atom that a pool with this sharing mode books.
func (s Sharing) Resource() string {
	switch s {
	case SharingMIG:
		return ResourceMIG
	case SharingTimeslice, SharingMPS:
		return ResourceSlot
	default:
		return ResourceGPU
	}
}

// SingleTenantOnly tells whether the mode gives no isolation between
// workloads, so that its pools can be offered only to their owner.
func (s Sharing) SingleTenantOnly() bool { return s == SharingTimeslice || s == SharingMPS }

// PoolAgent is how the machines of a pool are reached.
type PoolAgent string

// bcd when machines run the daemon, none when they are reached only through a
// provider's API.
const (
	AgentBCD  PoolAgent = "bcd"
	AgentNone PoolAgent = "none"
)

// Pool groups the nodes of one site under one GPU model, sharing mode and
// policy, as one tenant sees it.
type Pool struct {
	ID                string    `json:"id" example:"pool_01k5c000000000000000000000"`
	Name              string    `json:"name,omitempty" doc:"Unique among the owner's live pools; stands for the id in the CLI."`
	OwnerTenantID     string    `json:"ownerTenantId"`
	SiteID            string    `json:"siteId"`
	Class             Class     `json:"class" enum:"metal-host,metal-dedicated,vps-host,provider"`
	GPUModel          string    `json:"gpuModel" example:"H100"`
	Sharing           Sharing   `json:"sharing" enum:"exclusive,mig,timeslice,mps"`
	Agent             PoolAgent `json:"agent" enum:"bcd,none"`
	ProviderAccountID string    `json:"providerAccountId,omitempty"`
	Policy            RawPolicy `json:"policy" doc:"As given, unknown fields included."`
	Version           int       `json:"version" doc:"Raised by every update."`
	Owned             bool      `json:"owned" doc:"Whether the asking tenant owns the pool."`
	Archived          bool      `json:"archived"`
	Quotas            []Quota   `json:"quotas" doc:"The asking tenant's own quota rows."`
	CreatedAt         Time      `json:"createdAt"`

	Rollout *PoolRollout `json:"rollout,omitempty" doc:"To the owner, in pools.get, while a node has not all of the policy."`

	Region string `json:"-"` // of the site, for policies
}

// Authz is what IAM knows of the pool for one tenant.
func (p Pool) Authz(tenant string) AuthzRow {
	return AuthzRow{
		TenantID: tenant, PoolID: p.ID, GPUModel: p.GPUModel, Class: string(p.Class),
		Sharing: string(p.Sharing), Region: p.Region, Owned: p.OwnerTenantID == tenant,
	}
}

// RawPolicy is a pool's policy byte for byte as it was given: a JSON object.
// The typed reading of it is [Policy].
type RawPolicy []byte

// MarshalJSON gives the bytes back; an absent policy is {}.
func (p RawPolicy) MarshalJSON() ([]byte, error) {
	if len(p) == 0 {
		return []byte("{}"), nil
	}
	return p, nil
}

// UnmarshalJSON keeps the bytes of an object and refuses anything else.
func (p *RawPolicy) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return Refuse(InvalidInput, "policy", "policy: is not a JSON object")
	}
	*p = RawPolicy(bytes.Clone(b))
	return nil
}

// Equal compares two policies as JSON values, whatever their spacing and the
// order of their keys. Numbers are compared as written.
func (p RawPolicy) Equal(q RawPolicy) bool {
	a, errA := canonical(p)
	b, errB := canonical(q)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

func canonical(p RawPolicy) ([]byte, error) {
	raw, _ := p.MarshalJSON()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// CreatePool is the input of pools.create.
type CreatePool struct {
	TenantID          string    `json:"tenantId" doc:"The pool's owner. The site must be its own." example:"acme"`
	SiteID            string    `json:"siteId"`
	Class             Class     `json:"class" enum:"metal-host,metal-dedicated,vps-host,provider"`
	GPUModel          string    `json:"gpuModel" doc:"The GPU family, 1 to 32 letters, digits or hyphens." example:"H100"`
	Sharing           Sharing   `json:"sharing,omitempty" enum:"exclusive,mig,timeslice,mps" doc:"Default exclusive."`
	Agent             PoolAgent `json:"agent,omitempty" enum:"bcd,none" doc:"Default bcd; none for provider pools."`
	ProviderAccountID string    `json:"providerAccountId,omitempty" doc:"Provider pools only, where it is required."`
	Policy            RawPolicy `json:"policy,omitempty"`
	OwnerQuota        QuotaMap  `json:"ownerQuota,omitempty" doc:"The owner's quota rows. Default {gpu: 2147483647}."`
	IdempotencyKey    string    `json:"idempotencyKey,omitempty" maxLength:"200"`
	Name              string    `json:"name,omitempty" example:"training"`
}

// PoolRef is the input of the verbs on one pool.
type PoolRef struct {
	TenantID string `json:"tenantId" doc:"The tenant in whose name the caller acts." example:"acme"`
	PoolID   string `json:"poolId"`
}

// UpdatePool is the input of pools.update. The policy replaces the whole.
type UpdatePool struct {
	TenantID        string     `json:"tenantId"`
	PoolID          string     `json:"poolId"`
	Policy          *RawPolicy `json:"policy,omitempty" doc:"Replaces the whole policy: send every field you want to keep."`
	GPUModel        string     `json:"gpuModel,omitempty"`
	ExpectedVersion *int       `json:"expectedVersion,omitempty" doc:"Refused with CONFLICT if the pool has another version." minimum:"1"`
}

var gpuModel = textLike(32, `^[A-Za-z0-9-]+$`)

// Normalise fills in the defaults of the sharing mode, agent and owner quota.
func (in *CreatePool) Normalise() {
	if in.Sharing == "" {
		in.Sharing = SharingExclusive
	}
	if in.Agent == "" {
		in.Agent = AgentBCD
		if in.Class == ClassProvider {
			in.Agent = AgentNone
		}
	}
	if in.OwnerQuota == nil {
		in.OwnerQuota = QuotaMap{ResourceGPU: MaxCount}
	}
}

// Validate refuses what no pool may be. The policy is checked by package plan.
func (in CreatePool) Validate() error {
	switch in.Class {
	case ClassMetalHost, ClassMetalDedicated, ClassVPSHost, ClassProvider:
	default:
		return Invalid("class", "%q is not metal-host, metal-dedicated, vps-host or provider", in.Class)
	}
	if err := CheckGPUModel(in.GPUModel); err != nil {
		return err
	}
	switch in.Sharing {
	case SharingExclusive, SharingMIG, SharingTimeslice, SharingMPS:
	default:
		return Invalid("sharing", "%q is not exclusive, mig, timeslice or mps", in.Sharing)
	}
	if err := in.validateProvider(); err != nil {
		return err
	}
	if err := in.OwnerQuota.Validate("ownerQuota"); err != nil {
		return err
	}
	if err := CheckIdempotencyKey(in.IdempotencyKey); err != nil {
		return err
	}
	if in.Name != "" && !IsLabel(in.Name) {
		return Invalid("name", "%q is not 1 to 63 letters, digits, dots, underscores or hyphens", in.Name)
	}
	return nil
}

func (in CreatePool) validateProvider() error {
	switch in.Agent {
	case AgentBCD, AgentNone:
	default:
		return Invalid("agent", "%q is not bcd or none", in.Agent)
	}
	if in.Class == ClassProvider {
		if in.ProviderAccountID == "" {
			return Invalid("providerAccountId", "is required in a pool of class provider")
		}
		if !IsID(ProviderAccountPrefix, in.ProviderAccountID) {
			return Invalid("providerAccountId", "%q is not the id of a provider account (pacct_…)", in.ProviderAccountID)
		}
		if in.Agent != AgentNone {
			return Invalid("agent", "must be none in a pool of class provider")
		}
		return nil
	}
	if in.ProviderAccountID != "" {
		return Invalid("providerAccountId", "only pools of class provider have one")
	}
	if in.Agent != AgentBCD {
		return Invalid("agent", "none is only for pools of class provider")
	}
	return nil
}

// CheckGPUModel holds a family name to 1 to 32 letters, digits or hyphens.
func CheckGPUModel(s string) error {
	if !gpuModel.MatchString(s) {
		return Invalid("gpuModel", "%q is not 1 to 32 letters, digits or hyphens, such as H100", s)
	}
	return nil
}

// CheckIdempotencyKey holds a key to at most 200 bytes.
func CheckIdempotencyKey(key string) error {
	if len(key) > 200 {
		return Invalid("idempotencyKey", "longer than 200 bytes")
	}
	return nil
}

// SameAsked tells whether a create under the same idempotency key asks for the
// pool that is there: site, class, sharing mode, agent and provider account.
func (in CreatePool) SameAsked(p Pool) bool {
	return in.SiteID == p.SiteID && in.Class == p.Class && in.Sharing == p.Sharing &&
		in.Agent == p.Agent && in.ProviderAccountID == p.ProviderAccountID
}

// Capacity is what a pool has and what really fits.
type Capacity struct {
	PoolID    string            `json:"poolId"`
	Nodes     NodeCount         `json:"nodes"`
	Resources map[string]Rollup `json:"resources" doc:"By resource; empty for an empty pool."`
	Largest   map[string]int    `json:"largest" doc:"By resource, the most that one node can take now."`
	Devices   DeviceCount       `json:"devices"`
	Free      FreeCount         `json:"free"`
}

// PoolRollout sums up how far the nodes of a pool are with a policy that
// disrupts them.
type PoolRollout struct {
	Message       string        `json:"message" doc:"One sentence."`
	Version       int           `json:"version" doc:"Of the pool."`
	Nodes         int           `json:"nodes"`
	Current       int           `json:"current" doc:"Nodes that have all of the policy and are at rest."`
	AtOnce        int           `json:"atOnce" doc:"How many disruptionBudget lets be disrupted at once."`
	ChangingCount int           `json:"changingCount"`
	WaitingCount  int           `json:"waitingCount"`
	Changing      []RolloutNode `json:"changing" doc:"Nodes that have their turn, at most 20: until their units have come to rest, or for ever if one failed."`
	Waiting       []RolloutNode `json:"waiting" doc:"Nodes that come next, in their order, at most 20."`
}

// RolloutNode is one node of a rollout.
type RolloutNode struct {
	NodeID   string `json:"nodeId"`
	Hostname string `json:"hostname"`
	Message  string `json:"message" doc:"What it waits for, or what is to change."`
}

// NodeCount counts a pool's nodes.
type NodeCount struct {
	Total       int `json:"total"`
	Schedulable int `json:"schedulable"`
}

// Rollup sums one resource over a pool's nodes. Available is never negative.
//
// Fragmentation is 1 - Σfree² / Σideal², free being what each node has, and
// ideal the same sum on as few of the largest nodes as can hold it.
type Rollup struct {
	Total         int     `json:"total"`
	Allocated     int     `json:"allocated"`
	Available     int     `json:"available"`
	Releasing     int     `json:"releasing,omitempty" doc:"Given back, and not free until the node has said that nobody holds it any more."`
	Fragmentation float64 `json:"fragmentation" minimum:"0" maximum:"1" doc:"How scattered what is available is: 0 if it could not lie in larger pieces, nearer to 1 the smaller they are."`
}

// DeviceCount counts a pool's GPUs by health.
type DeviceCount struct {
	Healthy   int `json:"healthy"`
	Unhealthy int `json:"unhealthy"`
}

// FreeCount counts what is wholly free.
type FreeCount struct {
	Nodes int `json:"nodes" doc:"Schedulable nodes with no booking at all."`
	GPUs  int `json:"gpus" doc:"Healthy GPUs on schedulable nodes with no booking at all."`
}
