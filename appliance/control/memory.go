package control

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// memory is what every decision needs at once. All of it changes on the
// store's writer alone, under mu, with an Undo for each change; the last
// heartbeats are the exception: they are kept nowhere else.
type memory struct {
	mu       sync.RWMutex
	tenants  map[string]appliance.Tenant
	policies map[string][]appliance.AccessPolicy // by tenant
	pools    map[string]*pool
	visible  map[string][]string // tenant -> ids of the pools it sees, in order; made when asked for
	quotas   map[quotaKey]*counter
	nodes    map[string]*node
	byToken  map[string]*node // by the hash of its credential
	byHost   map[string]*node // by its machine's id
	index    *plan.Index
	waiting  map[string][]waiting // pool id -> pending reservations in order of creation
	turns    map[string]turn      // pool id -> who has its turn there; see turnAfter
	stirred  map[string]bool      // pools in which something changed that those may wait for
	ends     ends

	rolling   map[string]map[string]bool     // pool id -> its nodes that are in a rollout
	releasing map[string]map[string]*release // node id -> ended reservations that still keep atoms of it

	// Counters to write with the next commit. The writer alone touches these.
	dirtyQuotas map[quotaKey]bool
	dirtyNodes  map[string]bool
}

// pool is a pool with everything that decisions about it read. It never
// changes: a change of the pool makes a new one.
type pool struct {
	appliance.Pool
	siteKind appliance.SiteKind
	policy   appliance.Policy
	seenBy   map[string]appliance.AuthzRow // by tenant
	offers   map[string]appliance.Offer    // by tenant
}

type quotaKey struct{ tenant, pool, resource string }

// counter is a quota row in memory.
type counter struct{ max, used int }

// node is what is kept of a node in memory; the rest is read when asked for.
type node struct {
	id, pool, hostname string
	token              string // hash of its credential
	machine            string // hash of its machine id
	state              appliance.NodeState
	inventory          string // hash
	generation         int64
	version            int  // of the pool, that its spec was made from
	simulated          bool // a recorded machine
	owned              bool // tenant-owned
	walled             bool // its agent raises walls, and says when one is gone
	rollout            *appliance.Rollout

	seen     time.Time // last heartbeat, or the start of the control plane
	reported bool      // a heartbeat has come since the start
	told     bool      // units, checks and bindings were sent whole since the start
}

// waiting is a pending reservation's place in its pool's queue.
type waiting struct {
	queue int64
	id    string
	asked *appliance.Reservation // but for its message, as it is stored
}

// above lists the tenants above one, nearest first.
func (m *memory) above(id string) []string {
	var out []string
	for t := m.tenants[id]; t.ParentID != ""; t = m.tenants[t.ParentID] {
		out = append(out, t.ParentID)
	}
	return out
}

// readPool reads what decisions about a pool depend on.
func (c *Control) readPool(tx *store.Tx, p appliance.Pool) (*pool, error) {
	policy, err := plan.ReadPolicy(p.Policy)
	if err != nil {
		return nil, fmt.Errorf("pool %s: its stored policy cannot be read: %w", p.ID, err)
	}
	site, err := tx.Site(p.SiteID)
	if err != nil {
		return nil, err
	}
	rows, err := tx.AuthzOf(p.ID)
	if err != nil {
		return nil, err
	}
	offers, err := tx.OffersOf(p.ID)
	if err != nil {
		return nil, err
	}
	out := &pool{Pool: p, siteKind: site.Kind, policy: policy, seenBy: map[string]appliance.AuthzRow{}, offers: map[string]appliance.Offer{}}
	for _, r := range rows {
		out.seenBy[r.TenantID] = r
	}
	for _, o := range offers {
		out.offers[o.TenantID] = o
	}
	return out, nil
}

// refreshPool takes a pool's rows, as this transaction has them, into memory.
func (c *Control) refreshPool(tx *store.Tx, id string) (*pool, error) {
	p, err := tx.Pool(id)
	if err != nil {
		return nil, err
	}
	facts, err := c.readPool(tx, p)
	if err != nil {
		return nil, err
	}
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before, was := m.pools[id]
	m.pools[id] = facts
	clear(m.visible)
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		clear(m.visible)
		if was {
			m.pools[id] = before
		} else {
			delete(m.pools, id)
		}
	})
	c.stir(tx, id)
	return facts, nil
}

