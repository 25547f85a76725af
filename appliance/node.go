package appliance

import (
	"github.com/bettercompute/bc/agent/wire"
)

// NodeRole is what a node is for in its pool.
type NodeRole string

// Only host nodes add reservable capacity.
const (
	RoleHost      NodeRole = "host"
	RoleDedicated NodeRole = "dedicated"
)

// NodeControl is who has the last word over a node. It is set by the token the
// node joined with.
type NodeControl string

// A tenant-controlled node gets no resource rows; a pool holding tenant-owned
// nodes can be offered to nobody but its owner.
const (
	ControlPlatform         NodeControl = "platform"
	ControlTenantOwned      NodeControl = "tenant-owned"
	ControlTenantControlled NodeControl = "tenant-controlled"
)

// NodeState is how far a node's life has come.
type NodeState string

// The states of a node.
const (
	NodeAdopting    NodeState = "adopting"
	NodeReady       NodeState = "ready"
	NodeCordoned    NodeState = "cordoned"
	NodeDraining    NodeState = "draining"
	NodeQuarantined NodeState = "quarantined" // a check failed or the one-model rule is broken
	NodeUnreachable NodeState = "unreachable" // no heartbeat for 45 s; comes back by itself
	NodeLost        NodeState = "lost"        // provider pools only
	NodeRemoved     NodeState = "removed"
)

// The types of a node's conditions.
const (
	ConditionReachable      = "Reachable"
	ConditionAccepted       = "Accepted"
	ConditionModelMatches   = "ModelMatches"
	ConditionConfigApplied  = "ConfigApplied"
	ConditionRebootRequired = "RebootRequired"
	ConditionGPUHealthy     = "GPUHealthy"
	// ConditionEnforced says whether the node's agent walls reservations in. Where it
	// does not they are booked alone: that is how the machine is run, and no fault.
	ConditionEnforced = "Enforced"
)

