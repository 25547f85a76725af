package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// MaxReasons is the most nodes that Explain lists. Of a larger pool it lists
// those that come closest to fitting.
const MaxReasons = 50

// Explain says whether a request fits now and, if not, why: in one sentence,
// per node what is missing (in order of hostname, at most MaxReasons nodes),
// and which smallest changes would make it fit. Every change that it names to
// the request itself was tried and fits. It names no reservation and no tenant.
// State and quota of the answer are the caller's.
func (x *Index) Explain(r Request) appliance.Explanation {
	out := appliance.Explanation{Nodes: []appliance.NodeReason{}, Quota: []appliance.QuotaShort{}, Helps: []string{}}
	a := x.ask(r)
	if a.refusal != "" {
		out.Message = "cannot be placed: " + a.refusal
		return out
	}
	decision, fits := x.Place(r)
	a.profile = a.profiles[0]
	if fits {
		a.profile = decision.Profile
	}
	lacks := a.lacks()
	out.Message = a.sentence(lacks)
	if fits {
		out.Message = "fits now on " + x.hostnames(decision.Placements)
	} else {
		out.Helps = x.helps(r, a, lacks)
	}
	shown := lacks[:min(len(lacks), MaxReasons)]
	if len(shown) < len(lacks) {
		out.Message += fmt.Sprintf("; the %d closest of %d nodes are listed", len(shown), len(lacks))
	}
	for _, l := range shown {
		out.Nodes = append(out.Nodes, appliance.NodeReason{
			NodeID: l.node.id, Hostname: l.node.hostname, Fits: l.fits(), Missing: a.words(l),
		})
	}
	slices.SortFunc(out.Nodes, func(p, q appliance.NodeReason) int {
		return cmp.Or(cmp.Compare(p.Hostname, q.Hostname), cmp.Compare(p.NodeID, q.NodeID))
	})
	return out
}

// lack is what one node lacks for a request.
type lack struct {
	node     *node
	closed   bool // takes no bookings
	excluded bool // by the selector
	atoms    int  // that are short
	rows     [scalarCount]bool
	cpus     bool // the row has enough, but not outside the isolated CPUs
	whole    bool // booked or unhealthy where a whole machine is asked
	short    int  // how many of atoms, rows, cpus and whole are short
}

func (l *lack) fits() bool { return !l.closed && !l.excluded && l.short == 0 }

