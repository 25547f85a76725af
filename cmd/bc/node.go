package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func nodeCommand() *cli.Command {
	return group("nodes", "node", "the machines that have joined",
		&cli.Command{
			Name: "list", Usage: "list the nodes of the pools that the tenant sees",
			Description: "Examples:\n   bc nodes list\n   bc nodes list --pool training -o wide",
			Flags:       []cli.Flag{&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "those of one `POOL`, by id or name"}},
			Action:      listNodes,
		},
		&cli.Command{
			Name: "get", Usage: "show a node with its GPUs, resources, units and conditions", ArgsUsage: "NODE", BashComplete: completeNodes,
			Description: "A node is named by its id or its host name.\n\nExamples:\n   bc nodes get gpu-01\n   bc nodes get gpu-01 -o yaml",
			Action:      getNode,
		},
		nodeVerb("cordon", "take no new bookings on a node; what runs goes on"),
		nodeVerb("uncordon", "take bookings on a node again, and withdraw a reboot that waits"),
		nodeVerb("drain", "take no new bookings on a node, to empty it"),
		nodePlanCommand(), nodeRebootCommand(),
		&cli.Command{
			Name: "label", Usage: "set or remove a node's labels, which selectors match", ArgsUsage: "NODE KEY=VALUE… KEY-…", BashComplete: completeNodes,
			Description: "KEY=VALUE sets a label, KEY- removes it.\n\nExamples:\n   bc nodes label gpu-01 rack=r12 row-",
			Action:      labelNode,
		},
		&cli.Command{
			Name: "remove", Usage: "take an empty node out of its pool", ArgsUsage: "NODE", BashComplete: completeNodes,
			Description: "Examples:\n   bc nodes remove gpu-01",
			Flags:       []cli.Flag{yesFlag()},
			Action:      removeNode,
		},
		&cli.Command{
			Name: "explain", Usage: "say what a node is, what it lacks, and what would help", ArgsUsage: "NODE", BashComplete: completeNodes,
			Description: "Examples:\n   bc nodes explain gpu-01",
			Action:      explainNode,
		},
	)
}

// theNode finds the node that the argument names.
func theNode(c *cli.Context) (*session, appliance.Node, error) {
	want, err := oneName(c, "a node, by id or host name")
	if err != nil {
		return nil, appliance.Node{}, err
	}
	s, err := open(c)
	if err != nil {
		return nil, appliance.Node{}, err
	}
	n, err := s.findNode(c.Context, want)
	return s, n, err
}

func getNode(c *cli.Context) error {
	s, n, err := theNode(c)
	if err != nil {
		return err
	}
	names, err := s.poolNames(c)
	if err != nil {
		return err
	}
	return item(s.printer, n, n.ID, func(sh *sheet, n appliance.Node) { nodeSheet(sh, n, names) })
}

// nodeVerb is a verb that moves a node from one state to another.
func nodeVerb(verb, usage string) *cli.Command {
	return &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: "NODE", BashComplete: completeNodes,
		Description: "Examples:\n   bc nodes " + verb + " gpu-01",
		Action: func(c *cli.Context) error {
			s, n, err := theNode(c)
			if err != nil {
				return err
			}
			return s.moveNode(c, verb, n.ID)
		},
	}
}

func (s *session) moveNode(c *cli.Context, verb, id string) error {
	n, err := api.Do[appliance.NodeRef, appliance.Node](c.Context, s.Client, "nodes."+verb, appliance.NodeRef{TenantID: s.tenant, NodeID: id})
	if err != nil {
		return err
	}
	return did(s.printer, n, n.ID, "Node %s is %s (%s).", n.Hostname, n.State, n.ID)
}

func removeNode(c *cli.Context) error {
	s, n, err := theNode(c)
	if err != nil {
		return err
	}
	if err := confirm(c, fmt.Sprintf("Take node %s out of its pool?", n.Hostname)); err != nil {
		return err
	}
	return s.moveNode(c, "remove", n.ID)
}

