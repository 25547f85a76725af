package appliance

import (
	"slices"
	"strings"
	"time"
)

// Usage is a quantity of one meter: hours of a resource held, from placed to
// the end.
type Usage struct {
	TenantID      string   `json:"tenantId,omitempty"`
	PoolID        string   `json:"poolId,omitempty"`
	ReservationID string   `json:"reservationId,omitempty"`
	Day           string   `json:"day,omitempty" doc:"Of UTC, as 2026-01-31." example:"2026-01-31"`
	Meter         string   `json:"meter" example:"gpu.h100.hours"`
	Quantity      float64  `json:"quantity" doc:"Hours times amount, never negative."`
	Cost          *float64 `json:"cost,omitempty" doc:"By the rates of the pools' owners; absent where a meter has no rate."`
}

// What usage can be grouped by, besides the meter, which always stands.
const (
	GroupTenant      = "tenant"
	GroupPool        = "pool"
	GroupReservation = "reservation"
	GroupDay         = "day"
)

var usageGroups = []string{GroupTenant, GroupPool, GroupReservation, GroupDay}

// QueryUsage is the input of usage.query and usage.export: the tenant's own
// usage in a window of time, or with ofPools everyone's in pools that it owns.
type QueryUsage struct {
	TenantID string   `json:"tenantId" example:"acme"`
	From     Time     `json:"from" doc:"Included."`
	To       Time     `json:"to" doc:"Not included; at most 366 days after from."`
	PoolID   string   `json:"poolId,omitempty"`
	GroupBy  []string `json:"groupBy,omitempty" doc:"Of tenant, pool, reservation and day. Default: tenant and pool." maxItems:"4"`
	OfPools  bool     `json:"ofPools,omitempty" doc:"Everyone's usage of the pools that the tenant owns, in place of its own."`
}

// UsageExport answers usage.export.
type UsageExport struct {
	ContentType string `json:"contentType" example:"text/csv; charset=utf-8"`
	Text        string `json:"text" doc:"RFC 4180, with a header line."`
}

// maxUsageDays bounds a window.
const maxUsageDays = 366

// Normalise fills in the default grouping.
func (in *QueryUsage) Normalise() {
	if in.GroupBy == nil {
		in.GroupBy = []string{GroupTenant, GroupPool}
	}
}

// Validate refuses windows that end before they begin, or that are too long.
func (in QueryUsage) Validate() error {
	if in.From.IsZero() {
		return Invalid("from", "is required, such as 2026-01-01T00:00:00Z")
	}
	if !in.To.After(in.From.Time) {
		return Invalid("to", "is not after from")
	}
	if in.To.Sub(in.From.Time) > maxUsageDays*24*time.Hour {
		return Invalid("to", "is more than %d days after from", maxUsageDays)
	}
	for i, g := range in.GroupBy {
		if !slices.Contains(usageGroups, g) {
			return Invalid("groupBy", "%q is not tenant, pool, reservation or day", g)
		}
		if slices.Contains(in.GroupBy[:i], g) {
			return Invalid("groupBy", "%q stands twice", g)
		}
	}
	return nil
}

// Meter names of the counted host resources.
const (
	MeterVCPU   = "vcpu.hours"
	MeterMemory = "memory.gib-hours"
)

// GPUMeter names the meter of an atom: gpu.h100.hours, gpu.h100.slot.hours,
// gpu.h100.mig.1g.10gb.hours.
func GPUMeter(model, resource, profile string) string {
	m := "gpu." + strings.ToLower(model)
	switch resource {
	case ResourceMIG:
		return m + ".mig." + profile + ".hours"
	case ResourceSlot:
		return m + ".slot.hours"
	}
	return m + ".hours"
}

var meter = textLike(128, `^(gpu\.[a-z0-9-]{1,32}(\.slot|\.mig\.[0-9a-z.+-]{1,40})?\.hours|vcpu\.hours|memory\.gib-hours)$`)

// Rate turns usage of a tenant's pools into cost.
type Rate struct {
	TenantID string  `json:"tenantId" doc:"The owner of the pools."`
	Meter    string  `json:"meter" example:"gpu.h100.hours"`
	PerUnit  float64 `json:"perUnit" doc:"In the currency that the site keeps its books in."`
}

// SetRate is the input of rates.set.
type SetRate struct {
	TenantID string  `json:"tenantId" doc:"The owner of the pools that the rate is for."`
	Meter    string  `json:"meter" example:"gpu.h100.hours"`
	PerUnit  float64 `json:"perUnit" minimum:"0" maximum:"1000000000"`
}

// Validate refuses what is no meter, and rates out of range.
func (in SetRate) Validate() error {
	if !meter.MatchString(in.Meter) {
		return Invalid("meter", "%q is not a meter such as gpu.h100.hours, gpu.h100.mig.1g.10gb.hours, gpu.t4.slot.hours, vcpu.hours or memory.gib-hours", in.Meter)
	}
	if !(in.PerUnit >= 0 && in.PerUnit <= 1e9) {
		return Invalid("perUnit", "%v is not 0 to 1000000000", in.PerUnit)
	}
	return nil
}

// BudgetPeriod is over which time a budget counts.
type BudgetPeriod string

// A calendar month of UTC, or all time.
const (
	PeriodMonth BudgetPeriod = "month"
	PeriodTotal BudgetPeriod = "total"
)

// Budget is the most that a tenant's usage may cost in a period.
type Budget struct {
	TenantID string       `json:"tenantId"`
	Period   BudgetPeriod `json:"period" enum:"month,total"`
	Amount   float64      `json:"amount"`
	Spent    float64      `json:"spent" doc:"In the current period, up to now."`
	SetBy    string       `json:"setBy" doc:"The tenant that set it; one below cannot change it."`
}

// SetBudget is the input of budgets.set.
type SetBudget struct {
	TenantID    string       `json:"tenantId"`
	ForTenantID string       `json:"forTenantId,omitempty" doc:"Itself or a tenant below it. Default: itself."`
	Period      BudgetPeriod `json:"period" enum:"month,total"`
	Amount      float64      `json:"amount" minimum:"0" maximum:"1000000000000"`
}

// Validate refuses periods that do not exist and amounts out of range.
func (in SetBudget) Validate() error {
	if in.Period != PeriodMonth && in.Period != PeriodTotal {
		return Invalid("period", "%q is not month or total", in.Period)
	}
	if !(in.Amount >= 0 && in.Amount <= 1e12) {
		return Invalid("amount", "%v is not 0 to 1000000000000", in.Amount)
	}
	return nil
}
