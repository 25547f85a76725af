package main_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// The guide's section on pool policy: what each field does, and what becomes
// of it on the hosts. Which values are legal is in TestGuidePolicyTable.

// with makes a pool on root's site with a policy.
func (g *guide) with(t *testing.T, policy object, more ...object) appliance.Pool {
	t.Helper()
	in := object{"policy": policy}
	for _, m := range more {
		for k, v := range m {
			in[k] = v
		}
	}
	return g.pool(t, g.shared, "", in)
}

// set replaces a pool's policy.
func (g *guide) set(t *testing.T, p appliance.Pool, policy object) appliance.Pool {
	t.Helper()
	return do[appliance.Pool](t, g.op, "pools.update", object{"tenantId": p.OwnerTenantID, "poolId": p.ID, "policy": policy})
}

// rows are the counted resources of a pool's one node.
func (g *guide) rows(t *testing.T, p appliance.Pool) map[string]appliance.ResourceRow {
	t.Helper()
	out := map[string]appliance.ResourceRow{}
	for _, r := range g.nodesOf(t, p)[0].Resources {
		out[r.Resource] = r
	}
	return out
}

// becomes waits until a row of a pool's one node has a total.
func (g *guide) becomes(t *testing.T, p appliance.Pool, resource string, total int) {
	t.Helper()
	eventually(t, resource+" is as the policy says", func() bool { return g.rows(t, p)[resource].Total == total })
}