func labelNode(c *cli.Context) error {
	if c.NArg() < 2 {
		return usagef("%s needs a node and its labels; see %s --help", c.Command.HelpName, c.Command.HelpName)
	}
	labels := map[string]string{}
	for _, word := range c.Args().Tail() {
		k, v, sets := strings.Cut(word, "=")
		if !sets {
			var removes bool
			if k, removes = strings.CutSuffix(word, "-"); !removes {
				return usagef("%q is neither KEY=VALUE nor KEY-", word)
			}
		} else if v == "" {
			return usagef("%q sets nothing; %s- removes the label", word, k)
		}
		if _, twice := labels[k]; twice {
			return usagef("label %s is given twice", k)
		}
		labels[k] = v
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	n, err := s.findNode(c.Context, c.Args().First())
	if err != nil {
		return err
	}
	n, err = api.Do[appliance.LabelNode, appliance.Node](c.Context, s.Client, "nodes.label", appliance.LabelNode{TenantID: s.tenant, NodeID: n.ID, Labels: labels})
	if err != nil {
		return err
	}
	return did(s.printer, n, n.ID, "Node %s has %s: %s.", n.Hostname, count(len(n.Labels), "label"), orDash(labelText(n.Labels)))
}

// labelText writes labels as --label and --selector take them.
func labelText(labels map[string]string) string {
	var out []string
	for _, k := range sortedKeys(labels) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, " ")
}

func explainNode(c *cli.Context) error {
	s, n, err := theNode(c)
	if err != nil {
		return err
	}
	x, err := api.Do[appliance.NodeRef, appliance.NodeExplanation](c.Context, s.Client, "nodes.explain", appliance.NodeRef{TenantID: s.tenant, NodeID: n.ID})
	if err != nil {
		return err
	}
	return item(s.printer, x, n.ID, func(sh *sheet, x appliance.NodeExplanation) {
		sh.fact("Node", n.Hostname)
		if n.Simulated {
			sh.fact("Simulated", "yes: a recorded machine, not a real one")
		}
		sh.state("State", string(x.State))
		sh.fact("Why", x.Message)
		sh.lines("Findings", x.Findings)
		sh.lines("What would help", x.Helps)
	})
}

// poolNames maps the ids of the pools that the tenant sees to their names, for
// tables alone.
func (s *session) poolNames(c *cli.Context) (map[string]string, error) {
	out := map[string]string{}
	if !s.tabular() {
		return out, nil
	}
	pools, err := s.pools(c.Context)
	if appliance.CodeOf(err) == appliance.AccessDenied {
		return out, nil // ids do as well
	}
	for _, p := range pools {
		out[p.ID] = poolHandle(p)
	}
	return out, err
}

func nameOf(names map[string]string, id string) string {
	if n := names[id]; n != "" {
		return n
	}
	return id
}

func listNodes(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	pool := ""
	if c.IsSet("pool") {
		p, err := s.pool(c, "pool")
		if err != nil {
			return err
		}
		pool = p.ID
	}
	nodes, err := s.nodes(c.Context, pool)
	if err != nil {
		return err
	}
	names, err := s.poolNames(c)
	if err != nil {
		return err
	}
	empty := fmt.Sprintf("Tenant %s sees no node. bc up makes this machine one; bc simulate --pool POOL --nodes 4 adds simulated ones.", s.tenant)
	return items(s.printer, nodes, func(n appliance.Node) string { return n.ID }, empty, func(nodes []appliance.Node) *table { return nodeTable(s.printer, nodes, names) })
}

// nodeTable is in the order of host names.
func nodeTable(p *printer, nodes []appliance.Node, pools map[string]string) *table {
	nodes = slices.SortedStableFunc(slices.Values(nodes), func(a, b appliance.Node) int { return strings.Compare(a.Hostname, b.Hostname) })
	return newTable(nodes,
		field[appliance.Node]{column{head: "HOSTNAME"}, func(n appliance.Node) string { return n.Hostname }},
		field[appliance.Node]{column{head: "ID", drop: idDrop(nodes)}, func(n appliance.Node) string { return n.ID }},
		field[appliance.Node]{column{head: "POOL", drop: 5}, func(n appliance.Node) string { return nameOf(pools, n.PoolID) }},
		field[appliance.Node]{column{head: "STATE", state: true}, func(n appliance.Node) string { return string(n.State) }},
		field[appliance.Node]{column{head: "FREE", right: true}, nodeFree},
		field[appliance.Node]{column{head: "MODEL", drop: 6}, nodeModel},
		field[appliance.Node]{column{head: "VCPU", right: true, drop: 3}, func(n appliance.Node) string { return rowFree(n, appliance.ResourceVCPU) }},
		field[appliance.Node]{column{head: "MEMORY GIB", right: true, drop: 4}, func(n appliance.Node) string { return rowFree(n, appliance.ResourceMemoryGiB) }},
		field[appliance.Node]{column{head: "NOTE", flex: true}, nodeNote},
		field[appliance.Node]{column{head: "ROLE", wide: true}, func(n appliance.Node) string { return string(n.Role) }},
		field[appliance.Node]{column{head: "CONTROL", wide: true}, func(n appliance.Node) string { return string(n.Control) }},
		field[appliance.Node]{column{head: "JOINED", wide: true}, func(n appliance.Node) string { return p.ago(n.JoinedAt) }},
		field[appliance.Node]{column{head: "SEEN", wide: true}, func(n appliance.Node) string {
			if n.SeenAt == nil {
				return ""
			}
			return p.ago(*n.SeenAt)
		}},
	)
}

