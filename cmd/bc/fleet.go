package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func fleetCommand() *cli.Command {
	from := &cli.StringSliceFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the fleet, a folder of *.toml, or - for standard input; any number of times"}
	prune := &cli.BoolFlag{Name: "prune", Usage: "archive the acting tenant's pools that stand in no file"}
	g := group("fleet", "", "tenants, sites, pools, offers, quotas and budgets in a file",
		&cli.Command{
			Name: "plan", Usage: "show what an apply would change; changes nothing",
			Description: "Examples:\n   bc fleet plan -f fleet.toml\n   bc fleet export | bc fleet plan -f -",
			Flags:       []cli.Flag{from, prune},
			Action:      planFleetFiles,
		},
		&cli.Command{
			Name: "apply", Usage: "make it so, after showing the plan and asking",
			Description: "Again it changes nothing. Where it is stopped on the way, apply again goes on from there.\n\n" +
				"Examples:\n   bc fleet apply -f fleet.toml\n   bc fleet apply -f fleet.d --yes",
			Flags:  []cli.Flag{from, prune, yesFlag()},
			Action: applyFleetFiles,
		},
		&cli.Command{
			Name: "export", Usage: "write what is, as such a file",
			Description: "Covers the acting tenant and those below it. Archived pools and deleted tenants are left out.\n\n" +
				"Examples:\n   bc fleet export > fleet.toml",
			Action: exportFleet,
		},
	)
	g.Description = `A pool, a tenant or a site that stands in no file is left alone (but see --prune). A pool that does
is held to it: an offer that is not in the file is withdrawn, and a resource that is not in a quota
is set to 0; a policy or a quota that is left out stays as it is. Things of another tenant than the
acting one are named "tenant/name".

   [tenants.acme]
   name = "Acme Research"
   budgets = { month = 10000.0 }

   [sites.lab]
   region = "fra1"

   [pools.training]
   site = "lab"
   class = "metal-host"
   gpuModel = "H100"
   quota = { gpu = "any" }
   policy = { maxPending = "6h", acceptance = [{ kind = "diag.nvml" }] }

   [pools.training.offers.acme]
   quota = { gpu = 32 }
   priority = 10`
	return g
}

// fleet is what a file says. Keys are names, of another tenant than the acting
// one with that before them: "acme/training".
type fleet struct {
	Tenants map[string]fleetTenant `toml:"tenants,omitempty"`
	Sites   map[string]fleetSite   `toml:"sites,omitempty"`
	Pools   map[string]fleetPool   `toml:"pools,omitempty"`
}

type fleetTenant struct {
	Name    string             `toml:"name,omitempty"`
	Parent  string             `toml:"parent,omitempty"` // default: the acting tenant
	Budgets map[string]float64 `toml:"budgets,omitempty"`
}

type fleetSite struct {
	Kind   appliance.SiteKind `toml:"kind,omitempty"` // default: custom
	Region string             `toml:"region"`
}

type fleetPool struct {
	Site            string                `toml:"site,omitempty"` // a name of the pool's own tenant, or an id
	Class           appliance.Class       `toml:"class,omitempty"`
	GPUModel        string                `toml:"gpuModel,omitempty"`
	Sharing         appliance.Sharing     `toml:"sharing,omitempty"`
	Agent           appliance.PoolAgent   `toml:"agent,omitempty"`
	ProviderAccount string                `toml:"providerAccountId,omitempty"`
	Quota           map[string]limit      `toml:"quota,omitempty"` // the owner's own
	Policy          map[string]any        `toml:"policy,omitempty"`
	PolicyJSON      string                `toml:"policyJSON,omitempty"` // for what TOML cannot say, such as null
	Offers          map[string]fleetOffer `toml:"offers,omitempty"`
}

type fleetOffer struct {
	Quota              map[string]limit           `toml:"quota,omitempty"`
	Priority           int                        `toml:"priority,omitempty"`
	IncludeDescendants bool                       `toml:"includeDescendants,omitempty"`
	OnBudgetExceeded   appliance.OnBudgetExceeded `toml:"onBudgetExceeded,omitempty"`
}

// limit is a quota's maximum: a number, or "any".
type limit int

// UnmarshalTOML reads a whole number or "any".
func (l *limit) UnmarshalTOML(v any) error {
	switch v := v.(type) {
	case int64:
		if v < 0 || v > appliance.MaxCount {
			return fmt.Errorf("%d is not 0 to %d", v, appliance.MaxCount)
		}
		*l = limit(v)
		return nil
	case string:
		if v == "any" {
			*l = appliance.MaxCount
			return nil
		}
	}
	return fmt.Errorf("%v is neither a whole number nor \"any\"", v)
}

