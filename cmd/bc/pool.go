package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func poolCommand() *cli.Command {
	return group("pools", "pool", "machines of one site, one GPU model, one sharing mode and one policy",
		&cli.Command{
			Name: "list", Usage: "list the pools that the tenant owns or is offered",
			Description: "Examples:\n   bc pools list\n   bc pools list --tenant acme -o wide",
			Flags:       []cli.Flag{&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "archived pools too"}},
			Action:      listPools,
		},
		&cli.Command{
			Name: "get", Usage: "show a pool", ArgsUsage: "POOL", BashComplete: completePools,
			Description: "Examples:\n   bc pools get training\n   bc pools get training -o json",
			Action:      getPool,
		},
		poolCreateCommand(), poolUpdateCommand(), poolDiffCommand(), poolOfferCommand(),
		&cli.Command{
			Name: "unoffer", Usage: "withdraw an offer; what runs goes on, nothing new fits", ArgsUsage: "POOL", BashComplete: completePools,
			Description: "Examples:\n   bc pools unoffer training --from acme",
			Flags:       []cli.Flag{&cli.StringFlag{Name: "from", Usage: "`TENANT` that no longer sees the pool"}},
			Action:      unofferPool,
		},
		&cli.Command{
			Name: "offers", Usage: "list a pool's offers with their quotas, for its owner", ArgsUsage: "POOL", BashComplete: completePools,
			Description: "Examples:\n   bc pools offers training",
			Action:      listOffers,
		},
		&cli.Command{
			Name: "archive", Usage: "retire a pool; what runs in it goes on", ArgsUsage: "POOL", BashComplete: completePools,
			Description: "Every offer is withdrawn and nothing new is placed. A pool stays archived.\n\n" +
				"Examples:\n   bc pools archive training\n   bc pools archive training --yes",
			Flags:  []cli.Flag{yesFlag()},
			Action: archivePool,
		},
		&cli.Command{
			Name: "capacity", Usage: "show what a pool has, and what one node could take now", ArgsUsage: "POOL", BashComplete: completePools,
			Description: "Examples:\n   bc pools capacity training\n   bc pools capacity training -o json",
			Action:      poolCapacity,
		},
	)
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}
}

// poolHandle is what a person calls a pool: its name, else its id.
func poolHandle(p appliance.Pool) string {
	if p.Name != "" {
		return p.Name
	}
	return p.ID
}

func poolID(p appliance.Pool) string { return p.ID }

// poolRow is a pool with its capacity, where the caller may see that.
type poolRow struct {
	appliance.Pool
	capacity *appliance.Capacity
}

// withCapacity asks for the capacity of each pool, some at a time. A pool
// whose capacity is refused has none.
func (s *session) withCapacity(ctx context.Context, pools []appliance.Pool) ([]poolRow, error) {
	rows := make([]poolRow, len(pools))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, p := range pools {
		rows[i].Pool = p
		g.Go(func() error {
			got, err := s.capacity(ctx, p.ID)
			switch appliance.CodeOf(err) {
			case "":
				rows[i].capacity = &got
				return nil
			case appliance.AccessDenied, appliance.NotFound:
				return nil
			}
			return err
		})
	}
	return rows, g.Wait()
}

func (s *session) capacity(ctx context.Context, pool string) (appliance.Capacity, error) {
	return api.Do[appliance.PoolRef, appliance.Capacity](ctx, s.Client, "pools.capacity", appliance.PoolRef{TenantID: s.tenant, PoolID: pool})
}

func listPools(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	all, err := s.pools(c.Context)
	if err != nil {
		return err
	}
	var pools []appliance.Pool
	for _, p := range all {
		if !p.Archived || c.Bool("all") {
			pools = append(pools, p)
		}
	}
	empty := fmt.Sprintf("Tenant %s sees no pool. Make one with: bc pools create --site SITE --class metal-host --gpu-model H100", s.tenant)
	var rows []poolRow
	if s.tabular() {
		if rows, err = s.withCapacity(c.Context, pools); err != nil {
			return err
		}
	}
	return items(s.printer, pools, poolID, empty, func([]appliance.Pool) *table { return poolTable(rows) })
}

