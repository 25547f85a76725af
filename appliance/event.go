package appliance

import "encoding/json"

// EventType names what happened, in the past tense.
type EventType string

// Events are stored in the transaction that caused them.
const (
	EventPoolCreated   EventType = "pool.created"
	EventPoolOffered   EventType = "pool.offered"
	EventPoolUnoffered EventType = "pool.unoffered"
	EventPoolUpdated   EventType = "pool.updated"
	EventPoolArchived  EventType = "pool.archived"
	EventQuotaUpdated  EventType = "quota.updated"

	EventReservationCreated EventType = "reservation.created"
	EventReservationPlaced  EventType = "reservation.placed"
	EventReservationActive  EventType = "reservation.active"
	EventReservationUpdated EventType = "reservation.updated"
	EventReservationEnded   EventType = "reservation.ended"
	EventReservationFailed  EventType = "reservation.failed"

	EventNodeJoined      EventType = "node.joined"
	EventNodeAccepted    EventType = "node.accepted"
	EventNodeQuarantined EventType = "node.quarantined"
	EventNodeUnreachable EventType = "node.unreachable"
	EventNodeRecovered   EventType = "node.recovered"
	EventNodeUpdated     EventType = "node.updated"
	EventNodeRemoved     EventType = "node.removed"
	EventNodeUnit        EventType = "node.unit"
	EventNodeReboot      EventType = "node.reboot" // a reboot has come to another state
	EventDeviceUnhealthy EventType = "device.unhealthy"
	EventDeviceRecovered EventType = "device.recovered"

	EventTenantCreated   EventType = "tenant.created"
	EventTenantSuspended EventType = "tenant.suspended"
	EventTenantResumed   EventType = "tenant.resumed"
	EventTenantDeleted   EventType = "tenant.deleted"

	EventSiteCreated EventType = "site.created"
	EventKeyCreated  EventType = "key.created"
	EventKeyRevoked  EventType = "key.revoked"

	EventUserCreated   EventType = "user.created"
	EventUserUpdated   EventType = "user.updated"
	EventUserDeleted   EventType = "user.deleted"
	EventUserLoggedIn  EventType = "user.loggedIn"
	EventPolicyPut     EventType = "policy.put"
	EventPolicyDeleted EventType = "policy.deleted"

	EventBudgetUpdated  EventType = "budget.updated"
	EventBudgetExceeded EventType = "budget.exceeded"
	EventRateUpdated    EventType = "rate.updated"
)

// Event is one thing that happened. Sequence numbers rise without a gap.
type Event struct {
	Seq      int64           `json:"seq" doc:"Rises by one with each event; the cursor of events.list and of the stream."`
	Type     EventType       `json:"type" example:"pool.created"`
	TenantID string          `json:"tenantId" doc:"The tenant it happened to."`
	PoolID   string          `json:"poolId,omitempty"`
	Subject  string          `json:"subject" doc:"The id of the thing."`
	At       Time            `json:"at"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// ListEvents is the input of events.list.
type ListEvents struct {
	TenantID string `json:"tenantId" example:"acme"`
	After    int64  `json:"after,omitempty" doc:"Only events with a higher sequence number." minimum:"0"`
	Limit    int    `json:"limit,omitempty" doc:"1 to 500. Default 100." minimum:"1" maximum:"500"`
}