// lacks looks at every node of the pool. Those closest to fitting come first.
func (a *ask) lacks() []lack {
	out := make([]lack, 0, a.pool.tally.nodes)
	for _, c := range a.pool.all.chunks {
		for _, e := range c.entries {
			out = append(out, a.lackOf(e.node))
		}
	}
	slices.SortStableFunc(out, func(p, q lack) int { // stable: they are in order of hostname
		return cmp.Or(
			boolCompare(p.closed, q.closed), boolCompare(p.excluded, q.excluded),
			cmp.Compare(p.short, q.short), cmp.Compare(p.atoms, q.atoms),
		)
	})
	return out
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (a *ask) lackOf(n *node) lack {
	l := lack{node: n, closed: !n.takes() && !(n.keptFor != "" && n.keptFor == a.holder && n.shape.value.schedulable && !n.leased)}
	e := n.entry()
	l.excluded = !a.matches(&e) || a.hostname != nil && !a.hostname.Matches(n.hostname)
	free, _ := a.countAtoms(n)
	l.atoms = max(0, a.atoms-free)
	for i, least := range a.least {
		l.rows[i] = e.free[i] < least
	}
	if a.whole {
		l.whole = len(n.shares) > 0 || n.releasing != nil || n.healthy&^n.waits != low(n.uuids.len())
	} else if !l.rows[vcpuIndex] {
		l.cpus = !n.hasCPUs(a.scalars[vcpuIndex], a.pinned)
	}
	for _, short := range [...]bool{l.atoms > 0, l.rows[0], l.rows[1], l.rows[2], l.rows[3], l.rows[4], l.cpus, l.whole} {
		if short {
			l.short++
		}
	}
	return l
}

// countAtoms counts what the request could take of the node's GPUs, free and in
// all: GPUs, instances of the profile, or GPUs with a slot.
func (a *ask) countAtoms(n *node) (free, all int) {
	for i := range n.uuids.len() {
		switch {
		case a.resource == appliance.ResourceMIG && a.profile != "":
			free += bits.OnesCount64(n.freeOf(i, a.profile))
			if n.parts == nil {
				continue
			}
			for _, part := range n.parts[i] {
				if part.Profile == a.profile {
					all++
				}
			}
		case a.resource == appliance.ResourceSlot && !a.whole:
			free += min(1, bits.OnesCount64(n.freeAtoms(i)))
			all++
		default:
			free += bits.OnesCount64(n.freeAtoms(i))
			all += bits.OnesCount64(n.atomsOf(i))
		}
	}
	return free, all
}

// words says what a node lacks.
func (a *ask) words(l lack) []string {
	n := l.node
	var out []string
	switch {
	case n.shape.value.role != appliance.RoleHost:
		out = append(out, fmt.Sprintf("node has role %s, which adds no reservable capacity", n.shape.value.role))
	case !n.shape.value.schedulable && n.shape.value.why == "":
		out = append(out, "node is not schedulable")
	case !n.shape.value.schedulable:
		out = append(out, "node is "+n.shape.value.why)
	case n.leased:
		out = append(out, "the whole machine is booked")
	case n.keptFor != "" && n.keptFor != a.holder:
		out = append(out, "kept free for a reservation that has waited longer")
	}
	out = append(out, a.selectorWords(n)...)
	if l.whole && !n.leased {
		if len(n.shares) > 0 {
			out = append(out, fmt.Sprintf("%s on the machine, which must be wholly free", plural(len(n.shares), "booking")))
		}
		if count := n.heldAtoms(); count > 0 {
			out = append(out, plural(count, a.pool.atomWord())+" being released")
		}
		if sick := n.uuids.len() - bits.OnesCount64(n.healthy); sick > 0 {
			out = append(out, fmt.Sprintf("%d of %s unhealthy", sick, plural(n.uuids.len(), "GPU")))
		}
		if n.waits != 0 {
			out = append(out, plural(bits.OnesCount64(n.waits), "GPU")+" waiting for another MIG layout")
		}
	}
	if l.atoms > 0 {
		out = append(out, a.atomWords(n))
	}
	for i, short := range l.rows {
		if !short {
			continue
		}
		asked := fmt.Sprintf("%d asked", a.scalars[i])
		if a.shared {
			asked += " (the host share of " + plural(a.atoms, "GPU") + ")"
		}
		if free := n.freeRow(i); free < 0 {
			out = append(out, fmt.Sprintf("%s: the node has none to book, %s", appliance.Scalars[i], asked))
		} else {
			out = append(out, fmt.Sprintf("%s: %d of %d free, %s", appliance.Scalars[i], free, n.total[i], asked))
		}
	}
	if l.cpus {
		out = append(out, fmt.Sprintf("vcpu: %d can be set aside, the other free CPUs are isolated, %d asked",
			n.canSetAside(a.pinned), a.scalars[vcpuIndex]))
	}
	return out
}

func (a *ask) selectorWords(n *node) []string {
	var out []string
	if a.hostname != nil && !a.hostname.Matches(n.hostname) {
		out = append(out, fmt.Sprintf("selector hostname %s: it is %q", a.hostname, n.hostname))
	}
	for _, want := range a.selector {
		value, has := n.class.value.of[want.name]
		switch {
		case !has:
			out = append(out, fmt.Sprintf("selector %s %s: the node has none", want.name, want.match))
		case !want.match.Matches(value):
			out = append(out, fmt.Sprintf("selector %s %s: it is %q", want.name, want.match, value))
		}
	}
	return out
}

func (a *ask) atomWords(n *node) string {
	free, all := a.countAtoms(n)
	sick := ""
	if count := n.releasingAtoms(); count > 0 {
		sick = fmt.Sprintf(" (%d being released)", count)
	}
	if count := bits.OnesCount64(n.waits); count > 0 {
		sick += fmt.Sprintf(" (%s waiting for another MIG layout)", plural(count, "GPU"))
	}
	if count := n.uuids.len() - bits.OnesCount64(n.healthy); count > 0 {
		if a.resource == appliance.ResourceMIG {
			sick += fmt.Sprintf(" (%s unhealthy)", plural(count, "GPU"))
		} else {
			sick += fmt.Sprintf(" (%d unhealthy)", count)
		}
	}
	if a.resource == appliance.ResourceSlot && !a.whole {
		return fmt.Sprintf("%d of %s with a slot free%s, %d asked, each on a GPU of its own", free, plural(all, "GPU"), sick, a.atoms)
	}
	return fmt.Sprintf("%d of %s free%s, %d asked", free, a.atomNoun(all), sick, a.atoms)
}

// atomNoun counts atoms of the kind that the request takes.
func (a *ask) atomNoun(n int) string {
	switch a.resource {
	case appliance.ResourceMIG:
		return plural(n, strings.TrimSpace(a.profile+" instance"))
	case appliance.ResourceSlot:
		return plural(n, "slot")
	}
	return plural(n, "GPU")
}

// atomWord is what one atom of a pool is called.
func (p *pool) atomWord() string {
	switch p.kind {
	case instances:
		return "MIG instance"
	case gpuSlots:
		return "slot"
	}
	return "GPU"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// sentence sums up why a request does not fit, with the closest node.
func (a *ask) sentence(lacks []lack) string {
	var fit, closed, excluded, whole, atoms, rows int
	for i := range lacks {
		switch l := &lacks[i]; {
		case l.fits():
			fit++
		case l.closed:
			closed++
		case l.excluded:
			excluded++
		case l.whole:
			whole++
		case l.atoms > 0:
			atoms++
		default:
			rows++
		}
	}
	var parts []string
	part := func(n int, words string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, words))
		}
	}
	part(atoms, "without enough free "+strings.TrimPrefix(a.atomNoun(0), "0 "))
	part(rows, "without enough free host resources")
	part(whole, "not wholly free and healthy")
	part(excluded, "not matching the selector")
	part(closed, "not taking bookings")
	text := fmt.Sprintf("fits on %d of %s, %d needed: %s", fit, plural(len(lacks), "node"), a.nodes, strings.Join(parts, ", "))
	if fit < len(lacks) {
		closest := lacks[fit]
		text += fmt.Sprintf("; closest is %s: %s", closest.node.hostname, strings.Join(a.words(closest), ", "))
	}
	return text
}

