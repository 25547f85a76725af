package wire

import (
	"slices"
	"time"
)

// Hello opens or reopens an agent's session. The first one joins the node:
// over the Unix socket as the local operator, naming a pool or leaving the
// choice to the server; over the network with a join token.
type Hello struct {
	Version   int       `json:"version"`
	MachineID string    `json:"machineId"`
	Hostname  string    `json:"hostname"`
	PoolID    string    `json:"poolId,omitempty"`
	JoinToken string    `json:"joinToken,omitempty"`
	NodeID    string    `json:"nodeId,omitempty"` // of an earlier session, with its credential
	Local     bool      `json:"local,omitempty"`  // the machine that the control plane runs on
	Inventory Inventory `json:"inventory"`

	InventoryHash string `json:"inventoryHash,omitempty"` // as in the heartbeat
}

// Welcome answers Hello. Without a node id the server has no pool for the
// machine yet: Reason says why, for people, and the agent asks again.
type Welcome struct {
	Version          int    `json:"version"`
	NodeID           string `json:"nodeId,omitempty"`
	PoolID           string `json:"poolId,omitempty"`
	Credential       string `json:"credential,omitempty"` // bcn_…, given once, to be kept 0600
	HeartbeatSeconds int    `json:"heartbeatSeconds"`
	Reason           string `json:"reason,omitempty"`
}

// ReasonNodeRemoved is the reason of a refusal, NOT_FOUND, of the credential of a
// node that was removed. It alone says so: a credential that is not known may be
// that of a control plane brought back from a backup.
const ReasonNodeRemoved = "NodeRemoved"

// InventoryReport carries the whole inventory, sent when it changes.
type InventoryReport struct {
	NodeID    string    `json:"nodeId"`
	Hash      string    `json:"hash"` // of the inventory's JSON, sha256, 16 hex digits
	Inventory Inventory `json:"inventory"`
}

// Heartbeat says that the node is alive and how far it has come. It stays
// under 1 KiB on a quiet node: units and checks are sent when they change and
// in the first heartbeat of a session.
type Heartbeat struct {
	NodeID        string `json:"nodeId"`
	InventoryHash string `json:"inventoryHash"`
	Generation    int64  `json:"generation"` // the last NodeSpec taken up, 0: none
	// Applied is the generation of the NodeSpec that all units were last compared
	// with the machine for, 0: none yet. Units are of it, or of a comparison that
	// began after and has not ended.
	Applied int64 `json:"applied,omitempty"`

	Units  []UnitStatus  `json:"units,omitempty"`
	Checks []CheckResult `json:"checks,omitempty"`

	// Bindings lists the reservations this node enforces now, when they changed.
	Bindings *[]BindingStatus `json:"bindings,omitempty"`
	// Walls comes with Bindings and says what they are of.
	Walls *WallsStatus `json:"walls,omitempty"`
}

// WallsStatus says which NodeSpec the walls around bindings were brought to: a
// reservation that this NodeSpec does not want, and that Bindings does not list,
// has no wall any more and nobody behind it.
type WallsStatus struct {
	Enforced   bool  `json:"enforced"`   // this agent raises walls; without, nothing has to come down
	Generation int64 `json:"generation"` // 0: not known yet
	// Why says, for people, why this agent raises no walls. Empty: it does, or it is
	// older than this field.
	Why string `json:"why,omitempty"`
}

// HeartbeatReply tells the agent what the server lacks.
type HeartbeatReply struct {
	Generation   int64 `json:"generation"`              // the newest NodeSpec's
	SendAll      bool  `json:"sendAll,omitempty"`       // units, checks and bindings, whole
	SendInv      bool  `json:"sendInventory,omitempty"` // the inventory, whole
	Gone         bool  `json:"gone,omitempty"`          // the node was removed: say hello again
	RetrySeconds int   `json:"retrySeconds,omitempty"`
}

// UnitState is how far a config unit has come on a node.
type UnitState string

// The states of a unit. NotApplicable, Partial and the pending ones do not
// degrade the node by themselves; Conflict and Failed do.
const (
	InSync        UnitState = "InSync"
	Partial       UnitState = "Partial" // got less than wanted
	PendingReboot UnitState = "PendingReboot"
	PendingIdle   UnitState = "PendingIdle"   // waits until its GPUs, or pages that it gives back, are free
	NotApplicable UnitState = "NotApplicable" // no such hardware here
	Unsupported   UnitState = "Unsupported"   // this host or this agent cannot
	Conflict      UnitState = "Conflict"      // someone else keeps changing it
	Failed        UnitState = "Failed"
)

// UnitStatus is what became of one unit, also of one that is no longer wanted as
// long as something of it is left on the machine. An empty state says that the
// unit is not wanted and that what it changed was put back.
type UnitStatus struct {
	Kind   UnitKind  `json:"kind"`
	State  UnitState `json:"state"`
	Reason string    `json:"reason,omitempty"` // for people
	Wanted string    `json:"wanted,omitempty"`
	Got    string    `json:"got,omitempty"`
	Since  time.Time `json:"since"`
}

// CheckResult is what an acceptance check found.
type CheckResult struct {
	Kind   string    `json:"kind"`
	Passed bool      `json:"passed"`
	Reason string    `json:"reason,omitempty"` // names the device and the reading
	At     time.Time `json:"at"`
}

// BindingStatus is what became of one binding. A binding that is listed, not
// failed and not ending is in force. One that is no longer listed is torn down,
// and nobody behind it holds its devices: what is no longer wanted stays listed
// as ending until then, also over restarts of the agent.
type BindingStatus struct {
	ReservationID string `json:"reservationId"`
	Failed        string `json:"failed,omitempty"` // why it is not in force
	// Unenforced says that the binding is only booked: this host, or an agent
	// that may not change the host, cannot wall it in, or not all of it. Note says
	// why.
	Unenforced bool `json:"unenforced,omitempty"`
	// Ending says that the binding is no longer wanted and not gone yet: its
	// programs are being stopped, or its devices are still held. Note says what it
	// waits for, and Holders who it is.
	Ending bool   `json:"ending,omitempty"`
	Note   string `json:"note,omitempty"` // for people
	// EndingSince is when the agent began to take it down, by the node's clock.
	EndingSince time.Time `json:"endingSince,omitzero"`
	Holders     []Holder  `json:"holders,omitempty"` // the first few; Note counts the others
}

// Equal reports whether two statuses say the same.
func (b BindingStatus) Equal(other BindingStatus) bool {
	return b.ReservationID == other.ReservationID && b.Failed == other.Failed && b.Unenforced == other.Unenforced &&
		b.Ending == other.Ending && b.Note == other.Note && b.EndingSince.Equal(other.EndingSince) && slices.Equal(b.Holders, other.Holders)
}

// Holder is a process of the node that keeps a binding from ending.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`          // at most 15 bytes, as the kernel keeps it
	User    string `json:"user,omitempty"`   // a name of the node's own, or the number
	Device  string `json:"device,omitempty"` // the node that it has open; "": it runs in the reservation's slice
}
