package wire

// AgentFacts is what the agent of a machine can be asked for. An agent that
// does not send it is older than these requests.
type AgentFacts struct {
	Plans bool `json:"plans,omitempty"` // it takes a PlanRequest in its long polls
	// NoReboot says why this agent cannot reboot its machine, for people. Empty:
	// it can.
	NoReboot string `json:"noReboot,omitempty"`
}

// PlanRequest asks what units would change on a machine. It comes as the answer
// of a long poll with plans=1, in the place of a NodeSpec and never part of
// one; nothing is changed, and nothing of it is kept.
type PlanRequest struct {
	ID    string   `json:"id"`
	Units Units    `json:"units"`
	Held  []string `json:"held,omitempty"` // UUIDs of the GPUs that bookings hold
}

// Asked is a long poll's answer that is no NodeSpec.
type Asked struct {
	Plan *PlanRequest `json:"plan,omitempty"`
}

// PlanReport answers a PlanRequest.
type PlanReport struct {
	NodeID string `json:"nodeId"`
	ID     string `json:"id"` // of the request
	// Units are those that are wanted, and those that were applied and are no
	// longer wanted, in order of application.
	Units []UnitPlan `json:"units"`
	// Note says what holds for all of them, for people: such as that this agent
	// would change nothing, since it leaves the host as it is.
	Note   string `json:"note,omitempty"`
	Failed string `json:"failed,omitempty"` // why there is no plan
}

// UnitPlan is what is left to be done for one unit.
type UnitPlan struct {
	Kind   UnitKind   `json:"kind"`
	Gone   bool       `json:"gone,omitempty"`  // it is no longer wanted: the steps undo it
	State  UnitState  `json:"state,omitempty"` // that it comes to by the steps that wait for nothing
	Wanted string     `json:"wanted,omitempty"`
	Got    string     `json:"got,omitempty"`
	Reason string     `json:"reason,omitempty"` // for people
	Steps  []PlanStep `json:"steps"`
}

// PlanStep is one change that a plan would make.
type PlanStep struct {
	Change string `json:"change"`          // for people; can be of several lines
	Needs  string `json:"needs,omitempty"` // "idle GPU" or "reboot"; empty: nothing
	Undo   string `json:"undo,omitempty"`
	Later  bool   `json:"later,omitempty"` // it waits for what it needs
}

// Reboot asks the agent to reboot its machine, once: it is meant for one boot,
// and means nothing in any other. The agent asks for leave with a RebootReport
// first, at the moment when it could.
type Reboot struct {
	ID     string `json:"id"`
	BootID string `json:"bootId"` // the boot that is to end
	// Now does not wait until no binding is left in force.
	Now bool `json:"now,omitempty"`
}

// RebootReport asks for leave to reboot, or says that the machine cannot be.
type RebootReport struct {
	NodeID string `json:"nodeId"`
	ID     string `json:"id"`
	BootID string `json:"bootId"` // the boot that the machine is in
	Failed string `json:"failed,omitempty"`
}

// RebootReply gives leave, or not: the request may have been withdrawn, or the
// node may have been booked since. Leave is given again to who asks again in
// the same boot.
type RebootReply struct {
	Go bool `json:"go"`
}