// idDrop lets the ids of nodes go from a narrow table only if host names tell
// all of them apart.
func idDrop(nodes []appliance.Node) int {
	seen := map[string]bool{}
	for _, n := range nodes {
		if seen[n.Hostname] {
			return 0
		}
		seen[n.Hostname] = true
	}
	return 9
}

// nodeAtoms counts the GPUs, MIG instances or slots of a node: free ones are
// those of healthy GPUs on a schedulable node that nothing holds.
func nodeAtoms(n appliance.Node) (free, total int) {
	for _, d := range n.Devices {
		total += d.Atoms
		if n.Schedulable && d.Health == wire.GPUHealthy && len(d.Bookings)+d.Releasing == 0 {
			free += d.Atoms
		}
	}
	return free, total
}

func nodeFree(n appliance.Node) string {
	for _, r := range n.Resources {
		if appliance.IsGPUResource(r.Resource) {
			return fmt.Sprintf("%d/%d %s", max(0, r.Total-r.Allocated), r.Total, r.Resource)
		}
	}
	free, total := nodeAtoms(n)
	return fmt.Sprintf("%d/%d", free, total)
}

func nodeModel(n appliance.Node) string {
	var models []string
	for _, d := range n.Devices {
		if !slices.Contains(models, d.Model) {
			models = append(models, d.Model)
		}
	}
	return strings.Join(models, ", ")
}

func rowFree(n appliance.Node, resource string) string {
	for _, r := range n.Resources {
		if r.Resource == resource {
			return fmt.Sprintf("%d/%d", max(0, r.Total-r.Allocated), r.Total)
		}
	}
	return ""
}

// nodeNote is what one should know of a node at a glance.
func nodeNote(n appliance.Node) string {
	var notes []string
	if n.Simulated {
		notes = append(notes, "simulated")
	}
	if r := n.Reboot; r != nil && (!r.State.Over() || r.State == appliance.RebootFailed) {
		notes = append(notes, "reboot "+rebootText(r))
	}
	for _, c := range n.Conditions {
		if c.Bad() {
			text := c.Type
			if c.Message != "" {
				text = c.Message
			}
			notes = append(notes, text)
		}
	}
	return strings.Join(notes, "; ")
}

