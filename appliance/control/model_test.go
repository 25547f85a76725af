package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// The model is the slowest thing that could be right: lists that are walked.
// It decides by itself whether a request is refused, placed or waits; where it
// is placed it takes from control, after it has checked that the place is one.

type modelGPU struct {
	uuid    string
	healthy bool
	parts   []wire.MIGInstance
}

type modelNode struct {
	id, pool, zone string
	inv            wire.Inventory
	hold           bool // cordoned
	silent         bool // unreachable
	walled         bool
	kept           map[string]string // atom -> ended reservation whose wall is not gone
	iommu          bool              // what its NodeSpec asks
	changing       bool              // it has its turn in a rollout
	answered       bool              // in that turn
	unit           wire.UnitState    // of its iommu, as last said
	gpus           []modelGPU
	rows           map[string]int // totals
}

type modelPool struct {
	id       string
	sharing  appliance.Sharing
	reserve  int // vcpu that each host keeps
	replicas int
	perGPU   int // vcpu; -1: the smallest share
	iommu    bool
	budget   float64
	archived bool
	seen     map[string]bool
	max      map[string]map[string]int // by tenant and resource
}

type model struct {
	t     *rapid.T
	f     *fixture
	pools []*modelPool
	nodes []*modelNode
	all   []*appliance.Reservation // in order of creation
	made  int
}

var modelTenants = []string{"acme", "beta", "gamma"}

func newModel(t *rapid.T, outer *testing.T) *model {
	f := newFixture(outer)
	f.t = t
	m := &model{t: t, f: f}
	for _, tenant := range modelTenants[1:] {
		f.tenant(tenant)
	}
	for _, s := range []appliance.Sharing{appliance.SharingExclusive, appliance.SharingTimeslice, appliance.SharingMIG} {
		p := &modelPool{sharing: s, perGPU: -1, seen: map[string]bool{"acme": true}, max: map[string]map[string]int{}}
		p.setPolicy(2, 4, -1)
		p.budget = 0.05
		p.id = f.pool(s, p.policy())
		p.max["acme"] = map[string]int{s.Resource(): 1 << 20, appliance.ResourceVCPU: 1 << 20, appliance.ResourceMemoryGiB: 1 << 20}
		m.pools = append(m.pools, p)
		for range 2 {
			m.join(p)
		}
	}
	return m
}

func (p *modelPool) setPolicy(reserve, replicas, perGPU int) {
	p.reserve, p.replicas, p.perGPU = reserve, replicas, perGPU
	if p.sharing != appliance.SharingTimeslice {
		p.replicas = 0
	}
}

