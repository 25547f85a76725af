package iam

import (
	"fmt"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// reserve is the hot path: one reservations.create by an API key.
func reserve() Question {
	return Question{
		Caller: apiKey("acme", appliance.RoleMember), Action: appliance.ReservationsCreate,
		Tenant: "acme", Pool: h100("acme", false), At: noon,
	}
}

func BenchmarkDecide(b *testing.B) {
	models := `forbid (principal, action, resource is Pool) when { resource.gpuModel == "B200" };`
	hours := `forbid (principal, action, resource) when { context.at > datetime("2030-01-01") };`
	for _, c := range []struct {
		name     string
		policies []string
	}{{"roles", nil}, {"tenant-policy", []string{models}}, {"hours-policy", []string{hours}}} {
		e, q := tree(b, c.policies...), reserve()
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !e.Decide(q).Allowed {
					b.Fatal("denied")
				}
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					e.Decide(q)
				}
			})
		})
	}
	b.Run("by-the-policies", func(b *testing.B) {
		e, q := tree(b), reserve()
		t, _ := e.judge(q)
		b.ReportAllocs()
		for b.Loop() {
			e.evaluate(t, q, e.world(q))
		}
	})
}

func BenchmarkDecideAll1000(b *testing.B) {
	var alike, unlike []appliance.AuthzRow
	for i := range 1000 {
		row := *h100("acme", i%2 == 0)
		row.PoolID = fmt.Sprintf("pool_%d", i)
		row.GPUModel = []string{"H100", "A100", "L40S", "B200"}[i%4]
		alike = append(alike, row)
		row.Region = fmt.Sprintf("region-%d", i) // worse than any fleet
		unlike = append(unlike, row)
	}
	model := `forbid (principal, action, resource is Pool) when { resource.gpuModel == "B200" };`
	region := `forbid (principal, action, resource is Pool) when { resource.region like "*-7*" };`
	hours := `forbid (principal, action, resource is Pool) when { resource.gpuModel == "B200" && context.at > datetime("2026-01-01") };`
	var fifty []string
	for i := range 50 {
		fifty = append(fifty, fmt.Sprintf(`forbid (principal, action, resource is Pool) when { resource.gpuModel == "X%d" && resource.region == "r%d" };`, i, i))
	}
	for _, c := range []struct {
		name     string
		rows     []appliance.AuthzRow
		policies []string
		cold     bool
	}{
		{"roles", alike, nil, false},
		{"model-policy", alike, []string{model}, false},
		{"model-policy/first-time", alike, []string{model}, true},
		{"hours-policy", alike, []string{hours}, false},
		{"region-policy/all-unlike/first-time", unlike, []string{region}, true},
		{"50-policies", alike, fifty, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := tree(b, c.policies...)
			q := Question{Caller: apiKey("acme", appliance.RoleViewer), Action: appliance.PoolsRead, Tenant: "acme", At: noon}
			b.ReportAllocs()
			for b.Loop() {
				if c.cold {
					t, _ := e.tenants.Load("acme")
					clear(t.(*tenant).memory.m)
				}
				e.DecideAll(q, c.rows)
			}
		})
	}
}

func BenchmarkValidatePolicy(b *testing.B) {
	for b.Loop() {
		if err := ValidatePolicy(`forbid (principal, action, resource is Pool) when { resource.gpuModel == "B200" };`); err != nil {
			b.Fatal(err)
		}
	}
}
