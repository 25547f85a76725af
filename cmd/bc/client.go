package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

// session is a connection with whom it acts for, and where answers go.
type session struct {
	*api.Client
	*printer
	tenant string
	local  bool // over a Unix socket and without a key: as the local operator
}

// dial connects to the control plane that the flags, the environment and the
// user's own configuration name, else the one of this machine.
func dial(c *cli.Context) (*session, error) {
	set, err := readSettings(c)
	if err != nil {
		return nil, usage{err}
	}
	p, err := newPrinter(set.Output)
	if err != nil {
		return nil, err
	}
	if set.Server == "" {
		set.Server = defaultServer()
	}
	client, err := api.Dial(set.Server, api.Options{Token: set.Token, CAFile: set.CA})
	if err != nil {
		return nil, usage{err}
	}
	return &session{Client: client, printer: p, tenant: set.Tenant, local: isUnix(set.Server) && set.Token == ""}, nil
}

// open is dial for commands that act in a tenant's name.
func open(c *cli.Context) (*session, error) {
	s, err := dial(c)
	if err != nil {
		return nil, err
	}
	_, err = s.acting(c.Context)
	return s, err
}

func isUnix(server string) bool { return server == "" || strings.HasPrefix(server, "unix:") }

// defaultServer is the installed control plane's socket if there is one, else
// that of the user's own.
func defaultServer() string {
	own := filepath.Join(ownStateDir(false), "api.sock")
	if _, err := os.Stat(runtimeSocket); err != nil {
		if _, err := os.Stat(own); err == nil {
			return "unix:" + own
		}
	}
	return "unix:" + runtimeSocket
}

// acting is the tenant in whose name a command acts: as given, else the one
// that the first start made.
func (s *session) acting(ctx context.Context) (string, error) {
	if s.tenant != "" {
		return s.tenant, nil
	}
	me, err := api.Do[appliance.Whoami, appliance.Identity](ctx, s.Client, "iam.whoami", appliance.Whoami{})
	if err != nil {
		return "", err
	}
	s.tenant = me.TenantID
	return s.tenant, nil
}

// pool finds the pool that a flag names, by id or by its unique name.
func (s *session) pool(c *cli.Context, flag string) (appliance.Pool, error) {
	want := c.String(flag)
	if want == "" {
		return appliance.Pool{}, usagef("--%s is required: a pool's id or name", flag)
	}
	if _, err := s.acting(c.Context); err != nil {
		return appliance.Pool{}, err
	}
	return s.findPool(c.Context, want)
}

func (s *session) pools(ctx context.Context) ([]appliance.Pool, error) {
	return list[appliance.Pool](ctx, s.Client, "pools.list", func(page appliance.Page) any {
		return appliance.TenantList{TenantID: s.tenant, Page: page}
	})
}

func (s *session) findPool(ctx context.Context, want string) (appliance.Pool, error) {
	if appliance.IsID(appliance.PoolPrefix, want) {
		return api.Do[appliance.PoolRef, appliance.Pool](ctx, s.Client, "pools.get", appliance.PoolRef{TenantID: s.tenant, PoolID: want})
	}
	pools, err := s.pools(ctx)
	if err != nil {
		return appliance.Pool{}, err
	}
	live := slices.DeleteFunc(slices.Clone(pools), func(p appliance.Pool) bool { return p.Archived })
	name, id := func(p appliance.Pool) string { return p.Name }, func(p appliance.Pool) string { return p.ID }
	p, err := named(s, "pool", "pools", want, live, name, id)
	if appliance.CodeOf(err) == appliance.NotFound {
		if old, oldErr := named(s, "pool", "pools", want, pools, name, id); oldErr == nil {
			return old, nil
		}
	}
	return p, err
}

// onlyPool is the pool that a flag names, or without it the only one that the
// tenant sees.
func (s *session) onlyPool(c *cli.Context, flag string) (appliance.Pool, error) {
	if c.String(flag) != "" {
		return s.pool(c, flag)
	}
	pools, err := s.pools(c.Context)
	if err != nil {
		return appliance.Pool{}, err
	}
	pools = slices.DeleteFunc(pools, func(p appliance.Pool) bool { return p.Archived })
	switch len(pools) {
	case 0:
		return appliance.Pool{}, appliance.Refuse(appliance.NotFound, "", "tenant %s sees no pool; its owner offers one with: bc pools offer POOL --to %s --gpus N", s.tenant, s.tenant)
	case 1:
		return pools[0], nil
	}
	var names []string
	for _, p := range pools {
		names = append(names, poolHandle(p))
	}
	return appliance.Pool{}, usagef("--%s is required, since tenant %s sees %d pools: %s", flag, s.tenant, len(pools), clip(names, 8))
}

func (s *session) findNode(ctx context.Context, want string) (appliance.Node, error) {
	if appliance.IsID(appliance.NodePrefix, want) {
		return api.Do[appliance.NodeRef, appliance.Node](ctx, s.Client, "nodes.get", appliance.NodeRef{TenantID: s.tenant, NodeID: want})
	}
	nodes, err := s.nodes(ctx, "")
	if err != nil {
		return appliance.Node{}, err
	}
	return named(s, "node", "nodes", want, nodes, func(n appliance.Node) string { return n.Hostname }, func(n appliance.Node) string { return n.ID })
}

func (s *session) nodes(ctx context.Context, poolID string) ([]appliance.Node, error) {
	return list[appliance.Node](ctx, s.Client, "nodes.list", func(page appliance.Page) any {
		return appliance.ListNodes{TenantID: s.tenant, PoolID: poolID, Page: page}
	})
}

