package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func reservationCommand() *cli.Command {
	when := []cli.Flag{
		&cli.StringFlag{Name: "for", Usage: "`DURATION` from now, such as 8h or 3d"},
		&cli.StringFlag{Name: "until", Usage: "`TIME` of the end, such as 2026-01-31T08:00:00Z"},
	}
	return group("reservations", "reservation", "claims on the resources of a pool",
		reservationCreateCommand(),
		&cli.Command{
			Name: "list", Usage: "list the tenant's reservations that live",
			Description: "Examples:\n   bc reservations list\n   bc reservations list --pool training --state pending\n   bc reservations list --all -o wide",
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "those in one `POOL`, by id or name"},
				&cli.StringSliceFlag{Name: "state", Usage: "pending, placed, active, ended or failed; any number of times"},
				&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "ended and failed ones too"},
			},
			Action: listReservations,
		},
		&cli.Command{
			Name: "get", Usage: "show a reservation", ArgsUsage: "RESERVATION", BashComplete: completeReservations,
			Description: "Examples:\n   bc reservations get train-7b\n   bc reservations get train-7b -o json",
			Action: func(c *cli.Context) error {
				s, r, err := theReservation(c)
				if err != nil {
					return err
				}
				return s.showReservation(c, r)
			},
		},
		&cli.Command{
			Name: "release", Usage: "end a reservation; again changes nothing", ArgsUsage: "RESERVATION", BashComplete: completeReservations,
			Description: "Examples:\n   bc reservations release train-7b",
			Action: func(c *cli.Context) error {
				s, r, err := theReservation(c)
				if err != nil {
					return err
				}
				r, err = api.Do[appliance.ReservationRef, appliance.Reservation](c.Context, s.Client, "reservations.release", appliance.ReservationRef{TenantID: s.tenant, ReservationID: r.ID})
				if err != nil {
					return err
				}
				return did(s.printer, r, r.ID, "Reservation %s is %s.", reservationHandle(r), r.State)
			},
		},
		moveCommand("extend", "move a reservation's end later", when),
		moveCommand("shorten", "move a reservation's end earlier", when),
		&cli.Command{
			Name: "explain", Usage: "say why a reservation is where it is, and what would help", ArgsUsage: "RESERVATION", BashComplete: completeReservations,
			Description: "Examples:\n   bc reservations explain train-7b",
			Action: func(c *cli.Context) error {
				s, r, err := theReservation(c)
				if err != nil {
					return err
				}
				x, err := s.explain(c, r.ID)
				if err != nil {
					return err
				}
				return item(s.printer, x, r.ID, func(sh *sheet, x appliance.Explanation) {
					sh.fact("Reservation", reservationHandle(r))
					explanationSheet(sh, x)
				})
			},
		},
	)
}

func (s *session) explain(c *cli.Context, id string) (appliance.Explanation, error) {
	return api.Do[appliance.ReservationRef, appliance.Explanation](c.Context, s.Client, "reservations.explain", appliance.ReservationRef{TenantID: s.tenant, ReservationID: id})
}

func moveCommand(verb, usage string, when []cli.Flag) *cli.Command {
	return &cli.Command{
		Name: verb, Usage: usage, ArgsUsage: "RESERVATION", Flags: when, BashComplete: completeReservations,
		Description: fmt.Sprintf("The new end counts from now.\n\nExamples:\n   bc reservations %s train-7b --for 4h\n   bc reservations %s train-7b --until 2026-01-31T08:00:00Z", verb, verb),
		Action: func(c *cli.Context) error {
			end, err := endFlag(c)
			if err != nil {
				return err
			}
			if end == nil && c.String("for") == "" {
				return usagef("--for or --until is required; see %s --help", c.Command.HelpName)
			}
			s, r, err := theReservation(c)
			if err != nil {
				return err
			}
			r, err = api.Do[appliance.MoveReservation, appliance.Reservation](c.Context, s.Client, "reservations."+verb,
				appliance.MoveReservation{TenantID: s.tenant, ReservationID: r.ID, Duration: c.String("for"), ExpiresAt: end})
			if err != nil {
				return err
			}
			return did(s.printer, r, r.ID, "Reservation %s ends %s.", reservationHandle(r), s.exact(r.ExpiresAt))
		},
	}
}

