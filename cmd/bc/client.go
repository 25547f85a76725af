package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

// session is a connection with whom it acts for.
type session struct {
	*api.Client
	tenant string
}

// dial connects to the control plane that the flags, the environment and the
// user's own configuration name, else the one of this machine.
func dial(c *cli.Context) (*session, error) {
	server := c.String("server")
	if server == "" {
		server = defaultServer()
	}
	client, err := api.Dial(server, api.Options{Token: c.String("token"), CAFile: c.String("ca")})
	if err != nil {
		return nil, err
	}
	return &session{Client: client, tenant: c.String("tenant")}, nil
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
	status, err := api.Do[appliance.SystemRef, appliance.SystemStatus](ctx, s.Client, "system.status", appliance.SystemRef{})
	if err != nil {
		return "", err
	}
	s.tenant = status.Tenant
	return s.tenant, nil
}

// pool finds the pool that a flag names, by id or by its unique name.
func (s *session) pool(c *cli.Context, flag string) (appliance.Pool, error) {
	want := c.String(flag)
	if want == "" {
		return appliance.Pool{}, usagef("--%s is required: a pool's id or name", flag)
	}
	tenant, err := s.acting(c.Context)
	if err != nil {
		return appliance.Pool{}, err
	}
	return s.findPool(c.Context, tenant, want)
}

func (s *session) findPool(ctx context.Context, tenant, want string) (appliance.Pool, error) {
	if appliance.IsID(appliance.PoolPrefix, want) {
		return api.Do[appliance.PoolRef, appliance.Pool](ctx, s.Client, "pools.get", appliance.PoolRef{TenantID: tenant, PoolID: want})
	}
	pools, err := list[appliance.Pool](ctx, s.Client, "pools.list", func(page appliance.Page) any {
		return appliance.TenantList{TenantID: tenant, Page: page}
	})
	if err != nil {
		return appliance.Pool{}, err
	}
	var found []appliance.Pool
	for _, p := range pools {
		if p.Name == want && !p.Archived {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return appliance.Pool{}, appliance.Refuse(appliance.NotFound, "", "tenant %s sees no pool named %q; bc pools list shows them", tenant, want)
	case 1:
		return found[0], nil
	}
	return appliance.Pool{}, usagef("tenant %s sees %d pools named %q; name one by its id", tenant, len(found), want)
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
