package control

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// used sums a meter of a tenant over the day of the fixture.
func (f *fixture) used(tenant, meter string) (quantity, cost float64) {
	f.t.Helper()
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	got, err := f.c.QueryUsage(context.Background(), operator, appliance.QueryUsage{
		TenantID: tenant, From: appliance.At(day), To: appliance.At(day.AddDate(0, 0, 3)),
	})
	f.must(err)
	for _, u := range got.Items {
		if u.Meter == meter {
			quantity += u.Quantity
			if u.Cost != nil {
				cost += *u.Cost
			}
		}
	}
	return quantity, cost
}

func (f *fixture) wantUsed(tenant, meter string, want float64) {
	f.t.Helper()
	if got, _ := f.used(tenant, meter); math.Abs(got-want) > 1e-6 {
		f.t.Fatalf("%s of %s is %v, want %v", meter, tenant, got, want)
	}
}

// 4 GPUs for 30 minutes, then 1 for 20: 2.33 GPU-hours, also over a restart, a
// clock set back, and asked again.
func TestUsageIsIntegratedOverRestartsAndClocks(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	four := f.reserve(pool, 4)
	f.advance(20 * time.Minute)
	f.wantUsed(f.own, "gpu.h100.hours", 4*20.0/60)
	f.restart()
	f.advance(10 * time.Minute)
	f.release(four)
	one := f.reserve(pool, 1)
	f.advance(20 * time.Minute)
	f.release(one)
	for range 2 {
		f.wantUsed(f.own, "gpu.h100.hours", 2+1.0/3)
	}
	back := f.reserve(pool, 2)
	f.advance(-15 * time.Minute)
	f.wantUsed(f.own, "gpu.h100.hours", 2+1.0/3)
	f.release(back)
	f.wantUsed(f.own, "gpu.h100.hours", 2+1.0/3)
	f.verify()
}

// What a reservation holds counts as the model that the pool had then.
func TestUsageIsCutWhereThePoolsModelChanges(t *testing.T) {
	f := newFixture(t)
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	r := f.reserve(pool, 2)
	f.advance(time.Hour)
	_, err := f.c.UpdatePool(context.Background(), operator, appliance.UpdatePool{TenantID: f.own, PoolID: pool, GPUModel: "H200"})
	f.must(err)
	f.advance(time.Hour)
	f.wantUsed(f.own, "gpu.h100.hours", 2)
	f.wantUsed(f.own, "gpu.h200.hours", 2)
	f.release(r)
	f.wantUsed(f.own, "gpu.h100.hours", 2)
	f.wantUsed(f.own, "gpu.h200.hours", 2)
}

func TestASpentBudgetRefusesAndDrains(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	f.tenant("stops")
	f.tenant("drains")
	f.tenant("free")
	for tenant, then := range map[string]appliance.OnBudgetExceeded{"stops": appliance.BudgetStopNew, "drains": appliance.BudgetDrain, "free": appliance.BudgetNone} {
		_, err := f.c.OfferPool(ctx, operator, appliance.OfferPool{TenantID: f.own, PoolID: pool, ToTenantID: tenant, Quota: appliance.QuotaMap{"gpu": 8}, OnBudgetExceeded: then})
		f.must(err)
		_, err = f.c.SetBudget(ctx, operator, appliance.SetBudget{TenantID: appliance.Root, ForTenantID: tenant, Period: appliance.PeriodMonth, Amount: 3})
		f.must(err)
	}
	_, err := f.c.SetRate(ctx, operator, appliance.SetRate{TenantID: f.own, Meter: "gpu.h100.hours", PerUnit: 2})
	f.must(err)
	ask := func(tenant string) (appliance.Reservation, error) {
		return f.c.CreateReservation(ctx, operator, appliance.CreateReservation{TenantID: tenant, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}})
	}
	running := map[string]appliance.Reservation{}
	for _, tenant := range []string{"stops", "drains", "free"} {
		if running[tenant], err = ask(tenant); err != nil {
			t.Fatal(err)
		}
	}
	f.advance(time.Hour) // 2 of 3 are spent
	f.must(f.c.WatchBudgets(ctx))
	f.advance(45 * time.Minute) // 3.5
	f.must(f.c.WatchBudgets(ctx))
	f.must(f.c.WatchBudgets(ctx)) // again changes and tells nothing
	if r := f.get(running["drains"]); r.State != appliance.Ended || r.Reason != appliance.ReasonBudgetExceeded {
		t.Errorf("what drains is %s %s", r.State, r.Reason)
	}
	for _, tenant := range []string{"stops", "free"} {
		if r := f.get(running[tenant]); r.State != appliance.Placed {
			t.Errorf("what runs of %s is %s", tenant, r.State)
		}
	}
	for _, tenant := range []string{"stops", "drains"} {
		if _, err := ask(tenant); appliance.CodeOf(err) != appliance.SpendLimitReached {
			t.Errorf("%s may go on: %v", tenant, err)
		}
	}
	if _, err := ask("free"); err != nil {
		t.Errorf("an offer that asks for no budget refuses: %v", err)
	}
	events, err := f.c.ListEvents(ctx, operator, appliance.ListEvents{TenantID: "drains", Limit: 500})
	f.must(err)
	told := 0
	for _, e := range events.Items {
		if e.Type == appliance.EventBudgetExceeded {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times that the budget is spent", told)
	}
	f.advance(31 * 24 * time.Hour) // another month
	if _, err := ask("stops"); appliance.CodeOf(err) != appliance.SpendLimitReached {
		t.Errorf("what still runs has spent the new month's budget too: %v", err)
	}
	f.release(running["stops"])
	f.verify()
}

func TestATenantCannotRaiseTheBudgetThatWasSetAbove(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.tenant("lab")
	set := func(by string, amount float64) error {
		_, err := f.c.SetBudget(ctx, operator, appliance.SetBudget{TenantID: by, ForTenantID: "lab", Period: appliance.PeriodTotal, Amount: amount})
		return err
	}
	f.must(set("lab", 5)) // its own, as long as nobody above has set one
	f.must(set(appliance.Root, 3))
	if err := set("lab", 9); appliance.CodeOf(err) != appliance.AccessDenied {
		t.Errorf("raised: %v", err)
	}
	if err := set(f.own, 9); appliance.CodeOf(err) != appliance.NotFound {
		t.Errorf("a tenant beside it: %v", err)
	}
}
