package main_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// The guide to pools, sentence by sentence and in its order: each subtest is
// one sentence, and says what the product does about it now. What a sentence
// needs and is not there yet is skipped with the reason.

// guide is one control plane with a tenant for each part that the guide gives:
// root owns platform capacity, acme is a customer, rival another one.
type guide struct {
	*box
	op             *person
	shared, custom appliance.Site

	exclusive, mig, timeslice, mps, dedicated, vps appliance.Pool
}

func TestGuide(t *testing.T) {
	g := &guide{box: startBox(t)}
	g.op = g.operator(t)
	g.tenant(t, "acme")
	g.tenant(t, "rival")
	g.shared, g.custom = g.site(t, "root", "fra1", "shared"), g.site(t, "acme", "lab", "custom")
	g.exclusive = g.pool(t, g.shared, "h100", object{"policy": object{"acceptance": []any{object{"kind": "diag.nvml"}}, "maxPending": "6h"}})
	g.mig = g.pool(t, g.shared, "mig", object{"sharing": "mig", "ownerQuota": object{"gpu.mig": 100}})
	g.timeslice = g.pool(t, g.custom, "slices", object{"sharing": "timeslice", "gpuModel": "L40S", "ownerQuota": object{"gpu.slot": 100}})
	g.mps = g.pool(t, g.custom, "mps", object{"sharing": "mps", "gpuModel": "L40S", "ownerQuota": object{"gpu.slot": 100}})
	g.dedicated = g.pool(t, g.shared, "metal", object{"class": "metal-dedicated"})
	g.vps = g.pool(t, g.shared, "vps", object{"class": "vps-host", "ownerQuota": object{"gpu": 8, "vcpu": 1000}})
	for _, m := range []struct {
		pool    appliance.Pool
		machine string
		nodes   int
	}{{g.exclusive, "dgx-h100", 2}, {g.mig, "h100-mig", 1}, {g.timeslice, "l40s-4", 1}, {g.mps, "l40s-4", 1}, {g.dedicated, "dgx-h100", 1}, {g.vps, "dgx-h100", 1}} {
		_, stop := g.runFleet(t, m.pool, m.machine, m.nodes)
		t.Cleanup(stop)
	}
	g.ready(t, g.exclusive, 2)
	for _, p := range []appliance.Pool{g.mig, g.timeslice, g.mps, g.dedicated, g.vps} {
		g.ready(t, p, 1)
	}

	for _, section := range []struct {
		name string
		walk func(*testing.T)
	}{
		{"pools", g.intro},
		{"what a pool is made of", g.fields},
		{"classes", g.classes},
		{"one GPU model", g.oneModel},
		{"sharing modes", g.sharingModes},
		{"pool policy", g.policyFields},
		{"pool policy, resource rows", g.resourceRows},
		{"pool policy, host policy fields", g.hostPolicy},
		{"create a pool", g.create},
		{"offerings", g.offerings},
		{"update and archive", g.updateAndArchive},
		{"the pools API", g.poolsAPI},
	} {
		t.Run(section.name, section.walk)
	}
}

// see reads a pool as a tenant sees it.
func (g *guide) see(t *testing.T, tenant, poolID string) appliance.Pool {
	t.Helper()
	return do[appliance.Pool](t, g.op, "pools.get", object{"tenantId": tenant, "poolId": poolID})
}

// reserve claims resources and answers what became of it.
func (g *guide) reserve(t *testing.T, tenant string, pool appliance.Pool, resources object, more ...object) appliance.Reservation {
	t.Helper()
	in := object{"tenantId": tenant, "poolId": pool.ID, "resources": resources}
	for _, m := range more {
		for k, v := range m {
			in[k] = v
		}
	}
	return do[appliance.Reservation](t, g.op, "reservations.create", in)
}

func (g *guide) release(t *testing.T, r appliance.Reservation) {
	t.Helper()
	do[appliance.Reservation](t, g.op, "reservations.release", object{"tenantId": r.TenantID, "reservationId": r.ID})
}

func (g *guide) reservation(t *testing.T, r appliance.Reservation) appliance.Reservation {
	t.Helper()
	return do[appliance.Reservation](t, g.op, "reservations.get", object{"tenantId": r.TenantID, "reservationId": r.ID})
}

func (g *guide) capacity(t *testing.T, p appliance.Pool) appliance.Capacity {
	t.Helper()
	return do[appliance.Capacity](t, g.op, "pools.capacity", object{"tenantId": p.OwnerTenantID, "poolId": p.ID})
}