// maxHostnames is how many hostnames a sentence names.
const maxHostnames = 4

func (x *Index) hostnames(placements []appliance.Placement) string {
	var names []string
	for _, p := range placements[:min(len(placements), maxHostnames)] {
		names = append(names, x.nodes[p.NodeID].hostname)
	}
	return joinSome(names, len(placements))
}

// joinSome writes names and how many more there are.
func joinSome(names []string, all int) string {
	text := strings.Join(names, ", ")
	if more := all - len(names); more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// helps finds the smallest changes that would make a request fit: first what
// its owner can change about it, then what the pool's operator can do.
func (x *Index) helps(r Request, a *ask, lacks []lack) []string {
	out := []string{}
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(r.Selector)) {
		less := r
		less.Selector = maps.Clone(r.Selector)
		delete(less.Selector, name)
		if d, ok := x.Place(less); ok {
			add("leave %s out of the selector: it then fits on %s", name, x.hostnames(d.Placements))
		}
	}
	x.helpSmaller(r, a, add)
	x.helpSpread(r, a, add)
	a.helpOperator(lacks, add)
	return out
}

// helpSmaller finds how much of one resource would fit, the others as asked.
func (x *Index) helpSmaller(r Request, a *ask, add func(string, ...any)) {
	if a.whole {
		return
	}
	on := ""
	if a.nodes > 1 {
		on = fmt.Sprintf(" on each of %d nodes", a.nodes)
	}
	for _, name := range r.Resources.Names() {
		steps := r.Resources[name] / a.nodes // of one amount on each node
		if steps == 0 {
			continue
		}
		each := func(n int) Request {
			less := r
			less.Resources = maps.Clone(r.Resources)
			less.Resources[name] = n * a.nodes
			return less
		}
		fits := func(n int) bool { _, ok := x.Place(each(n)); return ok }
		low, high := 0, steps // fits at low, if that is over zero, and not at high
		for high-low > 1 {
			if middle := low + (high-low)/2; fits(middle) {
				low = middle
			} else {
				high = middle
			}
		}
		switch {
		case low > 0 && scalarIndex(name) < 0:
			add("ask for %s%s instead of %d", a.atomNoun(low), on, steps)
		case low > 0:
			add("ask for %s %d%s instead of %d", name, low, on, steps)
		}
	}
	if !a.shared {
		return
	}
	bare := r // whole GPUs with a host share smaller than the default
	bare.Resources = maps.Clone(r.Resources)
	bare.Resources[appliance.ResourceVCPU] = 0
	if d, ok := x.Place(bare); ok {
		n := x.nodes[d.Placements[0].NodeID]
		add("name less vcpu and memoryGiB than the default host share: %s has vcpu %d and memoryGiB %d free",
			n.hostname, max(0, n.freeRow(vcpuIndex)), max(0, n.freeRow(memoryIndex)))
	}
}