// MarshalTOML writes the largest count as "any".
func (l limit) MarshalTOML() ([]byte, error) {
	if l == appliance.MaxCount {
		return []byte(`"any"`), nil
	}
	return fmt.Appendf(nil, "%d", int(l)), nil
}

// policy is the pool's policy, nil if the file says nothing of it.
func (p fleetPool) policy() (appliance.RawPolicy, error) {
	switch {
	case p.Policy != nil && p.PolicyJSON != "":
		return nil, fmt.Errorf("policy and policyJSON say the same; give one")
	case p.PolicyJSON != "":
		_, err := policyObject(appliance.RawPolicy(p.PolicyJSON))
		if err != nil {
			return nil, fmt.Errorf("policyJSON %w", err)
		}
		return appliance.RawPolicy(p.PolicyJSON), nil
	case p.Policy != nil:
		b, err := json.Marshal(p.Policy)
		return b, err
	}
	return nil, nil
}

// readFleetFiles reads and merges files. What stands in two is refused.
func readFleetFiles(paths []string) (fleet, error) {
	all := fleet{Tenants: map[string]fleetTenant{}, Sites: map[string]fleetSite{}, Pools: map[string]fleetPool{}}
	if len(paths) == 0 {
		return all, usagef("--file (-f) is required: a file, a folder, or - for standard input")
	}
	var files []string
	for _, p := range paths {
		if info, err := os.Stat(p); p != "-" && err == nil && info.IsDir() {
			inside, err := filepath.Glob(filepath.Join(p, "*.toml"))
			if err != nil || len(inside) == 0 {
				return all, usagef("%s holds no *.toml", p)
			}
			files = append(files, inside...)
			continue
		}
		files = append(files, p)
	}
	for _, file := range files {
		text, err := readInput(file)
		if err != nil {
			return all, usage{err}
		}
		var f fleet
		if err := parseTOML(file, string(text), &f, inPolicy); err != nil {
			return all, usage{err}
		}
		err = mergeKeys(err, file, "tenants", all.Tenants, f.Tenants)
		err = mergeKeys(err, file, "sites", all.Sites, f.Sites)
		if err = mergeKeys(err, file, "pools", all.Pools, f.Pools); err != nil {
			return all, err
		}
	}
	return all, nil
}

// inPolicy tells keys of a policy, which may have any, from those of the fleet.
func inPolicy(key toml.Key) bool { return len(key) > 3 && key[0] == "pools" && key[2] == "policy" }

func mergeKeys[T any](before error, file, table string, into, from map[string]T) error {
	for k, v := range from {
		if _, twice := into[k]; twice && before == nil {
			before = usagef("%s: %s.%s stands in another file as well", file, table, k)
		}
		into[k] = v
	}
	return before
}

// ref names a thing of a tenant.
type ref struct{ owner, name string }

// refOf reads a key: the acting tenant's name, or "tenant/name".
func refOf(acting, key string) ref {
	if owner, name, ok := strings.Cut(key, "/"); ok {
		return ref{owner, name}
	}
	return ref{acting, key}
}

func (r ref) key(acting string) string {
	if r.owner == acting {
		return r.name
	}
	return r.owner + "/" + r.name
}

// fleetState is what the control plane has of what a fleet can say.
type fleetState struct {
	acting  string
	tenants map[string]appliance.Tenant
	sites   map[ref]appliance.Site
	pools   []appliance.Pool             // the owners' own, archived ones too
	offers  map[string][]appliance.Offer // by pool
	budgets map[string]map[string]float64
}

// readFleet reads the state of the acting tenant and those below it, as far as
// the caller may act in their name.
func (s *session) readFleet(c *cli.Context) (fleetState, error) {
	st := fleetState{
		acting: s.tenant, tenants: map[string]appliance.Tenant{}, sites: map[ref]appliance.Site{},
		offers: map[string][]appliance.Offer{}, budgets: map[string]map[string]float64{},
	}
	tenants, err := list[appliance.Tenant](c.Context, s.Client, "tenants.list", s.inTenant)
	if err != nil {
		return st, err
	}
	for _, t := range tenants {
		if t.State == appliance.TenantDeleted {
			continue
		}
		st.tenants[t.ID] = t
		err := st.readTenant(c.Context, s, t.ID)
		if t.ID != s.tenant && (appliance.CodeOf(err) == appliance.AccessDenied || appliance.CodeOf(err) == appliance.NotFound) {
			s.note("Tenant %s is left out: %s", t.ID, sentence(err))
			continue
		}
		if err != nil {
			return st, err
		}
	}
	return st, nil
}

