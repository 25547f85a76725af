package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/bettercompute/bc/appliance"
)

// step is one thing that an apply does.
type step struct {
	Action  string   `json:"action"` // create, update, withdraw or archive
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	ID      string   `json:"id,omitempty"` // as far as it is known
	Changes []change `json:"changes,omitempty"`

	rank int // steps go in this order
	pool ref // whose id goes into the input
	site ref
	in   any // the input of the API's verb
}

// The order of the steps: what others refer to comes first, and an offer goes
// before a pool becomes single-tenant.
const (
	rankTenant = iota
	rankSite
	rankPool
	rankWithdraw
	rankUpdate
	rankOffer
	rankQuota
	rankBudget
	rankArchive
)

// planner compares what a file wants with what is.
type planner struct {
	want   fleet
	have   fleetState
	caller string // whose name pools' ids are derived from, "" if it is not known
	prune  bool

	steps    []step
	problems []error
}

// plan gives the steps from what is to what is wanted, in their order. It
// refuses what no step can reach, all of it at once.
func (p *planner) plan() ([]step, error) {
	for _, id := range sortedKeys(p.want.Tenants) {
		p.tenant(id, p.want.Tenants[id])
	}
	for _, key := range sortedKeys(p.want.Sites) {
		p.site(refOf(p.have.acting, key), p.want.Sites[key])
	}
	kept := map[string]bool{}
	for _, key := range sortedKeys(p.want.Pools) {
		p.pool(key, p.want.Pools[key], kept)
	}
	for _, have := range p.have.pools {
		if p.prune && !have.Archived && !kept[have.ID] && have.OwnerTenantID == p.have.acting {
			p.add(step{Action: "archive", Kind: "pool", Name: poolHandle(have), ID: have.ID, rank: rankArchive,
				pool: ref{have.OwnerTenantID, poolHandle(have)}, in: appliance.PoolRef{TenantID: have.OwnerTenantID, PoolID: have.ID}})
		}
	}
	p.orderTenants()
	slices.SortStableFunc(p.steps, func(a, b step) int { return a.rank - b.rank })
	return p.steps, errors.Join(p.problems...)
}

func (p *planner) add(s step) { p.steps = append(p.steps, s) }

func (p *planner) problem(format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf(format, args...))
}

func (p *planner) tenant(id string, want fleetTenant) {
	have, there := p.have.tenants[id]
	parent := want.Parent
	if parent == "" {
		parent = p.have.acting
	}
	switch {
	case !there:
		in := appliance.CreateTenant{TenantID: p.have.acting, ID: id, ParentID: parent, Name: want.Name}
		if err := in.Validate(); err != nil {
			p.problem("tenants.%s: %s", id, sentence(err))
		}
		p.add(step{Action: "create", Kind: "tenant", Name: id, ID: id, in: in, rank: rankTenant})
	case want.Name != "" && want.Name != have.Name:
		p.problem("tenants.%s: a tenant's name does not change: it is %q, not %q", id, have.Name, want.Name)
	case id != p.have.acting && parent != have.ParentID:
		p.problem("tenants.%s: a tenant's parent does not change: it is %s, not %s", id, have.ParentID, parent)
	}
	for _, period := range sortedKeys(want.Budgets) {
		in := appliance.SetBudget{TenantID: p.have.acting, ForTenantID: id, Period: appliance.BudgetPeriod(period), Amount: want.Budgets[period]}
		if err := in.Validate(); err != nil {
			p.problem("tenants.%s.budgets: %s", id, sentence(err))
			continue
		}
		now, there := p.have.budgets[id][period]
		if there && now == in.Amount {
			continue
		}
		c, action := change{Field: "amount", To: in.Amount}, "create"
		if there {
			c.From, action = now, "update"
		}
		p.add(step{Action: action, Kind: "budget", Name: fmt.Sprintf("%s (%s)", id, period), Changes: []change{c}, in: in, rank: rankBudget})
	}
}

// orderTenants puts parents before their children.
func (p *planner) orderTenants() {
	made := map[string]bool{}
	var out, wait []step
	for _, s := range p.steps {
		if s.rank == rankTenant {
			wait = append(wait, s)
		} else {
			out = append(out, s)
		}
	}
	var first []step
	for len(wait) > 0 {
		var later []step
		for _, s := range wait {
			parent := s.in.(appliance.CreateTenant).ParentID
			if _, there := p.have.tenants[parent]; there || made[parent] {
				made[s.Name] = true
				first = append(first, s)
			} else {
				later = append(later, s)
			}
		}
		if len(later) == len(wait) {
			for _, s := range later {
				p.problem("tenants.%s: its parent %s is neither there nor in the file", s.Name, s.in.(appliance.CreateTenant).ParentID)
			}
			break
		}
		wait = later
	}
	p.steps = append(first, out...)
}