// Condition is one thing that is so, or not, of a node.
type Condition struct {
	Type    string `json:"type"`
	Status  bool   `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Since   Time   `json:"since"`
}

// Bad tells whether the condition is one to look at.
func (c Condition) Bad() bool {
	switch c.Type {
	case ConditionRebootRequired:
		return c.Status
	case ConditionEnforced:
		return false
	}
	return !c.Status
}

// Node is one machine, joined to exactly one pool.
type Node struct {
	ID          string            `json:"id" example:"node_01k5c000000000000000000000"`
	PoolID      string            `json:"poolId"`
	Hostname    string            `json:"hostname"`
	Role        NodeRole          `json:"role" enum:"host,dedicated"`
	Control     NodeControl       `json:"control" enum:"platform,tenant-owned,tenant-controlled"`
	State       NodeState         `json:"state"`
	Schedulable bool              `json:"schedulable"`
	Conditions  []Condition       `json:"conditions"`
	Attributes  map[string]string `json:"attributes" doc:"What selectors match: from the inventory, and operator labels."`
	Labels      map[string]string `json:"labels,omitempty" doc:"The operator's own attributes."`
	Devices     []Device          `json:"devices"`
	Resources   []ResourceRow     `json:"resources"`
	Units       []Unit            `json:"units"`
	Reboot      *Reboot           `json:"reboot,omitempty" doc:"The last that was asked for."`
	Rollout     *Rollout          `json:"rollout,omitempty" doc:"Where the node stands in the rollout of a policy that disrupts; absent when it has all of it."`
	Releasing   []Releasing       `json:"releasing,omitempty" doc:"What ended reservations still keep."`
	Simulated   bool              `json:"simulated" doc:"A recorded machine, not a real one."`
	JoinedAt    Time              `json:"joinedAt"`
	SeenAt      *Time             `json:"seenAt,omitempty" doc:"The last heartbeat, if there was one since the control plane started."`
}

// Device is one physical GPU of a node. Its identity is its UUID.
type Device struct {
	UUID         string          `json:"uuid"`
	Index        int             `json:"index" doc:"For show; changes with enumeration."`
	Address      string          `json:"pciAddress"`
	Product      string          `json:"product" doc:"The NVML name as given."`
	Model        string          `json:"model" doc:"The family."`
	VRAMGiB      int             `json:"vramGiB"`
	NUMANode     int             `json:"numaNode"`
	NVLinkPeers  []string        `json:"nvlinkPeers,omitempty"`
	MIG          *wire.MIGInfo   `json:"mig,omitempty"`
	Power        *wire.PowerInfo `json:"power,omitempty"`
	ECC          *wire.ECCInfo   `json:"ecc,omitempty"`
	Health       wire.GPUHealth  `json:"health"`
	HealthReason string          `json:"healthReason,omitempty"`
	Atoms        int             `json:"atoms" doc:"How many bookable atoms it yields when healthy."`
	Bookings     []string        `json:"bookings,omitempty" doc:"Reservations that hold atoms of it."`
	Releasing    int             `json:"releasing,omitempty" doc:"How many of its atoms ended reservations still keep."`
}

// ResourceRow is one counted resource of a node. The placer reads the ratio
// stored here, never the policy.
type ResourceRow struct {
	Resource   string  `json:"resource"`
	Total      int     `json:"total" doc:"Bookable, the ratio applied."`
	Allocated  int     `json:"allocated" doc:"The sum of live bookings."`
	Overcommit float64 `json:"overcommit" doc:"The ratio that total was made with."`
}

// Unit is how far one config unit has come on a node.
type Unit struct {
	Kind   wire.UnitKind  `json:"kind"`
	State  wire.UnitState `json:"state"`
	Reason string         `json:"reason,omitempty"`
	Wanted string         `json:"wanted,omitempty"`
	Got    string         `json:"got,omitempty"`
	Since  Time           `json:"since"`
}

// RolloutState is how far a node is with a change of its pool's policy that
// disrupts.
type RolloutState string

// A node waits until the pool's disruption budget has room for it, and changes
// until its units have come to rest. Without a rollout it has the whole policy.
const (
	RolloutWaiting  RolloutState = "waiting"
	RolloutChanging RolloutState = "changing"
)

// Rollout is what a change of its pool's policy that disrupts does to a node.
type Rollout struct {
	State   RolloutState    `json:"state" enum:"waiting,changing"`
	Since   Time            `json:"since"`
	Kinds   []wire.UnitKind `json:"units" doc:"The units whose change disrupts."`
	Reasons []string        `json:"reasons" doc:"What changes, and what that needs."`
	Message string          `json:"message,omitempty" doc:"What a changing node still waits for."`

	// Generation is that of the NodeSpec with the change, 0 while it waits.
	Generation int64 `json:"generation,omitempty"`
	// Applied says that the node has compared its units with that NodeSpec.
	Applied bool `json:"applied,omitempty"`
}

// Releasing is what an ended reservation still keeps of a node: it is given to
// nobody until the node has said that nobody holds it any more.
type Releasing struct {
	ReservationID string   `json:"reservationId"`
	Atoms         []string `json:"atoms"`
	Message       string   `json:"message,omitempty" doc:"Who still holds it, as the node says."`
}

// ListNodes is the input of nodes.list.
type ListNodes struct {
	TenantID string `json:"tenantId" example:"acme"`
	PoolID   string `json:"poolId,omitempty"`
	Page
}

// NodeRef is the input of the verbs on one node.
type NodeRef struct {
	TenantID string `json:"tenantId" example:"acme"`
	NodeID   string `json:"nodeId"`
}

// LabelNode is the input of nodes.label. An empty value removes the label.
type LabelNode struct {
	TenantID string            `json:"tenantId"`
	NodeID   string            `json:"nodeId"`
	Labels   map[string]string `json:"labels"`
}

var attributeKey = textLike(63, `^[A-Za-z][A-Za-z0-9._/-]*$`)

// IsAttributeKey tells whether s can be an attribute's or label's name.
func IsAttributeKey(s string) bool { return attributeKey.MatchString(s) }

// Validate refuses labels that no selector could name.
func (in LabelNode) Validate() error {
	return checkLabels("labels", in.Labels)
}

func checkLabels(field string, labels map[string]string) error {
	if len(labels) > 64 {
		return Invalid(field, "more than 64 labels")
	}
	for k, v := range labels {
		if !IsAttributeKey(k) {
			return Invalid(field, "%q is not a label name: 1 to 63 letters, digits and . _ / -, starting with a letter", k)
		}
		if err := checkName(field+"."+k, v); err != nil {
			return err
		}
	}
	return nil
}

// NodeExplanation answers nodes.explain.
type NodeExplanation struct {
	NodeID      string    `json:"nodeId"`
	State       NodeState `json:"state"`
	Schedulable bool      `json:"schedulable"`
	Message     string    `json:"message" doc:"One sentence."`
	Findings    []string  `json:"findings" doc:"Each condition that is not as it should be, in words."`
	Helps       []string  `json:"helps" doc:"What to do about them."`
}