func nodeSheet(s *sheet, n appliance.Node, pools map[string]string) {
	s.fact("Node", n.Hostname)
	s.fact("Id", n.ID)
	if n.Simulated {
		s.fact("Simulated", "yes: a recorded machine, not a real one")
	}
	s.fact("Pool", nameOf(pools, n.PoolID))
	state := string(n.State)
	if !n.Schedulable {
		state += ", takes no new bookings"
	}
	s.state("State", state)
	s.fact("Role", fmt.Sprintf("%s, control %s", n.Role, n.Control))
	if n.Reboot != nil {
		s.fact("Reboot", rebootText(n.Reboot)+", asked for "+s.p.exact(&n.Reboot.RequestedAt))
	}
	s.fact("Joined", s.p.exact(&n.JoinedAt))
	s.fact("Last seen", s.p.exact(n.SeenAt))
	s.table("GPUs", deviceTable(n.Devices))
	s.table("Being released", newTable(n.Releasing,
		field[appliance.Releasing]{column{head: "RESERVATION"}, func(r appliance.Releasing) string { return r.ReservationID }},
		field[appliance.Releasing]{column{head: "KEEPS", drop: 1}, func(r appliance.Releasing) string { return strings.Join(r.Atoms, " ") }},
		field[appliance.Releasing]{column{head: "WAITS FOR", flex: true}, func(r appliance.Releasing) string { return r.Message }},
	))
	s.table("Resources", newTable(n.Resources,
		field[appliance.ResourceRow]{column{head: "RESOURCE"}, func(r appliance.ResourceRow) string { return r.Resource }},
		field[appliance.ResourceRow]{column{head: "ALLOCATED", right: true}, func(r appliance.ResourceRow) string { return strconv.Itoa(r.Allocated) }},
		field[appliance.ResourceRow]{column{head: "TOTAL", right: true}, func(r appliance.ResourceRow) string { return strconv.Itoa(r.Total) }},
		field[appliance.ResourceRow]{column{head: "OVERCOMMIT", right: true}, func(r appliance.ResourceRow) string {
			if r.Overcommit == 1 {
				return ""
			}
			return strconv.FormatFloat(r.Overcommit, 'g', -1, 64)
		}},
	))
	s.table("Conditions", newTable(n.Conditions,
		field[appliance.Condition]{column{head: "CONDITION"}, func(c appliance.Condition) string { return c.Type }},
		field[appliance.Condition]{column{head: "STATUS"}, func(c appliance.Condition) string { return yesNo(c.Status) }},
		field[appliance.Condition]{column{head: "SINCE", drop: 1}, func(c appliance.Condition) string { return s.p.ago(c.Since) }},
		field[appliance.Condition]{column{head: "REASON", drop: 2}, func(c appliance.Condition) string { return c.Reason }},
		field[appliance.Condition]{column{head: "MESSAGE", flex: s.p.format != formatWide}, func(c appliance.Condition) string { return c.Message }},
	))
	s.table("Configuration", newTable(n.Units,
		field[appliance.Unit]{column{head: "UNIT"}, func(u appliance.Unit) string { return string(u.Kind) }},
		field[appliance.Unit]{column{head: "STATE", state: true}, func(u appliance.Unit) string { return string(u.State) }},
		field[appliance.Unit]{column{head: "SINCE", drop: 1}, func(u appliance.Unit) string { return s.p.ago(u.Since) }},
		field[appliance.Unit]{column{head: "WANTED", drop: 3}, func(u appliance.Unit) string { return u.Wanted }},
		field[appliance.Unit]{column{head: "GOT", drop: 2}, func(u appliance.Unit) string { return u.Got }},
		field[appliance.Unit]{column{head: "REASON", flex: s.p.format != formatWide}, func(u appliance.Unit) string { return u.Reason }},
	))
	if len(n.Attributes) > 0 {
		s.heading("Attributes (for --selector)")
		for _, k := range sortedKeys(n.Attributes) {
			s.line(k + "=" + n.Attributes[k])
		}
	}
}

func deviceTable(devices []appliance.Device) *table {
	return newTable(devices,
		field[appliance.Device]{column{head: "GPU", right: true}, func(d appliance.Device) string { return strconv.Itoa(d.Index) }},
		field[appliance.Device]{column{head: "PRODUCT", drop: 3}, func(d appliance.Device) string { return d.Product }},
		field[appliance.Device]{column{head: "GIB", right: true, drop: 4}, func(d appliance.Device) string { return strconv.Itoa(d.VRAMGiB) }},
		field[appliance.Device]{column{head: "NUMA", right: true, drop: 2}, func(d appliance.Device) string {
			if d.NUMANode < 0 {
				return ""
			}
			return strconv.Itoa(d.NUMANode)
		}},
		field[appliance.Device]{column{head: "PCI", drop: 6}, func(d appliance.Device) string { return d.Address }},
		field[appliance.Device]{column{head: "LIMIT W", right: true, drop: 7}, func(d appliance.Device) string {
			if d.Power == nil {
				return ""
			}
			return strconv.Itoa(d.Power.LimitWatts)
		}},
		field[appliance.Device]{column{head: "MIG", drop: 5}, migText},
		field[appliance.Device]{column{head: "HEALTH", state: true}, func(d appliance.Device) string { return string(d.Health) }},
		field[appliance.Device]{column{head: "HELD BY", drop: 1}, func(d appliance.Device) string { return strings.Join(d.Bookings, " ") }},
		field[appliance.Device]{column{head: "REASON", flex: true}, func(d appliance.Device) string { return d.HealthReason }},
		field[appliance.Device]{column{head: "UUID", wide: true}, func(d appliance.Device) string { return d.UUID }},
	)
}

// migText counts the instances of a GPU by profile.
func migText(d appliance.Device) string {
	if d.MIG == nil || !d.MIG.Enabled {
		return ""
	}
	counts := map[string]int{}
	for _, i := range d.MIG.Instances {
		counts[i.Profile]++
	}
	var out []string
	for _, profile := range sortedKeys(counts) {
		out = append(out, fmt.Sprintf("%d×%s", counts[profile], profile))
	}
	if len(out) == 0 {
		return "on, no instances"
	}
	return strings.Join(out, " ")
}
