package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/host"
)

// heldFor is how long RemoveWalls waits for whoever holds a device from outside.
const heldFor = 5 * time.Second

// Walls lists the reservations that have a wall on this machine, or something
// left of one, sorted. It only reads, and needs neither an agent nor a server.
func Walls(root *host.Root) []string {
	w := newWalls(root, nil, slog.New(slog.DiscardHandler))
	ids := w.recorded()
	slices.Sort(ids)
	return ids
}

// RemoveWalls takes every wall of this machine down, in the order in which an
// agent does it, and then the fence: for a machine whose agent or control plane
// is gone for good. What runs behind a wall is asked to end and then killed. tell
// hears how far the wall of a reservation has come. The error names the walls that
// could not be taken down, and who holds their devices; called again, it goes on.
//
// An agent that runs meanwhile raises them again.
func RemoveWalls(ctx context.Context, root *host.Root, ledger *host.Ledger, tell func(reservation, state string)) error {
	w := newWalls(root, ledger, slog.New(slog.DiscardHandler))
	defer w.slices.Close()
	w.want(nil, nil)
	said := map[string]string{}
	var held time.Time // since nothing but holders is waited for
	for {
		again := w.round(ctx)
		r := w.state()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case r.refusal != "" && len(w.recorded()) == 0:
			return nil // there never were any
		case r.refusal != "":
			return fmt.Errorf("walls cannot be taken down: %s", r.refusal)
		case r.asked == 0:
			return errors.New("walls cannot be taken down: systemd does not list its slices; see systemctl list-units 'bc-*.slice'")
		case len(r.states) == 0:
			r.told(said, tell)
			return w.fenced.err
		}
		left, waits := r.told(said, tell)
		switch {
		case waits:
			held = time.Time{}
		case held.IsZero():
			held = time.Now()
		case time.Since(held) > heldFor:
			return fmt.Errorf("not every wall is down: %s", strings.Join(left, "; "))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(again): // nobody tells when a process has let a device go
		}
	}
}

// told tells what is new of each wall, and lists in words those that are left. It
// reports whether one of them waits for its programs, which end by themselves.
func (r wallReport) told(said map[string]string, tell func(reservation, state string)) (left []string, waits bool) {
	for _, id := range slices.Sorted(maps.Keys(said)) {
		if _, there := r.states[id]; !there {
			delete(said, id)
			tell(id, "gone")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.states)) {
		s := r.states[id]
		left, waits = append(left, id+" is "+s.String()), waits || s.held == ""
		if said[id] != s.String() {
			said[id] = s.String()
			tell(id, s.String())
		}
	}
	return left, waits
}

// RemoveFence lets the host's own slices use every CPU again, and leaves the walls
// and what runs behind them.
func RemoveFence(ctx context.Context, root *host.Root, ledger *host.Ledger) error {
	var p host.Prior
	if noted, err := ledger.Load(host.Priors, fenceUnit, &p); err != nil || !noted {
		return err
	}
	w := newWalls(root, ledger, slog.New(slog.DiscardHandler))
	defer w.slices.Close()
	return w.setFence(ctx, "")
}