func (st *fleetState) readTenant(ctx context.Context, s *session, tenant string) error {
	as := *s
	as.tenant = tenant
	sites, err := as.sites(ctx)
	if err != nil {
		return err
	}
	for _, x := range sites {
		st.sites[ref{tenant, x.Name}] = x
	}
	pools, err := as.pools(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if !p.Owned {
			continue
		}
		st.pools = append(st.pools, p)
		if p.Archived {
			continue
		}
		offers, err := api.Do[appliance.PoolRef, appliance.List[appliance.Offer]](ctx, s.Client, "pools.offers", appliance.PoolRef{TenantID: tenant, PoolID: p.ID})
		if err != nil {
			return err
		}
		st.offers[p.ID] = offers.Items
	}
	budgets, err := list[appliance.Budget](ctx, s.Client, "budgets.list", as.inTenant)
	if err != nil {
		return err
	}
	for _, b := range budgets {
		if st.budgets[b.TenantID] == nil {
			st.budgets[b.TenantID] = map[string]float64{}
		}
		st.budgets[b.TenantID][string(b.Period)] = b.Amount
	}
	return nil
}

// export is the state as a file says it.
func (st fleetState) export() fleet {
	f := fleet{Tenants: map[string]fleetTenant{}, Sites: map[string]fleetSite{}, Pools: map[string]fleetPool{}}
	for id, t := range st.tenants {
		out := fleetTenant{Name: t.Name, Parent: t.ParentID, Budgets: st.budgets[id]}
		if t.ParentID == st.acting || id == st.acting {
			out.Parent = ""
		}
		f.Tenants[id] = out
	}
	siteNames := map[string]string{}
	for at, x := range st.sites {
		f.Sites[at.key(st.acting)] = fleetSite{Kind: x.Kind, Region: x.Region}
		siteNames[x.ID] = x.Name
	}
	for _, p := range st.pools {
		if p.Archived {
			continue
		}
		out := fleetPool{
			Site: nameOf(siteNames, p.SiteID), Class: p.Class, GPUModel: p.GPUModel, Sharing: p.Sharing, Agent: p.Agent,
			ProviderAccount: p.ProviderAccountID, Quota: limits(p.Quotas), Offers: map[string]fleetOffer{},
		}
		if fields, ok := policyTOML(p.Policy); !ok {
			out.PolicyJSON = string(p.Policy)
		} else if len(fields) > 0 {
			out.Policy = fields
		}
		for _, o := range st.offers[p.ID] {
			if o.TenantID == p.OwnerTenantID {
				continue
			}
			out.Offers[o.TenantID] = fleetOffer{Quota: limits(o.Quotas), Priority: o.Priority, IncludeDescendants: o.IncludeDescendants, OnBudgetExceeded: o.OnBudgetExceeded}
		}
		f.Pools[ref{p.OwnerTenantID, poolHandle(p)}.key(st.acting)] = out
	}
	return f
}

// limits are quota rows that grant something.
func limits(rows []appliance.Quota) map[string]limit {
	out := map[string]limit{}
	for _, q := range rows {
		if q.Max > 0 {
			out[q.Resource] = limit(q.Max)
		}
	}
	return out
}

func exportFleet(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	st, err := s.readFleet(c)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	e := toml.NewEncoder(&b)
	e.Indent = ""
	if err := e.Encode(st.export()); err != nil {
		return fmt.Errorf("write the fleet as TOML: %w", err)
	}
	_, err = fmt.Fprint(s.out, airy(b.String()))
	return err
}

// airy puts a blank line before each table of a TOML text, and leaves out
// headers that the next one implies.
func airy(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		header := strings.HasPrefix(line, "[")
		if last := len(out) - 1; header && last >= 0 && implies(line, out[last]) {
			out[last] = line
			continue
		}
		if line == "" {
			continue
		}
		if header && len(out) > 0 {
			out = append(out, "")
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n") + "\n"
}

// implies tells whether a header is of a table in the one before it.
func implies(header, before string) bool {
	name, isTable := strings.CutSuffix(strings.TrimPrefix(before, "["), "]")
	return strings.HasPrefix(before, "[") && !strings.HasPrefix(before, "[[") && isTable && strings.HasPrefix(strings.TrimLeft(header, "["), name+".")
}
