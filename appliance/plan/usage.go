package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// Interval is what one reservation held, unchanged, from one instant to
// another. Meters are amounts by meter: 4 of gpu.h100.hours.
type Interval struct {
	ReservationID string
	TenantID      string
	PoolID        string
	From, To      time.Time
	Meters        map[string]int
}

// Meters are what a booked reservation counts as, by meter. Host resources
// count as booked, the default host share included: they are held.
func Meters(model string, r appliance.Reservation) map[string]int {
	out := map[string]int{}
	for name, n := range r.Booked {
		switch {
		case n == 0:
		case appliance.IsGPUResource(name):
			out[appliance.GPUMeter(model, name, r.MIGProfile)] = n
		case name == appliance.ResourceVCPU:
			out[appliance.MeterVCPU] = n
		case name == appliance.ResourceMemoryGiB:
			out[appliance.MeterMemory] = n
		}
	}
	return out
}

// Rates give the price of a meter in a pool; false where it has none.
type Rates func(poolID, meter string) (perUnit float64, ok bool)

// SumUsage integrates intervals over a window, clipped to it, and sums them by
// meter and what else is asked for. An interval that ends before it begins, as
// after a clock was set back, counts nothing. The order is that of the groups.
func SumUsage(intervals []Interval, from, to time.Time, groupBy []string, rates Rates) []appliance.Usage {
	sums := map[appliance.Usage]*sum{}
	for _, v := range intervals {
		start, end := latest(v.From, from), earliest(v.To, to)
		for start.Before(end) {
			stop := end
			key := appliance.Usage{}
			if slices.Contains(groupBy, appliance.GroupDay) {
				day := start.UTC().Truncate(24 * time.Hour)
				key.Day, stop = day.Format(time.DateOnly), earliest(end, day.Add(24*time.Hour))
			}
			if slices.Contains(groupBy, appliance.GroupTenant) {
				key.TenantID = v.TenantID
			}
			if slices.Contains(groupBy, appliance.GroupPool) {
				key.PoolID = v.PoolID
			}
			if slices.Contains(groupBy, appliance.GroupReservation) {
				key.ReservationID = v.ReservationID
			}
			hours := stop.Sub(start).Hours()
			for meter, n := range v.Meters {
				k := key
				k.Meter = meter
				if sums[k] == nil {
					sums[k] = &sum{}
				}
				perUnit, ok := rates(v.PoolID, meter)
				sums[k].add(hours*float64(n), perUnit, ok)
			}
			start = stop
		}
	}
	out := make([]appliance.Usage, 0, len(sums))
	for k, s := range sums {
		k.Quantity = s.quantity
		if s.priced {
			cost := s.cost
			k.Cost = &cost
		}
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b appliance.Usage) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.PoolID, b.PoolID),
			cmp.Compare(a.ReservationID, b.ReservationID), cmp.Compare(a.Meter, b.Meter))
	})
	return out
}

// sum adds quantities and what they cost.
type sum struct {
	quantity, cost float64
	priced         bool
}

func (s *sum) add(quantity, perUnit float64, priced bool) {
	s.quantity += quantity
	if priced {
		s.cost += quantity * perUnit
		s.priced = true
	}
}

// Cost is what usage costs in all; meters without a rate cost nothing.
func Cost(usage []appliance.Usage) (total float64) {
	for _, u := range usage {
		if u.Cost != nil {
			total += *u.Cost
		}
	}
	return total
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