// site plans one site.
func (p *planner) site(at ref, want fleetSite) {
	if want.Kind == "" {
		want.Kind = appliance.SiteCustom
	}
	name := at.key(p.have.acting)
	have, there := p.have.sites[at]
	switch {
	case !there:
		in := appliance.CreateSite{TenantID: at.owner, Kind: want.Kind, Name: at.name, Region: want.Region}
		if err := in.Validate(); err != nil {
			p.problem("sites.%s: %s", name, sentence(err))
		}
		p.add(step{Action: "create", Kind: "site", Name: name, site: at, in: in, rank: rankSite})
	case have.Kind != want.Kind:
		p.problem("sites.%s: a site's kind does not change: it is %s, not %s", name, have.Kind, want.Kind)
	case have.Region != want.Region:
		p.problem("sites.%s: a site's region does not change: it is %s, not %s", name, have.Region, want.Region)
	}
}

// findSite resolves a pool's site.
func (p *planner) findSite(owner, name string) (ref, string, bool) {
	for at, x := range p.have.sites {
		if at.owner == owner && (x.ID == name || x.Name == name) {
			return at, x.ID, true
		}
	}
	for key := range p.want.Sites {
		if at := refOf(p.have.acting, key); at == (ref{owner, name}) {
			return at, "", true
		}
	}
	return ref{}, "", false
}

// pool plans one pool with its offers and quotas, and marks it as kept.
func (p *planner) pool(key string, want fleetPool, kept map[string]bool) {
	at := refOf(p.have.acting, key)
	policy, err := want.policy()
	if err != nil {
		p.problem("pools.%s: %w", key, err)
	}
	var have *appliance.Pool
	retired := 0 // how many pools of this name have been archived
	for i, x := range p.have.pools {
		switch {
		case x.OwnerTenantID != at.owner || x.Name != at.name && x.ID != at.name:
		case x.Archived:
			retired++
		default:
			have = &p.have.pools[i]
		}
	}
	if have == nil {
		if appliance.IsID(appliance.PoolPrefix, at.name) {
			p.problem("pools.%s: there is no such pool; a new one needs a name, its id is made", key)
			return
		}
		p.newPool(key, at, want, policy, retired)
		return
	}
	kept[have.ID] = true
	p.samePool(key, *have, want)
	changes := poolDiff(*have, policy, want.GPUModel)
	if len(changes) > 0 {
		in := appliance.UpdatePool{TenantID: at.owner, PoolID: have.ID, ExpectedVersion: &have.Version}
		if want.GPUModel != have.GPUModel {
			in.GPUModel = want.GPUModel
		}
		if policy != nil && len(policyDiff(have.Policy, policy)) > 0 {
			in.Policy = &policy
		}
		p.add(step{Action: "update", Kind: "pool", Name: key, ID: have.ID, Changes: changes, pool: at, in: in, rank: rankUpdate})
	}
	p.ownQuota(key, at, *have, want.Quota)
	p.poolOffers(key, at, have, want.Offers)
}

// samePool refuses changes of what never changes.
func (p *planner) samePool(key string, have appliance.Pool, want fleetPool) {
	for _, f := range []struct{ field, have, want string }{
		{"class", string(have.Class), string(want.Class)}, {"sharing", string(have.Sharing), string(want.Sharing)},
		{"agent", string(have.Agent), string(want.Agent)}, {"providerAccountId", have.ProviderAccountID, want.ProviderAccount},
	} {
		if f.want != "" && f.want != f.have {
			p.problem("pools.%s: %s never changes: it is %s, not %s; archive the pool and make another", key, f.field, orDash(f.have), f.want)
		}
	}
	if want.Site == "" {
		return
	}
	if _, id, ok := p.findSite(have.OwnerTenantID, want.Site); !ok || id != have.SiteID {
		p.problem("pools.%s: its site never changes, and is not %s; archive the pool and make another", key, want.Site)
	}
}

func (p *planner) newPool(key string, at ref, want fleetPool, policy appliance.RawPolicy, retired int) {
	site, siteID, ok := p.findSite(at.owner, want.Site)
	if !ok {
		p.problem("pools.%s: tenant %s has no site %q, and there is none in the file", key, at.owner, want.Site)
	}
	in := appliance.CreatePool{
		TenantID: at.owner, SiteID: siteID, Class: want.Class, GPUModel: want.GPUModel, Sharing: want.Sharing, Agent: want.Agent,
		ProviderAccountID: want.ProviderAccount, Policy: policy, Name: at.name, IdempotencyKey: "fleet/" + at.name,
	}
	if retired > 0 { // the first key made the one that is archived
		in.IdempotencyKey += fmt.Sprintf("/%d", retired+1)
	}
	if want.Quota != nil {
		in.OwnerQuota = quotaOf(want.Quota)
	}
	in.Normalise()
	if err := in.Validate(); err != nil {
		p.problem("pools.%s: %s", key, sentence(err))
	}
	changes := []change{{Field: "class", To: in.Class}, {Field: "gpuModel", To: in.GPUModel}, {Field: "sharing", To: in.Sharing}, {Field: "site", To: site.name}}
	for _, r := range appliance.Amounts(in.OwnerQuota).Names() {
		changes = append(changes, change{Field: "quota." + r, To: limitText(in.OwnerQuota[r])})
	}
	changes = append(changes, policyDiff(nil, policy)...)
	id := ""
	if p.caller != "" {
		id = appliance.DeriveID(appliance.PoolPrefix, at.owner, p.caller, in.IdempotencyKey)
	}
	p.add(step{Action: "create", Kind: "pool", Name: key, ID: id, Changes: changes, pool: at, site: site, in: in, rank: rankPool})
	p.poolOffers(key, at, nil, want.Offers)
}