// refreshQuotas takes a tenant's quota rows in a pool into memory.
func (c *Control) refreshQuotas(tx *store.Tx, tenant, poolID string) ([]appliance.Quota, error) {
	if err := c.flushQuotas(tx); err != nil { // rows first, so that used is never read stale
		return nil, err
	}
	rows, err := tx.QuotasOf(tenant, poolID)
	if err != nil {
		return nil, err
	}
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range rows {
		k := quotaKey{q.TenantID, q.PoolID, q.Resource}
		before, was := m.quotas[k]
		m.quotas[k] = &counter{max: q.Max, used: q.Used}
		tx.Undo(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if was {
				m.quotas[k] = before
			} else {
				delete(m.quotas, k)
			}
		})
	}
	c.stir(tx, poolID)
	return rows, nil
}

// charge adds amounts to a tenant's counters, which flush writes at the end of
// the batch. Negative amounts give back.
func (c *Control) charge(tx *store.Tx, tenant, poolID string, amounts appliance.Amounts, sign int) error {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range amounts.Names() {
		n := sign * amounts[r]
		if n == 0 {
			continue
		}
		k := quotaKey{tenant, poolID, r}
		q := m.quotas[k]
		if q == nil || q.used+n < 0 {
			return fmt.Errorf("charge %d %s of tenant %s in pool %s: the quota row does not hold it", n, r, tenant, poolID)
		}
		q.used += n
		m.dirtyQuotas[k] = true
		tx.Undo(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			q.used -= n
			m.dirtyQuotas[k] = true
		})
	}
	return nil
}

// short says which quota rows do not hold the amounts.
func (m *memory) short(tenant, poolID string, amounts appliance.Amounts) []appliance.QuotaShort {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.shortNow(tenant, poolID, amounts)
}

// shortNow is short for a caller that holds mu.
func (m *memory) shortNow(tenant, poolID string, amounts appliance.Amounts) []appliance.QuotaShort {
	var out []appliance.QuotaShort
	for _, r := range amounts.Names() {
		q := m.quotas[quotaKey{tenant, poolID, r}]
		if q == nil {
			q = &counter{}
		}
		if asked := amounts[r]; asked > 0 && q.used+asked > q.max {
			out = append(out, appliance.QuotaShort{Resource: r, Asked: asked, Used: q.used, Max: q.max})
		}
	}
	return out
}

