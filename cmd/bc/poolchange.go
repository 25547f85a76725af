package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func policyFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "policy", Usage: "take the policy from `FILE`, JSON or TOML, - for standard input; it replaces the whole"},
		&cli.StringSliceFlag{Name: "set", Usage: "set one field of the policy, `FIELD=VALUE`, such as cpu.governor=performance; any number of times"},
		&cli.StringSliceFlag{Name: "unset", Usage: "remove one `FIELD` of the policy, such as hugepages"},
	}
}

func poolCreateCommand() *cli.Command {
	return &cli.Command{
		Name: "create", Usage: "make an empty pool on a site of the tenant's own", ArgsUsage: "[NAME]",
		Description: "Machines join it afterwards. Class, site and sharing mode never change.\n\n" +
			"Examples:\n   bc pools create training --site lab --class metal-host --gpu-model H100\n" +
			"   bc pools create slices --site lab --class metal-host --gpu-model H100 --sharing mig --set migLayout=all-1g.10gb --quota gpu.mig=any\n" +
			"   bc pools create training --site lab --class metal-host --gpu-model H100 --policy policy.toml",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "`NAME`, unique among the tenant's pools; the argument says the same"},
			&cli.StringFlag{Name: "site", Usage: "`SITE`, by id or name"},
			&cli.StringFlag{Name: "class", Usage: "metal-host, metal-dedicated, vps-host or provider"},
			&cli.StringFlag{Name: "gpu-model", Usage: "GPU `FAMILY`, such as H100"},
			&cli.StringFlag{Name: "sharing", Usage: "exclusive, mig, timeslice or mps (default: exclusive)"},
			&cli.StringFlag{Name: "agent", Usage: "bcd or none (default: bcd; none for provider pools)"},
			&cli.StringFlag{Name: "provider-account", Usage: "`ID` of the account behind a provider pool"},
			&cli.StringSliceFlag{Name: "quota", Usage: "the owner's own quota, `RESOURCE=MAX` or RESOURCE=any (default: gpu=any)"},
			&cli.StringFlag{Name: "idempotency-key", Usage: "`KEY` under which a repetition answers the same pool"},
		}, policyFlags()...),
		Action: createPool,
	}
}

