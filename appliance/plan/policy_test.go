package plan

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// metalPool is a customer's pool of H100, as most policies here are checked for.
func metalPool(sharing appliance.Sharing) PolicyContext {
	return PolicyContext{
		Class: appliance.ClassMetalHost, Sharing: sharing, GPUModel: "H100",
		SiteKind: appliance.SiteCustom, OwnerTenantID: "acme",
		Attestors: []string{"join-token", "x509pop", "tpm"},
	}
}

func platformPool(kind appliance.SiteKind) PolicyContext {
	c := metalPool(appliance.SharingExclusive)
	c.SiteKind, c.OwnerTenantID = kind, appliance.Root
	return c
}

var (
	exclusive = metalPool(appliance.SharingExclusive)
	mig       = metalPool(appliance.SharingMIG)
	timeslice = metalPool(appliance.SharingTimeslice)
	mps       = metalPool(appliance.SharingMPS)
	sha256    = "sha256:" + strings.Repeat("0123456789abcdef", 4)
	joinSet   = `"apiServer": "https://k8s.example:6443", "caCertSha256": "` + sha256 + `", "joinTokenRef": "vault:k8s"`
)

// A row of the API's table of policy validation is a row here: what is legal
// with an empty answer, what is not with the whole message.
var policyCases = []struct {
	pool   PolicyContext
	policy string
	want   string
}{
	{exclusive, ``, ""},
	{exclusive, `{}`, ""},
	{exclusive, `[]`, "policy: is not a JSON object"},
	{exclusive, `null`, "policy: is not a JSON object"},
	{exclusive, `{} {}`, "policy: has something behind its object"},
	{exclusive, `{"cpu": {}`, "policy: cpu: is not valid JSON: it ends too early"},
	{exclusive, `{"cpu": {]}`, "policy: cpu: is not valid JSON: invalid character ']' at start of value at byte 9"},

	// Fields that the code does not know are stored, at every level.
	{exclusive, `{"future": 12345678901234567890, "x": {"y": [null, 1e999]}}`, ""},
	{exclusive, `{"cpu": {"turbo": null}, "acceptance": [{"kind": "diag.nvml", "every": "1d", "with": {"more": 1}}]}`, ""},

	// What two readers could read differently.
	{exclusive, `{"tenantRoot": true, "tenantRoot": false}`, "policy: tenantRoot: is given twice"},
	{exclusive, `{"cpu": {"isolate": "1", "isolate": "2"}}`, "policy: cpu.isolate: is given twice"},
	{exclusive, `{"future": [{"a": 1, "\u0061": 2}]}`, "policy: future[0].a: is given twice"},
	{exclusive, `{"overcommit": {"vcpu": 1, "vcpu": 2}}`, "policy: overcommit.vcpu: is given twice"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"minDevices": 1, "minDevices": 2}}]}`, "policy: acceptance[0].with.minDevices: is given twice"},
	{exclusive, `{"maxpending": "6h"}`, "policy: maxpending: is not a field; did you mean maxPending?"},
	{exclusive, `{"kubernetes": {"APIServer": "https://k8s"}}`, "policy: kubernetes.APIServer: is not a field; did you mean apiServer?"},
	{exclusive, `{"acceptance": [{"Kind": "diag.nvml"}]}`, "policy: acceptance[0].Kind: is not a field; did you mean kind?"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"mindriver": "1"}}]}`, "policy: acceptance[0].with.mindriver: is not a field; did you mean minDriver?"},
	{exclusive, `{"cpu": null}`, "policy: cpu: is null; leave the field out instead"},
	{exclusive, `{"hugepages": {"size": "2Mi", "count": null}}`, "policy: hugepages.count: is null; leave the field out instead"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": null}]}`, "policy: acceptance[0].with: is null; leave the field out instead"},
	{exclusive, "{\"future\": {\"a\": \"\xff\"}}", "policy: future.a: holds bytes that are not UTF-8"},
	{exclusive, `{"a b": ` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, `policy: "a b"` + strings.Repeat("[0]", 31) + ": nests deeper than 32"},
	{exclusive, `{"a": ` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, ""},

	{exclusive, `{"acceptance": [{"kind": "diag.nvml"}]}`, ""},
	{exclusive, `{"acceptance": []}`, ""},
	{exclusive, `{"acceptance": {}}`, "policy: acceptance: is not an array"},
	{exclusive, `{"acceptance": ["diag.nvml"]}`, "policy: acceptance[0]: is not a JSON object"},
	{exclusive, `{"acceptance": [{}]}`, "policy: acceptance[0].kind: is missing"},
	{exclusive, `{"acceptance": [{"kind": "diag.dcgm"}]}`, `policy: acceptance[0].kind: "diag.dcgm" is not a check; checks are diag.nvml`},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": []}]}`, "policy: acceptance[0].with: is not a JSON object"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"minDriver": "535.161.08", "minDevices": 8, "maxTemperatureC": 85}}]}`, ""},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"minDriver": "new"}}]}`, `policy: acceptance[0].with.minDriver: "new" is not a driver version such as 535.161.08`},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"minDriver": 535}}]}`, "policy: acceptance[0].with.minDriver: is not a text"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml", "with": {"minDevices": -1}}]}`, "policy: acceptance[0].with.minDevices: -1 is not 0 to 1024"},
	{exclusive, `{"acceptance": [{"kind": "diag.nvml"}, {"kind": "diag.nvml", "with": {"maxTemperatureC": 0}}]}`, "policy: acceptance[1].with.maxTemperatureC: 0 is not 1 to 150"},
	{exclusive, `{"acceptance": [` + strings.Repeat(`{"kind": "diag.nvml"},`, 31) + `{"kind": "diag.nvml"}]}`, ""},
	{exclusive, `{"acceptance": [` + strings.Repeat(`{"kind": "diag.nvml"},`, 32) + `{"kind": "diag.nvml"}]}`, "policy: acceptance: 33 checks are more than 32"},
	{exclusive, `{"acceptance": [` + strings.Repeat(`{"kind": "diag.nvml"},`, 1024) + `{}]}`, "policy: acceptance[1024]: is beyond the 1024 entries that are read"},

	{exclusive, `{"overcommit": {"vcpu": 4, "memoryGiB": 0.001, "diskGiB": 1e9, "hugepages2Mi": 2}}`, ""},
	{exclusive, `{"overcommit": {"gpu": 2}}`, "policy: overcommit.gpu: GPUs are never overcommitted"},
	{exclusive, `{"overcommit": {"gpu.slot": 1}}`, "policy: overcommit.gpu.slot: GPUs are never overcommitted"},
	{exclusive, `{"overcommit": {"VCPU": 2}}`, "policy: overcommit.VCPU: is not a scalar; scalars are vcpu, memoryGiB, hugepages2Mi, hugepages1Gi, diskGiB"},
	{exclusive, `{"overcommit": {"vcpu": 0}}`, "policy: overcommit.vcpu: 0 is not above 0"},
	{exclusive, `{"overcommit": {"vcpu": -2}}`, "policy: overcommit.vcpu: -2 is not above 0"},
	{exclusive, `{"overcommit": {"vcpu": "4"}}`, "policy: overcommit.vcpu: is not a number"},
	{exclusive, `{"overcommit": {"vcpu": 1e999}}`, "policy: overcommit.vcpu: 1e999 is too large"},
	{exclusive, `{"overcommit": {"vcpu": 1e-999}}`, "policy: overcommit.vcpu: 0 is not above 0"},
	{exclusive, `{"overcommit": 2}`, "policy: overcommit: is not a JSON object"},

	{exclusive, `{"lostAfter": "5m", "maxPending": "6h"}`, ""},
	{exclusive, `{"maxPending": "365d"}`, ""},
	{exclusive, `{"maxPending": "366d"}`, `policy: maxPending: "366d" is not a duration above zero and at most 365d, such as 90s, 6h or 7d`},
	{exclusive, `{"maxPending": "0s"}`, `policy: maxPending: "0s" is not a duration above zero and at most 365d, such as 90s, 6h or 7d`},
	{exclusive, `{"lostAfter": "-5m"}`, `policy: lostAfter: "-5m" is not a duration above zero and at most 365d, such as 90s, 6h or 7d`},
	{exclusive, `{"lostAfter": 300}`, "policy: lostAfter: is not a text"},
	{exclusive, `{"lostAfter": ""}`, `policy: lostAfter: "" is not a duration above zero and at most 365d, such as 90s, 6h or 7d`},

	{exclusive, `{"disruptionBudget": 0}`, ""},
	{exclusive, `{"disruptionBudget": 1}`, ""},
	{exclusive, `{"disruptionBudget": 1.01}`, "policy: disruptionBudget: 1.01 is not 0 to 1"},
	{exclusive, `{"disruptionBudget": -0.1}`, "policy: disruptionBudget: -0.1 is not 0 to 1"},
	{exclusive, `{"disruptionBudget": "0.1"}`, "policy: disruptionBudget: is not a number"},

	{exclusive, `{"joinAttestors": ["tpm", "x509pop"]}`, ""},
	{exclusive, `{"joinAttestors": []}`, "policy: joinAttestors: holds 0 ids, not 1 to 16"},
	{exclusive, `{"joinAttestors": ["tpm","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}`, "policy: joinAttestors: holds 17 ids, not 1 to 16"},
	{exclusive, `{"joinAttestors": ["tpm", "sgx"]}`, `policy: joinAttestors[1]: "sgx" is no attestor of this control plane; it runs join-token, tpm, x509pop`},
	{exclusive, `{"joinAttestors": ["tpm", "join-token", "tpm"]}`, "policy: joinAttestors[2]: tpm is listed twice"},
	{exclusive, `{"joinAttestors": "tpm"}`, "policy: joinAttestors: is not an array"},

	{timeslice, `{"sharing": {"replicas": 1}}`, ""},
	{mps, `{"sharing": {"replicas": 48}}`, ""},
	{mps, `{"sharing": {"replicas": 48.0}}`, ""},
	{mps, `{"sharing": {}}`, ""},
	{mps, `{"sharing": {"replicas": 49}}`, "policy: sharing.replicas: 49 is not 1 to 48"},
	{timeslice, `{"sharing": {"replicas": 0}}`, "policy: sharing.replicas: 0 is not 1 to 48"},
	{timeslice, `{"sharing": {"replicas": 2.5}}`, "policy: sharing.replicas: 2.5 is not a whole number in plain digits"},
	{timeslice, `{"sharing": {"replicas": 1e1}}`, "policy: sharing.replicas: 1e1 is not a whole number in plain digits"},
	{timeslice, `{"sharing": {"replicas": "4"}}`, "policy: sharing.replicas: is not a whole number"},
	{timeslice, `{"sharing": {"replicas": 99999999999999999999}}`, "policy: sharing.replicas: 99999999999999999999 is beyond any count, which is at most 2147483647"},
	{timeslice, `{"sharing": {"replicas": -2147483648}}`, "policy: sharing.replicas: -2147483648 is beyond any count, which is at most 2147483647"},
	{exclusive, `{"sharing": {"replicas": 4}}`, "policy: sharing.replicas: only timeslice and mps pools have slots, this one is exclusive"},
	{mig, `{"sharing": {"replicas": 4}}`, "policy: sharing.replicas: only timeslice and mps pools have slots, this one is mig"},

	{exclusive, `{"hostReserve": {"vcpu": 0, "memoryGiB": 16}, "perGpu": {"vcpu": 12}}`, ""},
	{exclusive, `{"hostReserve": {"vcpu": -1}}`, "policy: hostReserve.vcpu: -1 is below 0"},
	{exclusive, `{"hostReserve": {"memoryGiB": 0.5}}`, "policy: hostReserve.memoryGiB: 0.5 is not a whole number in plain digits"},
	{exclusive, `{"perGpu": {"memoryGiB": -5}}`, "policy: perGpu.memoryGiB: -5 is below 0"},
	{exclusive, `{"perGpu": 4}`, "policy: perGpu: is not a JSON object"},

	{exclusive, `{"hugepages": {"size": "2Mi", "count": 0}}`, ""},
	{exclusive, `{"hugepages": {"size": "1Gi", "count": 16777216, "perNuma": true}}`, ""},
	{exclusive, `{"hugepages": {"size": "1Gi", "count": 16777217}}`, "policy: hugepages.count: 16777217 is not 0 to 16777216"},
	{exclusive, `{"hugepages": {"size": "1Gi", "count": -1}}`, "policy: hugepages.count: -1 is not 0 to 16777216"},
	{exclusive, `{"hugepages": {"size": "4Ki", "count": 1}}`, `policy: hugepages.size: "4Ki" is not 2Mi or 1Gi`},
	{exclusive, `{"hugepages": {"count": 1}}`, "policy: hugepages.size: is missing"},
	{exclusive, `{"hugepages": {"size": "2Mi"}}`, "policy: hugepages.count: is missing"},
	{exclusive, `{"hugepages": {"size": "2Mi", "count": 1, "perNuma": "yes"}}`, "policy: hugepages.perNuma: is not true or false"},
	{exclusive, `{"hugepages": {"size": "2Mi", "count": 1, "perNUMA": true}}`, "policy: hugepages.perNUMA: is not a field; did you mean perNuma?"},

	{exclusive, `{"kernelModules": {"load": ["vfio-pci", "br_netfilter"], "options": {"vfio-pci": "ids=10de:2330,10de:22a3 disable_vga=1"}}}`, ""},
	{exclusive, `{"kernelModules": {"options": {"nvidia": "NVreg_RestrictProfilingToAdminUsers=0"}}}`, ""},
	{exclusive, `{"kernelModules": {"load": ["a b"]}}`, `policy: kernelModules.load[0]: "a b" is not a module name: 1 to 64 letters, digits, _ and -, not starting with -`},
	{exclusive, `{"kernelModules": {"load": ["` + strings.Repeat("a", 65) + `"]}}`, `policy: kernelModules.load[0]: "` + strings.Repeat("a", 65) + `" is not a module name: 1 to 64 letters, digits, _ and -, not starting with -`},
	{exclusive, `{"kernelModules": {"load": [""]}}`, `policy: kernelModules.load[0]: "" is not a module name: 1 to 64 letters, digits, _ and -, not starting with -`},
	{exclusive, `{"kernelModules": {"load": ["vfio-pci", "vfio_pci"]}}`, "policy: kernelModules.load[1]: vfio_pci is listed twice (- and _ are the same in a module's name)"},
	{exclusive, `{"kernelModules": {"load": ["m` + strings.Join(strings.Fields(fmt.Sprint(upTo(65))), `","m`) + `"]}}`, "policy: kernelModules.load: 65 modules are more than 64"},
	{exclusive, `{"kernelModules": {"options": {"nvidia": "a=1 a=2"}}}`, "policy: kernelModules.options.nvidia: a is given twice"},
	{exclusive, `{"kernelModules": {"options": {"nvidia": ""}}}`, "policy: kernelModules.options.nvidia: is empty"},
	{exclusive, `{"kernelModules": {"options": {"no/module": "a=1"}}}`, `policy: kernelModules.options: "no/module" is not a module name: 1 to 64 letters, digits, _ and -, not starting with -`},

	{exclusive, `{"cpu": {"governor": "performance", "isolate": "2-5,8"}}`, ""},
	{exclusive, `{"cpu": {"governor": "userspace"}}`, `policy: cpu.governor: "userspace" is not performance, schedutil, ondemand or powersave`},
	{exclusive, `{"cpu": {"governor": ""}}`, "policy: cpu.governor: is empty; leave the field out instead"},
	{exclusive, `{"cpu": {"isolate": "0-3"}}`, "policy: cpu.isolate: CPU 0 cannot be isolated"},
	{exclusive, `{"cpu": {"isolate": "4-7,0"}}`, "policy: cpu.isolate: CPU 0 cannot be isolated"},
	{exclusive, `{"cpu": {"isolate": "8,2-5"}}`, `policy: cpu.isolate: "8,2-5" does not ascend; write it as 2-5,8`},
	{exclusive, `{"cpu": {"isolate": "2-5,5-8"}}`, `policy: cpu.isolate: "2-5,5-8" does not ascend; write it as 2-8`},
	{exclusive, `{"cpu": {"isolate": "8191"}}`, ""},
	{exclusive, `{"cpu": {"isolate": "8192"}}`, `policy: cpu.isolate: CPU list: "8192": CPU numbers are below 8192`},
	{exclusive, `{"cpu": {"isolate": "5-2"}}`, `policy: cpu.isolate: CPU list: "5-2": the range descends`},
	{exclusive, `{"cpu": {"isolate": "1,x"}}`, `policy: cpu.isolate: CPU list: "x": not a CPU number`},
	{exclusive, `{"cpu": {"isolate": " 2"}}`, `policy: cpu.isolate: " 2" is not a list of CPUs such as 2-5,8`},
	{exclusive, `{"cpu": {"isolate": ""}}`, "policy: cpu.isolate: is empty; leave the field out instead"},
	{exclusive, `{"cpu": {"isolate": 2}}`, "policy: cpu.isolate: is not a text"},

	{exclusive, `{"iommu": {"passthrough": true}, "tenantRoot": true, "singleTenant": true, "workloadIdentity": true, "trustProvisioningNetwork": true, "gpu": {"ecc": false}}`, ""},
	{exclusive, `{"iommu": {"passthrough": 1}}`, "policy: iommu.passthrough: is not true or false"},
	{exclusive, `{"tenantRoot": "true"}`, "policy: tenantRoot: is not true or false"},
	{exclusive, `{"singleTenant": 0}`, "policy: singleTenant: is not true or false"},
	{exclusive, `{"workloadIdentity": []}`, "policy: workloadIdentity: is not true or false"},
	{exclusive, `{"trustProvisioningNetwork": "no"}`, "policy: trustProvisioningNetwork: is not true or false"},
	{exclusive, `{"gpu": {"ecc": "on"}}`, "policy: gpu.ecc: is not true or false"},

	{exclusive, `{"gpu": {"powerLimitWatts": 1}}`, ""},
	{exclusive, `{"gpu": {"powerLimitWatts": 10000}}`, ""},
	{exclusive, `{"gpu": {"powerLimitWatts": 0}}`, "policy: gpu.powerLimitWatts: 0 is not 1 to 10000"},
	{exclusive, `{"gpu": {"powerLimitWatts": -1}}`, "policy: gpu.powerLimitWatts: -1 is not 1 to 10000"},
	{exclusive, `{"gpu": {"powerLimitWatts": 10001}}`, "policy: gpu.powerLimitWatts: 10001 is not 1 to 10000"},
	{exclusive, `{"gpu": {"powerLimitWatts": 350.5}}`, "policy: gpu.powerLimitWatts: 350.5 is not a whole number in plain digits"},

	{exclusive, `{"kubernetes": {}}`, ""},
	{exclusive, `{"kubernetes": {` + joinSet + `}}`, ""},
	{exclusive, `{"kubernetes": {` + joinSet + `, "labels": {"example.com/pool": "gpu", "empty": ""}, "taints": ["nvidia.com/gpu=true:NoSchedule", "busy:NoExecute"], "kubernetesVersion": "v1.34.2", "gpu": {"any": 1}, "gpuApi": "dra"}}`, ""},
	{exclusive, `{"kubernetes": {"apiServer": "https://k8s.example:6443"}}`, "policy: kubernetes.caCertSha256: is missing: apiServer, caCertSha256 and joinTokenRef come together or not at all"},
	{exclusive, `{"kubernetes": {"joinTokenRef": "vault:k8s"}}`, "policy: kubernetes.apiServer: is missing: apiServer, caCertSha256 and joinTokenRef come together or not at all"},
	{exclusive, `{"kubernetes": {"apiServer": "https://k8s", "caCertSha256": "` + sha256 + `"}}`, "policy: kubernetes.joinTokenRef: is missing: apiServer, caCertSha256 and joinTokenRef come together or not at all"},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, "https:", "http:", 1), `policy: kubernetes.apiServer: "http://k8s.example:6443" is not an https URL`},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, "k8s.example:6443", "user:secret@k8s.example", 1), "policy: kubernetes.apiServer: holds a user name or password; use a reference instead"},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, ":6443", ":6443/path", 1), `policy: kubernetes.apiServer: "https://k8s.example:6443/path" has more than a host and a port`},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, ":6443", ":70000", 1), `policy: kubernetes.apiServer: "https://k8s.example:70000" has no port between 1 and 65535`},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, "k8s.example:6443", "$(reboot)", 1), `policy: kubernetes.apiServer: "https://$(reboot)" is not an https URL`},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, "cdef\"", "cde\"", 1), `policy: kubernetes.caCertSha256: "` + sha256[:70] + `" is not sha256: and 64 hex digits`},
	{exclusive, strings.Replace(`{"kubernetes": {`+joinSet+`}}`, "vault:k8s", "two words", 1), "policy: kubernetes.joinTokenRef: is not 1 to 256 printable characters without blanks"},
	{exclusive, `{"kubernetes": {"gpuApi": "csi"}}`, `policy: kubernetes.gpuApi: "csi" is not device-plugin or dra`},
	{exclusive, `{"kubernetes": {"kubernetesVersion": "latest"}}`, `policy: kubernetes.kubernetesVersion: "latest" is not a version such as 1.31 or v1.31.4`},
	{exclusive, `{"kubernetes": {"labels": {"-": "x"}}}`, `policy: kubernetes.labels: "-" is not a Kubernetes label name`},
	{exclusive, `{"kubernetes": {"labels": {"pool": "a b"}}}`, `policy: kubernetes.labels.pool: "a b" is not a Kubernetes label value`},
	{exclusive, `{"kubernetes": {"labels": {"pool": 1}}}`, "policy: kubernetes.labels.pool: is not a text"},
	{exclusive, `{"kubernetes": {"taints": ["gpu"]}}`, `policy: kubernetes.taints[0]: "gpu" is not key=value:effect with the effect NoSchedule, PreferNoSchedule or NoExecute`},
	{exclusive, `{"kubernetes": {"platformOperated": false}}`, ""},
	{exclusive, `{"kubernetes": {"platformOperated": true}}`, "policy: kubernetes.platformOperated: counts only on a pool that the platform (tenant root) owns"},
	{platformPool(appliance.SiteShared), `{"kubernetes": {` + joinSet + `}}`, "policy: kubernetes.platformOperated: must be true for hosts of a shared site to join a cluster"},
	{platformPool(appliance.SiteDedicated), `{"kubernetes": {` + joinSet + `, "platformOperated": false}}`, "policy: kubernetes.platformOperated: must be true for hosts of a dedicated site to join a cluster"},
	{platformPool(appliance.SiteShared), `{"kubernetes": {` + joinSet + `, "platformOperated": true}}`, ""},
	{platformPool(appliance.SiteShared), `{"kubernetes": {}}`, ""},
	{platformPool(appliance.SiteCustom), `{"kubernetes": {` + joinSet + `}}`, ""},

	{exclusive, `{"telemetry": {"otlpEndpoint": "https://otel.example:4318", "intervalSeconds": 5, "headersRef": "vault:otel", "resourceAttributes": {"team": "ml", "note": ""}}}`, ""},
	{exclusive, `{"telemetry": {"otlpEndpoint": "http://10.0.0.7:4318/v1/metrics", "intervalSeconds": 3600}}`, ""},
	{exclusive, `{"telemetry": {}}`, ""},
	{exclusive, `{"telemetry": {"otlpEndpoint": "otel.example:4318"}}`, `policy: telemetry.otlpEndpoint: "otel.example:4318" is not an http or https URL`},
	{exclusive, `{"telemetry": {"otlpEndpoint": "https://a:b@otel.example"}}`, "policy: telemetry.otlpEndpoint: holds a user name or password; use a reference instead"},
	{exclusive, `{"telemetry": {"otlpEndpoint": "https://otel.example/#part"}}`, `policy: telemetry.otlpEndpoint: "https://otel.example/#part" has a fragment`},
	{exclusive, `{"telemetry": {"intervalSeconds": 4}}`, "policy: telemetry.intervalSeconds: 4 is not 5 to 3600"},
	{exclusive, `{"telemetry": {"intervalSeconds": 0}}`, "policy: telemetry.intervalSeconds: 0 is not 5 to 3600"},
	{exclusive, `{"telemetry": {"otlpEndpoint": "https://otel.example", "intervalSeconds": 3601}}`, "policy: telemetry.intervalSeconds: 3601 is not 5 to 3600"},
	{exclusive, `{"telemetry": {"resourceAttributes": {"n": 1}}}`, "policy: telemetry.resourceAttributes.n: is not a text"},
	{exclusive, `{"telemetry": {"resourceAttributes": {"a` + strings.Join(strings.Fields(fmt.Sprint(upTo(33))), `":"","a`) + `":""}}}`, "policy: telemetry.resourceAttributes: 33 attributes are more than 32"},
	{exclusive, `{"telemetry": {"headersRef": "a b"}}`, "policy: telemetry.headersRef: is not 1 to 256 printable characters without blanks"},

	{mig, `{"migLayout": "all-1g.10gb"}`, ""},
	{mig, `{"migLayout": "3g.40gb,2g.20gb,2x1g.10gb"}`, ""},
	{mig, `{"migLayout": "all-1g.10gb.me"}`, ""},
	{mig, `{"migLayout": "all-balanced"}`, ""},
	{mig, `{"migLayout": "2x3g.40gb,1g.10gb"}`, "policy: migLayout: does not fit on one H100: no arrangement leaves a place for each instance"},
	{mig, `{"migLayout": "3g.20gb"}`, `policy: migLayout: "3g.20gb" is no MIG profile of H100; profiles are 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb, 1g.12gb, 1g.12gb+me, 1g.24gb, 2g.24gb, 3g.47gb, 4g.47gb, 7g.94gb, 3g.48gb, 4g.48gb, 7g.96gb`},
	{mig, `{"migLayout": ""}`, "policy: migLayout: is empty; leave the field out instead"},
	{exclusive, `{"migLayout": "all-1g.10gb"}`, "policy: migLayout: only mig pools have one, this one is exclusive"},

	{exclusive, `{"admission": {"budgetCheck": "meter"}}`, ""},
	{exclusive, `{"admission": {"budgetCheck": "none"}}`, ""},
	{exclusive, `{"admission": {}}`, ""},
	{exclusive, `{"admission": {"budgetCheck": "always"}}`, `policy: admission.budgetCheck: "always" is not none or meter`},

	{exclusive, `{"hardwareProfile": "dgx-h100"}`, ""},
	{exclusive, `{"hardwareProfile": 7}`, "policy: hardwareProfile: is not a text"},
	{exclusive, `{"hardwareProfile": "a\nb"}`, "policy: hardwareProfile: holds a control character"},
	{exclusive, `{"hardwareProfile": "` + strings.Repeat("x", 201) + `"}`, "policy: hardwareProfile: 201 bytes are more than 200"},
}