func poolTable(rows []poolRow) *table {
	id := column{head: "ID", drop: 9}
	for _, r := range rows {
		if r.Name == "" || r.Archived {
			id.drop = 0 // its id is the only way to name it
		}
	}
	return newTable(rows,
		field[poolRow]{column{head: "NAME"}, func(r poolRow) string { return r.Name }},
		field[poolRow]{id, func(r poolRow) string { return r.ID }},
		field[poolRow]{column{head: "MODEL"}, func(r poolRow) string { return r.GPUModel }},
		field[poolRow]{column{head: "SHARING", drop: 4}, func(r poolRow) string { return string(r.Sharing) }},
		field[poolRow]{column{head: "CLASS", drop: 7}, func(r poolRow) string { return string(r.Class) }},
		field[poolRow]{column{head: "NODES", right: true, drop: 3}, poolNodes},
		field[poolRow]{column{head: "FREE", right: true}, poolFree},
		field[poolRow]{column{head: "QUOTA", right: true, drop: 2}, poolQuota},
		field[poolRow]{column{head: "OWNER", drop: 5}, func(r poolRow) string { return r.OwnerTenantID }},
		field[poolRow]{column{head: "STATE", state: true}, func(r poolRow) string {
			if r.Archived {
				return "archived"
			}
			return ""
		}},
		field[poolRow]{column{head: "SITE", wide: true}, func(r poolRow) string { return r.SiteID }},
		field[poolRow]{column{head: "AGENT", wide: true}, func(r poolRow) string { return string(r.Agent) }},
		field[poolRow]{column{head: "VERSION", wide: true, right: true}, func(r poolRow) string { return strconv.Itoa(r.Version) }},
		field[poolRow]{column{head: "CREATED", wide: true}, func(r poolRow) string { return r.CreatedAt.Format("2006-01-02 15:04") }},
	)
}

func poolNodes(r poolRow) string {
	if r.capacity == nil {
		return ""
	}
	n := r.capacity.Nodes
	if n.Schedulable == n.Total {
		return strconv.Itoa(n.Total)
	}
	return fmt.Sprintf("%d of %d", n.Schedulable, n.Total)
}

// poolFree is how much of the pool's atoms is free: 6/8 gpu.
func poolFree(r poolRow) string {
	if r.capacity == nil {
		return ""
	}
	atom := r.Sharing.Resource()
	roll := r.capacity.Resources[atom]
	return fmt.Sprintf("%d/%d %s", roll.Available, roll.Total, atom)
}

// poolQuota is the tenant's own quota of the pool's atoms.
func poolQuota(r poolRow) string {
	for _, q := range r.Quotas {
		if q.Resource == r.Sharing.Resource() {
			return fmt.Sprintf("%d/%s", q.Used, quotaMax(q.Max))
		}
	}
	return "0/0"
}

func quotaMax(n int) string {
	if n == appliance.MaxCount {
		return "any"
	}
	return strconv.Itoa(n)
}

// thePool finds the pool that the argument names.
func thePool(c *cli.Context) (*session, appliance.Pool, error) {
	want, err := oneName(c, "a pool, by id or name")
	if err != nil {
		return nil, appliance.Pool{}, err
	}
	s, err := open(c)
	if err != nil {
		return nil, appliance.Pool{}, err
	}
	p, err := s.findPool(c.Context, want)
	return s, p, err
}

func getPool(c *cli.Context) error {
	s, p, err := thePool(c)
	if err == nil && p.Rollout == nil { // a list, in which names are looked up, does not say how far it is
		p, err = s.findPool(c.Context, p.ID)
	}
	if err != nil {
		return err
	}
	if !s.tabular() {
		return item(s.printer, p, p.ID, nil)
	}
	rows, err := s.withCapacity(c.Context, []appliance.Pool{p})
	if err != nil {
		return err
	}
	return item(s.printer, rows[0], p.ID, poolSheet)
}