func (p *modelPool) policy() string {
	parts := []string{fmt.Sprintf(`"hostReserve":{"vcpu":%d}`, p.reserve)}
	if p.sharing == appliance.SharingTimeslice {
		parts = append(parts, fmt.Sprintf(`"sharing":{"replicas":%d}`, p.replicas))
	}
	if p.iommu {
		parts = append(parts, onIOMMU)
	}
	parts = append(parts, fmt.Sprintf(`"disruptionBudget":%v`, p.budget))
	if p.perGPU >= 0 {
		parts = append(parts, fmt.Sprintf(`"perGpu":{"vcpu":%d}`, p.perGPU))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// atoms lists what a healthy GPU yields; profile "" is any.
func (p *modelPool) atoms(g modelGPU, profile string) []string {
	var out []string
	switch p.sharing {
	case appliance.SharingExclusive:
		out = append(out, g.uuid)
	case appliance.SharingMIG:
		for _, i := range g.parts {
			if profile == "" || i.Profile == profile {
				out = append(out, i.UUID)
			}
		}
	default:
		for i := range p.replicas {
			out = append(out, g.uuid+"#"+strconv.Itoa(i))
		}
	}
	return out
}

func (m *model) pool(id string) *modelPool {
	return m.pools[slices.IndexFunc(m.pools, func(p *modelPool) bool { return p.id == id })]
}

func (m *model) node(id string) *modelNode {
	return m.nodes[slices.IndexFunc(m.nodes, func(n *modelNode) bool { return n.id == id })]
}

// holder says who has an atom of a node.
func (m *model) holder(node, atom string) string {
	for _, r := range m.all {
		for _, p := range r.Placements {
			if r.State.Booked() && p.NodeID == node && slices.Contains(p.Atoms, atom) {
				return r.ID
			}
		}
	}
	return ""
}

// allocated sums what is booked of a node's row.
func (m *model) allocated(node, resource string) (sum int) {
	for _, r := range m.all {
		for _, p := range r.Placements {
			if r.State.Booked() && p.NodeID == node {
				sum += p.Amounts[resource]
			}
		}
	}
	return sum
}

func (m *model) used(tenant, pool, resource string) (sum int) {
	for _, r := range m.all {
		if r.State.Booked() && r.TenantID == tenant && r.PoolID == pool {
			sum += r.Resources[resource]
		}
	}
	return sum
}

// size sets the totals of a node's rows, as capacity.hosts does.
func (m *model) size(n *modelNode) {
	p := m.pool(n.pool)
	n.rows = map[string]int{
		appliance.ResourceVCPU:      max(0, n.inv.CPU.Logical-p.reserve, m.allocated(n.id, appliance.ResourceVCPU)),
		appliance.ResourceMemoryGiB: max(0, int(n.inv.MemoryKiB>>20)-8, m.allocated(n.id, appliance.ResourceMemoryGiB)),
	}
}

// share is the default host share of a GPU.
func (m *model) share(p *modelPool, resource string) int {
	if resource == appliance.ResourceVCPU && p.perGPU >= 0 {
		return p.perGPU
	}
	least := -1
	for _, n := range m.nodes {
		if n.pool != p.id || len(n.gpus) == 0 {
			continue
		}
		if s := n.rows[resource] / len(n.gpus); least < 0 || s < least {
			least = s
		}
	}
	return max(0, least)
}

// wants is what a request books on each of its nodes.
func (m *model) wants(p *modelPool, r *appliance.Reservation) appliance.Amounts {
	out, named := appliance.Amounts{}, false
	for name, n := range r.Resources {
		named = named || appliance.IsScalar(name)
		if n > 0 {
			out[name] = n / r.Nodes
		}
	}
	if gpus := out[appliance.ResourceGPU]; gpus > 0 && !named {
		for _, s := range []string{appliance.ResourceVCPU, appliance.ResourceMemoryGiB} {
			if n := m.share(p, s) * gpus; n > 0 {
				out[s] = n
			}
		}
	}
	return out
}

// takes tells whether a node could take its part of a request now.
func (m *model) takes(p *modelPool, n *modelNode, r *appliance.Reservation, want appliance.Amounts) bool {
	if n.pool != p.id || n.hold || n.silent {
		return false
	}
	if zone, ok := r.Selector["zone"]; ok && zone.Equals != n.zone {
		return false
	}
	for _, s := range []string{appliance.ResourceVCPU, appliance.ResourceMemoryGiB} {
		if want[s] > 0 && n.rows[s]-m.allocated(n.id, s) < want[s] {
			return false
		}
	}
	free := 0
	for _, g := range n.gpus {
		if !g.healthy {
			continue
		}
		here := 0
		for _, a := range p.atoms(g, r.Selector[appliance.MIGProfile].Equals) {
			if m.holder(n.id, a) == "" && n.kept[a] == "" {
				here++
			}
		}
		if p.sharing == appliance.SharingTimeslice {
			here = min(here, 1) // slots of one request go to distinct GPUs
		}
		free += here
	}
	return free >= want[p.sharing.Resource()]
}

func (m *model) fits(r *appliance.Reservation) bool {
	p := m.pool(r.PoolID)
	if m.unprofiled(p, r.Resources, r.Selector) {
		return false // asked before there were instances to choose from
	}
	want, count := m.wants(p, r), 0
	for _, n := range m.nodes {
		if m.takes(p, n, r, want) {
			count++
		}
	}
	return count >= r.Nodes
}

func (m *model) short(r *appliance.Reservation) bool {
	p := m.pool(r.PoolID)
	for name, n := range r.Resources {
		if n > 0 && m.used(r.TenantID, r.PoolID, name)+n > p.max[r.TenantID][name] {
			return true
		}
	}
	return false
}

// adopt checks where control has placed a request, and takes it over.
func (m *model) adopt(r *appliance.Reservation, got appliance.Reservation) {
	m.t.Helper()
	p := m.pool(r.PoolID)
	want := m.wants(p, r)
	if len(got.Placements) != r.Nodes {
		m.t.Fatalf("reservation %s is on %d nodes, %d asked", r.ID, len(got.Placements), r.Nodes)
	}
	on := map[string]bool{}
	for _, at := range got.Placements {
		n := m.node(at.NodeID)
		if on[n.id] || !m.takes(p, n, r, want) {
			m.t.Fatalf("reservation %s was put on %s, which cannot take it, or twice", r.ID, n.inv.Hostname)
		}
		on[n.id] = true
		if diff := gocmp.Diff(want, at.Amounts, cmpopts.EquateEmpty()); diff != "" {
			m.t.Fatalf("reservation %s books another amount (-want +got):\n%s", r.ID, diff)
		}
		for _, a := range at.Atoms {
			if who := m.holder(n.id, a) + n.kept[a]; who != "" {
				m.t.Fatalf("atom %s of %s was given to %s and is held by %s", a, n.inv.Hostname, r.ID, who)
			}
		}
	}
	r.State, r.Placements, r.Booked = got.State, got.Placements, got.Booked
}

// took notes what a create answered, and holds it against what it should be.
func (m *model) took(in appliance.CreateReservation, got appliance.Reservation, err error) {
	m.t.Helper()
	r := &appliance.Reservation{
		ID: got.ID, TenantID: in.TenantID, PoolID: in.PoolID, Resources: in.Resources, Nodes: max(1, in.Nodes),
		Selector: in.Selector, State: appliance.Pending, ExpiresAt: got.ExpiresAt,
	}
	p := m.pool(in.PoolID)
	want := appliance.Code("")
	switch {
	case !p.seen[in.TenantID] || p.archived:
		want = appliance.NotFound
	case m.unprofiled(p, in.Resources, in.Selector):
		want = appliance.InvalidInput
	case m.short(r):
		want = appliance.QuotaExceeded
	}
	if code := appliance.CodeOf(err); code != want {
		m.t.Fatalf("create %v in %s: %v, the model says %q", in.Resources, p.sharing, err, want)
	}
	if err != nil {
		return
	}
	fits := m.fits(r)
	if (got.State == appliance.Placed) != fits {
		m.t.Fatalf("create %v over %d in %s: is %s (%s), the model says fits=%t", in.Resources, in.Nodes, p.sharing, got.State, got.Message, fits)
	}
	m.all = append(m.all, r)
	if fits {
		m.adopt(r, got)
	}
}

// unprofiled tells whether a request leaves open which MIG profile it takes.
func (m *model) unprofiled(p *modelPool, resources appliance.Amounts, selector appliance.Selector) bool {
	profiles := map[string]bool{}
	for _, n := range m.nodes {
		for _, g := range n.gpus {
			for _, i := range g.parts {
				if n.pool == p.id {
					profiles[i.Profile] = true
				}
			}
		}
	}
	_, named := selector[appliance.MIGProfile]
	return resources[appliance.ResourceMIG] > 0 && !named && len(profiles) > 1
}

// retried follows the reservations that were tried again, in their order.
func (m *model) retried() {
	m.t.Helper()
	for _, r := range m.all {
		if r.State != appliance.Pending {
			continue
		}
		p, got := m.pool(r.PoolID), m.f.get(*r)
		switch {
		case p.archived || !p.seen[r.TenantID]:
			if got.State != appliance.Failed || got.Reason != appliance.ReasonPoolGone {
				m.t.Fatalf("reservation %s waits for a pool that is gone, and is %s", r.ID, got.State)
			}
			r.State = appliance.Failed
		case !m.short(r) && m.fits(r):
			if got.State != appliance.Placed {
				m.t.Fatalf("reservation %s fits and is %s: %s", r.ID, got.State, got.Message)
			}
			m.adopt(r, got)
		case got.State != appliance.Pending:
			m.t.Fatalf("reservation %s does not fit and is %s", r.ID, got.State)
		}
	}
}

// refused ends an action that control refused with the code.
func (m *model) code(err error, want appliance.Code) {
	m.t.Helper()
	if appliance.CodeOf(err) != want {
		m.t.Fatalf("answered %v, the model says %q", err, want)
	}
}

func (m *model) anyPool() *modelPool { return rapid.SampledFrom(m.pools).Draw(m.t, "pool") }

func (m *model) anyNode() *modelNode {
	if len(m.nodes) == 0 {
		m.t.Skip("no node")
	}
	return rapid.SampledFrom(m.nodes).Draw(m.t, "node")
}

func (m *model) anyLive() *appliance.Reservation {
	var live []*appliance.Reservation
	for _, r := range m.all {
		if r.State.Live() {
			live = append(live, r)
		}
	}
	if len(live) == 0 {
		m.t.Skip("no live reservation")
	}
	return rapid.SampledFrom(live).Draw(m.t, "reservation")
}

// ask draws a request.
func (m *model) ask() appliance.CreateReservation {
	t, p := m.t, m.anyPool()
	in := appliance.CreateReservation{
		TenantID: rapid.SampledFrom(modelTenants).Draw(t, "tenant"), PoolID: p.id, Resources: appliance.Amounts{},
		Nodes: rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "nodes"), Selector: appliance.Selector{},
	}
	if rapid.IntRange(0, 5).Draw(t, "hostOnly") > 0 {
		in.Resources[p.sharing.Resource()] = in.Nodes * rapid.IntRange(1, 5).Draw(t, "atoms")
	}
	if len(in.Resources) == 0 || rapid.Bool().Draw(t, "scalars") {
		in.Resources[appliance.ResourceVCPU] = in.Nodes * rapid.IntRange(1, 12).Draw(t, "vcpu")
		in.Resources[appliance.ResourceMemoryGiB] = in.Nodes * rapid.IntRange(0, 40).Draw(t, "memory")
	}
	if rapid.IntRange(0, 3).Draw(t, "zoned") == 0 {
		in.Selector["zone"] = appliance.Match{Equals: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")}
	}
	if p.sharing == appliance.SharingMIG && rapid.IntRange(0, 5).Draw(t, "profiled") > 0 {
		in.Selector[appliance.MIGProfile] = appliance.Match{Equals: rapid.SampledFrom([]string{"1g.10gb", "3g.40gb"}).Draw(t, "profile")}
	}
	if m.unknownProfile(p, in) {
		delete(in.Resources, appliance.ResourceMIG)
		delete(in.Selector, appliance.MIGProfile)
		in.Resources[appliance.ResourceVCPU] = in.Nodes
	}
	if rapid.IntRange(0, 3).Draw(t, "timed") == 0 {
		in.Duration = strconv.Itoa(rapid.IntRange(1, 20).Draw(t, "seconds")) + "s"
	}
	return in
}

// unknownProfile leaves out a request for instances of a pool without nodes.
func (m *model) unknownProfile(p *modelPool, in appliance.CreateReservation) bool {
	return p.sharing == appliance.SharingMIG && in.Resources[appliance.ResourceMIG] > 0 &&
		!slices.ContainsFunc(m.nodes, func(n *modelNode) bool { return n.pool == p.id })
}

func (m *model) join(p *modelPool) {
	m.made++
	name := "n" + strconv.Itoa(m.made)
	var profiles []string
	if p.sharing == appliance.SharingMIG {
		profiles = []string{"3g.40gb", "1g.10gb", "1g.10gb"}
	}
	gpus := rapid.SampledFrom([]int{4, 4, 2, 0}).Draw(m.t, "gpus")
	n := &modelNode{pool: p.id, kept: map[string]string{}, iommu: p.iommu, zone: rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "zone"), inv: machine(name, 24, 128, gpus, profiles...)}
	n.id = m.f.join(p.id, n.inv)
	_, err := m.f.c.LabelNode(context.Background(), operator, appliance.LabelNode{TenantID: "acme", NodeID: n.id, Labels: map[string]string{"zone": n.zone}})
	m.f.must(err)
	for _, g := range n.inv.GPUs {
		u := modelGPU{uuid: g.UUID, healthy: true}
		if g.MIG != nil {
			u.parts = g.MIG.Instances
		}
		n.gpus = append(n.gpus, u)
	}
	m.nodes = append(m.nodes, n)
	m.size(n)
}

// check holds control against the model and against its invariants.
func (m *model) check() {
	m.t.Helper()
	m.f.verify()
	for _, r := range m.all {
		got := m.f.get(*r)
		if got.State != r.State {
			m.t.Fatalf("reservation %s is %s, the model says %s", r.ID, got.State, r.State)
		}
	}
	for _, p := range m.pools {
		m.checkQuotas(p)
	}
	for _, n := range m.nodes {
		got, err := m.f.c.GetNode(context.Background(), operator, appliance.NodeRef{TenantID: "acme", NodeID: n.id})
		m.f.must(err)
		m.checkPhases(n, got)
		for _, row := range got.Resources {
			if row.Allocated != m.allocated(n.id, row.Resource) || row.Total != n.rows[row.Resource] {
				m.t.Fatalf("%s has %d of %d %s, the model says %d of %d", got.Hostname, row.Allocated, row.Total, row.Resource,
					m.allocated(n.id, row.Resource), n.rows[row.Resource])
			}
		}
	}
}

// checkPhases holds what a node releases, and where it is in a rollout, to the
// model.
func (m *model) checkPhases(n *modelNode, got appliance.Node) {
	m.t.Helper()
	kept := map[string]string{}
	for _, r := range got.Releasing {
		for _, a := range r.Atoms {
			kept[a] = r.ReservationID
		}
	}
	if diff := gocmp.Diff(n.kept, kept); diff != "" {
		m.t.Fatalf("%s releases otherwise (-model +control):\n%s", got.Hostname, diff)
	}
	want := appliance.RolloutState("")
	switch {
	case n.changing:
		want = appliance.RolloutChanging
	case n.iommu != m.pool(n.pool).iommu:
		want = appliance.RolloutWaiting
	}
	if asked := m.f.wanted(n.id).Units.IOMMU != nil; asked != n.iommu || rolloutState(got.Rollout) != want {
		m.t.Fatalf("%s is asked for the IOMMU: %t, and %q; the model says %t, %q", got.Hostname, asked, rolloutState(got.Rollout), n.iommu, want)
	}
}

func (m *model) checkQuotas(p *modelPool) {
	m.t.Helper()
	var rows []appliance.Quota
	m.f.must(m.f.c.Store.Read(context.Background(), func(tx *store.Tx) (err error) { rows, err = tx.QuotasIn(p.id); return err }))
	for _, q := range rows {
		if used := m.used(q.TenantID, p.id, q.Resource); q.Used != used || q.Max != p.max[q.TenantID][q.Resource] {
			m.t.Fatalf("quota of %s for %s in %s is %d of %d, the model says %d of %d", q.TenantID, q.Resource, p.sharing, q.Used, q.Max,
				used, p.max[q.TenantID][q.Resource])
		}
	}
}

// TestControlAgreesWithASimpleModel runs random sequences of everything that
// moves a booking, a counter or a node, with restarts, transactions that fail
// at their end and commits that fail, and holds control against the model and
// against its own invariants after each step.
func TestControlAgreesWithASimpleModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt, t)
		rt.Repeat(m.actions())
		m.f.must(m.f.c.RetryAll(context.Background()))
		m.retried()
		m.f.restart()
		m.check()
	})
}
