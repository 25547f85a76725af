package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

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
			m.ended(r)
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
					m.ended(r)
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
		"device":  do(m.loseDevice),
		"walls":   do(m.takeWallsDown),
		"units":   do(m.answerUnits),
		"rollout": do(m.roll),
		"policy":  do(m.changePolicy),
		"quota":   do(m.setQuota),
		"offer":   do(m.offer),
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

// ended notes that a reservation is over. Its atoms on nodes that raise walls are
// not free yet.
func (m *model) ended(r *appliance.Reservation) {
	if r.State.Booked() {
		for _, p := range r.Placements {
			if n := m.node(p.NodeID); n.walled {
				for _, a := range p.Atoms {
					n.kept[a] = r.ID
				}
			}
		}
	}
	r.State = appliance.Ended
}

// takeWallsDown is a node that says which of its walls are gone, for the newest
// NodeSpec or for another one, or that it raises none any more.
func (m *model) takeWallsDown() {
	n := m.anyNode()
	newest, _ := m.f.c.mem.generation(n.id)
	w := &wire.WallsStatus{
		Enforced:   rapid.IntRange(0, 3).Draw(m.t, "enforced") > 0,
		Generation: newest + int64(rapid.SampledFrom([]int{0, 0, 0, 1, -1000}).Draw(m.t, "generation")),
	}
	list := []wire.BindingStatus{}
	up := map[string]bool{}
	for _, r := range m.all {
		if r.State == appliance.Ended && rapid.IntRange(0, 2).Draw(m.t, "listed") == 0 {
			up[r.ID] = true
			list = append(list, wire.BindingStatus{ReservationID: r.ID, Ending: true, Note: "held"})
		}
	}
	m.f.hear(n.id, wire.Heartbeat{Bindings: &list, Walls: w})
	n.walled, n.silent = w.Enforced, false
	for atom, id := range n.kept {
		if !w.Enforced || !up[id] && w.Generation == newest {
			delete(n.kept, atom)
		}
	}
	m.size(n)
}

// answerUnits is a node that says how its units are, for the newest NodeSpec or
// for one before.
func (m *model) answerUnits() {
	n := m.anyNode()
	newest, _ := m.f.c.mem.generation(n.id)
	h := wire.Heartbeat{Applied: newest}
	if rapid.IntRange(0, 4).Draw(m.t, "old") == 0 {
		h.Applied = newest + int64(rapid.SampledFrom([]int{1, -1000}).Draw(m.t, "generation"))
	}
	state := rapid.SampledFrom([]wire.UnitState{wire.InSync, wire.InSync, wire.PendingReboot, wire.Failed}).Draw(m.t, "state")
	h.Units = []wire.UnitStatus{{Kind: wire.UnitIOMMU, State: state}}
	m.f.hear(n.id, h)
	n.unit, n.silent = state, false
	n.answered = n.answered || n.changing && h.Applied == newest
	m.rested(n)
	m.size(n)
}

// rested ends the turn of a node whose unit has come to rest.
func (m *model) rested(n *modelNode) {
	if n.changing && n.answered && n.unit != wire.PendingReboot && n.unit != wire.Failed {
		n.changing, n.answered = false, false
	}
}

// roll lets the loop that brings nodes to their policy run.
func (m *model) roll() {
	m.f.must(m.f.c.RefreshNodes(context.Background()))
	for _, p := range m.pools {
		nodes, taken := 0, 0
		var waiting []*modelNode
		for _, n := range m.nodes {
			if n.pool != p.id {
				continue
			}
			if nodes++; n.changing && n.iommu != p.iommu { // it has its turn, and goes along
				n.iommu, n.answered = p.iommu, false
			}
			switch {
			case n.changing:
				taken++
			case n.iommu != p.iommu && !n.silent:
				waiting = append(waiting, n)
			}
		}
		limit := 0
		if p.budget > 0 {
			limit = max(1, int(p.budget*float64(nodes)))
		}
		slices.SortFunc(waiting, func(a, b *modelNode) int {
			if m.busy(a) != m.busy(b) {
				if m.busy(b) {
					return -1
				}
				return 1
			}
			return strings.Compare(a.id, b.id)
		})
		for _, n := range waiting[:min(len(waiting), max(0, limit-taken))] {
			n.iommu, n.changing, n.answered = p.iommu, true, false
		}
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
	next.iommu = rapid.Bool().Draw(m.t, "iommu")
	next.budget = rapid.SampledFrom([]float64{0, 0.05, 0.5, 1}).Draw(m.t, "budget")
	next.setPolicy(rapid.IntRange(0, 20).Draw(m.t, "reserve"), rapid.IntRange(1, 4).Draw(m.t, "replicas"), rapid.SampledFrom([]int{-1, -1, 0, 3}).Draw(m.t, "perGpu"))
	policy := appliance.RawPolicy(next.policy())
	_, err := m.f.c.UpdatePool(context.Background(), operator, appliance.UpdatePool{TenantID: "acme", PoolID: p.id, Policy: &policy})
	if p.archived {
		m.code(err, appliance.InvalidState)
		return
	}
	m.code(err, "")
	*p = next
	m.roll()
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
		m.ended(live)
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