func poolSheet(s *sheet, r poolRow) {
	s.fact("Pool", poolHandle(r.Pool))
	s.fact("Id", r.ID)
	if r.Archived {
		s.state("State", "archived")
	}
	s.fact("Owner", r.OwnerTenantID)
	s.fact("Site", r.SiteID)
	s.fact("Class", fmt.Sprintf("%s, GPUs %s, %s", r.Class, r.Sharing, r.GPUModel))
	s.fact("Provider", r.ProviderAccountID)
	s.fact("Version", fmt.Sprintf("%d, made %s", r.Version, s.p.exact(&r.CreatedAt)))
	if r.Rollout != nil {
		s.fact("Rollout", r.Rollout.Message)
	}
	if r.capacity != nil {
		capacitySheet(s, *r.capacity)
	}
	if r.Rollout != nil {
		s.table("Changing now", rolloutTable(r.Rollout.Changing))
		s.table("Waiting for their turn", rolloutTable(r.Rollout.Waiting))
	}
	s.table("Quota of this tenant", quotaTable(r.Quotas, nil))
	s.lines("Policy", policyLines(r.Policy))
}

func rolloutTable(nodes []appliance.RolloutNode) *table {
	return newTable(nodes,
		field[appliance.RolloutNode]{column{head: "NODE"}, func(n appliance.RolloutNode) string { return n.Hostname }},
		field[appliance.RolloutNode]{column{head: "WHAT", flex: true}, func(n appliance.RolloutNode) string { return n.Message }},
	)
}

func poolCapacity(c *cli.Context) error {
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	got, err := s.capacity(c.Context, p.ID)
	if err != nil {
		return err
	}
	return item(s.printer, got, p.ID, func(sh *sheet, got appliance.Capacity) {
		sh.fact("Pool", poolHandle(p))
		capacitySheet(sh, got)
	})
}

func capacitySheet(s *sheet, got appliance.Capacity) {
	s.fact("Nodes", fmt.Sprintf("%d of %d schedulable, %d wholly free", got.Nodes.Schedulable, got.Nodes.Total, got.Free.Nodes))
	gpus := fmt.Sprintf("%d healthy, %d wholly free", got.Devices.Healthy, got.Free.GPUs)
	if got.Devices.Unhealthy > 0 {
		gpus += fmt.Sprintf(", %d unhealthy", got.Devices.Unhealthy)
	}
	s.fact("GPUs", gpus)
	amounts := appliance.Amounts{}
	for r := range got.Resources {
		amounts[r] = 0
	}
	s.table("Capacity", newTable(amounts.Names(),
		field[string]{column{head: "RESOURCE"}, func(r string) string { return r }},
		field[string]{column{head: "USED"}, func(r string) string {
			return bars(s.p, got.Resources[r].Allocated, got.Resources[r].Total)
		}},
		field[string]{column{head: "ALLOCATED", right: true}, func(r string) string { return strconv.Itoa(got.Resources[r].Allocated) }},
		field[string]{column{head: "TOTAL", right: true}, func(r string) string { return strconv.Itoa(got.Resources[r].Total) }},
		field[string]{column{head: "FREE", right: true}, func(r string) string { return strconv.Itoa(got.Resources[r].Available) }},
		field[string]{column{head: "RELEASING", right: true}, func(r string) string {
			if n := got.Resources[r].Releasing; n > 0 {
				return strconv.Itoa(n)
			}
			return ""
		}},
		field[string]{column{head: "ONE NODE CAN TAKE", right: true}, func(r string) string { return strconv.Itoa(got.Largest[r]) }},
		field[string]{column{head: "SCATTERED", right: true}, func(r string) string {
			return fmt.Sprintf("%.0f %%", 100*got.Resources[r].Fragmentation)
		}},
	))
}

// bars is a bar for a cell of a table, which has no colours of its own.
func bars(p *printer, used, total int) string {
	q := *p
	q.colour = false
	return q.bar(used, total, 10)
}

func archivePool(c *cli.Context) error {
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	if !p.Archived {
		if err := confirm(c, fmt.Sprintf("Archive pool %s? Its offers are withdrawn and nothing new is placed in it. This cannot be undone.", poolHandle(p))); err != nil {
			return err
		}
	}
	p, err = api.Do[appliance.PoolRef, appliance.Pool](c.Context, s.Client, "pools.archive", appliance.PoolRef{TenantID: s.tenant, PoolID: p.ID})
	if err != nil {
		return err
	}
	return did(s.printer, p, p.ID, "Pool %s is archived (%s).", poolHandle(p), p.ID)
}
