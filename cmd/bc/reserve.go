package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

// amountFlags are the flags that name an amount of a counted resource.
var amountFlags = map[string]string{
	"vcpu": appliance.ResourceVCPU, "memory": appliance.ResourceMemoryGiB, "hugepages-2mi": appliance.ResourceHugepages2Mi,
	"hugepages-1gi": appliance.ResourceHugepages1Gi, "disk": appliance.ResourceDiskGiB,
}

func reservationCreateCommand() *cli.Command {
	return &cli.Command{
		Name: "create", Usage: "claim resources of a pool",
		Description: "What fits is placed at once, and is active when its nodes have confirmed it. What does not fit yet\n" +
			"waits. Amounts are those of the whole reservation, and divide by --nodes. Without host resources a\n" +
			"share of the host is booked with the GPUs, as the pool's policy says.\n\n" +
			"Examples:\n   bc reservations create --gpus 2 --for 8h --wait\n" +
			"   bc reservations create --pool training --gpus 16 --nodes 2 --for 3d --name train-7b --label team=nlp\n" +
			"   bc reservations create --pool slices --gpus 1 --selector migProfile=1g.10gb\n" +
			"   bc reservations create --gpus 4 --selector 'vramGiB=80..' --selector 'rack=a|b' --dry-run",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "`POOL`, by id or name (default: the only one that the tenant sees)"},
			&cli.IntFlag{Name: "gpus", Aliases: []string{"g"}, Usage: "how many `N` of what the pool shares: whole GPUs, MIG instances or slots"},
			&cli.IntFlag{Name: "vcpu", Usage: "`N` logical CPUs"},
			&cli.IntFlag{Name: "memory", Usage: "`GIB` of memory"},
			&cli.IntFlag{Name: "hugepages-2mi", Usage: "`N` huge pages of 2 MiB"},
			&cli.IntFlag{Name: "hugepages-1gi", Usage: "`N` huge pages of 1 GiB"},
			&cli.IntFlag{Name: "disk", Usage: "`GIB` of disk"},
			&cli.IntFlag{Name: "nodes", Aliases: []string{"n"}, Usage: "over how many `NODES`", Value: 1},
			&cli.StringSliceFlag{Name: "selector", Aliases: []string{"l"}, Usage: "`KEY=VALUE` that nodes must have; A|B for one of several, MIN..MAX for a range; any number of times"},
			&cli.StringFlag{Name: "binding", Usage: "hold, node, kubernetes or instance (default: hold)"},
			&cli.StringFlag{Name: "for", Usage: "`DURATION` from now, such as 8h or 3d (default: until it is released)"},
			&cli.StringFlag{Name: "until", Usage: "`TIME` of the end, such as 2026-01-31T08:00:00Z"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` for people"},
			&cli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE` for people and programs; any number of times"},
			&cli.StringFlag{Name: "idempotency-key", Usage: "`KEY` under which a repetition answers the same reservation"},
			&cli.BoolFlag{Name: "wait", Aliases: []string{"w"}, Usage: "wait until it is active; Ctrl-C ends the waiting, not the reservation"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say whether and where it would fit; book nothing"},
		},
		Action: createReservation,
	}
}