func (s *session) sites(ctx context.Context) ([]appliance.Site, error) {
	return list[appliance.Site](ctx, s.Client, "sites.list", s.inTenant)
}

func (s *session) findSite(ctx context.Context, want string) (appliance.Site, error) {
	if appliance.IsID(appliance.SitePrefix, want) {
		return api.Do[appliance.SiteRef, appliance.Site](ctx, s.Client, "sites.get", appliance.SiteRef{TenantID: s.tenant, SiteID: want})
	}
	sites, err := s.sites(ctx)
	if err != nil {
		return appliance.Site{}, err
	}
	return named(s, "site", "sites", want, sites, func(x appliance.Site) string { return x.Name }, func(x appliance.Site) string { return x.ID })
}

func (s *session) reservations(ctx context.Context, in appliance.ListReservations) ([]appliance.Reservation, error) {
	in.TenantID = s.tenant
	return list[appliance.Reservation](ctx, s.Client, "reservations.list", func(page appliance.Page) any {
		in.Page = page
		return in
	})
}

// findReservation looks among the live ones first: a name may be used again.
func (s *session) findReservation(ctx context.Context, want string) (appliance.Reservation, error) {
	if appliance.IsID(appliance.ReservationPrefix, want) {
		return api.Do[appliance.ReservationRef, appliance.Reservation](ctx, s.Client, "reservations.get", appliance.ReservationRef{TenantID: s.tenant, ReservationID: want})
	}
	var r appliance.Reservation
	for _, all := range []bool{false, true} {
		found, err := s.reservations(ctx, appliance.ListReservations{All: all})
		if err != nil {
			return r, err
		}
		r, err = named(s, "reservation", "reservations", want, found, func(r appliance.Reservation) string { return r.Name }, func(r appliance.Reservation) string { return r.ID })
		if all || appliance.CodeOf(err) != appliance.NotFound {
			return r, err
		}
	}
	return r, nil
}

// named finds the one thing that has a name.
func named[T any](s *session, thing, things, want string, among []T, name, id func(T) string) (T, error) {
	var found []T
	for _, t := range among {
		if name(t) == want {
			found = append(found, t)
		}
	}
	var none T
	switch len(found) {
	case 0:
		return none, appliance.Refuse(appliance.NotFound, "", "tenant %s sees no %s %q; bc %s list shows those it sees", s.tenant, thing, want, things)
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, t := range found {
		ids = append(ids, id(t))
	}
	return none, usagef("tenant %s sees %d %s named %q; name one by its id: %s", s.tenant, len(found), things, want, clip(ids, 8))
}

// clip lists words and counts those beyond n.
func clip(words []string, n int) string {
	if len(words) > n {
		return strings.Join(words[:n], ", ") + fmt.Sprintf(" and %d more", len(words)-n)
	}
	return strings.Join(words, ", ")
}

// oneName takes the one argument that names a thing.
func oneName(c *cli.Context, what string) (string, error) {
	switch c.NArg() {
	case 0:
		return "", usagef("%s needs %s; see %s --help", c.Command.HelpName, what, c.Command.HelpName)
	case 1:
		if c.Args().First() == "" {
			return "", usagef("%s needs %s, not an empty word", c.Command.HelpName, what)
		}
		return c.Args().First(), nil
	}
	return "", usagef("%s takes one argument, and %q is one too many; see %s --help", c.Command.HelpName, c.Args().Get(1), c.Command.HelpName)
}

// required refuses a command that lacks flags it cannot do without. The
// library's own check would print the help to stdout, among what is piped on.
func required(c *cli.Context, flags ...string) error {
	var missing []string
	for _, f := range flags {
		if !c.IsSet(f) || c.Value(f) == "" {
			missing = append(missing, "--"+f)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	verb := "is"
	if len(missing) > 1 {
		verb = "are"
	}
	return usagef("%s %s required; see %s --help", strings.Join(missing, " and "), verb, c.Command.HelpName)
}

// pairs reads flags of the form KEY=VALUE.
func pairs(flag string, words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usagef("--%s: %q is not KEY=VALUE", flag, w)
		}
		if _, twice := out[k]; twice {
			return nil, usagef("--%s: %s is given twice", flag, k)
		}
		out[k] = v
	}
	return out, nil
}

// list reads every page of a list.
func list[T any](ctx context.Context, client *api.Client, verb string, in func(appliance.Page) any) ([]T, error) {
	var out []T
	page := appliance.Page{Limit: appliance.MaxLimit}
	for {
		var got appliance.List[T]
		if err := client.Call(ctx, verb, in(page), &got); err != nil {
			return nil, err
		}
		out = append(out, got.Items...)
		if got.NextCursor == "" {
			return out, nil
		}
		page.Cursor = got.NextCursor
	}
}

// inTenant is the input of the lists that need nothing but the acting tenant.
func (s *session) inTenant(page appliance.Page) any {
	return appliance.TenantList{TenantID: s.tenant, Page: page}
}

// listed is the action of such a list. The text for an empty one may have %s for
// the tenant.
func listed[T any](verb string, id func(T) string, empty string, columns func(*session) []field[T]) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		s, err := open(c)
		if err != nil {
			return err
		}
		found, err := list[T](c.Context, s.Client, verb, s.inTenant)
		if err != nil {
			return err
		}
		return items(s.printer, found, id, strings.Replace(empty, "%s", s.tenant, 1), func(found []T) *table { return newTable(found, columns(s)...) })
	}
}
