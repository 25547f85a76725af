package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name: "top", Usage: "show pools, nodes and bookings live", Category: "look",
		Description: "Quits on q or Ctrl-C. When its output is no terminal it prints one picture and ends.\n\n" +
			"Examples:\n   bc top\n   bc top --every 5s",
		Flags:  []cli.Flag{&cli.DurationFlag{Name: "every", Usage: "how long between two pictures", Value: time.Second}},
		Action: top,
	}
}

func top(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if c.Duration("every") < 100*time.Millisecond {
		return usagef("--every: %v is less than 100ms", c.Duration("every"))
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	if !s.tabular() {
		return usagef("bc top is for people; programs take bc status -o %s", s.format)
	}
	if !isTerminal(os.Stdout) {
		text, err := s.topPicture(c.Context, 0)
		if err == nil {
			_, err = fmt.Fprint(s.out, text)
		}
		return err
	}
	return s.topLive(c.Context, c.Duration("every"))
}

// Terminal control sequences (ECMA-48, and the private modes of xterm).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// topLive redraws the picture in the terminal's other screen until q.
func (s *session) topLive(ctx context.Context, every time.Duration) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if isTerminal(os.Stdin) {
		old, err := term.MakeRaw(int(os.Stdin.Fd()))
		if err != nil {
			return fmt.Errorf("read keys from the terminal: %w", err)
		}
		defer func() { _ = term.Restore(int(os.Stdin.Fd()), old) }() // nothing is left to be done if it fails
		go quitOnKey(quit)
	}
	fmt.Fprint(s.out, enterScreen)
	defer fmt.Fprint(s.out, leaveScreen)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		cols, rows, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil {
			cols, rows = 80, 24
		}
		s.width, s.now = cols, time.Now()
		text, err := s.topPicture(ctx, rows-1)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // it stays on the screen, and may go away by itself
			text = strings.Join(fold(printable(sentence(err)), cols), "\n") + "\n"
		}
		lines := strings.SplitAfter(text, "\n")
		lines = lines[:min(len(lines), rows-1)]
		text = strings.ReplaceAll(strings.Join(lines, ""), "\n", clearLine+"\r\n")
		fmt.Fprint(s.out, home+text+clearBelow+s.paint(faint, "q quits"))
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// quitOnKey ends at q, Escape, Ctrl-C or the end of the input. The terminal is
// raw, so that Ctrl-C comes as a byte.
func quitOnKey(quit func()) {
	defer quit()
	key := make([]byte, 1)
	for {
		n, err := os.Stdin.Read(key)
		if err != nil || n == 1 && strings.ContainsRune("qQ\x03\x1b", rune(key[0])) {
			return
		}
	}
}

// topPicture is one picture, which tries to keep to a height; 0 is any.
func (s *session) topPicture(ctx context.Context, height int) (string, error) {
	o, rows, notReady, err := s.overview(ctx)
	if err != nil {
		return "", err
	}
	limit := appliance.MaxLimit
	if height > 0 {
		limit = min(limit, height)
	}
	nodes, err := api.Do[appliance.ListNodes, appliance.List[appliance.Node]](ctx, s.Client, "nodes.list",
		appliance.ListNodes{TenantID: s.tenant, Page: appliance.Page{Limit: limit}})
	if err != nil && appliance.CodeOf(err) != appliance.AccessDenied {
		return "", err
	}
	booked, err := s.reservations(ctx, appliance.ListReservations{})
	if err != nil && appliance.CodeOf(err) != appliance.AccessDenied {
		return "", err
	}
	names := map[string]string{}
	for _, r := range rows {
		names[r.ID] = poolHandle(r.Pool)
	}
	sh := sheet{p: s.printer}
	healthSheet(&sh, s, o.Status, notReady)
	poolBars(&sh, rows)
	attentionSheet(&sh, firstAttention(o.Status, 3))
	all := len(nodes.Items)
	if o.Status != nil {
		all = o.Status.Nodes.Total
	}
	// What is left of the height is shared: bookings are what moves.
	room := height - strings.Count(sh.b.String(), "\n") - 6 // two headings, a blank line and the header of each
	share := max(2, room/2)
	sh.table(more("Nodes", len(nodes.Items), share, height, max(all, len(nodes.Items))), nodeTable(s.printer, some(nodes.Items, share, height), names))
	sh.table(more("Bookings", len(booked), share, height, len(booked)), reservationTable(s.printer, some(booked, share, height), names))
	return sh.b.String(), nil
}

func firstAttention(st *appliance.SystemStatus, n int) *appliance.SystemStatus {
	if st != nil {
		st.Attention = st.Attention[:min(n, len(st.Attention))]
	}
	return st
}

func some[T any](list []T, share, height int) []T {
	if height == 0 {
		return list
	}
	return list[:min(len(list), share)]
}

func more(title string, have, share, height, all int) string {
	if height == 0 || have <= share {
		return title
	}
	return fmt.Sprintf("%s (%d of %d)", title, share, all)
}
