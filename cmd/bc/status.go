package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show health, pools, nodes, and what needs attention, on one screen", Category: "look",
		Description: "Ends with exit code 0 if the control plane is ready, 1 if it is not. What needs attention does not\n" +
			"change that: look at .status.attention in JSON.\n\n" +
			"Examples:\n   bc status\n   bc status -o json",
		Action: showStatus,
	}
}

// overview is the whole of bc status. Status is absent for who may not see the
// control plane itself, such as a key of a customer.
type overview struct {
	Ready  bool                    `json:"ready"`
	Status *appliance.SystemStatus `json:"status,omitempty"`
	Pools  []poolOverview          `json:"pools"`
}

type poolOverview struct {
	appliance.Pool
	Capacity *appliance.Capacity `json:"capacity,omitempty"`
}

func showStatus(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	o, rows, notReady, err := s.overview(c.Context)
	if err != nil {
		return err
	}
	id := "not ready"
	if o.Ready {
		id = "ready"
	}
	err = item(s.printer, o, id, func(sh *sheet, o overview) {
		healthSheet(sh, s, o.Status, notReady)
		poolBars(sh, rows)
		attentionSheet(sh, o.Status)
	})
	if s.tabular() && err == nil {
		err = s.statusNodes(c)
	}
	if err == nil && !o.Ready {
		return silent{exitFailed}
	}
	return err
}

// overview asks for everything that bc status and bc top show of the whole.
func (s *session) overview(ctx context.Context) (o overview, rows []poolRow, notReady error, err error) {
	_, notReady = s.Get(ctx, "/readyz")
	if errors.Is(notReady, api.ErrUnreachable) {
		return o, nil, notReady, notReady
	}
	o.Ready = notReady == nil
	st, err := api.Do[appliance.SystemRef, appliance.SystemStatus](ctx, s.Client, "system.status", appliance.SystemRef{TenantID: s.tenant})
	switch appliance.CodeOf(err) {
	case "":
		o.Status = &st
	case appliance.AccessDenied, appliance.NotFound:
	default:
		return o, nil, notReady, err
	}
	pools, err := s.pools(ctx)
	if err != nil {
		return o, nil, notReady, err
	}
	var live []appliance.Pool
	for _, p := range pools {
		if !p.Archived {
			live = append(live, p)
		}
	}
	rows, err = s.withCapacity(ctx, live)
	o.Pools = []poolOverview{}
	for _, r := range rows {
		o.Pools = append(o.Pools, poolOverview{r.Pool, r.capacity})
	}
	return o, rows, notReady, err
}

func healthSheet(sh *sheet, s *session, st *appliance.SystemStatus, notReady error) {
	title, health := "Better Compute", sh.p.paint(green, "ready")
	if st != nil {
		title += " " + st.Version
	}
	if notReady != nil {
		health = sh.p.paint(red, "not ready") + ": " + printable(sentence(notReady))
	} else if st != nil {
		health += ", up " + spanText(st.Uptime(sh.p.now))
	}
	fmt.Fprintf(&sh.b, "%s is %s\n", sh.p.paint(bold, title), health)
	sh.fact("Server", s.Server())
	sh.fact("Acting for", "tenant "+s.tenant)
	if st == nil {
		return
	}
	has := fmt.Sprintf("%s, %s (%d schedulable), %s", count(st.Pools, "pool"), count(st.Nodes.Total, "node"), st.Nodes.Schedulable, count(st.Devices.Healthy, "GPU"))
	if st.Devices.Unhealthy > 0 {
		has += fmt.Sprintf(" and %d unhealthy", st.Devices.Unhealthy)
	}
	if st.Pending > 0 {
		has += ", " + count(st.Pending, "reservation") + " waiting"
	}
	if st.Simulated {
		has += ", some simulated"
	}
	sh.fact("Has", has)
}