func createPool(c *cli.Context) error {
	if err := required(c, "site", "class", "gpu-model"); err != nil {
		return err
	}
	name := c.String("name")
	if c.NArg() > 0 {
		word, err := oneName(c, "a name")
		if err != nil {
			return err
		}
		if name != "" && name != word {
			return usagef("the pool is named twice: %s and --name %s", word, name)
		}
		name = word
	}
	policy, err := changedPolicy(c, nil)
	if err != nil {
		return err
	}
	quota, err := quotaPairs("quota", c.StringSlice("quota"))
	if err != nil {
		return err
	}
	if len(quota) == 0 {
		quota = nil // the default
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	site, err := s.findSite(c.Context, c.String("site"))
	if err != nil {
		return err
	}
	p, err := api.Do[appliance.CreatePool, appliance.Pool](c.Context, s.Client, "pools.create", appliance.CreatePool{
		TenantID: s.tenant, SiteID: site.ID, Class: appliance.Class(c.String("class")), GPUModel: c.String("gpu-model"),
		Sharing: appliance.Sharing(c.String("sharing")), Agent: appliance.PoolAgent(c.String("agent")), ProviderAccountID: c.String("provider-account"),
		Policy: policy, OwnerQuota: quota, IdempotencyKey: c.String("idempotency-key"), Name: name,
	})
	if err != nil {
		return err
	}
	if p.Sharing != appliance.SharingExclusive && s.tabular() && poolQuota(poolRow{Pool: p}) == "0/0" {
		s.note("Nothing of it can be booked without a quota: bc quotas set --pool %s --resource %s --max any", poolHandle(p), p.Sharing.Resource())
	}
	return did(s.printer, p, p.ID, "Pool %s is made (%s).", poolHandle(p), p.ID)
}

func poolUpdateCommand() *cli.Command {
	return &cli.Command{
		Name: "update", Usage: "replace a pool's policy, its GPU model, or both", ArgsUsage: "POOL", BashComplete: completePools,
		Description: "Shows what would change and asks, unless --yes is given. With --set and --unset alone, the fields\n" +
			"that are not named stay as they are. It is refused if somebody else has changed the pool meanwhile.\n" +
			"A change of the policy reaches the pool's hosts.\n\n" +
			"Examples:\n   bc pools update training --set cpu.governor=performance --set hugepages='{\"size\":\"1Gi\",\"count\":64}'\n" +
			"   bc pools update training --policy policy.toml --dry-run\n   bc pools update training --unset hugepages --yes",
		Flags: append(policyFlags(),
			&cli.StringFlag{Name: "gpu-model", Usage: "GPU `FAMILY`, such as H200"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show the difference and change nothing"},
			yesFlag(),
		),
		Action: updatePool,
	}
}

func poolDiffCommand() *cli.Command {
	return &cli.Command{
		Name: "diff", Usage: "show what an update would change in a pool's policy; changes nothing", ArgsUsage: "POOL", BashComplete: completePools,
		Description: "Examples:\n   bc pools diff training --policy policy.toml\n   bc pools diff training --set cpu.governor=performance",
		Flags:       policyFlags(),
		Action: func(c *cli.Context) error {
			s, p, err := thePool(c)
			if err != nil {
				return err
			}
			next, err := changedPolicy(c, p.Policy)
			if err != nil {
				return err
			}
			if next == nil {
				return usagef("nothing to compare with: give --policy, --set or --unset; see bc pools diff --help")
			}
			return s.writeDiff(poolDiff(p, next, ""))
		},
	}
}

// change is one field that differs: From is absent for a new one, To for one
// that goes.
type change struct {
	Field string `json:"field"`
	From  any    `json:"from,omitempty"`
	To    any    `json:"to,omitempty"`
}

func (s *session) writeDiff(changes []change) error {
	return items(s.printer, changes, func(c change) string { return c.Field }, "Nothing changes.", func(changes []change) *table {
		for _, c := range changes {
			fmt.Fprintln(s.out, changeLine(s.printer, c))
		}
		return &table{}
	})
}

// changeLine writes a change as one line.
func changeLine(p *printer, c change) string {
	arrow := "→"
	if p.plain {
		arrow = "->"
	}
	switch {
	case c.From == nil:
		return p.paint(green, printable("  + "+c.Field+": "+jsonText(c.To)))
	case c.To == nil:
		return p.paint(red, printable("  - "+c.Field+": "+jsonText(c.From)))
	}
	return p.paint(yellow, printable(fmt.Sprintf("  ~ %s: %s %s %s", c.Field, jsonText(c.From), arrow, jsonText(c.To))))
}

// poolDiff compares a pool with what an update asks for.
func poolDiff(p appliance.Pool, policy appliance.RawPolicy, model string) []change {
	var out []change
	if model != "" && model != p.GPUModel {
		out = append(out, change{Field: "gpuModel", From: p.GPUModel, To: model})
	}
	if policy != nil {
		out = append(out, policyDiff(p.Policy, policy)...)
	}
	return out
}

func updatePool(c *cli.Context) error {
	s, p, err := thePool(c)
	if err != nil {
		return err
	}
	next, err := changedPolicy(c, p.Policy)
	if err != nil {
		return err
	}
	model := c.String("gpu-model")
	if next == nil && model == "" {
		return usagef("nothing to update: give --policy, --set, --unset or --gpu-model; see bc pools update --help")
	}
	changes := poolDiff(p, next, model)
	if len(changes) == 0 {
		if s.tabular() {
			s.note("Nothing changes.")
			return nil
		}
		return item(s.printer, p, p.ID, nil)
	}
	if c.Bool("dry-run") {
		return s.writeDiff(changes)
	}
	if !c.Bool("yes") || s.tabular() {
		s.note("Pool %s, version %d:", poolHandle(p), p.Version)
		for _, ch := range changes {
			s.note("%s", changeLine(s.printer, ch))
		}
	}
	if err := confirm(c, "Update the pool?"); err != nil {
		return err
	}
	in := appliance.UpdatePool{TenantID: s.tenant, PoolID: p.ID, GPUModel: model, ExpectedVersion: &p.Version}
	if next != nil {
		in.Policy = &next
	}
	p, err = api.Do[appliance.UpdatePool, appliance.Pool](c.Context, s.Client, "pools.update", in)
	if err != nil {
		return err
	}
	return did(s.printer, p, p.ID, "Pool %s is at version %d.", poolHandle(p), p.Version)
}

// confirm asks on the terminal, unless --yes is given. Without a terminal there
// is nobody to ask.
func confirm(c *cli.Context, question string) error {
	if c.Bool("yes") {
		return nil
	}
	if !isTerminal(os.Stdin) {
		return usagef("%s Nobody is there to ask: repeat it with --yes", question)
	}
	fmt.Fprintf(os.Stderr, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n') // an error is no yes
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-c.Context.Done():
		fmt.Fprintln(os.Stderr)
		return c.Context.Err()
	case a := <-answer:
		if slices.Contains([]string{"y", "yes"}, a) {
			return nil
		}
	}
	return errors.New("nothing was changed")
}