// flush writes the counters that changed in a batch: one row each, however
// many bookings changed it. It is the store's BeforeCommit. It runs on the
// writer, which alone changes what it reads, and so takes no lock: readers are
// not held up by the file.
func (c *Control) flush(tx *store.Tx) error {
	if err := c.flushQuotas(tx); err != nil {
		return err
	}
	m := &c.mem
	dirty := sortedKeys(m.dirtyNodes)
	stayDirty(tx, m.dirtyNodes, dirty)
	clear(m.dirtyNodes)
	var ledgers []store.NodeLedger
	for _, id := range dirty {
		if n := m.nodes[id]; n != nil { // else it was removed in this batch
			ledgers = append(ledgers, store.NodeLedger{NodeID: id, Generation: n.generation, Resources: m.index.Rows(id)})
		}
	}
	if len(ledgers) == 0 {
		return nil
	}
	return tx.Later(func(tx *store.Tx) error {
		for _, l := range ledgers {
			if err := tx.PutLedger(l); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Control) flushQuotas(tx *store.Tx) error {
	m := &c.mem
	dirty := slices.Collect(maps.Keys(m.dirtyQuotas))
	stayDirty(tx, m.dirtyQuotas, dirty)
	clear(m.dirtyQuotas)
	used := map[quotaKey]int{}
	for _, k := range dirty {
		if q := m.quotas[k]; q != nil {
			used[k] = q.used
		}
	}
	if len(used) == 0 {
		return nil
	}
	return tx.Later(func(tx *store.Tx) error {
		for k, n := range used {
			if err := tx.SetQuotaUsed(k.tenant, k.pool, k.resource, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// stayDirty marks counters again when the write that flushes them is rolled
// back: earlier writes of the batch, which stand, may have changed them too.
func stayDirty[K comparable](tx *store.Tx, dirty map[K]bool, keys []K) {
	if len(keys) == 0 {
		return
	}
	tx.Undo(func() {
		for _, k := range keys {
			dirty[k] = true
		}
	})
}

// dirty marks a node whose bookings or spec changed: its generation rises once
// for each transaction that changes it.
func (c *Control) dirty(tx *store.Tx, nodeID string) {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[nodeID]
	if n == nil {
		return
	}
	n.generation++
	m.dirtyNodes[nodeID] = true
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		n.generation--
		m.dirtyNodes[nodeID] = true
	})
	tx.Touch(nodeID)
}

// setTenant takes a tenant into memory.
func (c *Control) setTenant(tx *store.Tx, t appliance.Tenant) error {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before, was := m.tenants[t.ID]
	m.tenants[t.ID] = t
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if was {
			m.tenants[t.ID] = before
		} else {
			delete(m.tenants, t.ID)
			c.IAM.DropTenant(t.ID)
		}
	})
	if was {
		return nil
	}
	return c.IAM.SetTenant(t.ID, m.above(t.ID), nil)
}

func (m *memory) tenant(id string) (appliance.Tenant, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t, ok := m.tenants[id]
	return t, ok
}

// pool gives a pool by id, nil if there is none.
func (m *memory) pool(id string) *pool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.pools[id]
}

// poolSeen gives a pool as a tenant sees it, nil if it does not.
func (m *memory) poolSeen(id, tenant string) (*pool, appliance.AuthzRow) {
	p := m.pool(id)
	if p == nil {
		return nil, appliance.AuthzRow{}
	}
	row, ok := p.seenBy[tenant]
	if !ok {
		return nil, appliance.AuthzRow{}
	}
	return p, row
}

// put and drop keep the node's keys together.
func (m *memory) put(n *node) {
	m.roll(n.pool, n.id, n.rollout != nil)
	m.nodes[n.id] = n
	m.byToken[n.token] = n
	m.byHost[n.machine] = n
}

func (m *memory) drop(n *node) {
	m.roll(n.pool, n.id, false)
	delete(m.nodes, n.id)
	delete(m.byToken, n.token)
	delete(m.byHost, n.machine)
}

// tenantOwnedNode finds a tenant-owned node of a pool.
func (m *memory) tenantOwnedNode(poolID string) (hostname string, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		if n.pool == poolID && n.owned {
			return n.hostname, true
		}
	}
	return "", false
}

// poolsSeenBy lists the pools that a tenant sees, in order of id.
func (m *memory) poolsSeenBy(tenant string) []*pool {
	var out []*pool
	for _, id := range m.idsSeenBy(tenant) {
		if p := m.pool(id); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// idsSeenBy lists the ids of the pools that a tenant sees, in order. The list
// is shared and must not be changed.
func (m *memory) idsSeenBy(tenant string) []string {
	m.mu.RLock()
	ids, ok := m.visible[tenant]
	m.mu.RUnlock()
	if ok {
		return ids
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.pools {
		if _, ok := p.seenBy[tenant]; ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	m.visible[tenant] = ids
	return ids
}

// allResources are the names that a quota row can have, in order.
var allResources = slices.Sorted(slices.Values(slices.Concat(appliance.GPUResources, appliance.Scalars)))

// quotasOf lists a tenant's rows in a pool, in order of resource. The caller
// holds mu.
func (m *memory) quotasOf(tenant, poolID string) []appliance.Quota {
	out := make([]appliance.Quota, 0, 4)
	for _, r := range allResources {
		if q := m.quotas[quotaKey{tenant, poolID, r}]; q != nil {
			out = append(out, appliance.Quota{TenantID: tenant, PoolID: poolID, Resource: r, Max: q.max, Used: q.used, Available: max(0, q.max-q.used)})
		}
	}
	return out
}
