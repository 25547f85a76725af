package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// policyRow is one row of the table of what a policy may hold. Values are JSON
// of the whole policy; a refusal names a path below policy.
type policyRow struct {
	field string
	in    string // which pool the row is tried in
	legal []string
	not   []refusedPolicy
}

type refusedPolicy struct{ path, policy string }

// join is a whole join set of kubernetes, with more.
func join(more string) string {
	return `{"kubernetes":{"apiServer":"https://10.0.0.1:6443","caCertSha256":"sha256:` + strings.Repeat("0a", 32) + `","joinTokenRef":"k8s/join"` + more + `}}`
}

func labels(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"key%d":"v"`, i)
	}
	return b.String()
}

func times(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }

var policyTable = []policyRow{
	{"acceptance", "metal", []string{`{"acceptance":[]}`, `{"acceptance":[{"kind":"diag.nvml","with":{"minDriver":"535.104","minDevices":8,"maxTemperatureC":85}}]}`, `{"acceptance":[` + times(32, `{"kind":"diag.nvml"}`) + `]}`}, []refusedPolicy{
		{"acceptance", `{"acceptance":[` + times(33, `{"kind":"diag.nvml"}`) + `]}`},
		{"acceptance", `{"acceptance":{}}`},
		{"acceptance[0].kind", `{"acceptance":[{"kind":"diag.dcgm"}]}`},
		{"acceptance[1].kind", `{"acceptance":[{"kind":"diag.nvml"},{}]}`},
		{"acceptance[0].with", `{"acceptance":[{"kind":"diag.nvml","with":[]}]}`},
		{"acceptance[0].with.minDevices", `{"acceptance":[{"kind":"diag.nvml","with":{"minDevices":"8"}}]}`},
	}},
	{"overcommit", "metal", []string{`{"overcommit":{}}`, `{"overcommit":{"vcpu":0.001,"memoryGiB":1e6,"hugepages2Mi":1,"hugepages1Gi":2,"diskGiB":3.5}}`}, []refusedPolicy{
		{"overcommit.gpu", `{"overcommit":{"gpu":1}}`},
		{"overcommit.gpu.mig", `{"overcommit":{"gpu.mig":2}}`},
		{"overcommit.cores", `{"overcommit":{"cores":2}}`},
		{"overcommit.vcpu", `{"overcommit":{"vcpu":0}}`},
		{"overcommit.vcpu", `{"overcommit":{"vcpu":-1}}`},
		{"overcommit.vcpu", `{"overcommit":{"vcpu":"2"}}`},
		{"overcommit.vcpu", `{"overcommit":{"vcpu":1e999}}`},
	}},
	{"lostAfter, maxPending", "metal", []string{`{"lostAfter":"90s","maxPending":"365d"}`, `{"maxPending":"1h30m","lostAfter":"1d12h"}`}, []refusedPolicy{
		{"maxPending", `{"maxPending":"0s"}`},
		{"maxPending", `{"maxPending":"-1h"}`},
		{"maxPending", `{"maxPending":"366d"}`},
		{"maxPending", `{"maxPending":"6 hours"}`},
		{"maxPending", `{"maxPending":21600}`},
		{"maxPending", `{"maxPending":""}`},
		{"lostAfter", `{"lostAfter":"soon"}`},
	}},
	{"disruptionBudget", "metal", []string{`{"disruptionBudget":0}`, `{"disruptionBudget":1}`, `{"disruptionBudget":0.05}`}, []refusedPolicy{
		{"disruptionBudget", `{"disruptionBudget":-0.01}`},
		{"disruptionBudget", `{"disruptionBudget":1.0001}`},
		{"disruptionBudget", `{"disruptionBudget":"5%"}`},
	}},
	{"joinAttestors", "metal", []string{`{"joinAttestors":["join-token"]}`}, []refusedPolicy{
		{"joinAttestors", `{"joinAttestors":[]}`},
		{"joinAttestors[0]", `{"joinAttestors":["nobody"]}`},
		{"joinAttestors[1]", `{"joinAttestors":["join-token","join-token"]}`},
		{"joinAttestors", `{"joinAttestors":[` + times(17, `"join-token"`) + `]}`},
		{"joinAttestors", `{"joinAttestors":"join-token"}`},
	}},
	{"sharing.replicas", "timeslice", []string{`{"sharing":{"replicas":1}}`, `{"sharing":{"replicas":48}}`, `{"sharing":{}}`}, []refusedPolicy{
		{"sharing.replicas", `{"sharing":{"replicas":0}}`},
		{"sharing.replicas", `{"sharing":{"replicas":49}}`},
		{"sharing.replicas", `{"sharing":{"replicas":2.5}}`},
	}},
	{"sharing.replicas elsewhere", "metal", []string{`{"sharing":{}}`}, []refusedPolicy{
		{"sharing.replicas", `{"sharing":{"replicas":4}}`},
	}},
	{"hostReserve, perGpu", "metal", []string{`{"hostReserve":{"vcpu":0,"memoryGiB":0},"perGpu":{"vcpu":2147483647}}`, `{"perGpu":{"memoryGiB":4.0}}`}, []refusedPolicy{
		{"hostReserve.vcpu", `{"hostReserve":{"vcpu":-1}}`},
		{"hostReserve.memoryGiB", `{"hostReserve":{"memoryGiB":0.5}}`},
		{"perGpu.vcpu", `{"perGpu":{"vcpu":2147483648}}`},
		{"perGpu.memoryGiB", `{"perGpu":{"memoryGiB":"8"}}`},
		{"perGpu", `{"perGpu":null}`},
	}},
	{"hugepages", "metal", []string{`{"hugepages":{"size":"2Mi","count":0}}`, `{"hugepages":{"size":"1Gi","count":16777216,"perNuma":true}}`}, []refusedPolicy{
		{"hugepages.size", `{"hugepages":{"size":"4Ki","count":1}}`},
		{"hugepages.size", `{"hugepages":{"count":1}}`},
		{"hugepages.count", `{"hugepages":{"size":"2Mi"}}`},
		{"hugepages.count", `{"hugepages":{"size":"2Mi","count":-1}}`},
		{"hugepages.count", `{"hugepages":{"size":"2Mi","count":16777217}}`},
		{"hugepages.perNuma", `{"hugepages":{"size":"2Mi","count":1,"perNuma":"yes"}}`},
	}},
	{"kernelModules", "metal", []string{`{"kernelModules":{"load":["nvidia-peermem","vfio_pci"],"options":{"nvidia":"NVreg_EnableGpuFirmware=1 a=b"}}}`, `{"kernelModules":{"load":[]}}`}, []refusedPolicy{
		{"kernelModules.load[0]", `{"kernelModules":{"load":["../evil"]}}`},
		{"kernelModules.load[0]", `{"kernelModules":{"load":[""]}}`},
		{"kernelModules.load[0]", `{"kernelModules":{"load":["` + strings.Repeat("m", 65) + `"]}}`},
		{"kernelModules.load", `{"kernelModules":{"load":[` + times(65, `"m"`) + `]}}`},
		{"kernelModules.options.nvidia", `{"kernelModules":{"options":{"nvidia":"a=b\ninstall nvidia /bin/sh"}}}`},
		{"kernelModules.options.nvidia", `{"kernelModules":{"options":{"nvidia":"a=\"b\""}}}`},
		{"kernelModules.options.nvidia", `{"kernelModules":{"options":{"nvidia":"noequals"}}}`},
		{"kernelModules.options.nvidia", `{"kernelModules":{"options":{"nvidia":"a=b # c"}}}`},
	}},
	{"cpu", "metal", []string{`{"cpu":{"governor":"performance"}}`, `{"cpu":{"governor":"schedutil","isolate":"2-5,8"}}`, `{"cpu":{"governor":"powersave","isolate":"8191"}}`, `{"cpu":{"governor":"ondemand"}}`}, []refusedPolicy{
		{"cpu.governor", `{"cpu":{"governor":"turbo"}}`},
		{"cpu.isolate", `{"cpu":{"isolate":"0-3"}}`},
		{"cpu.isolate", `{"cpu":{"isolate":"5-2"}}`},
		{"cpu.isolate", `{"cpu":{"isolate":"8,2"}}`},
		{"cpu.isolate", `{"cpu":{"isolate":"8192"}}`},
		{"cpu.isolate", `{"cpu":{"isolate":"2;reboot"}}`},
		{"cpu.Governor", `{"cpu":{"Governor":"performance"}}`},
	}},
	{"booleans", "metal", []string{`{"iommu":{"passthrough":true},"tenantRoot":true,"singleTenant":true,"workloadIdentity":true,"trustProvisioningNetwork":true,"gpu":{"ecc":false}}`}, []refusedPolicy{
		{"iommu.passthrough", `{"iommu":{"passthrough":1}}`},
		{"tenantRoot", `{"tenantRoot":"true"}`},
		{"singleTenant", `{"singleTenant":null}`},
		{"workloadIdentity", `{"workloadIdentity":0}`},
		{"trustProvisioningNetwork", `{"trustProvisioningNetwork":[]}`},
		{"gpu.ecc", `{"gpu":{"ecc":"on"}}`},
	}},
	{"gpu.powerLimitWatts", "metal", []string{`{"gpu":{"powerLimitWatts":1}}`, `{"gpu":{"powerLimitWatts":10000}}`}, []refusedPolicy{
		{"gpu.powerLimitWatts", `{"gpu":{"powerLimitWatts":0}}`},
		{"gpu.powerLimitWatts", `{"gpu":{"powerLimitWatts":10001}}`},
		{"gpu.powerLimitWatts", `{"gpu":{"powerLimitWatts":350.5}}`},
	}},
	{"kubernetes on a custom site", "custom", []string{join(""), join(`,"gpuApi":"dra","labels":{"a.example/b":"c"},"taints":["a=b:NoSchedule"]`), `{"kubernetes":{}}`, `{"kubernetes":{"gpuApi":"device-plugin"}}`}, []refusedPolicy{
		{"kubernetes.apiServer", strings.Replace(join(""), `"https:`, `"http:`, 1)},
		{"kubernetes.caCertSha256", strings.Replace(join(""), `sha256:0`, `sha256:`, 1)},
		{"kubernetes.caCertSha256", `{"kubernetes":{"apiServer":"https://10.0.0.1:6443","joinTokenRef":"k8s/join"}}`},
		{"kubernetes.joinTokenRef", strings.Replace(join(""), `,"joinTokenRef":"k8s/join"`, "", 1)},
		{"kubernetes.apiServer", `{"kubernetes":{"joinTokenRef":"k8s/join"}}`},
		{"kubernetes.gpuApi", `{"kubernetes":{"gpuApi":"cdi"}}`},
		{"kubernetes.platformOperated", join(`,"platformOperated":true`)},
	}},
	{"kubernetes on a shared site", "metal", []string{join(`,"platformOperated":true`), `{"kubernetes":{"platformOperated":true}}`}, []refusedPolicy{
		{"kubernetes.platformOperated", join("")},
		{"kubernetes.platformOperated", join(`,"platformOperated":false`)},
	}},
	{"telemetry", "metal", []string{`{"telemetry":{"otlpEndpoint":"https://otel.example:4318","intervalSeconds":5,"headersRef":"otel/headers","resourceAttributes":{"a":"b"}}}`, `{"telemetry":{"intervalSeconds":3600}}`, `{"telemetry":{"resourceAttributes":{` + labels(32) + `}}}`}, []refusedPolicy{
		{"telemetry.otlpEndpoint", `{"telemetry":{"otlpEndpoint":"otel.example"}}`},
		{"telemetry.intervalSeconds", `{"telemetry":{"intervalSeconds":4}}`},
		{"telemetry.intervalSeconds", `{"telemetry":{"intervalSeconds":3601}}`},
		{"telemetry.resourceAttributes", `{"telemetry":{"resourceAttributes":{` + labels(33) + `}}}`},
		{"telemetry.resourceAttributes.a", `{"telemetry":{"resourceAttributes":{"a":1}}}`},
	}},
	{"migLayout", "mig", []string{`{"migLayout":"all-1g.10gb"}`, `{"migLayout":"3g.40gb,2x2g.20gb"}`}, []refusedPolicy{
		{"migLayout", `{"migLayout":"all-9g.90gb"}`},
		{"migLayout", `{"migLayout":"8x1g.10gb"}`},
		{"migLayout", `{"migLayout":""}`},
		{"migLayout", `{"migLayout":["1g.10gb"]}`},
	}},
	{"migLayout elsewhere", "metal", nil, []refusedPolicy{
		{"migLayout", `{"migLayout":"all-1g.10gb"}`},
	}},
	{"admission.budgetCheck", "metal", []string{`{"admission":{"budgetCheck":"none"}}`, `{"admission":{"budgetCheck":"meter"}}`, `{"admission":{}}`}, []refusedPolicy{
		{"admission.budgetCheck", `{"admission":{"budgetCheck":"always"}}`},
		{"admission.budgetCheck", `{"admission":{"budgetCheck":true}}`},
	}},
	{"the whole", "metal", []string{`{}`, `{"unknown":{"deep":[1,{"a":null}]},"maxpendings":"x"}`, `{"big":12345678901234567890,"exact":0.10,"exp":1E+2,"é":"\u00e9\ud83d\ude00"}`}, []refusedPolicy{
		{"maxPending", `{"maxPending":"1h","maxPending":"2h"}`},
		{"other.a", `{"other":{"a":1,"a":2}}`},
		{"MaxPending", `{"MaxPending":"1h"}`},
		{"cpu", `{"cpu":"performance"}`},
	}},
}

// Every row of the table, on create and on update. A refusal has its code,
// field and words, and leaves the pool as it was and no event; what is taken
// comes back as it was given, as the whole policy.
func TestGuidePolicyTable(t *testing.T) {
	b := startBox(t)
	op := b.operator(t)
	b.tenant(t, "acme")
	shared, custom := b.site(t, "root", "fra1", "shared"), b.site(t, "acme", "lab", "custom")
	homes := map[string]appliance.Pool{
		"metal": b.pool(t, shared, "metal", nil), "custom": b.pool(t, custom, "custom", nil),
		"mig": b.pool(t, shared, "mig", object{"sharing": "mig"}), "timeslice": b.pool(t, shared, "timeslice", object{"sharing": "timeslice"}),
	}
	for _, row := range policyTable {
		t.Run(row.field, func(t *testing.T) {
			p := homes[row.in]
			ref := object{"tenantId": p.OwnerTenantID, "poolId": p.ID}
			create := func(policy string) answer {
				return op.post(t, "pools.create", fmt.Appendf(nil, `{"tenantId":%q,"siteId":%q,"class":%q,"gpuModel":%q,"sharing":%q,"policy":%s}`,
					p.OwnerTenantID, p.SiteID, p.Class, p.GPUModel, p.Sharing, policy))
			}
			change := func(policy string) answer {
				return op.post(t, "pools.update", fmt.Appendf(nil, `{"tenantId":%q,"poolId":%q,"policy":%s}`, p.OwnerTenantID, p.ID, policy))
			}
			for _, policy := range row.legal {
				version := do[appliance.Pool](t, op, "pools.get", ref).Version
				for _, a := range []answer{create(policy), change(policy)} {
					if a.status != 200 || !bytes.Contains(a.body, []byte(`"policy":`+policy+`,"version"`)) {
						t.Errorf("%s: not taken as given: %d %s", policy, a.status, a.body)
					}
				}
				if got := do[appliance.Pool](t, op, "pools.get", ref); got.Version != version+1 || string(got.Policy) != policy {
					t.Errorf("%s: the pool has version %d, before %d, and %s", policy, got.Version, version, got.Policy)
				}
			}
			before, after := op.try(t, "pools.get", ref).body, lastSeq(t, op, p.OwnerTenantID)
			pools := op.try(t, "pools.list", object{"tenantId": p.OwnerTenantID, "limit": 500}).body
			for _, no := range row.not {
				for _, a := range []answer{create(no.policy), change(no.policy)} {
					e := a.refusal()
					if a.status != 400 || e.Code != appliance.InvalidInput || e.Field != "policy."+no.path || !strings.HasPrefix(e.Message, "policy: "+no.path+": ") {
						t.Errorf("%s: got %d %s on %q with %q, want 400 on %q", clipped(no.policy), a.status, e.Code, e.Field, e.Message, "policy."+no.path)
					}
				}
			}
			if now := op.try(t, "pools.get", ref).body; !bytes.Equal(now, before) {
				t.Errorf("refusals changed the pool from %s to %s", before, now)
			}
			if now := op.try(t, "pools.list", object{"tenantId": p.OwnerTenantID, "limit": 500}).body; !bytes.Equal(now, pools) {
				t.Error("refusals made a pool")
			}
			if left := eventsOf(t, op, p.OwnerTenantID, after); len(left) != 0 {
				t.Errorf("refusals left %v", types(left))
			}
		})
	}
	t.Run("expectedVersion", func(t *testing.T) {
		p := homes["custom"]
		now := do[appliance.Pool](t, op, "pools.get", object{"tenantId": "acme", "poolId": p.ID})
		in := object{"tenantId": "acme", "poolId": p.ID, "policy": object{"maxPending": "2h"}, "expectedVersion": now.Version - 1}
		e := refuse(t, op, "pools.update", in, appliance.ConflictCode, "expectedVersion")
		if e.Details["version"] != float64(now.Version) {
			t.Errorf("the details are %v, the version is %d", e.Details, now.Version)
		}
		in["expectedVersion"] = now.Version
		if got := do[appliance.Pool](t, op, "pools.update", in); got.Version != now.Version+1 {
			t.Errorf("got version %d", got.Version)
		}
		refuse(t, op, "pools.update", in, appliance.ConflictCode, "expectedVersion")
	})
	t.Run("an offered tenant sees no Ref", func(t *testing.T) {
		do[appliance.Pool](t, op, "pools.update", object{"tenantId": "acme", "poolId": homes["custom"].ID,
			"policy": json.RawMessage(strings.Replace(join(`,"gpuApi":"dra"`), "{", `{"telemetry":{"headersRef":"secret","intervalSeconds":9},`, 1))})
		b.tenant(t, "guest")
		b.offer(t, homes["custom"], "guest", object{})
		a := op.try(t, "pools.get", object{"tenantId": "guest", "poolId": homes["custom"].ID})
		if s := string(a.body); strings.Contains(s, "Ref") || strings.Contains(s, "secret") || strings.Contains(s, "k8s/join") || !strings.Contains(s, `"intervalSeconds":9`) {
			t.Errorf("the offered tenant sees %s", s)
		}
	})
}

func clipped(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
