package plan

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Disruption is one part of a change of units that a node cannot take up beside
// its work.
type Disruption struct {
	Kind   wire.UnitKind
	Reason string // what changes and what that needs, for people
}

// Disruptions says what of a change of a node's units disrupts it: needs its
// GPUs idle, a reset or a reboot. Taking such a thing away disrupts as much as
// asking for it. They come in the order in which units are applied.
//
// What does not: 2 MiB huge pages, loading modules, the governor, the power cap,
// time-sliced replicas, joining a cluster, telemetry. The agent does these while
// reservations run.
func Disruptions(from, to wire.Units) []Disruption {
	var out []Disruption
	add := func(kind wire.UnitKind, reason string) {
		out = append(out, Disruption{kind, string(kind) + ": " + reason})
	}
	if names := changedOptions(from.KernelModules, to.KernelModules); len(names) > 0 {
		add(wire.UnitKernelModules, "other options of "+strings.Join(names, ", ")+" need a reboot")
	}
	if giantPages(from.Hugepages) != giantPages(to.Hugepages) {
		add(wire.UnitHugepages, "another pool of 1Gi pages needs a reboot")
	}
	if isolated(from.CPU) != isolated(to.CPU) {
		add(wire.UnitCPU, "isolating other CPUs needs a reboot")
	}
	if passthrough(from.IOMMU) != passthrough(to.IOMMU) {
		add(wire.UnitIOMMU, "switching the IOMMU needs a reboot")
	}
	if layoutName(from.MIGLayout) != layoutName(to.MIGLayout) {
		add(wire.UnitMIGLayout, "another layout needs idle GPUs")
	}
	if !samePtr(ecc(from.GPUSettings), ecc(to.GPUSettings)) {
		add(wire.UnitGPUSettings, "switching ECC needs a GPU reset or a reboot")
	}
	if daemon(from.GPUSharing) != daemon(to.GPUSharing) {
		add(wire.UnitGPUSharing, "sharing the GPUs in another way needs them idle")
	}
	return out
}

// HoldBack is what a node that must not be disrupted gets of a change of its
// units: all that does not disrupt, and of the rest what it has now. Nothing of
// it disrupts, and if nothing of the change does, it is the change.
func HoldBack(from, to wire.Units) wire.Units {
	out := to
	if names := changedOptions(from.KernelModules, to.KernelModules); len(names) > 0 {
		out.KernelModules = heldModules(from.KernelModules, to.KernelModules, names)
	}
	if giantPages(from.Hugepages) != giantPages(to.Hugepages) {
		out.Hugepages = from.Hugepages
	}
	if isolated(from.CPU) != isolated(to.CPU) {
		var c wire.CPU
		if to.CPU != nil {
			c.Governor = to.CPU.Governor
		}
		c.Isolate = isolated(from.CPU)
		out.CPU = nonZero(c)
	}
	if passthrough(from.IOMMU) != passthrough(to.IOMMU) {
		out.IOMMU = from.IOMMU
	}
	if layoutName(from.MIGLayout) != layoutName(to.MIGLayout) {
		out.MIGLayout = from.MIGLayout
	}
	if !samePtr(ecc(from.GPUSettings), ecc(to.GPUSettings)) {
		var g wire.GPUSettings
		if to.GPUSettings != nil {
			g.PowerLimitWatts = to.GPUSettings.PowerLimitWatts
		}
		g.ECC = ecc(from.GPUSettings)
		out.GPUSettings = nonZero(g)
	}
	if daemon(from.GPUSharing) != daemon(to.GPUSharing) {
		out.GPUSharing = from.GPUSharing
	}
	return out
}

// heldModules keeps the options that a node has. A module whose options change
// is not loaded meanwhile, since it would come up with the wrong ones.
func heldModules(from, to *wire.KernelModules, changed []string) *wire.KernelModules {
	var had, want wire.KernelModules
	if from != nil {
		had = *from
	}
	if to != nil {
		want = *to
	}
	held := func(module string) bool { return slices.Contains(changed, wire.ModuleKey(module)) }
	var m wire.KernelModules
	for _, name := range want.Load {
		if !held(name) || slices.Contains(had.Load, name) {
			m.Load = append(m.Load, name)
		}
	}
	m.Options = had.Options
	if len(m.Load)+len(m.Options) == 0 {
		return nil
	}
	return &m
}

