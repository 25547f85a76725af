package appliance

import "github.com/bettercompute/bc/agent/wire"

// RebootState is how far the reboot of a node has come.
type RebootState string

// The states of a reboot. What is done, failed or withdrawn is over.
const (
	RebootWaiting   RebootState = "waiting"   // for the reservations on the node to end
	RebootRequested RebootState = "requested" // nothing is in its way; the node's agent takes it up next
	RebootRebooting RebootState = "rebooting" // the agent was given leave
	RebootDone      RebootState = "done"      // the node has reported from another boot
	RebootFailed    RebootState = "failed"
	RebootWithdrawn RebootState = "withdrawn"
)

// Over tells whether nothing more comes of the reboot.
func (s RebootState) Over() bool {
	return s == RebootDone || s == RebootFailed || s == RebootWithdrawn
}

// Reboot is the last reboot that was asked for on a node.
type Reboot struct {
	ID           string        `json:"id"`
	State        RebootState   `json:"state" enum:"waiting,requested,rebooting,done,failed,withdrawn"`
	Message      string        `json:"message,omitempty"`
	Now          bool          `json:"now,omitempty" doc:"It does not wait for reservations to end."`
	Reservations []NodeBooking `json:"reservations,omitempty" doc:"Those on the node that the tenant sees: waited for, or with now interrupted."`
	RequestedAt  Time          `json:"requestedAt"`
	RebootingAt  *Time         `json:"rebootingAt,omitempty"`
	DoneAt       *Time         `json:"doneAt,omitempty"`
}

// RebootNode is the input of nodes.reboot.
type RebootNode struct {
	TenantID string `json:"tenantId" example:"acme"`
	NodeID   string `json:"nodeId"`
	Now      bool   `json:"now,omitempty" doc:"Do not wait until the reservations on the node have ended: they are kept, and what runs in them is killed."`
	DryRun   bool   `json:"dryRun,omitempty" doc:"Answer what would be, and change nothing."`
}

// PlanNode is the input of nodes.plan.
type PlanNode struct {
	TenantID string     `json:"tenantId" example:"acme"`
	NodeID   string     `json:"nodeId"`
	Policy   *RawPolicy `json:"policy,omitempty" doc:"Plan for this policy in the place of the pool's own."`
}

// NodePlan is what a pool's policy would still change on one of its hosts.
type NodePlan struct {
	NodeID       string          `json:"nodeId"`
	Hostname     string          `json:"hostname"`
	Simulated    bool            `json:"simulated" doc:"A recorded machine, not a real one."`
	Note         string          `json:"note,omitempty" doc:"What holds for the whole plan, in words."`
	Units        []wire.UnitPlan `json:"units"`
	Reservations []NodeBooking   `json:"reservations" doc:"Those on the node now, which a step that needs idle GPUs waits for and a reboot interrupts."`
}

// NodeBooking is a reservation's share of a node.
type NodeBooking struct {
	ReservationID string   `json:"reservationId"`
	TenantID      string   `json:"tenantId"`
	Devices       []string `json:"devices,omitempty" doc:"UUIDs of the GPUs that it holds."`
}