func upTo(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strconv.Itoa(i) + " ")
	}
	return b.String()
}

func TestCheckPolicy(t *testing.T) {
	for _, c := range policyCases {
		_, err := CheckPolicy(c.pool, appliance.RawPolicy(c.policy))
		if c.want == "" {
			if err != nil {
				t.Errorf("%.200s\nis refused: %v", c.policy, err)
			}
			continue
		}
		var e *appliance.Error
		if !errors.As(err, &e) {
			t.Errorf("%.200s\nis not refused: %v", c.policy, err)
			continue
		}
		if e.Message != c.want {
			t.Errorf("%.200s\n got %s\nwant %s", c.policy, e.Message, c.want)
		}
		if e.Code != appliance.InvalidInput {
			t.Errorf("%.200s: the code is %s", c.policy, e.Code)
		}
		if !strings.HasPrefix(e.Message, "policy: "+strings.TrimPrefix(strings.TrimPrefix(e.Field, "policy"), ".")) {
			t.Errorf("%.200s: the field is %s, the message %s", c.policy, e.Field, e.Message)
		}
	}
}

func TestRefusedFieldIsDotted(t *testing.T) {
	_, err := CheckPolicy(exclusive, appliance.RawPolicy(`{"cpu": {"isolate": "0"}}`))
	var e *appliance.Error
	if !errors.As(err, &e) || e.Field != "policy.cpu.isolate" {
		t.Errorf("the refusal is %#v", err)
	}
}

