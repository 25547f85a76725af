package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "run a command behind the wall of a reservation on this machine", ArgsUsage: "{-r RESERVATION | --gpus N} -- COMMAND...", Category: "run",
		Description: "The command runs in the reservation's slice: on its CPUs, within its memory, with just its GPUs'\n" +
			"device nodes, and with CUDA_VISIBLE_DEVICES set. Its exit status is passed on; it is 127\n" +
			"if there is no such command, and 126 if it cannot be run. With --gpus a reservation is made, waited\n" +
			"for, and released when the command ends or this one is told to: the command gets the signal first.\n\n" +
			"It needs root, since systemd lets nobody else start work in a slice. Under sudo the command runs as\n" +
			"the user who called sudo. Whoever may call it as root can use every reservation of this machine; a\n" +
			"command that itself runs as root is led to its share, and could leave it.\n\n" +
			"Examples:\n   sudo bc run -r train-7b -- python train.py\n   sudo bc run --gpus 2 --for 2h -- nvidia-smi -L",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "reservation", Aliases: []string{"r"}, Usage: "the active `RESERVATION`, by id or name"},
			&cli.IntFlag{Name: "gpus", Aliases: []string{"g"}, Usage: "reserve `N` of what the pool shares for this command"},
			&cli.StringFlag{Name: "pool", Aliases: []string{"p"}, Usage: "with --gpus: of `POOL` (default: the only one that the tenant sees)"},
			&cli.StringFlag{Name: "for", Usage: "with --gpus: `DURATION` after which it is ended, such as 2h (default: when the command ends)"},
			&cli.StringSliceFlag{Name: "selector", Aliases: []string{"l"}, Usage: "with --gpus: `KEY=VALUE` that the node must have, as in bc reservations create"},
			&cli.StringFlag{Name: "name", Usage: "with --gpus: `NAME` for people"},
		},
		Action: runInside,
	}
}

func runInside(c *cli.Context) error {
	if c.NArg() == 0 {
		return usagef("%s needs a command behind --; see %s --help", c.Command.HelpName, c.Command.HelpName)
	}
	if c.IsSet("reservation") == c.IsSet("gpus") {
		return usagef("give either --reservation RESERVATION or --gpus N; see %s --help", c.Command.HelpName)
	}
	for _, f := range []string{"pool", "for", "selector", "name"} {
		if c.IsSet("reservation") && c.IsSet(f) {
			return usagef("--%s is of a new reservation: it goes with --gpus, not with --reservation", f)
		}
	}
	if os.Geteuid() != 0 {
		return appliance.Refuse(appliance.AccessDenied, "",
			"bc run needs root, since systemd lets nobody else start work in a slice; sudo bc run … runs the command as you")
	}
	if c.IsSet("gpus") {
		return runReserved(c)
	}
	env, err := enterReservation(c, c.String("reservation"))
	if err != nil {
		return err
	}
	return unstarted(host.Execute(c.Args().Slice(), env))
}

// unstarted gives a command that could not be started the exit status that shells
// have for it, so that it is not taken for the command's own.
func unstarted(err error) error {
	var failed *host.NotStarted
	if !errors.As(err, &failed) {
		return err
	}
	fmt.Fprintln(os.Stderr, "bc:", sentence(err))
	return silent{failed.Status()}
}

// enterReservation moves this process behind the wall of a reservation. By its
// id that works without the control plane, which the agent may have lost too.
func enterReservation(c *cli.Context, want string) ([]string, error) {
	if appliance.IsID(appliance.ReservationPrefix, want) {
		env, err := agent.EnterWall(c.Context, want)
		if err == nil || !errors.Is(err, agent.ErrNoWall) {
			return env, err
		}
	}
	s, err := open(c)
	if err != nil {
		return nil, err
	}
	r, err := s.findReservation(c.Context, want)
	if err != nil {
		return nil, err
	}
	if r.State != appliance.Active {
		return nil, appliance.Refuse(appliance.InvalidState, "", "reservation %s is %s, not active. %s", reservationHandle(r), r.State, r.Message)
	}
	env, err := agent.EnterWall(c.Context, r.ID)
	if errors.Is(err, agent.ErrNoWall) {
		return nil, s.explainNoWall(c, r)
	}
	return env, err
}