func quotaOf(limits map[string]limit) appliance.QuotaMap {
	out := appliance.QuotaMap{}
	for r, n := range limits {
		out[r] = int(n)
	}
	return out
}

func limitText(n int) any {
	if n == appliance.MaxCount {
		return "any"
	}
	return n
}

// quotaDiff gives the rows that differ: a row that is not wanted is set to 0.
func quotaDiff(have []appliance.Quota, want map[string]limit) (appliance.QuotaMap, []change) {
	out, now := appliance.QuotaMap{}, map[string]int{}
	if want == nil {
		return out, nil
	}
	for _, q := range have {
		now[q.Resource] = q.Max
		if _, ok := want[q.Resource]; !ok && q.Max > 0 {
			out[q.Resource] = 0
		}
	}
	for r, n := range want {
		if now[r] != int(n) {
			out[r] = int(n)
		}
	}
	var changes []change
	for _, r := range sortedKeys(out) {
		c := change{Field: "quota." + r, To: limitText(out[r])}
		if now[r] > 0 {
			c.From = limitText(now[r])
		}
		changes = append(changes, c)
	}
	return out, changes
}

func (p *planner) ownQuota(key string, at ref, have appliance.Pool, want map[string]limit) {
	if err := quotaOf(want).Validate("quota"); err != nil {
		p.problem("pools.%s: %s", key, sentence(err))
		return
	}
	rows, changes := quotaDiff(have.Quotas, want)
	for i, r := range sortedKeys(rows) {
		p.add(step{Action: "update", Kind: "quota", Name: key + " of " + at.owner, Changes: changes[i : i+1], pool: at, rank: rankQuota,
			in: appliance.SetQuota{TenantID: at.owner, PoolID: have.ID, ForTenantID: at.owner, Resource: r, Max: rows[r]}})
	}
}

// poolOffers plans a pool's offers; have is nil for a new pool.
func (p *planner) poolOffers(key string, at ref, have *appliance.Pool, want map[string]fleetOffer) {
	there, poolID := map[string]appliance.Offer{}, ""
	if have != nil {
		poolID = have.ID
		for _, o := range p.have.offers[poolID] {
			there[o.TenantID] = o
		}
	}
	for _, tenant := range sortedKeys(there) {
		if _, wanted := want[tenant]; !wanted && tenant != at.owner {
			p.add(step{Action: "withdraw", Kind: "offer", Name: key + " to " + tenant, pool: at, rank: rankWithdraw,
				in: appliance.UnofferPool{TenantID: at.owner, PoolID: poolID, ToTenantID: tenant}})
		}
	}
	for _, tenant := range sortedKeys(want) {
		o := want[tenant]
		in := appliance.OfferPool{
			TenantID: at.owner, PoolID: poolID, ToTenantID: tenant, Quota: quotaOf(o.Quota), IncludeDescendants: o.IncludeDescendants,
			Priority: o.Priority, OnBudgetExceeded: o.OnBudgetExceeded,
		}
		in.Normalise()
		if err := in.Validate(); err != nil {
			p.problem("pools.%s.offers.%s: %s", key, tenant, sentence(err))
			continue
		}
		now, offered := there[tenant]
		changes := offerDiff(now, offered, in)
		rows, quotas := quotaDiff(now.Quotas, o.Quota)
		for r, n := range rows {
			in.Quota[r] = n
		}
		if changes = append(changes, quotas...); len(changes) == 0 && offered {
			continue
		}
		action := "update"
		if !offered {
			action = "create"
		}
		p.add(step{Action: action, Kind: "offer", Name: key + " to " + tenant, Changes: changes, pool: at, in: in, rank: rankOffer})
	}
}

// offerDiff compares an offer with what is wanted; one that is new shows what
// is not by default.
func offerDiff(now appliance.Offer, offered bool, want appliance.OfferPool) []change {
	if !offered {
		now.OnBudgetExceeded = appliance.BudgetNone
	}
	var out []change
	for _, c := range []change{
		{"priority", now.Priority, want.Priority}, {"includeDescendants", now.IncludeDescendants, want.IncludeDescendants},
		{"onBudgetExceeded", now.OnBudgetExceeded, want.OnBudgetExceeded},
	} {
		if c.From == c.To {
			continue
		}
		if !offered {
			c.From = nil
		}
		out = append(out, c)
	}
	return out
}