// changedOptions lists the modules whose options differ, in order.
func changedOptions(from, to *wire.KernelModules) []string {
	had, want := options(from), options(to)
	var out []string
	for name := range had {
		if want[name] != had[name] {
			out = append(out, name)
		}
	}
	for name := range want {
		if _, both := had[name]; !both {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// options are a unit's options by the name that the kernel has for the module,
// without those that say nothing.
func options(m *wire.KernelModules) map[string]string {
	out := map[string]string{}
	if m == nil {
		return out
	}
	for _, name := range slices.Sorted(maps.Keys(m.Options)) {
		if text := strings.Join(strings.Fields(m.Options[name]), " "); text != "" {
			out[wire.ModuleKey(name)] = text
		}
	}
	return out
}

// giantPages is the pool of 1 GiB pages that is asked for, if any.
func giantPages(h *wire.Hugepages) wire.Hugepages {
	if h == nil || h.SizeKiB != wire.Hugepage1GiKiB || h.Count == 0 {
		return wire.Hugepages{}
	}
	return *h
}

func isolated(c *wire.CPU) string {
	if c == nil {
		return ""
	}
	if set, err := wire.ParseCPUList(c.Isolate); err == nil {
		return set.String() // "2-3" and "2,3" isolate the same
	}
	return c.Isolate
}

func passthrough(i *wire.IOMMU) bool { return i != nil && i.Passthrough }

func layoutName(m *wire.MIGLayout) string {
	if m == nil {
		return ""
	}
	return m.Layout
}

func ecc(g *wire.GPUSettings) *bool {
	if g == nil {
		return nil
	}
	return g.ECC
}

// daemon is what a GPU's sharing daemon is started with. Time slicing has none:
// its replicas are a matter of booking alone.
func daemon(s *wire.GPUSharing) wire.GPUSharing {
	if s == nil || s.Mode != string(appliance.SharingMPS) {
		return wire.GPUSharing{}
	}
	return *s
}

func samePtr[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func nonZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// DisruptionLimit is how many of a pool's nodes may be disrupted at once: the
// share of them, rounded down, at least one; none if the share is 0.
func DisruptionLimit(share float64, nodes int) int {
	if share <= 0 || nodes <= 0 {
		return 0
	}
	return min(nodes, max(1, int(math.Floor(share*float64(nodes)+1e-9)))) // 0.29 × 100 is 28.999…
}

// RolloutNode is what the order of a rollout depends on.
type RolloutNode struct {
	ID     string
	Booked bool // something would be disrupted
}

// RolloutOrder sorts nodes as their turn comes: those without bookings first,
// then by id.
func RolloutOrder(nodes []RolloutNode) {
	slices.SortFunc(nodes, func(a, b RolloutNode) int {
		return cmp.Or(boolCompare(a.Booked, b.Booked), cmp.Compare(a.ID, b.ID))
	})
}

// AtRest tells whether the units of these kinds have come to rest, by their last
// states, and if not what they wait for. A unit that waits for a reboot or idle
// GPUs has not, nor has one that failed: a policy that breaks nodes must not go
// on to the next. So it is with one that is taken out of the policy: its node says
// how it stands until it is undone.
func AtRest(kinds []wire.UnitKind, units []appliance.Unit) (rest bool, why string) {
	var open []string
	for _, u := range units {
		if !slices.Contains(kinds, u.Kind) {
			continue
		}
		switch u.State {
		case wire.PendingReboot, wire.PendingIdle, wire.Failed, wire.Conflict:
			open = append(open, string(u.Kind)+": "+string(u.State)+": "+u.Reason)
		}
	}
	return len(open) == 0, strings.Join(open, "; ")
}