// endFlag reads --until, and refuses it beside --for.
func endFlag(c *cli.Context) (*appliance.Time, error) {
	if c.String("until") == "" {
		return nil, nil
	}
	if c.String("for") != "" {
		return nil, usagef("--for and --until both name the end; give one")
	}
	var t appliance.Time
	if err := t.UnmarshalText([]byte(c.String("until"))); err != nil {
		if local, err := time.ParseInLocation("2006-01-02 15:04", c.String("until"), time.Local); err == nil {
			t = appliance.At(local)
			return &t, nil
		}
		return nil, usagef("--until: %q is not a time such as 2026-01-31T08:00:00Z or \"2026-01-31 08:00\"", c.String("until"))
	}
	return &t, nil
}

func reservationHandle(r appliance.Reservation) string {
	if r.Name != "" {
		return r.Name
	}
	return r.ID
}

func theReservation(c *cli.Context) (*session, appliance.Reservation, error) {
	want, err := oneName(c, "a reservation, by id or name")
	if err != nil {
		return nil, appliance.Reservation{}, err
	}
	s, err := open(c)
	if err != nil {
		return nil, appliance.Reservation{}, err
	}
	r, err := s.findReservation(c.Context, want)
	return s, r, err
}

func listReservations(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	in := appliance.ListReservations{All: c.Bool("all")}
	for _, st := range c.StringSlice("state") {
		state := appliance.ReservationState(st)
		if !slices.Contains([]appliance.ReservationState{appliance.Pending, appliance.Placed, appliance.Active, appliance.Ended, appliance.Failed}, state) {
			return usagef("--state: %q is not pending, placed, active, ended or failed", st)
		}
		in.States = append(in.States, state)
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	if c.IsSet("pool") {
		p, err := s.pool(c, "pool")
		if err != nil {
			return err
		}
		in.PoolID = p.ID
	}
	found, err := s.reservations(c.Context, in)
	if err != nil {
		return err
	}
	names, err := s.poolNames(c)
	if err != nil {
		return err
	}
	empty := fmt.Sprintf("Tenant %s has no such reservation. Make one with: bc reservations create --gpus 1 --for 8h --wait", s.tenant)
	return items(s.printer, found, func(r appliance.Reservation) string { return r.ID }, empty, func(rs []appliance.Reservation) *table {
		return reservationTable(s.printer, rs, names)
	})
}

func reservationTable(p *printer, rs []appliance.Reservation, pools map[string]string) *table {
	id, seen := column{head: "ID", drop: 9}, map[string]bool{}
	for _, r := range rs {
		if r.Name == "" || seen[r.Name] || !r.State.Live() {
			id.drop = 0 // its id is the only way to name it for sure
		}
		seen[r.Name] = true
	}
	type row = appliance.Reservation
	return newTable(rs,
		field[row]{column{head: "NAME"}, func(r row) string { return r.Name }},
		field[row]{id, func(r row) string { return r.ID }},
		field[row]{column{head: "POOL", drop: 6}, func(r row) string { return nameOf(pools, r.PoolID) }},
		field[row]{column{head: "STATE", state: true}, func(r row) string { return string(r.State) }},
		field[row]{column{head: "RESOURCES", drop: 1}, func(r row) string { return r.Resources.String() }},
		field[row]{column{head: "NODES", right: true, drop: 7}, func(r row) string { return strconv.Itoa(r.Nodes) }},
		field[row]{column{head: "ENDS", drop: 2}, func(r row) string { return ends(p, r) }},
		field[row]{column{head: "MADE", drop: 5}, func(r row) string { return p.ago(r.CreatedAt) }},
		field[row]{column{head: "WHY", flex: true, drop: 3}, reservationWhy},
		field[row]{column{head: "BOOKED", wide: true}, func(r row) string { return r.Booked.String() }},
		field[row]{column{head: "BINDING", wide: true}, func(r row) string { return string(r.Binding) }},
		field[row]{column{head: "BY", wide: true}, func(r row) string { return r.CreatedBy }},
	)
}

func ends(p *printer, r appliance.Reservation) string {
	if r.EndedAt != nil {
		return p.ago(*r.EndedAt)
	}
	return p.until(r.ExpiresAt)
}

func reservationWhy(r appliance.Reservation) string {
	if r.Message != "" {
		return r.Message
	}
	return r.Reason
}

// showReservation writes a reservation, with the names of its nodes.
func (s *session) showReservation(c *cli.Context, r appliance.Reservation) error {
	pools, err := s.poolNames(c)
	if err != nil {
		return err
	}
	hosts := map[string]string{}
	if s.tabular() && len(r.Placements) <= 32 {
		for _, p := range r.Placements {
			n, err := s.findNode(c.Context, p.NodeID)
			switch appliance.CodeOf(err) {
			case "":
				hosts[p.NodeID] = n.Hostname
				if n.Simulated {
					hosts[p.NodeID] += " (simulated)"
				}
			case appliance.AccessDenied, appliance.NotFound: // its id does as well
			default:
				return err
			}
		}
	}
	return item(s.printer, r, r.ID, func(sh *sheet, r appliance.Reservation) { reservationSheet(sh, r, pools, hosts) })
}

func reservationSheet(s *sheet, r appliance.Reservation, pools, hosts map[string]string) {
	s.fact("Reservation", reservationHandle(r))
	if r.ID != "" && r.Name != "" {
		s.fact("Id", r.ID)
	}
	s.fact("Tenant", r.TenantID)
	s.fact("Pool", nameOf(pools, r.PoolID))
	state := string(r.State)
	if r.Reason != "" {
		state += " (" + r.Reason + ")"
	}
	s.state("State", state)
	s.fact("Why", r.Message)
	asked := r.Resources.String()
	if r.Nodes > 1 {
		asked += fmt.Sprintf(" over %d nodes", r.Nodes)
	}
	s.fact("Asked", asked)
	s.fact("Selector", selectorText(r.Selector))
	if r.Binding != appliance.BindHold {
		s.fact("Binding", string(r.Binding))
	}
	s.fact("Booked", r.Booked.String())
	s.fact("Labels", labelText(r.Labels))
	if r.ID != "" {
		s.fact("Made", s.p.exact(&r.CreatedAt)+" by "+r.CreatedBy)
	}
	s.fact("Placed", s.p.exact(r.PlacedAt))
	s.fact("Active", s.p.exact(r.ActiveAt))
	if r.EndedAt == nil {
		s.fact("Ends", s.p.exact(r.ExpiresAt))
	}
	s.fact("Ended", s.p.exact(r.EndedAt))
	for _, p := range r.Placements {
		s.heading("On " + nameOf(hosts, p.NodeID))
		s.part("GPUs", strings.Join(p.Devices, " "))
		if !slices.Equal(p.Atoms, p.Devices) {
			s.part("Atoms", strings.Join(p.Atoms, " "))
		}
		s.part("CPUs", p.CPUs)
		if p.NUMANodes != "" {
			s.part("Memory", "of NUMA node "+p.NUMANodes)
		}
		s.part("Booked", p.Amounts.String())
		if r.State.Booked() && !p.Confirmed {
			s.line("The node has not confirmed it yet.")
		}
	}
}

func explanationSheet(s *sheet, x appliance.Explanation) {
	s.state("State", string(x.State))
	s.fact("Why", x.Message)
	s.table("Quota", newTable(x.Quota,
		field[appliance.QuotaShort]{column{head: "RESOURCE"}, func(q appliance.QuotaShort) string { return q.Resource }},
		field[appliance.QuotaShort]{column{head: "ASKED", right: true}, func(q appliance.QuotaShort) string { return strconv.Itoa(q.Asked) }},
		field[appliance.QuotaShort]{column{head: "USED", right: true}, func(q appliance.QuotaShort) string { return strconv.Itoa(q.Used) }},
		field[appliance.QuotaShort]{column{head: "MAX", right: true}, func(q appliance.QuotaShort) string { return quotaMax(q.Max) }},
	))
	s.table("Nodes", newTable(reasonRows(x.Nodes, s.p),
		field[appliance.NodeReason]{column{head: "HOSTNAME"}, func(n appliance.NodeReason) string { return n.Hostname }},
		field[appliance.NodeReason]{column{head: "FITS", state: true}, func(n appliance.NodeReason) string {
			if n.NodeID == "" {
				return " "
			}
			return yesNo(n.Fits)
		}},
		field[appliance.NodeReason]{column{head: "MISSING"}, func(n appliance.NodeReason) string { return strings.Join(n.Missing, "") }},
	))
	s.lines("What would help", x.Helps)
}

// reasonRows gives each thing that a node lacks rows of its own, folded to the
// width; the first of them names the node.
func reasonRows(nodes []appliance.NodeReason, p *printer) []appliance.NodeReason {
	name := 0
	for _, n := range nodes {
		name = max(name, width(n.Hostname))
	}
	room := 0
	if p.width > 0 {
		room = max(p.width-name-12, minFlex) // the indent, "FITS" and the gaps
	}
	var out []appliance.NodeReason
	for _, n := range nodes {
		row := n
		for _, missing := range n.Missing {
			for _, line := range fold(missing, room) {
				row.Missing = []string{line}
				out = append(out, row)
				row = appliance.NodeReason{Hostname: " "}
			}
		}
		if len(n.Missing) == 0 {
			out = append(out, n)
		}
	}
	return out
}