func (g *guide) policyFields(t *testing.T) {
	t.Run("policy is a JSON object", func(t *testing.T) {
		for _, bad := range []any{[]any{}, "x", 1, true} {
			refuse(t, g.op, "pools.create", object{"tenantId": "root", "siteId": g.shared.ID, "class": "metal-host", "gpuModel": "H100", "policy": bad}, appliance.InvalidInput, "policy")
		}
	})
	t.Run("unknown fields are stored as given", func(t *testing.T) {
		policy := `{"maxPending":"6h","mine":{"b":1.50,"a":[null,12345678901234567890],"\u006e":"\u00e9\/"},"cpu":{"isolate":"2-3","ours":false}}`
		a := g.op.post(t, "pools.create", []byte(`{"tenantId":"root","siteId":"`+g.shared.ID+`","class":"metal-host","gpuModel":"H100","policy":`+policy+`}`))
		if a.status != 200 || !strings.Contains(string(a.body), policy) {
			t.Fatalf("%d, the policy is not there as given: %s", a.status, a.body)
		}
	})
	t.Run("acceptance: checks a node must pass before it becomes schedulable", func(t *testing.T) {
		n := g.nodesOf(t, g.exclusive)[0]
		if i := slices.IndexFunc(n.Conditions, func(c appliance.Condition) bool { return c.Type == appliance.ConditionAccepted && c.Status }); i < 0 || !n.Schedulable {
			t.Errorf("a node that passed: %+v", n.Conditions)
		}
		p := g.with(t, object{"acceptance": []any{object{"kind": "diag.nvml", "with": object{"minDevices": 9}}}})
		_, stop := g.runFleet(t, p, "dgx-h100", 1)
		defer stop()
		await(t, g.op, "root", "the node fails its check", func() bool {
			n := g.nodesOf(t, p)
			return len(n) == 1 && n[0].State == appliance.NodeQuarantined && !n[0].Schedulable
		})
		if r := g.reserve(t, "root", p, object{"gpu": 1}, object{"dryRun": true}); r.State != appliance.Pending {
			t.Errorf("it is %s on a node that failed", r.State)
		}
		g.set(t, p, object{"acceptance": []any{object{"kind": "diag.nvml", "with": object{"minDevices": 8}}}})
		g.ready(t, p, 1)
	})
	t.Run("overcommit: ratios for scalar resources; GPUs are never overcommitted", func(t *testing.T) {
		refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, "policy": object{"overcommit": object{"gpu": 2}}}, appliance.InvalidInput, "policy.overcommit.gpu")
	})
	t.Run("lostAfter: applied only to provider pools, never to metal", func(t *testing.T) {
		g.with(t, object{"lostAfter": "1s"}) // stored; that metal is never lost is in the tests of liveness
		t.Skip("nodes of provider pools come with the VPS providers; the value is checked and stored")
	})
	t.Run("disruptionBudget: 0 to 1, by default 0.05", func(t *testing.T) {
		g.with(t, object{"disruptionBudget": 1})
		refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, "policy": object{"disruptionBudget": 1.01}}, appliance.InvalidInput, "policy.disruptionBudget")
		t.Skip("remediation and rollouts come later; the value is checked and stored")
	})
	t.Run("maxPending: how long a reservation may stay pending before MaxPendingExceeded", func(t *testing.T) {
		p := g.with(t, object{"maxPending": "1s"})
		r := g.reserve(t, "root", p, object{"gpu": 1})
		await(t, g.op, "root", "the reservation fails", func() bool { return g.reservation(t, r).State == appliance.Failed })
		if got := g.reservation(t, r); got.Reason != "MaxPendingExceeded" || got.EndedAt == nil || got.EndedAt.Sub(got.CreatedAt.Time).Seconds() < 1 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("hardwareProfile: the metal profile whose driver bindings nodes inherit", func(t *testing.T) {
		g.with(t, object{"hardwareProfile": "dgx"})
		t.Skip("metal hardware profiles come later; the value is checked and stored")
	})
	t.Run("joinAttestors: the attestors that may admit a machine, 1 to 16 that the control plane runs", func(t *testing.T) {
		g.with(t, object{"joinAttestors": []string{"join-token"}})
		for _, bad := range [][]string{{}, {"nobody"}, {"join-token", "join-token"}} {
			a := g.op.try(t, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, "policy": object{"joinAttestors": bad}})
			if a.code() != appliance.InvalidInput || !strings.HasPrefix(a.refusal().Field, "policy.joinAttestors") {
				t.Errorf("%v: %s", bad, a.body)
			}
		}
		t.Skip("joining with attestors and tokens comes later: the refusal with reason pool-attestor is not reachable yet")
	})
	t.Run("trustProvisioningNetwork, workloadIdentity: stored for bare metal and VPS", func(t *testing.T) {
		g.with(t, object{"trustProvisioningNetwork": true, "workloadIdentity": true})
		t.Skip("bare-metal discovery and VPS instances come later; the values are checked and stored")
	})
	t.Run("sharing.replicas: slots per GPU in timeslice and mps pools, 1 to 48", func(t *testing.T) {
		for _, n := range []any{0, 49, 1.5, "4"} {
			refuse(t, g.op, "pools.update", object{"tenantId": "acme", "poolId": g.mps.ID, "policy": object{"sharing": object{"replicas": n}}}, appliance.InvalidInput, "policy.sharing.replicas")
		}
		g.set(t, g.mps, object{"sharing": object{"replicas": 48}})
		eventually(t, "each of 4 GPUs has 48 slots", func() bool { return g.capacity(t, g.mps).Resources["gpu.slot"].Total == 4*48 })
		g.set(t, g.mps, object{})
		eventually(t, "the default is back", func() bool { return g.capacity(t, g.mps).Resources["gpu.slot"].Total == 4*10 })
	})
	t.Run("perGpu: what a reservation books per whole GPU when it asks for no resources", func(t *testing.T) {
		p := g.with(t, object{"perGpu": object{"vcpu": 3, "memoryGiB": 5}})
		g.fleet(t, p, "dgx-h100", 1)
		r := g.reserve(t, "root", p, object{"gpu": 2}, object{"dryRun": true})
		if r.Booked["vcpu"] != 6 || r.Booked["memoryGiB"] != 10 || r.Booked["gpu"] != 2 {
			t.Errorf("booked %v", r.Booked)
		}
		if r := g.reserve(t, "root", g.exclusive, object{"gpu": 1}, object{"dryRun": true}); r.Booked["vcpu"] != (g.rows(t, g.exclusive)["vcpu"].Total)/8 {
			t.Errorf("the smallest share of a host with 8 GPUs is %v of %v", r.Booked, g.rows(t, g.exclusive))
		}
	})
	t.Run("migLayout: mig pools only, a layout such as all-1g.10gb", func(t *testing.T) {
		g.set(t, g.mig, object{"migLayout": "all-1g.10gb"})
		refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.mig.ID, "policy": object{"migLayout": "all-9g.10gb"}}, appliance.InvalidInput, "policy.migLayout")
		refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, "policy": object{"migLayout": "all-1g.10gb"}}, appliance.InvalidInput, "policy.migLayout")
	})
	t.Run("migLayout: a change reaches each node only once its GPUs are free", func(t *testing.T) {
		t.Skip("the agent does not apply units yet; that the unit names the GPUs to leave alone is tested in package plan")
	})
	t.Run("tenantRoot: reservations may use binding node to lease whole machines", func(t *testing.T) {
		refuse(t, g.op, "reservations.create", object{"tenantId": "root", "poolId": g.exclusive.ID, "resources": object{"gpu": 1}, "binding": "node"}, appliance.InvalidInput, "binding")
		p := g.with(t, object{"tenantRoot": true})
		g.fleet(t, p, "dgx-h100", 1)
		r := g.reserve(t, "root", p, object{"gpu": 8}, object{"binding": "node"})
		if r.State != appliance.Placed || len(r.Placements[0].Devices) != 8 || g.capacity(t, p).Free.Nodes != 0 {
			t.Errorf("got %+v", r)
		}
		do[appliance.Quota](t, g.op, "quotas.set", object{"tenantId": "root", "poolId": p.ID, "resource": "vcpu", "max": 1})
		if second := g.reserve(t, "root", p, object{"vcpu": 1}, object{"dryRun": true}); second.State != appliance.Pending {
			t.Error("something else fits on a machine that is leased whole")
		}
	})
	t.Run("kubernetes: reservations may use binding kubernetes", func(t *testing.T) {
		refuse(t, g.op, "reservations.create", object{"tenantId": "root", "poolId": g.exclusive.ID, "resources": object{"gpu": 1}, "binding": "kubernetes"}, appliance.InvalidInput, "binding")
		p := g.with(t, object{"kubernetes": object{}})
		if r := g.reserve(t, "root", p, object{"gpu": 1}, object{"binding": "kubernetes"}); r.Binding != "kubernetes" || r.State != appliance.Pending {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("kubernetes: on a site that is not custom the join set needs platformOperated", func(t *testing.T) {
		set := object{"apiServer": "https://10.0.0.1:6443", "caCertSha256": "sha256:" + strings.Repeat("a", 64), "joinTokenRef": "k8s/join"}
		in := object{"tenantId": "root", "siteId": g.shared.ID, "class": "metal-host", "gpuModel": "H100", "policy": object{"kubernetes": set}}
		refuse(t, g.op, "pools.create", in, appliance.InvalidInput, "policy.kubernetes.platformOperated")
		set["platformOperated"] = true
		do[appliance.Pool](t, g.op, "pools.create", in)
		in["tenantId"], in["siteId"] = "acme", g.custom.ID
		refuse(t, g.op, "pools.create", in, appliance.InvalidInput, "policy.kubernetes.platformOperated")
		delete(set, "platformOperated")
		do[appliance.Pool](t, g.op, "pools.create", in)
	})
	t.Run("admission.budgetCheck meter: a spent budget is SPEND_LIMIT_REACHED on create and extend", func(t *testing.T) {
		p := g.with(t, object{"admission": object{"budgetCheck": "meter"}})
		g.offer(t, p, "rival", object{"gpu": 4})
		r := g.reserve(t, "rival", p, object{"gpu": 1}, object{"duration": "1h"})
		do[appliance.Budget](t, g.op, "budgets.set", object{"tenantId": "root", "forTenantId": "rival", "period": "total", "amount": 0})
		refuse(t, g.op, "reservations.create", object{"tenantId": "rival", "poolId": p.ID, "resources": object{"gpu": 1}}, appliance.SpendLimitReached, "")
		refuse(t, g.op, "reservations.extend", object{"tenantId": "rival", "reservationId": r.ID, "duration": "2h"}, appliance.SpendLimitReached, "")
		g.set(t, p, object{"admission": object{"budgetCheck": "none"}})
		g.reserve(t, "rival", p, object{"gpu": 1})
		do[appliance.Budget](t, g.op, "budgets.set", object{"tenantId": "root", "forTenantId": "rival", "period": "total", "amount": 1e6})
	})
	t.Run("an offer's onBudgetExceeded stop-new or drain turns the same check on", func(t *testing.T) {
		for _, mode := range []string{"stop-new", "drain"} {
			p := g.with(t, object{})
			do[appliance.Offer](t, g.op, "pools.offer", object{"tenantId": "root", "poolId": p.ID, "toTenantId": "rival", "quota": object{"gpu": 4}, "onBudgetExceeded": mode})
			g.reserve(t, "rival", p, object{"gpu": 1})
			do[appliance.Budget](t, g.op, "budgets.set", object{"tenantId": "root", "forTenantId": "rival", "period": "total", "amount": 0})
			refuse(t, g.op, "reservations.create", object{"tenantId": "rival", "poolId": p.ID, "resources": object{"gpu": 1}}, appliance.SpendLimitReached, "")
			do[appliance.Budget](t, g.op, "budgets.set", object{"tenantId": "root", "forTenantId": "rival", "period": "total", "amount": 1e6})
		}
	})
}

func (g *guide) resourceRows(t *testing.T) {
	p := g.with(t, object{"overcommit": object{"vcpu": 2}})
	g.fleet(t, p, "dgx-h100", 1) // 2 × 56 cores with 2 threads, 2 TiB
	const threads = 224

	t.Run("every other pool: vcpu is the logical CPUs less hostReserve.vcpu, with the ratio", func(t *testing.T) {
		if r := g.rows(t, p)["vcpu"]; r.Total != (threads-2)*2 || r.Overcommit != 2 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("the placer reads the ratio that is stored on the row", func(t *testing.T) {
		if r := g.reserve(t, "root", g.vps, object{"vcpu": threads}, object{"dryRun": true}); r.State != appliance.Placed {
			t.Errorf("ratio 1: %s", r.Message)
		}
		do[appliance.Quota](t, g.op, "quotas.set", object{"tenantId": "root", "poolId": p.ID, "resource": "vcpu", "max": 1000})
		for amount, want := range map[int]appliance.ReservationState{(threads - 2) * 2: appliance.Placed, (threads-2)*2 + 1: appliance.Pending} {
			if r := g.reserve(t, "root", p, object{"vcpu": amount}, object{"dryRun": true}); r.State != want {
				t.Errorf("%d of %d: %s", amount, (threads-2)*2, r.State)
			}
		}
	})
	t.Run("memoryGiB is the installed memory less hostReserve.memoryGiB, with the ratio", func(t *testing.T) {
		before := g.rows(t, p)["memoryGiB"].Total
		g.set(t, p, object{"hostReserve": object{"memoryGiB": 0}})
		g.becomes(t, p, "memoryGiB", before+8)
		g.set(t, p, object{"hostReserve": object{"memoryGiB": 0, "vcpu": 24}, "overcommit": object{"memoryGiB": 1.5}})
		g.becomes(t, p, "memoryGiB", (before+8)*3/2)
		g.becomes(t, p, "vcpu", threads-24)
	})
	t.Run("the ratio is 1 by default and clamped to 0.1 to 100", func(t *testing.T) {
		g.set(t, p, object{"overcommit": object{"vcpu": 1000000}})
		g.becomes(t, p, "vcpu", (threads-2)*100)
		g.set(t, p, object{"overcommit": object{"vcpu": 0.000001}})
		g.becomes(t, p, "vcpu", (threads-2)/10)
		g.set(t, p, object{})
		g.becomes(t, p, "vcpu", threads-2)
	})
	t.Run("huge pages: the configured pages that the host has, never overcommitted", func(t *testing.T) {
		g.set(t, p, object{"hugepages": object{"size": "1Gi", "count": 64}, "overcommit": object{"hugepages1Gi": 10}})
		eventually(t, "the row is there", func() bool { _, ok := g.rows(t, p)["hugepages1Gi"]; return ok })
		if r := g.rows(t, p)["hugepages1Gi"]; r.Total != 0 || r.Overcommit != 1 {
			t.Errorf("a host without the pages shows %+v", r)
		}
		g.set(t, p, object{})
	})
	t.Run("vps-host: vcpu and memoryGiB of the whole host, and diskGiB", func(t *testing.T) {
		if r := g.rows(t, g.vps); r["vcpu"].Total != threads || r["diskGiB"].Total == 0 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("tenant-controlled nodes get no rows", func(t *testing.T) {
		t.Skip("a node's control is set by its join token, which comes later; the rows are tested in package plan")
	})
	t.Run("a row never shrinks below what is allocated", func(t *testing.T) {
		g.becomes(t, p, "vcpu", threads-2)
		r := g.reserve(t, "root", p, object{"gpu": 1, "vcpu": 200})
		g.set(t, p, object{"hostReserve": object{"vcpu": 220}})
		g.becomes(t, p, "vcpu", 200)
		g.release(t, r)
		g.set(t, p, object{"hostReserve": object{"vcpu": 221}})
		g.becomes(t, p, "vcpu", threads-221)
		g.set(t, p, object{})
		g.becomes(t, p, "vcpu", threads-2)
	})
	t.Run("unchanged rows are not rewritten", func(t *testing.T) {
		t.Skip("no write can be seen from outside; it is tested in packages plan and control")
	})
	t.Run("GPU reservations book these rows with their devices", func(t *testing.T) {
		r := g.reserve(t, "root", p, object{"gpu": 2})
		rows := g.rows(t, p)
		if share := (threads - 2) / 8 * 2; r.Booked["vcpu"] != share || rows["vcpu"].Allocated != share || rows["memoryGiB"].Allocated != r.Booked["memoryGiB"] {
			t.Errorf("booked %v, allocated %v", r.Booked, rows)
		}
		g.release(t, r)
		if rows := g.rows(t, p); rows["vcpu"].Allocated != 0 || rows["memoryGiB"].Allocated != 0 {
			t.Errorf("after the release %v is allocated", rows)
		}
	})
}

// units names config units, in order.
func units(kinds ...wire.UnitKind) []string {
	out := []string{}
	for _, k := range kinds {
		out = append(out, string(k))
	}
	slices.Sort(out)
	return out
}

func (g *guide) hostPolicy(t *testing.T) {
	kinds := func(p appliance.Pool) []string {
		var out []wire.UnitKind
		for _, u := range g.nodesOf(t, p)[0].Units {
			out = append(out, u.Kind)
		}
		return units(out...)
	}
	t.Run("the host policy fields become config units in every host's NodeSpec", func(t *testing.T) {
		p := g.with(t, object{
			"hugepages": object{"size": "2Mi", "count": 1024, "perNuma": true}, "kernelModules": object{"load": []string{"nvidia-peermem"}},
			"cpu": object{"governor": "performance", "isolate": "2-5"}, "iommu": object{"passthrough": true}, "gpu": object{"powerLimitWatts": 500, "ecc": true},
			"telemetry":  object{"otlpEndpoint": "https://otel.example:4318"},
			"kubernetes": object{"apiServer": "https://10.0.0.1:6443", "caCertSha256": "sha256:" + strings.Repeat("a", 64), "joinTokenRef": "k8s/join", "platformOperated": true},
		})
		g.agent(t, p, "dgx-h100")
		want := units(wire.UnitCPU, wire.UnitGPUSettings, wire.UnitHugepages, wire.UnitIOMMU, wire.UnitK8sJoin, wire.UnitKernelModules, wire.UnitTelemetry)
		await(t, g.op, "root", "the node tells of its units", func() bool { return slices.Equal(kinds(p), want) })
		g.set(t, p, object{})
		await(t, g.op, "root", "the node tells that they are gone", func() bool { return len(kinds(p)) == 0 })
	})
	t.Run("a sharing mode of mps or timeslice becomes the gpu-sharing unit, migLayout the mig-layout unit", func(t *testing.T) {
		layout := g.with(t, object{"migLayout": "all-1g.10gb"}, object{"sharing": "mig"})
		g.agent(t, layout, "h100-mig")
		slots := g.pool(t, g.custom, "", object{"sharing": "mps", "gpuModel": "L40S"})
		g.agent(t, slots, "l40s-4")
		for want, p := range map[wire.UnitKind]appliance.Pool{wire.UnitGPUSharing: slots, wire.UnitMIGLayout: layout} {
			await(t, g.op, p.OwnerTenantID, "the node tells of its unit", func() bool { return slices.Equal(kinds(p), units(want)) })
		}
	})
	t.Run("dedicated machines get no host units", func(t *testing.T) {
		g.set(t, g.dedicated, object{"cpu": object{"governor": "performance"}})
		if got := kinds(g.dedicated); len(got) != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("the units are kept applied on the host", func(t *testing.T) {
		t.Skip("what each unit does to a machine is tested with the agent, on recorded trees and under systemd")
	})
	t.Run("pools.create and pools.update run the validators before writing", func(t *testing.T) {
		bad := object{"cpu": object{"isolate": "0-3"}}
		after := lastSeq(t, g.op, "root")
		e := refuse(t, g.op, "pools.create", object{"tenantId": "root", "siteId": g.shared.ID, "class": "metal-host", "gpuModel": "H100", "policy": bad}, appliance.InvalidInput, "policy.cpu.isolate")
		if e.Message != "policy: cpu.isolate: CPU 0 cannot be isolated" {
			t.Errorf("it says %q", e.Message)
		}
		refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, "policy": bad}, appliance.InvalidInput, "policy.cpu.isolate")
		if p := g.see(t, "root", g.exclusive.ID); p.Version != 1 {
			t.Errorf("the refused update left version %d", p.Version)
		}
		if got := eventsOf(t, g.op, "root", after); len(got) != 0 {
			t.Errorf("the refusals left %v", types(got))
		}
	})
}
