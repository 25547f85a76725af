package appliance

// OnBudgetExceeded is what an offer does when the offered tenant's budget is
// spent.
type OnBudgetExceeded string

// stop-new refuses new reservations and extensions, drain also ends what runs.
const (
	BudgetNone    OnBudgetExceeded = "none"
	BudgetStopNew OnBudgetExceeded = "stop-new"
	BudgetDrain   OnBudgetExceeded = "drain"
)

// Offer makes a pool visible to another tenant, with quota rows.
type Offer struct {
	PoolID             string           `json:"poolId"`
	TenantID           string           `json:"tenantId" doc:"The offered tenant."`
	IncludeDescendants bool             `json:"includeDescendants" doc:"Stored; in this release the offered tenant is matched exactly."`
	Priority           int              `json:"priority" doc:"Stored; not read by the placer in this release."`
	OnBudgetExceeded   OnBudgetExceeded `json:"onBudgetExceeded" enum:"none,stop-new,drain"`
	Quotas             []Quota          `json:"quotas"`
	CreatedAt          Time             `json:"createdAt"`
}

// OfferPool is the input of pools.offer. Offering again updates the row and
// the quota.
type OfferPool struct {
	TenantID           string           `json:"tenantId" doc:"The pool's owner." example:"root"`
	PoolID             string           `json:"poolId"`
	ToTenantID         string           `json:"toTenantId" example:"acme"`
	Quota              QuotaMap         `json:"quota" doc:"Resource to limit. A resource without a row grants 0."`
	IncludeDescendants bool             `json:"includeDescendants,omitempty"`
	Priority           int              `json:"priority,omitempty" minimum:"-1000" maximum:"1000"`
	OnBudgetExceeded   OnBudgetExceeded `json:"onBudgetExceeded,omitempty" enum:"none,stop-new,drain"`
}

// UnofferPool is the input of pools.unoffer.
type UnofferPool struct {
	TenantID   string `json:"tenantId"`
	PoolID     string `json:"poolId"`
	ToTenantID string `json:"toTenantId"`
}

// Unoffered answers pools.unoffer.
type Unoffered struct {
	Removed bool `json:"removed"`
}

// Normalise fills in the default of onBudgetExceeded.
func (in *OfferPool) Normalise() {
	if in.OnBudgetExceeded == "" {
		in.OnBudgetExceeded = BudgetNone
	}
}

// Validate refuses what no offer may be.
func (in OfferPool) Validate() error {
	if !IsTenantID(in.ToTenantID) {
		return Invalid("toTenantId", "%q is not a tenant id", in.ToTenantID)
	}
	if in.Priority < -1000 || in.Priority > 1000 {
		return Invalid("priority", "%d is not -1000 to 1000", in.Priority)
	}
	switch in.OnBudgetExceeded {
	case BudgetNone, BudgetStopNew, BudgetDrain:
	default:
		return Invalid("onBudgetExceeded", "%q is not none, stop-new or drain", in.OnBudgetExceeded)
	}
	return in.Quota.Validate("quota")
}
