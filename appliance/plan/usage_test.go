package plan

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

var usageStart = time.Date(2026, 1, 31, 23, 0, 0, 0, time.UTC)

func held(id string, gpus int, from, to time.Duration) Interval {
	return Interval{ReservationID: id, TenantID: "acme", PoolID: "pool", From: usageStart.Add(from), To: usageStart.Add(to), Meters: map[string]int{"gpu.h100.hours": gpus}}
}

func unpriced(string, string) (float64, bool) { return 0, false }

func TestSumUsageIntegrates(t *testing.T) {
	min := time.Minute
	cases := []struct {
		name      string
		intervals []Interval
		from, to  time.Duration
		want      float64
	}{
		{"4 GPUs for 30 minutes, then 1 for 20", []Interval{held("a", 4, 0, 30*min), held("b", 1, 30*min, 50*min)}, 0, 2 * time.Hour, 2 + 1.0/3},
		{"1 GPU for 30 minutes, then 4 for 20", []Interval{held("a", 1, 0, 30*min), held("b", 4, 30*min, 50*min)}, 0, 2 * time.Hour, 0.5 + 4.0/3},
		{"clipped to the window at both ends", []Interval{held("a", 2, -60*min, 60*min)}, 0, 30 * min, 1},
		{"outside of the window", []Interval{held("a", 2, -60*min, 0)}, 0, 30 * min, 0},
		{"a clock set back counts nothing", []Interval{held("a", 2, 30*min, 10*min)}, 0, time.Hour, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := SumUsage(c.intervals, usageStart.Add(c.from), usageStart.Add(c.to), nil, unpriced)
			sum := 0.0
			for _, u := range got {
				sum += u.Quantity
			}
			if math.Abs(sum-c.want) > 1e-9 {
				t.Errorf("%v GPU-hours, want %v", sum, c.want)
			}
		})
	}
}

func TestSumUsageCutsAtMidnightAndPrices(t *testing.T) {
	rates := func(pool, meter string) (float64, bool) { return 2, pool == "pool" && meter == "gpu.h100.hours" }
	got := SumUsage([]Interval{held("a", 2, 0, 3*time.Hour)}, usageStart, usageStart.Add(24*time.Hour), []string{appliance.GroupDay}, rates)
	four, eight := 4.0, 8.0
	want := []appliance.Usage{
		{Day: "2026-01-31", Meter: "gpu.h100.hours", Quantity: 2, Cost: &four},
		{Day: "2026-02-01", Meter: "gpu.h100.hours", Quantity: 4, Cost: &eight},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSumUsageOfPartsIsThatOfTheWhole cuts a window anywhere: nothing is
// counted twice or lost, and no quantity is negative.
func TestSumUsageOfPartsIsThatOfTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minute := rapid.IntRange(-3000, 3000)
		var intervals []Interval
		for range rapid.IntRange(0, 6).Draw(t, "intervals") {
			from := minute.Draw(t, "from")
			intervals = append(intervals, held("r", rapid.IntRange(1, 8).Draw(t, "gpus"), time.Duration(from)*time.Minute, time.Duration(minute.Draw(t, "to"))*time.Minute))
		}
		ends := []int{minute.Draw(t, "a"), minute.Draw(t, "b"), minute.Draw(t, "c")}
		lo, hi := min(ends[0], ends[1], ends[2]), max(ends[0], ends[1], ends[2])
		mid := ends[0] + ends[1] + ends[2] - lo - hi
		groups := rapid.SampledFrom([][]string{nil, {appliance.GroupDay}, {appliance.GroupPool, appliance.GroupDay}}).Draw(t, "groups")
		total := func(from, to int) (sum float64) {
			for _, u := range SumUsage(intervals, usageStart.Add(time.Duration(from)*time.Minute), usageStart.Add(time.Duration(to)*time.Minute), groups, unpriced) {
				if u.Quantity < 0 {
					t.Fatalf("%v of %s is negative", u.Quantity, u.Meter)
				}
				sum += u.Quantity
			}
			return sum
		}
		if whole, parts := total(lo, hi), total(lo, mid)+total(mid, hi); math.Abs(whole-parts) > 1e-6 {
			t.Fatalf("the whole is %v, its parts are %v", whole, parts)
		}
	})
}
