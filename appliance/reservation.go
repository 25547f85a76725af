package appliance

// ReservationState is how far a reservation's life has come.
type ReservationState string

// pending -> placed (devices and rows booked) -> active (every node's agent
// confirmed the binding) -> ended; pending -> failed.
const (
	Pending ReservationState = "pending"
	Placed  ReservationState = "placed"
	Active  ReservationState = "active"
	Ended   ReservationState = "ended"
	Failed  ReservationState = "failed"
)

// Live tells whether the state holds or may come to hold a booking.
func (s ReservationState) Live() bool { return s == Pending || s == Placed || s == Active }

// Booked tells whether the state holds a booking.
func (s ReservationState) Booked() bool { return s == Placed || s == Active }

// Why a reservation ended or failed.
const (
	ReasonMaxPending     = "MaxPendingExceeded"
	ReasonPoolGone       = "PoolGone"
	ReasonReleased       = "Released"
	ReasonExpired        = "Expired"
	ReasonBudgetExceeded = "BudgetExceeded"
	ReasonTenantDeleted  = "TenantDeleted"
	ReasonNodeLost       = "NodeLost"
)

// BindingKind is what a booking becomes on its nodes.
type BindingKind string

// hold only walls the resources in; node leases whole machines (needs
// policy.tenantRoot); kubernetes needs policy.kubernetes; instance is for
// vps-host pools.
const (
	BindHold       BindingKind = "hold"
	BindNode       BindingKind = "node"
	BindKubernetes BindingKind = "kubernetes"
	BindInstance   BindingKind = "instance"
)

