package appliance

import "time"

// SystemStatus is the control plane in one answer.
type SystemStatus struct {
	Version   string      `json:"version"`
	StartedAt Time        `json:"startedAt"`
	Tenant    string      `json:"tenant" doc:"The customer tenant that the first start made."`
	SiteID    string      `json:"siteId" doc:"Its custom site."`
	SiteName  string      `json:"siteName"`
	Pools     int         `json:"pools"`
	Nodes     NodeCount   `json:"nodes"`
	Devices   DeviceCount `json:"devices"`
	Pending   int         `json:"pending" doc:"Reservations that wait."`
	Simulated bool        `json:"simulated" doc:"Some nodes are recorded machines."`
	Attention []Attention `json:"attention" doc:"What needs somebody, each with what to do."`
}

// Attention is one thing that needs somebody.
type Attention struct {
	Subject string `json:"subject" doc:"The id of the thing."`
	Message string `json:"message"`
	Command string `json:"command,omitempty" doc:"What to run next."`
}

// SystemRef is the input of the verbs on the control plane itself.
type SystemRef struct {
	TenantID string `json:"tenantId,omitempty" doc:"Default: the caller's, root for the local operator."`
}

// Uptime is how long the control plane has run at an instant.
func (s SystemStatus) Uptime(now time.Time) time.Duration { return now.Sub(s.StartedAt.Time) }
