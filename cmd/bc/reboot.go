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

func nodeRebootCommand() *cli.Command {
	return &cli.Command{
		Name: "reboot", Usage: "drain a node and have its machine rebooted, once", ArgsUsage: "NODE", BashComplete: completeNodes,
		Description: "The node takes no new bookings from now on, and is rebooted when its last reservation has ended. It takes\n" +
			"bookings again when it is back, unless it was held before. bc nodes uncordon withdraws a reboot that\n" +
			"waits. With --now nothing is waited for: reservations keep what they hold, and what runs is killed.\n\n" +
			"Examples:\n   bc nodes reboot gpu-01 --dry-run\n   bc nodes reboot gpu-01 --wait\n   bc nodes reboot gpu-01 --now --yes",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "now", Usage: "do not wait until reservations have ended"},
			&cli.BoolFlag{Name: "wait", Aliases: []string{"w"}, Usage: "wait until the node is back; Ctrl-C ends the waiting, not the reboot"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what it would wait for or interrupt, and change nothing"},
			yesFlag(),
		},
		Action: rebootNode,
	}
}

func rebootNode(c *cli.Context) error {
	if c.Bool("dry-run") && c.Bool("wait") {
		return usagef("--dry-run reboots nothing, so there is nothing to --wait for")
	}
	s, n, err := theNode(c)
	if err != nil {
		return err
	}
	in := appliance.RebootNode{TenantID: s.tenant, NodeID: n.ID, Now: c.Bool("now"), DryRun: true}
	ask := func() (appliance.Node, error) {
		return api.Do[appliance.RebootNode, appliance.Node](c.Context, s.Client, "nodes.reboot", in)
	}
	if c.Bool("dry-run") || !c.Bool("yes") {
		if n, err = ask(); err != nil {
			return err
		}
	}
	if c.Bool("dry-run") {
		return did(s.printer, n, n.ID, "Dry run: %s Nothing was changed.", rebootEffect(n))
	}
	if !c.Bool("yes") {
		s.note("%s", rebootEffect(n))
	}
	if err := confirm(c, fmt.Sprintf("Reboot node %s?", n.Hostname)); err != nil {
		return err
	}
	in.DryRun = false
	if n, err = ask(); err != nil {
		return err
	}
	if c.Bool("wait") {
		if n, err = s.awaitReboot(c, n); err != nil {
			return err
		}
	}
	return did(s.printer, n, n.ID, "Node %s is %s; reboot: %s.", n.Hostname, n.State, rebootText(n.Reboot))
}

// rebootText is how far a reboot has come.
func rebootText(r *appliance.Reboot) string {
	if r.Message == "" {
		return string(r.State)
	}
	return fmt.Sprintf("%s: %s", r.State, r.Message)
}

// rebootEffect says what a reboot that is asked for does to whom.
func rebootEffect(n appliance.Node) string {
	if n.Reboot.State == appliance.RebootRebooting {
		return fmt.Sprintf("Node %s is being rebooted already.", n.Hostname)
	}
	list, lead := n.Reboot.Reservations, ""
	if n.Simulated {
		lead = "This is a simulated machine, which only seems to reboot. "
	}
	switch {
	case len(list) == 0:
		return fmt.Sprintf("%sNothing is booked on node %s: it is rebooted at once.", lead, n.Hostname)
	case n.Reboot.Now:
		return fmt.Sprintf("%sWhat runs in %s on node %s is killed: %s. What they hold stays theirs.",
			lead, count(len(list), "reservation"), n.Hostname, bookingText(list))
	}
	return fmt.Sprintf("%sNode %s takes no new bookings, and is rebooted when %s: %s.", lead, n.Hostname, haveEnded(len(list)), bookingText(list))
}

func haveEnded(n int) string {
	if n == 1 {
		return "1 reservation has ended"
	}
	return count(n, "reservation") + " have ended"
}

// awaitReboot follows a reboot until the node is back, and says on stderr how it
// goes. On one box the control plane goes down with the machine.
func (s *session) awaitReboot(c *cli.Context, n appliance.Node) (appliance.Node, error) {
	ctx, stop := context.WithCancel(c.Context)
	defer stop()
	woken := s.wakes(ctx)
	said := ""
	say := func(text string) {
		if text != said {
			said = text
			s.note("%s", text)
		}
	}
	id := n.Reboot.ID
	for {
		r := n.Reboot
		if r == nil || r.ID != id {
			return n, appliance.Refuse(appliance.InvalidState, "", "another reboot of node %s was asked for meanwhile", n.Hostname)
		}
		switch r.State {
		case appliance.RebootDone:
			return n, nil
		case appliance.RebootFailed, appliance.RebootWithdrawn:
			return n, appliance.Refuse(appliance.InvalidState, "", "the reboot of node %s is %s", n.Hostname, rebootText(r))
		}
		say(fmt.Sprintf("%s  %s", n.Hostname, printable(rebootText(r))))
		select {
		case <-ctx.Done():
			s.note("\nStopped waiting. bc nodes get %s shows how far the reboot is, bc nodes uncordon %s withdraws it while it waits.", n.ID, n.ID)
			return n, silent{exitFailed}
		case <-woken:
		case <-time.After(waitPoll):
		}
		next, err := api.Do[appliance.NodeRef, appliance.Node](ctx, s.Client, "nodes.get", appliance.NodeRef{TenantID: s.tenant, NodeID: n.ID})
		switch {
		case err == nil:
			n = next
		case errors.Is(err, api.ErrUnreachable):
			say("The control plane does not answer; waiting for it.")
		case ctx.Err() == nil:
			return n, err
		}
	}
}