// Reservation is a tenant's claim on a pool.
type Reservation struct {
	ID         string            `json:"id" example:"res_01k5c000000000000000000000"`
	TenantID   string            `json:"tenantId"`
	PoolID     string            `json:"poolId"`
	Name       string            `json:"name,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	State      ReservationState  `json:"state" enum:"pending,placed,active,ended,failed"`
	Reason     string            `json:"reason,omitempty" doc:"Why it ended or failed."`
	Message    string            `json:"message,omitempty" doc:"Why it is in this state, in words."`
	Resources  Amounts           `json:"resources" doc:"As asked."`
	Nodes      int               `json:"nodes"`
	Selector   Selector          `json:"selector,omitempty"`
	Binding    BindingKind       `json:"binding" enum:"hold,node,kubernetes,instance"`
	MIGProfile string            `json:"migProfile,omitempty" doc:"Of the MIG instances that are booked."`
	Booked     Amounts           `json:"booked" doc:"As booked, host share included."`
	Placements []Placement       `json:"placements"`
	CreatedBy  string            `json:"createdBy"`
	CreatedAt  Time              `json:"createdAt"`
	PlacedAt   *Time             `json:"placedAt,omitempty"`
	ActiveAt   *Time             `json:"activeAt,omitempty"`
	ExpiresAt  *Time             `json:"expiresAt,omitempty"`
	EndedAt    *Time             `json:"endedAt,omitempty"`
}

// Placement is one node's share of a reservation.
type Placement struct {
	NodeID    string   `json:"nodeId"`
	Devices   []string `json:"devices" doc:"UUIDs of the GPUs."`
	Atoms     []string `json:"atoms" doc:"What is booked of them: the GPU's UUID, a MIG device's UUID, or UUID#slot."`
	CPUs      string   `json:"cpus,omitempty" doc:"A cpulist: the CPUs set aside."`
	NUMANodes string   `json:"numaNodes,omitempty" doc:"The memory nodes set aside, as a list."`
	Amounts   Amounts  `json:"amounts" doc:"What is booked of the node's resources."`
	Confirmed bool     `json:"confirmed" doc:"The node's agent enforces it."`
}

// CreateReservation is the input of reservations.create.
type CreateReservation struct {
	TenantID       string            `json:"tenantId" example:"acme"`
	PoolID         string            `json:"poolId"`
	Resources      Amounts           `json:"resources" doc:"At most one of gpu, gpu.mig, gpu.slot, and scalars."`
	Nodes          int               `json:"nodes,omitempty" doc:"Over how many nodes. Every resource must divide by it. Default 1." minimum:"1" maximum:"10000"`
	Selector       Selector          `json:"selector,omitempty"`
	Binding        BindingKind       `json:"binding,omitempty" enum:"hold,node,kubernetes,instance" doc:"Default hold."`
	Duration       string            `json:"duration,omitempty" doc:"From now, such as 8h; not with expiresAt." example:"8h"`
	ExpiresAt      *Time             `json:"expiresAt,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty" maxLength:"200"`
	Name           string            `json:"name,omitempty" maxLength:"200"`
	Labels         map[string]string `json:"labels,omitempty"`
	DryRun         bool              `json:"dryRun,omitempty" doc:"Says whether and where it would fit; books nothing."`
}

// ReservationRef is the input of the verbs on one reservation.
type ReservationRef struct {
	TenantID      string `json:"tenantId" example:"acme"`
	ReservationID string `json:"reservationId"`
}

// MoveReservation is the input of reservations.extend and .shorten.
type MoveReservation struct {
	TenantID      string `json:"tenantId"`
	ReservationID string `json:"reservationId"`
	Duration      string `json:"duration,omitempty" doc:"From now; not with expiresAt." example:"4h"`
	ExpiresAt     *Time  `json:"expiresAt,omitempty"`
}

// ListReservations is the input of reservations.list.
type ListReservations struct {
	TenantID string             `json:"tenantId"`
	PoolID   string             `json:"poolId,omitempty"`
	States   []ReservationState `json:"states,omitempty" doc:"Default: those that are pending, placed or active." maxItems:"5"`
	All      bool               `json:"all,omitempty" doc:"Ended and failed ones too."`
	Page
}

// Explanation answers reservations.explain: why a reservation is where it is.
type Explanation struct {
	ReservationID string           `json:"reservationId,omitempty"`
	State         ReservationState `json:"state"`
	Message       string           `json:"message" doc:"One sentence."`
	Nodes         []NodeReason     `json:"nodes" doc:"Per node what is missing, in order of hostname."`
	Quota         []QuotaShort     `json:"quota" doc:"Quota rows that stop it."`
	Helps         []string         `json:"helps" doc:"The smallest changes that would make it fit."`
}

// NodeReason is what one node lacks for a request.
type NodeReason struct {
	NodeID   string   `json:"nodeId"`
	Hostname string   `json:"hostname"`
	Fits     bool     `json:"fits"`
	Missing  []string `json:"missing,omitempty" doc:"2 of 8 GPUs free, 3 asked."`
}

// QuotaShort is one quota row that stops a request.
type QuotaShort struct {
	Resource string `json:"resource"`
	Asked    int    `json:"asked"`
	Used     int    `json:"used"`
	Max      int    `json:"max"`
}

// Normalise fills in the defaults of nodes and binding.
func (in *CreateReservation) Normalise() {
	if in.Nodes == 0 {
		in.Nodes = 1
	}
	if in.Binding == "" {
		in.Binding = BindHold
	}
}

// MaxNodes is the most nodes that one reservation spans.
const MaxNodes = 10000

// Validate refuses what no reservation may be, whatever its pool.
func (in CreateReservation) Validate() error {
	if err := in.validateResources(); err != nil {
		return err
	}
	switch in.Binding {
	case BindHold, BindNode, BindKubernetes, BindInstance:
	default:
		return Invalid("binding", "%q is not hold, node, kubernetes or instance", in.Binding)
	}
	if in.Duration != "" && in.ExpiresAt != nil {
		return Invalid("expiresAt", "cannot stand beside duration")
	}
	if in.Duration != "" {
		if _, err := ParseDuration(in.Duration); err != nil {
			return Invalid("duration", "%q is not a duration above zero and at most 365d, such as 90s, 6h or 7d", in.Duration)
		}
	}
	if err := CheckIdempotencyKey(in.IdempotencyKey); err != nil {
		return err
	}
	if err := checkName("name", in.Name); err != nil {
		return err
	}
	if err := checkLabels("labels", in.Labels); err != nil {
		return err
	}
	return in.Selector.Validate()
}

func (in CreateReservation) validateResources() error {
	if in.Nodes < 1 || in.Nodes > MaxNodes {
		return Invalid("nodes", "%d is not 1 to %d", in.Nodes, MaxNodes)
	}
	atoms, asked := "", false
	for _, r := range in.Resources.Names() {
		n := in.Resources[r]
		if n < 0 || n > MaxCount {
			return Invalid("resources."+r, "%d is not 0 to %d", n, MaxCount)
		}
		if n%in.Nodes != 0 {
			return Invalid("resources."+r, "%d does not divide by %d nodes", n, in.Nodes)
		}
		asked = asked || n > 0
		if IsGPUResource(r) && n > 0 {
			if atoms != "" {
				return Invalid("resources", "asks for both %s and %s; one reservation takes one kind", atoms, r)
			}
			atoms = r
		}
	}
	for r := range in.Resources {
		if !IsResource(r) {
			return Invalid("resources", "%q is not a resource; resources are gpu, gpu.mig, gpu.slot, vcpu, memoryGiB, hugepages2Mi, hugepages1Gi, diskGiB", r)
		}
	}
	if !asked && in.Binding != BindNode {
		return Invalid("resources", "asks for nothing; name at least one resource, such as {\"gpu\": 1}")
	}
	return nil
}