func (g *guide) nodesOf(t *testing.T, p appliance.Pool) []appliance.Node {
	t.Helper()
	return do[nodes](t, g.op, "nodes.list", object{"tenantId": p.OwnerTenantID, "poolId": p.ID}).Items
}

func (g *guide) intro(t *testing.T) {
	t.Run("a pool lives in one site, with one GPU model, one sharing mode and a policy", func(t *testing.T) {
		p := g.see(t, "root", g.exclusive.ID)
		if p.SiteID != g.shared.ID || p.GPUModel != "H100" || p.Sharing != "exclusive" || !strings.Contains(string(p.Policy), "diag.nvml") {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("every reservation names exactly one pool", func(t *testing.T) {
		refuse(t, g.op, "reservations.create", object{"tenantId": "root", "resources": object{"gpu": 1}}, appliance.InvalidInput, "poolId")
		r := g.reserve(t, "root", g.exclusive, object{"gpu": 1})
		defer g.release(t, r)
		if r.PoolID != g.exclusive.ID {
			t.Errorf("it names %s", r.PoolID)
		}
	})
	t.Run("every quota is per pool", func(t *testing.T) {
		refuse(t, g.op, "quotas.set", object{"tenantId": "root", "resource": "gpu", "max": 1}, appliance.InvalidInput, "poolId")
		a, b := g.pool(t, g.shared, "quota-a", object{"ownerQuota": object{"gpu": 3}}), g.pool(t, g.shared, "quota-b", object{"ownerQuota": object{"gpu": 5}})
		if qa, qb := g.see(t, "root", a.ID).Quotas, g.see(t, "root", b.ID).Quotas; len(qa) != 1 || len(qb) != 1 || qa[0].Max != 3 || qb[0].Max != 5 {
			t.Errorf("got %v and %v", qa, qb)
		}
	})
	t.Run("a pool has an owner tenant: root for platform capacity", func(t *testing.T) {
		if g.exclusive.OwnerTenantID != "root" || !g.exclusive.Owned {
			t.Errorf("got %+v", g.exclusive)
		}
	})
	t.Run("a customer that brings its own hardware owns the pools on its custom site", func(t *testing.T) {
		if g.timeslice.OwnerTenantID != "acme" || g.timeslice.SiteID != g.custom.ID || g.custom.Kind != "custom" {
			t.Errorf("got %+v", g.timeslice)
		}
	})
	t.Run("other tenants see a pool only when its owner offers it to them", func(t *testing.T) {
		p := g.pool(t, g.shared, "hidden", nil)
		in := object{"tenantId": "rival", "poolId": p.ID}
		refuse(t, g.op, "pools.get", in, appliance.NotFound, "")
		if seen := do[pools](t, g.op, "pools.list", object{"tenantId": "rival"}).Items; len(seen) != 0 {
			t.Errorf("rival sees %v", seen)
		}
		g.offer(t, p, "rival", object{"gpu": 1})
		if q := do[appliance.Pool](t, g.op, "pools.get", in).Quotas; len(q) != 1 || q[0].Max != 1 {
			t.Errorf("the offer's quota is %v", q)
		}
		do[appliance.Pool](t, g.op, "pools.archive", object{"tenantId": "root", "poolId": p.ID})
	})
}

func (g *guide) fields(t *testing.T) {
	t.Run("id is pool_ and a ULID", func(t *testing.T) {
		if !appliance.IsID("pool_", g.exclusive.ID) {
			t.Errorf("got %q", g.exclusive.ID)
		}
	})
	t.Run("id is derived from an idempotency key", func(t *testing.T) {
		a := g.pool(t, g.shared, "", object{"idempotencyKey": "id"})
		if b := g.pool(t, g.shared, "", object{"idempotencyKey": "id"}); !appliance.IsID("pool_", a.ID) || a.ID != b.ID {
			t.Errorf("got %s and %s", a.ID, b.ID)
		}
	})
	t.Run("ownerTenantId is the tenant that created it and may offer, update and archive it", func(t *testing.T) {
		p := g.pool(t, g.shared, "owned", nil)
		g.offer(t, p, "acme", object{"gpu": 1})
		for _, c := range []struct {
			method string
			in     object
		}{{"pools.offer", object{"toTenantId": "rival", "quota": object{}}}, {"pools.update", object{"policy": object{}}}, {"pools.archive", object{}}} {
			c.in["tenantId"], c.in["poolId"] = "acme", p.ID
			refuse(t, g.op, c.method, c.in, appliance.NotFound, "")
			c.in["tenantId"] = "root"
			if a := g.op.try(t, c.method, c.in); a.status != 200 {
				t.Errorf("the owner's %s: %s", c.method, a.body)
			}
		}
	})
	for field, value := range map[string]any{"siteId": "site_01k5c000000000000000000000", "class": "vps-host", "sharing": "mig", "agent": "none"} {
		t.Run(field+" never changes", func(t *testing.T) {
			refuse(t, g.op, "pools.update", object{"tenantId": "root", "poolId": g.exclusive.ID, field: value}, appliance.InvalidInput, field)
		})
	}
	t.Run("gpuModel is 1 to 32 letters, digits or hyphens", func(t *testing.T) {
		for _, model := range []string{"H100", "RTX-6000-Ada", "a", strings.Repeat("x", 32)} {
			g.pool(t, g.shared, "", object{"gpuModel": model})
		}
		for _, model := range []string{"", strings.Repeat("x", 33), "H 100", "H100\n", "Ж", "H_100"} {
			refuse(t, g.op, "pools.create", object{"tenantId": "root", "siteId": g.shared.ID, "class": "metal-host", "gpuModel": model}, appliance.InvalidInput, "gpuModel")
		}
	})
	t.Run("sharing is exclusive by default and one of four", func(t *testing.T) {
		if p := g.pool(t, g.shared, "", nil); p.Sharing != "exclusive" {
			t.Errorf("got %s", p.Sharing)
		}
		for _, bad := range []any{"shared", "", "Exclusive"} {
			if a := g.op.try(t, "pools.create", object{"tenantId": "root", "siteId": g.shared.ID, "class": "metal-host", "gpuModel": "H100", "sharing": bad}); a.code() != appliance.InvalidInput || a.refusal().Field != "sharing" {
				t.Errorf("sharing %q: %d %s", bad, a.status, a.body)
			}
		}
	})
	t.Run("agent is bcd by default, none for provider pools", func(t *testing.T) {
		p := g.pool(t, g.shared, "", object{"class": "provider", "providerAccountId": "pacct_01k5c000000000000000000000"})
		if g.exclusive.Agent != "bcd" || p.Agent != "none" {
			t.Errorf("got %s and %s", g.exclusive.Agent, p.Agent)
		}
	})
	t.Run("policy is {} by default", func(t *testing.T) {
		if p := g.pool(t, g.shared, "", nil); string(p.Policy) != "{}" {
			t.Errorf("got %s", p.Policy)
		}
	})
	t.Run("version is raised by every update", func(t *testing.T) {
		p := g.pool(t, g.shared, "", nil)
		for want := 1; want <= 3; want++ {
			if p.Version != want {
				t.Errorf("version %d, want %d", p.Version, want)
			}
			p = do[appliance.Pool](t, g.op, "pools.update", object{"tenantId": "root", "poolId": p.ID, "policy": object{}})
		}
	})
}

func (g *guide) classes(t *testing.T) {
	for _, c := range []struct {
		class appliance.Class
		pool  appliance.Pool
		role  appliance.NodeRole
	}{{"metal-host", g.exclusive, "host"}, {"vps-host", g.vps, "host"}, {"metal-dedicated", g.dedicated, "dedicated"}} {
		t.Run(string(c.class)+" gives machines the role "+string(c.role), func(t *testing.T) {
			for _, n := range g.nodesOf(t, c.pool) {
				if c.pool.Class != c.class || n.Role != c.role {
					t.Errorf("node %s of class %s has role %s", n.ID, c.pool.Class, n.Role)
				}
			}
		})
	}
	t.Run("provider gives machines the role host", func(t *testing.T) {
		t.Skip("machines of a provider account come with the VPS providers; that the class needs the account and agent none is tested under create")
	})
	t.Run("only host nodes add schedulable capacity", func(t *testing.T) {
		if c := g.capacity(t, g.exclusive); c.Nodes.Schedulable != 2 || c.Resources["gpu"].Total != 16 {
			t.Errorf("the hosts add %+v", c)
		}
		c := g.capacity(t, g.dedicated)
		if c.Nodes.Total != 1 || len(c.Resources) != 0 || len(c.Largest) != 0 || c.Free.GPUs != 0 {
			t.Errorf("the dedicated node adds %+v", c)
		}
		if r := g.reserve(t, "root", g.dedicated, object{"gpu": 1}); r.State != appliance.Pending {
			t.Errorf("a reservation was %s on a dedicated node", r.State)
		} else {
			g.release(t, r)
		}
	})
	t.Run("metal-host machines are reserved as holds", func(t *testing.T) {
		r := g.reserve(t, "root", g.exclusive, object{"gpu": 2})
		defer g.release(t, r)
		if r.Binding != appliance.BindHold || r.State != appliance.Placed || len(r.Placements[0].Devices) != 2 {
			t.Errorf("got %+v", r)
		}
		await(t, g.op, "root", "the node confirms the hold", func() bool { return g.reservation(t, r).State == appliance.Active })
	})
	t.Run("vps-host is for hypervisors that run VPS instances", func(t *testing.T) {
		refuse(t, g.op, "reservations.create", object{"tenantId": "root", "poolId": g.exclusive.ID, "resources": object{"gpu": 1}, "binding": "instance"}, appliance.InvalidInput, "binding")
		r := g.reserve(t, "root", g.vps, object{"vcpu": 2}, object{"binding": "instance"})
		defer g.release(t, r)
		if r.State != appliance.Placed {
			t.Errorf("got %s: %s", r.State, r.Message)
		}
	})
	t.Run("metal deploys dedicated machines whole", func(t *testing.T) {
		t.Skip("bare-metal deployment comes later; that dedicated nodes get no host units and no rows is tested here and under host policy fields")
	})
}

func (g *guide) oneModel(t *testing.T) {
	t.Run("the model is the family that inventory derives from the NVML name", func(t *testing.T) {
		for _, d := range g.nodesOf(t, g.exclusive)[0].Devices {
			if d.Product != "NVIDIA H100 80GB HBM3" || d.Model != "H100" {
				t.Errorf("%q is of family %q", d.Product, d.Model)
			}
		}
		if d := g.nodesOf(t, g.timeslice)[0].Devices[0]; d.Model != "L40S" {
			t.Errorf("%q is of family %q", d.Product, d.Model)
		}
	})
	t.Run("a machine with another model is quarantined with the names shown", func(t *testing.T) {
		p := g.pool(t, g.shared, "other", nil)
		_, stop := g.runFleet(t, p, "l40s-4", 1)
		defer stop()
		await(t, g.op, "root", "the machine is quarantined", func() bool {
			n := g.nodesOf(t, p)
			return len(n) == 1 && n[0].State == appliance.NodeQuarantined
		})
		n := g.nodesOf(t, p)[0]
		i := slices.IndexFunc(n.Conditions, func(c appliance.Condition) bool { return c.Type == appliance.ConditionModelMatches })
		if i < 0 || n.Conditions[i].Status || !strings.Contains(n.Conditions[i].Message, "NVIDIA L40S") || !strings.Contains(n.Conditions[i].Message, "H100") {
			t.Errorf("the condition is %+v", n.Conditions)
		}
		if c := g.capacity(t, p); c.Nodes.Schedulable != 0 || c.Resources["gpu"].Available != 0 {
			t.Errorf("it adds %+v", c)
		}
	})
	t.Run("policies, IAM attributes and meters key on the model", func(t *testing.T) {
		acme := g.key(t, "acme", appliance.RoleMember)
		g.offer(t, g.exclusive, "acme", object{"gpu": 1})
		do[appliance.AccessPolicy](t, g.op, "iam.policies.put", object{"tenantId": "acme", "name": "no-h100",
			"cedar": `forbid (principal, action == Action::"compute:reservations:create", resource is Pool) when { resource.gpuModel == "H100" };`})
		refuse(t, acme, "reservations.create", object{"tenantId": "acme", "poolId": g.exclusive.ID, "resources": object{"gpu": 1}}, appliance.AccessDenied, "")
		do[appliance.PolicyDeleted](t, g.op, "iam.policies.delete", object{"tenantId": "acme", "name": "no-h100"})
		r := do[appliance.Reservation](t, acme, "reservations.create", object{"tenantId": "acme", "poolId": g.exclusive.ID, "resources": object{"gpu": 1}})
		usage := do[appliance.List[appliance.Usage]](t, acme, "usage.query", object{"tenantId": "acme", "from": "2020-01-01T00:00:00Z", "to": "2020-06-01T00:00:00Z"})
		if len(usage.Items) != 0 {
			t.Errorf("usage before there was any: %v", usage.Items)
		}
		at := r.PlacedAt.UTC()
		eventually(t, "usage names the meter gpu.h100.hours", func() bool {
			usage = do[appliance.List[appliance.Usage]](t, acme, "usage.query",
				object{"tenantId": "acme", "from": appliance.At(at.AddDate(0, 0, -1)), "to": appliance.At(at.AddDate(0, 0, 1))})
			return slices.ContainsFunc(usage.Items, func(u appliance.Usage) bool { return u.Meter == "gpu.h100.hours" && u.Quantity > 0 })
		})
		g.release(t, r)
		do[appliance.Unoffered](t, g.op, "pools.unoffer", object{"tenantId": "root", "poolId": g.exclusive.ID, "toTenantId": "acme"})
	})
	t.Run("selectors narrow within the model by gpuProduct, vramGiB or any other attribute", func(t *testing.T) {
		node := g.nodesOf(t, g.exclusive)[1]
		do[appliance.Node](t, g.op, "nodes.label", object{"tenantId": "root", "nodeId": node.ID, "labels": object{"rack": "r2"}})
		for _, c := range []struct {
			selector object
			fits     bool
		}{
			{object{"gpuProduct": "NVIDIA H100 80GB HBM3"}, true},
			{object{"gpuProduct": "NVIDIA H100 NVL"}, false},
			{object{"vramGiB": object{"min": 80}}, true},
			{object{"vramGiB": object{"min": 81}}, false},
			{object{"rack": object{"in": []string{"r1", "r2"}}}, true},
			{object{"rack": "r3"}, false},
		} {
			r := g.reserve(t, "root", g.exclusive, object{"gpu": 1}, object{"selector": c.selector, "dryRun": true})
			if fits := r.State == appliance.Placed; fits != c.fits {
				t.Errorf("%v: %s, %s", c.selector, r.State, r.Message)
			}
			if c.selector["rack"] != nil && c.fits && r.Placements[0].NodeID != node.ID {
				t.Errorf("%v placed on another node", c.selector)
			}
		}
	})
}

func (g *guide) sharingModes(t *testing.T) {
	book := func(t *testing.T, tenant string, p appliance.Pool, resource string) appliance.Reservation {
		t.Helper()
		r := g.reserve(t, tenant, p, object{resource: 1})
		t.Cleanup(func() { g.release(t, r) })
		if r.State != appliance.Placed {
			t.Fatalf("%s: %s", r.State, r.Message)
		}
		return r
	}
	t.Run("exclusive: each GPU is one atom, booked whole", func(t *testing.T) {
		r := book(t, "root", g.exclusive, "gpu")
		if at := r.Placements[0]; !slices.Equal(at.Atoms, at.Devices) || len(at.Atoms) != 1 {
			t.Errorf("the atoms are %v of %v", at.Atoms, at.Devices)
		}
	})
	t.Run("mig: GPUs expose their instances as gpu.mig atoms", func(t *testing.T) {
		if c := g.capacity(t, g.mig); c.Resources["gpu.mig"].Total != 56 || c.Resources["gpu"].Total != 0 {
			t.Errorf("8 GPUs with 7 instances each are %+v", c.Resources)
		}
		if r := book(t, "root", g.mig, "gpu.mig"); !strings.HasPrefix(r.Placements[0].Atoms[0], "MIG-") {
			t.Errorf("the atom is %s", r.Placements[0].Atoms)
		}
	})
	t.Run("timeslice and mps: each GPU is split into gpu.slot atoms", func(t *testing.T) {
		if s, m := g.capacity(t, g.timeslice).Resources["gpu.slot"].Total, g.capacity(t, g.mps).Resources["gpu.slot"].Total; s != 4*4 || m != 4*10 {
			t.Errorf("4 GPUs are %d slots with timeslice, %d with mps", s, m)
		}
		r := book(t, "acme", g.timeslice, "gpu.slot")
		if at := r.Placements[0]; !strings.HasPrefix(at.Atoms[0], at.Devices[0]+"#") {
			t.Errorf("the atom is %s", at.Atoms)
		}
	})
	t.Run("a request asks for the atom of the pool's mode", func(t *testing.T) {
		for resource, p := range map[string]appliance.Pool{"gpu.mig": g.exclusive, "gpu": g.mig, "gpu.slot": g.mig} {
			refuse(t, g.op, "reservations.create", object{"tenantId": "root", "poolId": p.ID, "resources": object{resource: 1}}, appliance.InvalidInput, "resources."+resource)
		}
	})
	t.Run("timeslice and mps give no isolation, so these pools can be offered only to their owner", func(t *testing.T) {
		for _, p := range []appliance.Pool{g.timeslice, g.mps} {
			in := object{"tenantId": "acme", "poolId": p.ID, "toTenantId": "rival", "quota": object{"gpu.slot": 1}}
			refuse(t, g.op, "pools.offer", in, appliance.InvalidState, "toTenantId")
			in["toTenantId"] = "acme"
			do[appliance.Offer](t, g.op, "pools.offer", in)
			do[appliance.Quota](t, g.op, "quotas.set", object{"tenantId": "acme", "poolId": p.ID, "resource": "gpu.slot", "max": 100})
		}
	})
}

func (g *guide) poolsAPI(t *testing.T) {
	body, err := g.op.Get(t.Context(), "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]struct {
			Post struct {
				Action string `json:"x-action"`
			}
		}
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	for method, action := range map[string]string{
		"pools.list": "compute:pools:read", "pools.get": "compute:pools:read", "pools.create": "compute:pools:create",
		"pools.capacity": "compute:capacity:read", "pools.offer": "compute:pools:share", "pools.unoffer": "compute:pools:share",
		"pools.update": "compute:pools:manage", "pools.archive": "compute:pools:manage",
	} {
		t.Run(method+" is served and decided as "+action, func(t *testing.T) {
			if got := doc.Paths["/v1/"+method].Post.Action; got != action {
				t.Errorf("it is %q", got)
			}
			g.decides(t, method, action)
		})
	}
	t.Run("events: pool.created, offered, unoffered, updated, archived, and quota.updated from quotas.set", func(t *testing.T) {
		after := lastSeq(t, g.op, "root")
		p := g.pool(t, g.shared, "life", nil)
		own := object{"tenantId": "root", "poolId": p.ID}
		g.offer(t, p, "acme", object{"gpu": 1})
		do[appliance.Quota](t, g.op, "quotas.set", object{"tenantId": "root", "poolId": p.ID, "forTenantId": "acme", "resource": "gpu", "max": 2})
		do[appliance.Pool](t, g.op, "pools.update", object{"tenantId": "root", "poolId": p.ID, "gpuModel": "H200"})
		do[appliance.Unoffered](t, g.op, "pools.unoffer", object{"tenantId": "root", "poolId": p.ID, "toTenantId": "acme"})
		do[appliance.Pool](t, g.op, "pools.archive", own)
		var got []string
		for _, e := range eventsOf(t, g.op, "root", after) {
			if e.PoolID == p.ID {
				got = append(got, string(e.Type))
			}
		}
		if want := []string{"pool.created", "pool.offered", "quota.updated", "pool.updated", "pool.unoffered", "pool.archived"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("better-compute pools list --tenant acme lists pools", func(t *testing.T) { g.cliLists(t) })
}

// decides forbids an action to a tenant by its own policy, and sees the method
// refused for that and for nothing else.
func (g *guide) decides(t *testing.T, method, action string) {
	t.Helper()
	name := "owner-" + strings.TrimPrefix(method, "pools.")
	k := do[appliance.Key](t, g.op, "iam.keys.create", object{"tenantId": "rival", "name": name, "role": "owner"})
	rival := g.person(t, name, k.Secret)
	site := g.site(t, "rival", name, "custom")
	p := g.pool(t, site, name, nil)
	in := map[string]object{
		"pools.list": {}, "pools.get": {"poolId": p.ID}, "pools.capacity": {"poolId": p.ID},
		"pools.create": {"siteId": site.ID, "class": "metal-host", "gpuModel": "H100"},
		"pools.offer":  {"poolId": p.ID, "toTenantId": "acme", "quota": object{"gpu": 1}}, "pools.unoffer": {"poolId": p.ID, "toTenantId": "acme"},
		"pools.update": {"poolId": p.ID, "policy": object{}}, "pools.archive": {"poolId": p.ID},
	}[method]
	in["tenantId"] = "rival"
	do[appliance.AccessPolicy](t, g.op, "iam.policies.put",
		object{"tenantId": "rival", "name": name, "cedar": `forbid (principal, action == Action::"` + action + `", resource);`})
	want := appliance.AccessDenied
	if method == "pools.get" {
		want = appliance.NotFound // what may not be read is not there
	}
	refuse(t, rival, method, in, want, "")
	do[appliance.PolicyDeleted](t, g.op, "iam.policies.delete", object{"tenantId": "rival", "name": name})
	if a := rival.try(t, method, in); a.status != 200 {
		t.Errorf("without the policy: %s", a.body)
	}
}