// maxSpread is over how many nodes Explain tries to spread a request.
const maxSpread = 16

// helpSpread finds another number of nodes over which the request fits.
func (x *Index) helpSpread(r Request, a *ask, add func(string, ...any)) {
	for nodes := 1; nodes <= min(maxSpread, a.pool.tally.nodes); nodes++ {
		if nodes == a.nodes || a.whole {
			continue
		}
		spread := r
		spread.Nodes = nodes
		if d, ok := x.Place(spread); ok {
			add("spread it over %s (nodes: %d): it then fits on %s", plural(nodes, "node"), nodes, x.hostnames(d.Placements))
			return
		}
	}
}

// helpOperator says what would make nodes fit as they are asked: taking
// bookings again, a repair, or a release.
func (a *ask) helpOperator(lacks []lack, add func(string, ...any)) {
	fit := 0
	var closed, sick []string
	var release string
	for i := range lacks {
		l := &lacks[i]
		n := l.node
		switch {
		case l.fits():
			fit++
		case l.excluded || n.shape.value.role != appliance.RoleHost:
		case !n.shape.value.schedulable && l.short == 0 && !n.leased:
			closed = append(closed, n.hostname)
		case !n.shape.value.schedulable:
		case a.mended(n) >= a.atoms && l.short == 1 && (l.atoms > 0 || l.whole && len(n.shares) == 0):
			sick = append(sick, n.hostname)
		case release == "" && l.atoms > 0 && l.short == 1 && a.nodes == 1:
			if _, all := a.countAtoms(n); all >= a.atoms {
				release = fmt.Sprintf("%s more free on %s", a.atomNoun(l.atoms), n.hostname)
			}
		}
	}
	if need := a.nodes - fit; need > 0 && len(closed) >= need {
		add("let %s take bookings again", joinSome(closed[:min(need, maxHostnames)], need))
	}
	if need := a.nodes - fit; need > 0 && len(sick) >= need {
		add("bring the unhealthy GPUs of %s back", joinSome(sick[:min(need, maxHostnames)], need))
	}
	if release != "" {
		add("%s", release)
	}
}

// mended counts the atoms that the request could take if all GPUs of the node
// were healthy.
func (a *ask) mended(n *node) int {
	well := *n
	well.healthy = low(n.uuids.len())
	free, _ := a.countAtoms(&well)
	return free
}
