package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
	gpus           []modelGPU
	rows           map[string]int // totals
}

type modelPool struct {
	id       string
	sharing  appliance.Sharing
	reserve  int // vcpu that each host keeps
	replicas int
	perGPU   int // vcpu; -1: the smallest share
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
			if m.holder(n.id, a) == "" {
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
			if who := m.holder(n.id, a); who != "" {
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
	case m.unprofiled(p, in):
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
func (m *model) unprofiled(p *modelPool, in appliance.CreateReservation) bool {
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
	_, named := in.Selector[appliance.MIGProfile]
	return in.Resources[appliance.ResourceMIG] > 0 && !named && len(profiles) > 1
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
	n := &modelNode{pool: p.id, zone: rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "zone"), inv: machine(name, 24, 128, gpus, profiles...)}
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
		for _, row := range got.Resources {
			if row.Allocated != m.allocated(n.id, row.Resource) || row.Total != n.rows[row.Resource] {
				m.t.Fatalf("%s has %d of %d %s, the model says %d of %d", got.Hostname, row.Allocated, row.Total, row.Resource,
					m.allocated(n.id, row.Resource), n.rows[row.Resource])
			}
		}
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

// actions are the steps of the model.
func (m *model) actions() map[string]func(*rapid.T) {
	ctx, c := context.Background(), func() *Control { return m.f.c }
	do := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
	return map[string]func(*rapid.T){
		"create": do(func() {
			in := m.ask()
			got, err := c().CreateReservation(ctx, operator, in)
			m.took(in, got, err)
		}),
		"release": do(func() {
			r := m.anyLive()
			m.f.release(*r)
			r.State = appliance.Ended
		}),
		"extend": do(func() {
			r := m.anyLive()
			got, err := c().ExtendReservation(ctx, operator, appliance.MoveReservation{TenantID: r.TenantID, ReservationID: r.ID, Duration: "1m"})
			if r.ExpiresAt == nil {
				m.code(err, appliance.InvalidState)
				return
			}
			if at := appliance.At(m.f.now().Add(time.Minute)); at.Before(r.ExpiresAt.Time) {
				m.code(err, appliance.InvalidInput)
				return
			}
			m.code(err, "")
			r.ExpiresAt = got.ExpiresAt
		}),
		"time passes": do(func() {
			m.f.advance(time.Duration(rapid.IntRange(1, 8).Draw(m.t, "seconds")) * time.Second)
			_, err := c().ExpireDue(ctx)
			m.f.must(err)
			for _, r := range m.all {
				if r.State.Live() && r.ExpiresAt != nil && !r.ExpiresAt.After(m.f.now()) {
					r.State = appliance.Ended
				}
			}
		}),
		"retry": do(func() { m.f.must(c().RetryAll(ctx)); m.retried() }),
		"join": do(func() {
			if len(m.nodes) > 9 {
				m.t.Skip("enough nodes")
			}
			if p := m.anyPool(); !p.archived {
				m.join(p)
			}
		}),
		"remove": do(func() {
			n := m.anyNode()
			_, err := c().RemoveNode(ctx, operator, appliance.NodeRef{TenantID: "acme", NodeID: n.id})
			if m.busy(n) {
				m.code(err, appliance.InvalidState)
				return
			}
			m.code(err, "")
			m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == n })
		}),
		"cordon": do(func() {
			n := m.anyNode()
			verb := c().CordonNode
			if n.hold {
				verb = c().UncordonNode
			}
			_, err := verb(ctx, operator, appliance.NodeRef{TenantID: "acme", NodeID: n.id})
			m.code(err, "")
			n.hold = !n.hold
			m.size(n)
		}),
		"silence": do(func() {
			n := m.anyNode()
			if n.silent {
				m.f.beat(n.id)
			} else {
				m.f.silence(n.id)
			}
			n.silent = !n.silent
			m.size(n)
		}),
		"device": do(m.loseDevice),
		"policy": do(m.changePolicy),
		"quota":  do(m.setQuota),
		"offer":  do(m.offer),
		"archive": do(func() {
			if rapid.IntRange(0, 9).Draw(m.t, "really") > 0 {
				m.t.Skip("seldom")
			}
			p := m.anyPool()
			_, err := c().ArchivePool(ctx, operator, appliance.PoolRef{TenantID: "acme", PoolID: p.id})
			m.code(err, "")
			p.archived = true
			for tenant := range p.seen {
				if tenant != "acme" {
					m.lower(p, tenant)
				}
			}
		}),
		"restart":    do(m.f.restart),
		"taken back": do(m.takenBack),
		"commit":     do(m.failedCommit),
		"together":   do(m.together),
		"":           do(m.check),
	}
}

func (m *model) busy(n *modelNode) bool {
	return slices.ContainsFunc(m.all, func(r *appliance.Reservation) bool {
		return r.State.Booked() && slices.ContainsFunc(r.Placements, func(p appliance.Placement) bool { return p.NodeID == n.id })
	})
}

// loseDevice takes a GPU out of a node's inventory, or puts all back.
func (m *model) loseDevice() {
	n := m.anyNode()
	if len(n.gpus) == 0 {
		m.t.Skip("no GPU")
	}
	inv := n.inv
	if i := rapid.IntRange(-1, len(n.gpus)-1).Draw(m.t, "gpu"); i >= 0 {
		inv.GPUs = slices.Delete(slices.Clone(inv.GPUs), i, i+1)
	}
	m.f.report(n.id, inv)
	for i := range n.gpus {
		n.gpus[i].healthy = slices.ContainsFunc(inv.GPUs, func(g wire.GPU) bool { return g.UUID == n.gpus[i].uuid })
	}
	m.size(n)
}

func (m *model) changePolicy() {
	p := m.anyPool()
	next := *p
	next.setPolicy(rapid.IntRange(0, 20).Draw(m.t, "reserve"), rapid.IntRange(1, 4).Draw(m.t, "replicas"), rapid.SampledFrom([]int{-1, -1, 0, 3}).Draw(m.t, "perGpu"))
	policy := appliance.RawPolicy(next.policy())
	_, err := m.f.c.UpdatePool(context.Background(), operator, appliance.UpdatePool{TenantID: "acme", PoolID: p.id, Policy: &policy})
	if p.archived {
		m.code(err, appliance.InvalidState)
		return
	}
	m.code(err, "")
	m.f.must(m.f.c.RefreshNodes(context.Background()))
	*p = next
	for _, n := range m.nodes {
		if n.pool == p.id {
			m.size(n)
		}
	}
}

func (m *model) setQuota() {
	p, tenant := m.anyPool(), rapid.SampledFrom(modelTenants).Draw(m.t, "tenant")
	resource := rapid.SampledFrom([]string{p.sharing.Resource(), appliance.ResourceVCPU}).Draw(m.t, "resource")
	limit := rapid.SampledFrom([]int{0, 2, 5, 30, 1 << 20}).Draw(m.t, "max")
	_, err := m.f.c.SetQuota(context.Background(), operator, appliance.SetQuota{TenantID: "acme", PoolID: p.id, ForTenantID: tenant, Resource: resource, Max: limit})
	switch {
	case p.archived:
		m.code(err, appliance.InvalidState)
	case !p.seen[tenant]:
		m.code(err, appliance.NotFound)
	default:
		m.code(err, "")
		m.limit(p, tenant, resource, limit)
	}
}

func (m *model) limit(p *modelPool, tenant, resource string, limit int) {
	if p.max[tenant] == nil {
		p.max[tenant] = map[string]int{}
	}
	p.max[tenant][resource] = limit
}

// lower takes a pool away from a tenant: its limits drop to what is used.
func (m *model) lower(p *modelPool, tenant string) {
	delete(p.seen, tenant)
	for resource, limit := range p.max[tenant] {
		p.max[tenant][resource] = min(limit, m.used(tenant, p.id, resource))
	}
}

func (m *model) offer() {
	p, tenant := m.anyPool(), rapid.SampledFrom(modelTenants[1:]).Draw(m.t, "tenant")
	ctx := context.Background()
	if p.seen[tenant] {
		got, err := m.f.c.UnofferPool(ctx, operator, appliance.UnofferPool{TenantID: "acme", PoolID: p.id, ToTenantID: tenant})
		m.code(err, "")
		if !got.Removed {
			m.t.Fatalf("an offer that was there was not removed")
		}
		m.lower(p, tenant)
		return
	}
	quota := appliance.QuotaMap{p.sharing.Resource(): rapid.IntRange(0, 8).Draw(m.t, "max"), appliance.ResourceVCPU: 30, appliance.ResourceMemoryGiB: 100}
	_, err := m.f.c.OfferPool(ctx, operator, appliance.OfferPool{TenantID: "acme", PoolID: p.id, ToTenantID: tenant, Quota: quota})
	if p.archived || p.sharing.SingleTenantOnly() {
		m.code(err, appliance.InvalidState)
		return
	}
	m.code(err, "")
	p.seen[tenant] = true
	for resource, limit := range quota {
		m.limit(p, tenant, resource, limit)
	}
}

// takenBack does the work of several verbs in one transaction that then fails:
// nothing of it may stay, in the rows or in memory.
func (m *model) takenBack() {
	p, c := m.anyPool(), m.f.c
	var nodes []string
	for _, n := range m.nodes {
		nodes = append(nodes, n.id)
	}
	claims := slices.Clone(m.all)
	steps := rapid.Permutation([]string{"create", "end", "settle", "quota", "archive", "tenant"}).Draw(m.t, "steps")
	m.f.takenBack(func(tx *store.Tx) error {
		tr := system("test")
		for _, step := range steps {
			if err := m.unwanted(tx, tr, c, step, p, nodes, claims); err != nil {
				return fmt.Errorf("%s: %w", step, err)
			}
		}
		return nil
	})
}

func (m *model) unwanted(tx *store.Tx, tr trail, c *Control, step string, p *modelPool, nodes []string, claims []*appliance.Reservation) error {
	facts := c.mem.pool(p.id)
	switch step {
	case "create":
		r := appliance.Reservation{
			ID: c.newID(appliance.ReservationPrefix), TenantID: "acme", PoolID: p.id, State: appliance.Pending, Nodes: 1,
			Resources: appliance.Amounts{p.sharing.Resource(): 1, appliance.ResourceVCPU: 1}, Selector: appliance.Selector{appliance.MIGProfile: {Equals: "1g.10gb"}},
			Binding: appliance.BindHold, CreatedAt: c.now(),
		}
		_, err := c.insertReservation(tx, tr, facts, r)
		return err
	case "end":
		for _, r := range claims {
			if !r.State.Live() {
				continue
			}
			claim, err := tx.Reservation(r.ID)
			if err != nil {
				return err
			}
			if _, err := c.end(tx, tr, &claim, appliance.ReasonReleased, ""); err != nil {
				return err
			}
		}
	case "settle":
		for _, id := range nodes {
			rec, err := tx.Node(id)
			if err != nil {
				return err
			}
			inv, err := tx.Inventory(id)
			if err != nil {
				return err
			}
			rec.Hold, inv.CPU.Logical = appliance.NodeCordoned, 100
			if _, err := c.settle(tx, tr, c.mem.pool(rec.PoolID), rec, inv); err != nil {
				return err
			}
		}
	case "quota":
		if err := tx.SetQuotaMax("acme", p.id, appliance.ResourceVCPU, 7); err != nil {
			return err
		}
		_, err := c.refreshQuotas(tx, "acme", p.id)
		return err
	case "archive":
		_, err := c.archive(tx, tr, facts, "")
		return err
	case "tenant":
		t, _ := c.mem.tenant("beta")
		t.State = appliance.TenantSuspended
		return c.putTenantState(tx, tr, t, appliance.EventTenantSuspended)
	}
	return nil
}

// failedCommit runs creates and a release whose shared commit fails. A call
// that came too late for it may succeed; what failed must have left no trace.
func (m *model) failedCommit() {
	in := m.ask()
	var got appliance.Reservation
	var live *appliance.Reservation
	calls := []func() error{func() (err error) {
		got, err = m.f.c.CreateReservation(context.Background(), operator, in)
		return err
	}}
	if len(m.all) > 0 {
		if r := m.all[len(m.all)-1]; r.State.Live() {
			live = r
			calls = append(calls, func() error {
				_, err := m.f.c.ReleaseReservation(context.Background(), operator, appliance.ReservationRef{TenantID: r.TenantID, ReservationID: r.ID})
				return err
			})
		}
	}
	errs := m.f.together(true, calls...)
	if live != nil && errs[1] == nil {
		live.State = appliance.Ended
	}
	if code := appliance.CodeOf(errs[0]); code == "" { // too late: it may have seen the release or not
		m.all = append(m.all, &got)
	}
	m.f.verify()
}

// together shares one commit between a create that is kept and a transaction
// that reads and writes the same counters and is then taken back.
func (m *model) together() {
	in := m.ask()
	p := m.pool(in.PoolID)
	var got appliance.Reservation
	errs := m.f.together(false, func() (err error) {
		got, err = m.f.c.CreateReservation(context.Background(), operator, in)
		return err
	}, func() error {
		m.f.takenBack(func(tx *store.Tx) error {
			return m.unwanted(tx, system("test"), m.f.c, "quota", p, nil, nil)
		})
		return nil
	})
	m.took(in, got, errs[0])
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
