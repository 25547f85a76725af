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

// overview is the whole of bc status.
type overview struct {
	Ready  bool                   `json:"ready"`
	Status appliance.SystemStatus `json:"status"`
	Pools  []poolOverview         `json:"pools"`
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
	err = item(s.printer, o, o.Status.Version, func(sh *sheet, o overview) {
		healthSheet(sh, s, o.Status, notReady)
		poolBars(sh, rows)
		attentionSheet(sh, o.Status)
	})
	if s.format == formatTable && err == nil {
		err = s.statusNodes(c, o.Status)
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
	if o.Status, err = api.Do[appliance.SystemRef, appliance.SystemStatus](ctx, s.Client, "system.status", appliance.SystemRef{TenantID: s.tenant}); err != nil {
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

func healthSheet(sh *sheet, s *session, st appliance.SystemStatus, notReady error) {
	health := sh.p.paint(green, "ready")
	if notReady != nil {
		health = sh.p.paint(red, "not ready") + ": " + printable(sentence(notReady))
	}
	fmt.Fprintf(&sh.b, "%s %s is %s, up %s, acting for tenant %s at %s\n",
		sh.p.paint(bold, "Better Compute"), st.Version, health, spanText(st.Uptime(sh.p.now)), s.tenant, s.Server())
	devices := count(st.Devices.Healthy, "GPU")
	if st.Devices.Unhealthy > 0 {
		devices += sh.p.paint(red, fmt.Sprintf(" and %d unhealthy", st.Devices.Unhealthy))
	}
	line := fmt.Sprintf("%s, %s (%d schedulable), %s", count(st.Pools, "pool"), count(st.Nodes.Total, "node"), st.Nodes.Schedulable, devices)
	if st.Pending > 0 {
		line += ", " + sh.p.paint(yellow, count(st.Pending, "reservation")+" waiting")
	}
	if st.Simulated {
		line += sh.p.paint(yellow, ", some simulated")
	}
	fmt.Fprintln(&sh.b, line)
}

// poolBars draws a line for each pool: what is taken of what.
func poolBars(sh *sheet, rows []poolRow) {
	sh.heading("Pools")
	if len(rows) == 0 {
		sh.line("none that this tenant sees; bc pools create makes one")
		return
	}
	name := 4
	for _, r := range rows {
		name = max(name, width(poolHandle(r.Pool)))
	}
	barWidth := 16
	if sh.p.width > 0 {
		barWidth = min(max(sh.p.width-name-40, 8), 40)
	}
	for _, r := range rows {
		atom := r.Sharing.Resource()
		line := fmt.Sprintf("  %s%s  ", printable(poolHandle(r.Pool)), strings.Repeat(" ", name-width(poolHandle(r.Pool))))
		if r.capacity == nil {
			fmt.Fprintf(&sh.b, "%s%s\n", line, r.GPUModel)
			continue
		}
		roll := r.capacity.Resources[atom]
		line += fmt.Sprintf("%s  %d of %d %s taken, %s", sh.p.bar(roll.Allocated, roll.Total, barWidth), roll.Allocated, roll.Total, atom, r.GPUModel)
		if r.capacity.Nodes.Total == 0 {
			line += ", no nodes yet"
		}
		sh.b.WriteString(line + "\n")
	}
}

func attentionSheet(sh *sheet, st appliance.SystemStatus) {
	if len(st.Attention) == 0 {
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
func (s *session) statusNodes(c *cli.Context, st appliance.SystemStatus) error {
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
		fmt.Fprintf(s.out, "  %d; bc nodes list shows them\n", st.Nodes.Total)
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