func createReservation(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	in, err := reservationInput(c)
	if err != nil {
		return err
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	p, err := s.onlyPool(c, "pool")
	if err != nil {
		return err
	}
	in.TenantID, in.PoolID = s.tenant, p.ID
	if c.IsSet("gpus") {
		in.Resources[p.Sharing.Resource()] = c.Int("gpus")
	}
	r, err := api.Do[appliance.CreateReservation, appliance.Reservation](c.Context, s.Client, "reservations.create", in)
	if err != nil {
		return err
	}
	if in.DryRun {
		return s.showDryRun(c, r)
	}
	if !c.Bool("wait") {
		if s.tabular() && r.State == appliance.Pending {
			s.note("It waits: %s\nbc reservations explain %s says more.", r.Message, reservationHandle(r))
		}
		if r.Name == "" {
			return did(s.printer, r, r.ID, "Reservation %s is %s.", r.ID, r.State)
		}
		return did(s.printer, r, r.ID, "Reservation %s is %s (%s).", r.Name, r.State, r.ID)
	}
	r, err = s.wait(c, r)
	if err != nil {
		return err
	}
	return s.showReservation(c, r)
}

// reservationInput is what the flags ask for, without what depends on the pool.
func reservationInput(c *cli.Context) (in appliance.CreateReservation, err error) {
	in = appliance.CreateReservation{
		Resources: appliance.Amounts{}, Nodes: c.Int("nodes"), Binding: appliance.BindingKind(c.String("binding")), Duration: c.String("for"),
		IdempotencyKey: c.String("idempotency-key"), Name: c.String("name"), DryRun: c.Bool("dry-run"),
	}
	if in.DryRun && c.Bool("wait") {
		return in, usagef("--dry-run books nothing, so there is nothing to --wait for")
	}
	if in.Nodes < 1 {
		return in, usagef("--nodes: %d is not 1 or more", in.Nodes)
	}
	asked := c.IsSet("gpus")
	for flag, resource := range amountFlags {
		if c.IsSet(flag) {
			asked, in.Resources[resource] = true, c.Int(flag)
		}
	}
	if !asked && in.Binding != appliance.BindNode {
		return in, usagef("it asks for nothing: give --gpus N or another amount; see bc reservations create --help")
	}
	if in.Selector, err = parseSelector(c.StringSlice("selector")); err != nil {
		return in, err
	}
	if in.Labels, err = pairs("label", c.StringSlice("label")); err != nil {
		return in, err
	}
	in.ExpiresAt, err = endFlag(c)
	return in, err
}

func (s *session) showDryRun(c *cli.Context, r appliance.Reservation) error {
	if s.tabular() {
		if r.State == appliance.Pending {
			s.note("Dry run: it would have to wait. Nothing was booked.")
		} else {
			s.note("Dry run: it would fit now. Nothing was booked.")
		}
	}
	return s.showReservation(c, r)
}

// waitPoll is how often a waiting command looks for itself, beside the events
// that wake it: a caller may be allowed to see its reservation and no events.
const waitPoll = 3 * time.Second

// wait follows a reservation until it is active, and says on stderr how it
// goes. It fails if the reservation ends instead.
func (s *session) wait(c *cli.Context, r appliance.Reservation) (appliance.Reservation, error) {
	ctx, stop := context.WithCancel(c.Context)
	defer stop()
	woken := s.wakes(ctx)
	said := ""
	for {
		if now := string(r.State) + r.Message; now != said {
			said = now
			s.sayWaiting(c, r)
		}
		switch r.State {
		case appliance.Active:
			s.now = time.Now() // the waiting took a while
			return r, nil
		case appliance.Ended, appliance.Failed:
			return r, appliance.Refuse(appliance.InvalidState, "", "reservation %s is %s (%s): %s", reservationHandle(r), r.State, r.Reason, r.Message)
		}
		select {
		case <-ctx.Done():
			s.note("\nStopped waiting. Reservation %s stays %s; bc reservations get %s shows it, bc reservations release %s ends it.",
				reservationHandle(r), r.State, r.ID, r.ID)
			return r, silent{exitFailed}
		case <-woken:
		case <-time.After(waitPoll):
		}
		next, err := s.findReservation(ctx, r.ID)
		switch {
		case err == nil:
			r = next
		case errors.Is(err, api.ErrUnreachable):
			if said != "unreachable" {
				said = "unreachable"
				s.note("The control plane does not answer; waiting for it. Reservation %s is kept.", r.ID)
			}
		case ctx.Err() == nil:
			return r, err
		}
	}
}

// wakes tells that something has happened in the tenant, until ctx ends. Of a
// caller that sees no events nothing is told.
func (s *session) wakes(ctx context.Context) <-chan struct{} {
	woken := make(chan struct{}, 1)
	go func() {
		for _, err := range s.Events(ctx, s.tenant, -1) {
			if err != nil {
				return
			}
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}()
	return woken
}

// sayWaiting tells what a reservation has come to, and while it waits why.
func (s *session) sayWaiting(c *cli.Context, r appliance.Reservation) {
	text := fmt.Sprintf("%s  %s", reservationHandle(r), s.paint(stateColours[string(r.State)], string(r.State)))
	if r.Message != "" {
		text += ": " + printable(r.Message)
	}
	s.note("%s", text)
	if r.State != appliance.Pending {
		return
	}
	if x, err := s.explain(c, r.ID); err == nil { // the message has said the main thing
		for _, h := range x.Helps {
			s.note("  would help: %s", printable(h))
		}
	}
}