func TestSingleTenantAgainstOffers(t *testing.T) {
	one := appliance.Offer{TenantID: "beta"}
	wide := appliance.Offer{TenantID: "beta", IncludeDescendants: true}
	for _, c := range []struct {
		offers []appliance.Offer
		policy string
		want   string
	}{
		{nil, `{"singleTenant": true}`, ""},
		{[]appliance.Offer{one}, `{"singleTenant": true}`, ""},
		{[]appliance.Offer{one, {TenantID: "gamma"}}, `{"singleTenant": false}`, ""},
		{[]appliance.Offer{one, {TenantID: "gamma"}}, `{"singleTenant": true}`, "INVALID_STATE: policy: singleTenant: cannot be turned on while the pool is offered to 2 tenants besides its owner"},
		{[]appliance.Offer{wide}, `{"singleTenant": true}`, "INVALID_STATE: policy: singleTenant: cannot be turned on while the offer to beta includes its descendants"},
	} {
		pool := exclusive
		pool.Offers = c.offers
		_, err := CheckPolicy(pool, appliance.RawPolicy(c.policy))
		if got := text(err); got != c.want {
			t.Errorf("%s with %v: %s, want %s", c.policy, c.offers, got, c.want)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A validator's failure that is no refusal of its own still reads as the
// policy's, and never as a fault of ours.
func TestValidatorFailures(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("no such profile"), "INVALID_INPUT: policy: test: no such profile"},
		{&wire.UnitError{Kind: wire.UnitGPUSettings, Field: "powerLimitWatts", Problem: "is 100% wrong"}, "INVALID_INPUT: policy: gpu.powerLimitWatts: is 100% wrong"},
		{&wire.UnitError{Kind: wire.UnitHugepages, Field: "sizeKiB", Problem: "is odd"}, "INVALID_INPUT: policy: hugepages.size: is odd"},
		{appliance.Refuse(appliance.InvalidState, "policy.x", "policy: x: not now"), "INVALID_STATE: policy: x: not now"},
	} {
		err := validate(exclusive, appliance.Policy{}, []policyValidator{
			{"before", func(PolicyContext, appliance.Policy) error { return nil }},
			{"test", func(PolicyContext, appliance.Policy) error { return c.err }},
		})
		if got := text(err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestReadPolicyReadsEveryField(t *testing.T) {
	got, err := ReadPolicy(appliance.RawPolicy(`{
		"acceptance": [{"kind": "diag.nvml", "with": {"minDevices": 8, "n": 12345678901234567890}}, {"kind": "diag.nvml"}],
		"overcommit": {"vcpu": 4, "memoryGiB": 1.5},
		"lostAfter": "5m", "disruptionBudget": 0.2, "maxPending": "1d12h", "hardwareProfile": "dgx",
		"joinAttestors": ["tpm"], "trustProvisioningNetwork": true,
		"sharing": {"replicas": 6}, "hostReserve": {"vcpu": 0}, "perGpu": {"vcpu": 12, "memoryGiB": 100},
		"hugepages": {"size": "1Gi", "count": 16, "perNuma": true},
		"kernelModules": {"load": ["a"], "options": {"a": "x=1"}},
		"cpu": {"governor": "performance", "isolate": "2-5"}, "iommu": {"passthrough": true},
		"gpu": {"powerLimitWatts": 350, "ecc": false},
		"kubernetes": {"apiServer": "https://k", "caCertSha256": "sha256:0", "joinTokenRef": "r", "labels": {"a": ""}, "taints": ["t:NoExecute"],
			"kubernetesVersion": "1.31", "gpu": [ 1 ], "gpuApi": "dra", "platformOperated": true},
		"telemetry": {"otlpEndpoint": "https://o", "intervalSeconds": 30, "headersRef": "h", "resourceAttributes": {"k": "v"}},
		"migLayout": "all-1g.10gb", "tenantRoot": true, "singleTenant": true, "workloadIdentity": true,
		"admission": {"budgetCheck": "meter"}, "unknown": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := appliance.Policy{
		Acceptance: []appliance.AcceptanceCheck{{Kind: "diag.nvml", With: []byte(`{"minDevices": 8, "n": 12345678901234567890}`)}, {Kind: "diag.nvml"}},
		Overcommit: map[string]float64{"vcpu": 4, "memoryGiB": 1.5},
		LostAfter:  "5m", DisruptionBudget: ptr(0.2), PendingLimit: "1d12h", HardwareProfile: "dgx",
		JoinAttestors: []string{"tpm"}, TrustProvisioningNetwork: true,
		Sharing:     &appliance.SharingPolicy{Replicas: ptr(6)},
		HostReserve: &appliance.HostShare{VCPU: ptr(0)}, PerGPU: &appliance.HostShare{VCPU: ptr(12), MemoryGiB: ptr(100)},
		Hugepages:     &appliance.HugepagesPolicy{Size: "1Gi", Count: ptr(16), PerNUMA: true},
		KernelModules: &appliance.ModulesPolicy{Load: []string{"a"}, Options: map[string]string{"a": "x=1"}},
		CPU:           &appliance.CPUPolicy{Governor: "performance", Isolate: "2-5"}, IOMMU: &appliance.IOMMUPolicy{Passthrough: true},
		GPU: &appliance.GPUPolicy{PowerLimitWatts: ptr(350), ECC: ptr(false)},
		Kubernetes: &appliance.KubernetesPolicy{APIServer: "https://k", CACertSHA256: "sha256:0", JoinTokenRef: "r", Labels: map[string]string{"a": ""},
			Taints: []string{"t:NoExecute"}, KubernetesVersion: "1.31", GPU: []byte(`[ 1 ]`), GPUAPI: "dra", PlatformOperated: true},
		Telemetry: &appliance.TelemetryPolicy{OTLPEndpoint: "https://o", IntervalSeconds: ptr(30), HeadersRef: "h", ResourceAttributes: map[string]string{"k": "v"}},
		MIGLayout: "all-1g.10gb", TenantRoot: true, SingleTenant: true, WorkloadIdentity: true,
		Admission: &appliance.AdmissionPolicy{BudgetCheck: appliance.BudgetCheckMeter},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for i := range reflect.TypeFor[appliance.Policy]().NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Errorf("%s is not tried here", reflect.TypeFor[appliance.Policy]().Field(i).Name)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	var none appliance.Policy
	given, err := ReadPolicy(appliance.RawPolicy(`{"maxPending": "6h", "lostAfter": "5m", "disruptionBudget": 0, "sharing": {"replicas": 7},
		"overcommit": {"vcpu": 1000, "memoryGiB": 0.001, "hugepages2Mi": 3}, "hostReserve": {"vcpu": 0}, "admission": {"budgetCheck": "meter"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"maxPending", none.MaxPending(), 24 * time.Hour},
		{"maxPending given", given.MaxPending(), 6 * time.Hour},
		{"lostAfter", none.LostAfter.Span(), time.Duration(0)},
		{"lostAfter given", given.LostAfter.Span(), 5 * time.Minute},
		{"disruptionBudget", none.DisruptionBudgetOrDefault(), 0.05},
		{"disruptionBudget given as 0", given.DisruptionBudgetOrDefault(), 0.0},
		{"replicas, timeslice", none.Replicas(appliance.SharingTimeslice), 4},
		{"replicas, mps", none.Replicas(appliance.SharingMPS), 10},
		{"replicas, exclusive", given.Replicas(appliance.SharingExclusive), 0},
		{"replicas given", given.Replicas(appliance.SharingMPS), 7},
		{"ratio", none.Ratio("vcpu"), 1.0},
		{"ratio too large", given.Ratio("vcpu"), 100.0},
		{"ratio too small", given.Ratio("memoryGiB"), 0.1},
		{"ratio of huge pages", given.Ratio("hugepages2Mi"), 1.0},
		{"CPU reserve", none.ReserveVCPU(), 2},
		{"CPU reserve given as 0", given.ReserveVCPU(), 0},
		{"memory reserve", given.ReserveMemoryGiB(), 8},
		{"budget", none.ChecksBudget(), false},
		{"budget given", given.ChecksBudget(), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
}

// The ranges that the API's schema shows are those that are enforced: each
// bound is legal, one beyond it is not.
func TestSchemaBoundsAreEnforced(t *testing.T) {
	tried := 0
	var walk func(t *testing.T, typ reflect.Type, path []string)
	walk = func(t *testing.T, typ reflect.Type, path []string) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			at := append(path[:len(path):len(path)], name)
			walk(t, f.Type, at)
			for tag, step := range map[string]int{"minimum": -1, "maximum": 1} {
				if f.Tag.Get(tag) == "" {
					continue
				}
				bound, err := strconv.Atoi(f.Tag.Get(tag))
				if err != nil {
					t.Fatalf("%v: %v", at, err)
				}
				tried++
				if _, err := CheckPolicy(mps, withField(at, strconv.Itoa(bound))); err != nil {
					t.Errorf("%v: the %s %d is refused: %v", at, tag, bound, err)
				}
				if _, err := CheckPolicy(mps, withField(at, strconv.Itoa(bound+step))); err == nil {
					t.Errorf("%v: %d is beyond the %s and legal", at, bound+step, tag)
				}
			}
			if enum := f.Tag.Get("enum"); enum != "" && path != nil && name != "kind" {
				for _, value := range strings.Split(enum, ",") {
					tried++
					if _, err := CheckPolicy(mps, withField(at, strconv.Quote(value))); err != nil {
						t.Errorf("%v: %s is refused: %v", at, value, err)
					}
				}
				if _, err := CheckPolicy(mps, withField(at, `"other"`)); err == nil {
					t.Errorf("%v takes any text", at)
				}
			}
		}
	}
	walk(t, reflect.TypeFor[appliance.Policy](), nil)
	if tried < 20 {
		t.Errorf("only %d bounds were found", tried)
	}
}

// withField is a policy with one field set, and those that it needs.
func withField(path []string, value string) appliance.RawPolicy {
	field := `"` + path[len(path)-1] + `": ` + value
	if path[0] == "hugepages" && path[1] == "count" {
		field += `, "size": "2Mi"`
	} else if path[0] == "hugepages" {
		field += `, "count": 1`
	}
	if len(path) == 2 {
		return appliance.RawPolicy(fmt.Sprintf(`{%q: {%s}}`, path[0], field))
	}
	return appliance.RawPolicy(`{` + field + `}`)
}

// What CheckPolicy takes can be planned and booked, whatever the policy.
func FuzzCheckPolicy(f *testing.F) {
	for _, c := range policyCases {
		f.Add([]byte(c.policy))
	}
	inv := wire.Inventory{MemoryKiB: 64 << 20, CPU: wire.CPUInfo{Logical: 16}}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, pool := range []PolicyContext{exclusive, mig, timeslice, platformPool(appliance.SiteShared)} {
			p, err := CheckPolicy(pool, raw)
			if err != nil {
				var e *appliance.Error
				if !errors.As(err, &e) || !strings.HasPrefix(e.Message, "policy: ") || !strings.HasPrefix(e.Field, "policy") {
					t.Fatalf("%q is refused with %#v", raw, err)
				}
				continue
			}
			if err := Units(p, PoolFacts{Class: pool.Class, Sharing: pool.Sharing, GPUModel: pool.GPUModel}).Validate(); err != nil {
				t.Fatalf("%q is sound, its units are not: %v", raw, err)
			}
			if p.MaxPending() <= 0 || p.MaxPending() > appliance.MaxDuration {
				t.Fatalf("%q: maxPending is %v", raw, p.MaxPending())
			}
			for _, r := range Rows(pool.Class, appliance.ControlPlatform, p, inv, nil) {
				if r.Total < 0 || r.Total > appliance.MaxCount || r.Overcommit < 0.1 || r.Overcommit > 100 {
					t.Fatalf("%q: the row is %+v", raw, r)
				}
			}
			again, err := CheckPolicy(pool, raw)
			if diff := cmp.Diff(p, again); err != nil || diff != "" {
				t.Fatalf("%q reads differently again: %v\n%s", raw, err, diff)
			}
		}
	})
}
