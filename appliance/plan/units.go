package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Units is what a sound policy asks of the configuration of each host of the
// pool. Dedicated machines are deployed whole and get none. The MIG layout has
// no profiles yet: they depend on the node, see [NodeUnits].
func Units(p appliance.Policy, f PoolFacts) wire.Units {
	if f.Class.NodeRole() != appliance.RoleHost {
		return wire.Units{}
	}
	return hostUnits(p, f)
}

// NodeUnits fits a pool's units to one node: the profiles that its layout
// means on the node's GPUs, in order of creation, and the GPUs whose live
// bookings keep what they have, by UUID. GPUs with different memory need
// different profiles, and a GPU that cannot have the layout needs a refusal:
// then the profiles stay empty and the agent resolves the layout for each GPU
// by itself.
func NodeUnits(u wire.Units, f PoolFacts, gpus []wire.GPU, hold []string) wire.Units {
	if u.MIGLayout == nil {
		return u
	}
	m := *u.MIGLayout
	m.Profiles = []string{}
	m.Hold = slices.Sorted(slices.Values(hold))
	first := true
	for _, g := range gpus {
		if g.Display {
			continue
		}
		profiles, err := wire.ResolveLayout(f.GPUModel, g.MemoryMiB, m.Layout)
		if err != nil || !first && !slices.Equal(profiles, m.Profiles) {
			m.Profiles = []string{}
			break
		}
		m.Profiles, first = profiles, false
	}
	u.MIGLayout = &m
	return u
}

// pageKiB is the size of huge pages by its name in policies.
var pageKiB = map[string]int{"2Mi": wire.Hugepage2MiKiB, "1Gi": wire.Hugepage1GiKiB}

// hostUnits is Units whatever the class, and also of a policy that is not
// known to be sound: what is wrong with it is for the units to say.
func hostUnits(p appliance.Policy, f PoolFacts) wire.Units {
	var u wire.Units
	if k := p.KernelModules; k != nil && len(k.Load)+len(k.Options) > 0 {
		u.KernelModules = &wire.KernelModules{Load: k.Load, Options: k.Options}
	}
	if h := p.Hugepages; h != nil && h.Count != nil {
		u.Hugepages = &wire.Hugepages{SizeKiB: pageKiB[h.Size], Count: *h.Count, PerNUMA: h.PerNUMA}
	}
	if c := p.CPU; c != nil && *c != (appliance.CPUPolicy{}) {
		u.CPU = &wire.CPU{Governor: c.Governor, Isolate: c.Isolate}
	}
	if p.IOMMU != nil && p.IOMMU.Passthrough {
		u.IOMMU = &wire.IOMMU{Passthrough: true}
	}
	if g := p.GPU; g != nil && (g.PowerLimitWatts != nil || g.ECC != nil) {
		u.GPUSettings = &wire.GPUSettings{ECC: g.ECC}
		if g.PowerLimitWatts != nil {
			u.GPUSettings.PowerLimitWatts = *g.PowerLimitWatts
		}
	}
	if f.Sharing.SingleTenantOnly() {
		u.GPUSharing = &wire.GPUSharing{Mode: string(f.Sharing), Replicas: p.Replicas(f.Sharing)}
	}
	if f.Sharing == appliance.SharingMIG && p.MIGLayout != "" {
		u.MIGLayout = &wire.MIGLayout{Layout: p.MIGLayout, Profiles: []string{}}
	}
	if p.Kubernetes.Joins() {
		u.K8sJoin = joinUnit(p.Kubernetes)
	}
	if t := telemetryUnit(p.Telemetry, f.Telemetry); t.OTLPEndpoint != "" {
		u.Telemetry = t
	}
	return u
}

func joinUnit(k *appliance.KubernetesPolicy) *wire.K8sJoin {
	return &wire.K8sJoin{
		APIServer: k.APIServer, CACertSHA256: k.CACertSHA256, TokenRef: k.JoinTokenRef,
		Labels: k.Labels, Taints: k.Taints, KubernetesVersion: k.KubernetesVersion,
	}
}

// defaultIntervalSeconds is OpenTelemetry's own OTEL_METRIC_EXPORT_INTERVAL.
const defaultIntervalSeconds = 60

// telemetryUnit puts the policy over the site's default. A policy with its own
// endpoint takes nothing of the default, whose headers are a secret between
// the site and its own collector.
func telemetryUnit(p *appliance.TelemetryPolicy, site *wire.Telemetry) *wire.Telemetry {
	var t wire.Telemetry
	if site != nil && (p == nil || p.OTLPEndpoint == "") {
		t = *site
	}
	if p != nil {
		t.OTLPEndpoint = cmp.Or(p.OTLPEndpoint, t.OTLPEndpoint)
		t.HeadersRef = cmp.Or(p.HeadersRef, t.HeadersRef)
		if p.IntervalSeconds != nil {
			t.IntervalSeconds = *p.IntervalSeconds
		}
		if p.ResourceAttributes != nil {
			t.ResourceAttributes = p.ResourceAttributes
		}
	}
	if t.IntervalSeconds == 0 && (p == nil || p.IntervalSeconds == nil) {
		t.IntervalSeconds = defaultIntervalSeconds
	}
	return &t
}

// NodeSpec is what is wanted of one node, with the generation that follows
// prev, the node's last one (zero: none): prev's own if the content is the
// same, else one more.
func NodeSpec(prev wire.NodeSpec, nodeID, poolID string, units wire.Units, checks []wire.Check, bindings []wire.Binding) wire.NodeSpec {
	next := wire.NodeSpec{
		Version: wire.Version, NodeID: nodeID, PoolID: poolID, Units: units, Acceptance: checks,
		Bindings: append([]wire.Binding{}, bindings...),
	}
	slices.SortFunc(next.Bindings, func(a, b wire.Binding) int { return cmp.Compare(a.ReservationID, b.ReservationID) })
	next.Generation = prev.Generation
	if prev.Generation == 0 || !SameSpec(prev, next) {
		next.Generation++
	}
	return next
}

// SameSpec tells whether two specs want the same, whatever their generations.
// A spec read back from JSON is the same as the one that was written.
func SameSpec(a, b wire.NodeSpec) bool {
	return bytes.Equal(specContent(a), specContent(b))
}

// specContent writes a spec without what does not belong to its content.
func specContent(s wire.NodeSpec) []byte {
	s.Version, s.Generation = 0, 0
	if len(s.Bindings) == 0 {
		s.Bindings = nil
	}
	if m := s.Units.MIGLayout; m != nil && len(m.Profiles) == 0 {
		layout := *m
		layout.Profiles = nil
		s.Units.MIGLayout = &layout
	}
	b, err := json.Marshal(s)
	if err != nil { // a check's With that is no JSON: same only as itself
		return nil
	}
	return b
}
