package iam

import (
	"sync"

	"github.com/bettercompute/bc/appliance"
)

// memoryLimit is how many decisions are remembered for one tenant, about 2 MiB
// of them; past it they are all forgotten. Few tenants come near: what is
// remembered is roles × actions × kinds of pool, not callers × pools.
const memoryLimit = 4096

// memory remembers decisions by everything that they can depend on.
type memory struct {
	mu sync.RWMutex
	m  map[key]Decision
}

func newMemory() *memory { return &memory{m: map[key]Decision{}} }

func (m *memory) get(k key) (Decision, bool) {
	m.mu.RLock()
	d, ok := m.m[k]
	m.mu.RUnlock()
	return d, ok
}

func (m *memory) put(k key, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.m) >= memoryLimit {
		clear(m.m)
	}
	m.m[k] = d
}

// key is what a decision can depend on, for policies that do not look at the
// hour or the address, on questions without a Subject.
type key struct {
	kind   appliance.CallerKind
	id     string // only if a policy spells it out
	home   string
	role   appliance.Role
	action appliance.Action
	tenant string
	onPool bool
	row    appliance.AuthzRow // attributes only where a policy names them
}

// key leaves out of the question what these policies cannot tell apart. What
// the roles and guard rails look at always stays.
func (f *facts) key(q Question) key {
	c := &q.Caller
	k := key{kind: c.Kind, home: c.Tenant, role: c.Role, action: q.Action, tenant: q.Tenant}
	if f.ids[c.ID] {
		k.id = c.ID
	}
	if q.Pool == nil {
		return k
	}
	p := q.Pool
	k.onPool, k.row.TenantID, k.row.Owned = true, p.TenantID, p.Owned
	if f.ids[p.PoolID] {
		k.row.PoolID = p.PoolID
	}
	if f.gpuModel {
		k.row.GPUModel = p.GPUModel
	}
	if f.class {
		k.row.Class = p.Class
	}
	if f.sharing {
		k.row.Sharing = p.Sharing
	}
	if f.region {
		k.row.Region = p.Region
	}
	return k
}
