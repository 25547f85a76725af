package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// What a change of one policy field does to a node, and what a node that has to
// wait gets of it.
func TestWhatDisruptsAndWhatDoesNot(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		disrupts       string // the reasons
		held           string // "": all of it goes at once
	}{
		{"nothing", `{}`, `{}`, "", ""},
		{"2Mi pages", `{}`, `{"hugepages":{"sizeKiB":2048,"count":512}}`, "", ""},
		{"1Gi pages", `{}`, `{"hugepages":{"sizeKiB":1048576,"count":4}}`, "hugepages: another pool of 1Gi pages needs a reboot", `{}`},
		{"fewer 1Gi pages", `{"hugepages":{"sizeKiB":1048576,"count":4}}`, `{"hugepages":{"sizeKiB":1048576,"count":2}}`,
			"hugepages: another pool of 1Gi pages needs a reboot", `{"hugepages":{"sizeKiB":1048576,"count":4}}`},
		{"no 1Gi pages any more", `{"hugepages":{"sizeKiB":1048576,"count":4}}`, `{}`,
			"hugepages: another pool of 1Gi pages needs a reboot", `{"hugepages":{"sizeKiB":1048576,"count":4}}`},
		{"2Mi instead of 1Gi", `{"hugepages":{"sizeKiB":1048576,"count":4}}`, `{"hugepages":{"sizeKiB":2048,"count":512}}`,
			"hugepages: another pool of 1Gi pages needs a reboot", `{"hugepages":{"sizeKiB":1048576,"count":4}}`},
		{"the governor", `{"cpu":{"governor":"powersave","isolate":"2-3"}}`, `{"cpu":{"governor":"performance","isolate":"2,3"}}`, "", ""},
		{"governor and isolation", `{"cpu":{"governor":"powersave"}}`, `{"cpu":{"governor":"performance","isolate":"2-3"}}`,
			"cpu: isolating other CPUs needs a reboot", `{"cpu":{"governor":"performance"}}`},
		{"no cpu unit any more", `{"cpu":{"governor":"powersave","isolate":"2-3"}}`, `{}`,
			"cpu: isolating other CPUs needs a reboot", `{"cpu":{"isolate":"2-3"}}`},
		{"the IOMMU", `{}`, `{"iommu":{"passthrough":true}}`, "iommu: switching the IOMMU needs a reboot", `{}`},
		{"loading a module", `{}`, `{"kernel-modules":{"load":["nbd"]}}`, "", ""},
		{"options of a module", `{"kernel-modules":{"load":["nbd"]}}`, `{"kernel-modules":{"load":["nbd","kvm-intel"],"options":{"kvm_intel":"nested=1"}}}`,
			"kernel-modules: other options of kvm_intel need a reboot", `{"kernel-modules":{"load":["nbd"]}}`},
		{"the same options, written otherwise", `{"kernel-modules":{"options":{"kvm-intel":"nested=1  ept=1"}}}`,
			`{"kernel-modules":{"options":{"kvm_intel":"nested=1 ept=1"}}}`, "", ""},
		{"the power cap", `{"gpu-settings":{"powerLimitWatts":300}}`, `{"gpu-settings":{"powerLimitWatts":350}}`, "", ""},
		{"ECC and the power cap", `{"gpu-settings":{"powerLimitWatts":300}}`, `{"gpu-settings":{"powerLimitWatts":350,"ecc":false}}`,
			"gpu-settings: switching ECC needs a GPU reset or a reboot", `{"gpu-settings":{"powerLimitWatts":350}}`},
		{"ECC left alone again", `{"gpu-settings":{"ecc":true}}`, `{}`, "gpu-settings: switching ECC needs a GPU reset or a reboot", `{"gpu-settings":{"ecc":true}}`},
		{"a MIG layout", `{"mig-layout":{"layout":"all-1g.10gb","profiles":["1g.10gb"]}}`, `{"mig-layout":{"layout":"all-3g.40gb","profiles":[]}}`,
			"mig-layout: another layout needs idle GPUs", `{"mig-layout":{"layout":"all-1g.10gb","profiles":["1g.10gb"]}}`},
		{"the profiles of a layout on other boards", `{"mig-layout":{"layout":"all-1g","profiles":["1g.10gb"]}}`, `{"mig-layout":{"layout":"all-1g","profiles":[]}}`, "", ""},
		{"more time slices", `{"gpu-sharing":{"mode":"timeslice","replicas":4}}`, `{"gpu-sharing":{"mode":"timeslice","replicas":8}}`, "", ""},
		{"more MPS clients", `{"gpu-sharing":{"mode":"mps","replicas":4}}`, `{"gpu-sharing":{"mode":"mps","replicas":8}}`,
			"gpu-sharing: sharing the GPUs in another way needs them idle", `{"gpu-sharing":{"mode":"mps","replicas":4}}`},
		{"telemetry and a cluster", `{}`, `{"telemetry":{"otlpEndpoint":"https://o","intervalSeconds":60},"k8s-join":{"apiServer":"https://k"}}`, "", ""},
		{"two at once", `{}`, `{"iommu":{"passthrough":true},"cpu":{"isolate":"4"},"hugepages":{"sizeKiB":2048,"count":8}}`,
			"cpu: isolating other CPUs needs a reboot; iommu: switching the IOMMU needs a reboot", `{"hugepages":{"sizeKiB":2048,"count":8}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			from, to := unitsOf(t, c.from), unitsOf(t, c.to)
			var reasons []string
			for _, d := range Disruptions(from, to) {
				reasons = append(reasons, d.Reason)
			}
			if got := strings.Join(reasons, "; "); got != c.disrupts {
				t.Errorf("disrupts: %q, want %q", got, c.disrupts)
			}
			want := to
			if c.held != "" {
				want = unitsOf(t, c.held)
			}
			if diff := cmp.Diff(want, HoldBack(from, to)); diff != "" {
				t.Errorf("a node that waits gets (-want +got):\n%s", diff)
			}
		})
	}
}

func unitsOf(t *testing.T, text string) (u wire.Units) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &u); err != nil {
		t.Fatal(err)
	}
	return u
}

// Whatever the change: what a waiting node gets never disrupts it, is the whole
// change when nothing of it does, and leads to the change by exactly what was
// held back; and what disrupts one way disrupts the other.
func TestHoldingBackIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := drawUnits(t, "from"), drawUnits(t, "to")
		all, held := Disruptions(from, to), HoldBack(from, to)
		if now := Disruptions(from, held); len(now) > 0 {
			t.Fatalf("what a waiting node gets disrupts it: %v", now)
		}
		if diff := cmp.Diff(kindsOf(all), kindsOf(Disruptions(held, to))); diff != "" {
			t.Fatalf("when its turn comes, another thing disrupts (-before +then):\n%s", diff)
		}
		if diff := cmp.Diff(kindsOf(all), kindsOf(Disruptions(to, from))); diff != "" {
			t.Fatalf("taking it back disrupts otherwise (-there +back):\n%s", diff)
		}
		if diff := cmp.Diff(to, held); len(all) == 0 && diff != "" {
			t.Fatalf("nothing disrupts, and something is held back (-to +held):\n%s", diff)
		}
		if diff := cmp.Diff(held, HoldBack(held, to)); diff != "" {
			t.Fatalf("waiting on changes what a node has (-before +after):\n%s", diff)
		}
		if err := held.Validate(); err != nil && from.Validate() == nil && to.Validate() == nil {
			t.Fatalf("the agent would refuse what a waiting node gets: %v", err)
		}
	})
}

func kindsOf(all []Disruption) []wire.UnitKind {
	out := []wire.UnitKind{}
	for _, d := range all {
		out = append(out, d.Kind)
	}
	return out
}

func drawUnits(t *rapid.T, label string) (u wire.Units) {
	pick := func(what string, n int) int { return rapid.IntRange(0, n).Draw(t, label+" "+what) }
	yes, no := true, false
	if i := pick("hugepages", 4); i > 0 {
		u.Hugepages = &wire.Hugepages{SizeKiB: []int{wire.Hugepage2MiKiB, wire.Hugepage1GiKiB}[i%2], Count: i / 2}
	}
	if i := pick("cpu", 5); i > 0 {
		u.CPU = &wire.CPU{Governor: []string{"", "performance", "powersave"}[i%3], Isolate: []string{"2-3", "4"}[i%2]}
	}
	if pick("iommu", 1) > 0 {
		u.IOMMU = &wire.IOMMU{Passthrough: true}
	}
	if i := pick("modules", 5); i > 0 {
		u.KernelModules = &wire.KernelModules{Load: []string{"nbd", "vfio-pci"}[:1+i%2]}
		if i > 2 {
			u.KernelModules.Options = map[string]string{[]string{"vfio_pci", "vfio-pci", "nvidia"}[i%3]: fmt.Sprintf("x=%d", i%2)}
		}
	}
	if i := pick("gpu", 5); i > 0 {
		u.GPUSettings = &wire.GPUSettings{PowerLimitWatts: 100 * i, ECC: []*bool{nil, &yes, &no}[i%3]}
	}
	if i := pick("sharing", 4); i > 0 {
		u.GPUSharing = &wire.GPUSharing{Mode: []string{"mps", "timeslice"}[i%2], Replicas: 2 + i/2}
	}
	if i := pick("layout", 2); i > 0 {
		u.MIGLayout = &wire.MIGLayout{Layout: []string{"all-1g.10gb", "all-3g.40gb"}[i-1], Profiles: []string{}}
	}
	if i := pick("telemetry", 1); i > 0 {
		u.Telemetry = &wire.Telemetry{OTLPEndpoint: "https://otel.example", IntervalSeconds: 60}
	}
	return u
}

func TestDisruptionLimit(t *testing.T) {
	for _, c := range []struct {
		share float64
		nodes int
		want  int
	}{
		{0, 100, 0}, {0.05, 0, 0}, {0.05, 1, 1}, {0.05, 19, 1}, {0.05, 39, 1}, {0.05, 40, 2}, {0.29, 100, 29}, {0.1, 30, 3},
		{1e-9, 10_000, 1}, {1, 7, 7}, {0.5, 3, 1},
	} {
		if got := DisruptionLimit(c.share, c.nodes); got != c.want {
			t.Errorf("%v of %d nodes: %d, want %d", c.share, c.nodes, got, c.want)
		}
	}
}

func TestNodesWithoutBookingsComeFirst(t *testing.T) {
	nodes := []RolloutNode{{"node_3", false}, {"node_1", true}, {"node_4", true}, {"node_2", false}}
	RolloutOrder(nodes)
	var got []string
	for _, n := range nodes {
		got = append(got, n.ID)
	}
	if want := []string{"node_2", "node_3", "node_1", "node_4"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A node has come to rest when no unit that was changed waits or failed. What
// other units are is another matter.
func TestAtRest(t *testing.T) {
	kinds := []wire.UnitKind{wire.UnitIOMMU, wire.UnitCPU}
	for state, want := range map[wire.UnitState]bool{
		wire.InSync: true, wire.Partial: true, wire.NotApplicable: true, wire.Unsupported: true,
		wire.PendingReboot: false, wire.PendingIdle: false, wire.Failed: false, wire.Conflict: false,
	} {
		units := []appliance.Unit{{Kind: wire.UnitTelemetry, State: wire.Failed}, {Kind: wire.UnitIOMMU, State: state, Reason: "why"}}
		rest, why := AtRest(kinds, units)
		if rest != want || rest != (why == "") {
			t.Errorf("%s: at rest %t (%q), want %t", state, rest, why, want)
		}
	}
}
