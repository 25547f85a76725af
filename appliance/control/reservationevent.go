package control

import "github.com/bettercompute/bc/appliance"

// reservationFacts is what a reservation's events say of it.
type reservationFacts struct {
	ExpiresAt *appliance.Time            `json:"expiresAt,omitempty"` // when that is what changed
	ID        string                     `json:"id"`
	Name      string                     `json:"name,omitempty"`
	Nodes     []string                   `json:"nodes,omitempty"`
	PoolID    string                     `json:"poolId"`
	Reason    string                     `json:"reason,omitempty"`
	Resources appliance.Amounts          `json:"resources"`
	State     appliance.ReservationState `json:"state"`
}

// AppendJSON appends the facts as their tags say.
func (f *reservationFacts) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	if f.ExpiresAt != nil {
		b = append(f.ExpiresAt.AppendJSON(append(b, `"expiresAt":`...)), ',')
	}
	b = appliance.AppendQuoted(append(b, `"id":`...), f.ID)
	if f.Name != "" {
		b = appliance.AppendQuoted(append(b, `,"name":`...), f.Name)
	}
	if len(f.Nodes) > 0 {
		b = appliance.AppendQuotedList(append(b, `,"nodes":`...), f.Nodes)
	}
	b = appliance.AppendQuoted(append(b, `,"poolId":`...), f.PoolID)
	if f.Reason != "" {
		b = appliance.AppendQuoted(append(b, `,"reason":`...), f.Reason)
	}
	b = f.Resources.AppendJSON(append(b, `,"resources":`...))
	b = appliance.AppendQuoted(append(b, `,"state":`...), string(f.State))
	return append(b, '}')
}

func reservationEvent(r appliance.Reservation) *reservationFacts {
	data := &reservationFacts{ID: r.ID, Name: r.Name, PoolID: r.PoolID, Reason: r.Reason, Resources: r.Resources, State: r.State}
	for _, p := range r.Placements {
		data.Nodes = append(data.Nodes, p.NodeID)
	}
	return data
}