// poolBars draws a line for each pool: what is taken of what.
func poolBars(sh *sheet, rows []poolRow) {
	sh.heading("Pools")
	if len(rows) == 0 {
		sh.line("none that this tenant sees; bc pools create makes one")
		return
	}
	name, text := 0, 0
	for _, r := range rows {
		name = max(name, width(printable(poolHandle(r.Pool))))
		text = max(text, width(poolTaken(r)))
	}
	barWidth := 24
	if sh.p.width > 0 {
		barWidth = min(max(sh.p.width-name-text-6, 8), 40)
	}
	for _, r := range rows {
		handle := printable(poolHandle(r.Pool))
		bar := strings.Repeat(" ", barWidth)
		if r.capacity != nil {
			roll := r.capacity.Resources[r.Sharing.Resource()]
			bar = sh.p.bar(roll.Allocated, roll.Total, barWidth)
		}
		fmt.Fprintf(&sh.b, "  %s%s  %s  %s\n", handle, strings.Repeat(" ", name-width(handle)), bar, poolTaken(r))
	}
}

// poolTaken says how much of a pool's atoms is taken.
func poolTaken(r poolRow) string {
	switch {
	case r.capacity == nil:
		return r.GPUModel
	case r.capacity.Nodes.Total == 0:
		return r.GPUModel + ", no nodes yet"
	}
	roll := r.capacity.Resources[r.Sharing.Resource()]
	return fmt.Sprintf("%d of %d %s taken, %s", roll.Allocated, roll.Total, r.Sharing.Resource(), r.GPUModel)
}

func attentionSheet(sh *sheet, st *appliance.SystemStatus) {
	if st == nil || len(st.Attention) == 0 {
		return
	}
	sh.heading("Needs attention")
	for _, a := range st.Attention {
		sh.line(a.Message)
		if a.Command != "" {
			sh.b.WriteString("    " + sh.p.paint(faint, printable(ourCommand(a.Command))) + "\n")
		}
	}
}

// ourCommand writes a command as this program was called.
func ourCommand(s string) string {
	if rest, ok := strings.CutPrefix(s, "bc "); ok {
		return command() + " " + rest
	}
	return s
}

// maxStatusNodes is how many nodes fit on one screen beside the rest.
const maxStatusNodes = 10

// statusNodes draws each node if there are few.
func (s *session) statusNodes(c *cli.Context) error {
	got, err := api.Do[appliance.ListNodes, appliance.List[appliance.Node]](c.Context, s.Client, "nodes.list",
		appliance.ListNodes{TenantID: s.tenant, Page: appliance.Page{Limit: maxStatusNodes + 1}})
	if appliance.CodeOf(err) == appliance.AccessDenied || err == nil && len(got.Items) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%s\n", s.paint(bold, "Nodes"))
	if len(got.Items) > maxStatusNodes {
		fmt.Fprintf(s.out, "  more than %d; bc nodes list shows them\n", maxStatusNodes)
		return nil
	}
	wide := 0
	for _, n := range got.Items {
		wide = max(wide, width(n.Hostname))
	}
	for _, n := range got.Items {
		line := fmt.Sprintf("  %s%s  %s  %s  %s", printable(n.Hostname), strings.Repeat(" ", wide-width(n.Hostname)),
			gpuPicture(s.printer, n), s.paint(stateColours[string(n.State)], string(n.State)), nodeFree(n)+" free")
		if n.Simulated {
			line += s.paint(yellow, "  simulated")
		}
		fmt.Fprintln(s.out, line)
	}
	return nil
}

// gpuPicture draws a node's GPUs: taken, free, unhealthy.
func gpuPicture(p *printer, n appliance.Node) string {
	taken, free, ill := "■", "□", "✕"
	if p.plain {
		taken, free, ill = "#", "-", "x"
	}
	out := ""
	for _, d := range n.Devices {
		switch {
		case d.Health != wire.GPUHealthy:
			out += p.paint(red, ill)
		case len(d.Bookings) > 0:
			out += p.paint(green, taken)
		default:
			out += free
		}
	}
	return out
}