// explainNoWall says why an active reservation has no wall here.
func (s *session) explainNoWall(c *cli.Context, r appliance.Reservation) error {
	if r.Message != "" {
		return appliance.Refuse(appliance.InvalidState, "", "reservation %s is active, and not walled in: %s", reservationHandle(r), r.Message)
	}
	var on []string
	for _, p := range r.Placements {
		name := p.NodeID
		if n, err := s.findNode(c.Context, p.NodeID); err == nil {
			name = n.Hostname
		}
		on = append(on, name)
	}
	return appliance.Refuse(appliance.InvalidState, "", "reservation %s has nothing on this machine; it is on %s", reservationHandle(r), clip(on, 8))
}

// releaseWithin is how long the control plane may take to hear that a command
// has ended.
const releaseWithin = 10 * time.Second

// runReserved reserves, runs and releases. The command is a child, so that this
// process is still there to release: no signal that can be caught ends it before
// that, not even a second one or that of a terminal that was closed.
func runReserved(c *cli.Context) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, host.Forwarded...)
	defer signal.Stop(signals)
	broken := make(chan os.Signal, 1) // a closed pipe at standard error must not end it either
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	c.Context = ctx
	waited := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel()
			signals <- s // should the command start meanwhile, it hears of it
		case <-waited:
		}
	}()

	s, r, err := reserveHere(c)
	if err != nil {
		return err
	}
	defer s.release(ctx, r)
	if r, err = s.wait(c, r); err != nil {
		return err
	}
	if !agent.Walled(r.ID) {
		return s.explainNoWall(c, r)
	}
	close(waited)
	if err := ctx.Err(); err != nil {
		return err
	}
	code, err := host.Self(append([]string{"better-compute", "run", "-r", r.ID, "--"}, c.Args().Slice()...), signals)
	if err != nil {
		return err
	}
	if code != 0 {
		return silent{code}
	}
	return nil
}

// reserveHere makes the reservation that the flags ask for. Once it was asked for,
// the answer is waited for: without its id it could not be released.
func reserveHere(c *cli.Context) (s *session, r appliance.Reservation, err error) {
	in := appliance.CreateReservation{
		Resources: appliance.Amounts{}, Nodes: 1, Binding: appliance.BindHold, Duration: c.String("for"), Name: c.String("name"),
	}
	if in.Selector, err = parseSelector(c.StringSlice("selector")); err != nil {
		return nil, r, err
	}
	if s, err = open(c); err != nil {
		return nil, r, err
	}
	p, err := s.onlyPool(c, "pool")
	if err != nil {
		return nil, r, err
	}
	in.TenantID, in.PoolID = s.tenant, p.ID
	in.Resources[p.Sharing.Resource()] = c.Int("gpus")
	if err := c.Context.Err(); err != nil {
		return nil, r, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context), releaseWithin)
	defer cancel()
	r, err = api.Do[appliance.CreateReservation, appliance.Reservation](ctx, s.Client, "reservations.create", in)
	return s, r, err
}

// release ends a reservation, also when the command was interrupted.
func (s *session) release(ctx context.Context, r appliance.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_, err := api.Do[appliance.ReservationRef, appliance.Reservation](ctx, s.Client, "reservations.release",
		appliance.ReservationRef{TenantID: s.tenant, ReservationID: r.ID})
	if err != nil {
		s.note("Reservation %s may still be booked (%v); release it with: bc reservations release %s", reservationHandle(r), err, r.ID)
		return
	}
	s.note("Reservation %s is released.", reservationHandle(r))
}
