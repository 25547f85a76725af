package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
)

func eventCommand() *cli.Command {
	flags := []cli.Flag{
		&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with what happens from now on"},
		&cli.Int64Flag{Name: "after", Usage: "those behind the sequence number `SEQ`, the oldest first (default: the newest)", Value: -1},
		&cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Usage: "at most `N`", Value: 50},
	}
	examples := "With --follow it ends on Ctrl-C, and connects again by itself, without a gap, if the server goes away for\n" +
		"a while. In JSON it then writes one event a line.\n\n" +
		"Examples:\n   bc events\n   bc events --follow\n   bc events --follow -o json | jq .type\n   bc events list --after 1200 --limit 500 -o json"
	g := group("events", "event", "what happened",
		&cli.Command{Name: "list", Usage: "list what happened, the newest last", Description: examples, Flags: flags, Action: listEvents},
	)
	g.Flags, g.Description = flags, examples
	g.Action = func(c *cli.Context) error {
		if c.NArg() > 0 {
			return noVerb(c)
		}
		return listEvents(c)
	}
	return g
}

func listEvents(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if c.Int("limit") < 0 || c.Int("limit") == 0 && !c.Bool("follow") {
		return usagef("--limit: %d is not above zero", c.Int("limit"))
	}
	s, err := open(c)
	if err != nil {
		return err
	}
	events, last, err := s.someEvents(c.Context, c.Int64("after"), c.Int("limit"))
	if err != nil {
		return err
	}
	if !c.Bool("follow") {
		return items(s.printer, events, eventID, "Nothing has happened yet.", func(events []appliance.Event) *table { return eventTable(s.printer, events) })
	}
	return s.follow(c.Context, events, last)
}

func eventID(e appliance.Event) string { return strconv.FormatInt(e.Seq, 10) }

// someEvents gives at most limit events behind after, or the newest ones if
// after is negative, and the sequence number to go on from.
func (s *session) someEvents(ctx context.Context, after int64, limit int) ([]appliance.Event, int64, error) {
	newest := after < 0
	after = max(after, 0)
	if newest {
		last, err := s.lastEvent(ctx)
		if err != nil {
			return nil, 0, err
		}
		// Sequence numbers are shared by all tenants: look back further until
		// there are enough.
		for back := int64(max(limit, 1)); ; back *= 4 {
			after = max(0, last-back)
			got, next, err := s.eventsAfter(ctx, after, appliance.MaxCount)
			if err != nil || len(got) >= limit || after == 0 {
				return got[max(0, len(got)-limit):], max(next, last), err
			}
		}
	}
	return s.eventsAfter(ctx, after, limit)
}

func (s *session) eventsAfter(ctx context.Context, after int64, limit int) ([]appliance.Event, int64, error) {
	var out []appliance.Event
	for len(out) < limit {
		want := min(limit-len(out), appliance.MaxLimit)
		got, err := s.eventPage(ctx, after, want)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, got...)
		if len(got) > 0 {
			after = got[len(got)-1].Seq
		}
		if len(got) < want {
			break
		}
	}
	return out, after, nil
}

func (s *session) eventPage(ctx context.Context, after int64, limit int) ([]appliance.Event, error) {
	got, err := api.Do[appliance.ListEvents, appliance.List[appliance.Event]](ctx, s.Client, "events.list", appliance.ListEvents{TenantID: s.tenant, After: after, Limit: limit})
	return got.Items, err
}

// lastEvent finds the newest event's sequence number: the list has only a
// beginning, so it doubles a guess and then halves the interval, some 40 small
// calls for a million events.
func (s *session) lastEvent(ctx context.Context) (int64, error) {
	var low, high int64 = 0, 64 // there is none behind high; low was there, or is 0
	for {
		got, err := s.eventPage(ctx, high, 1)
		if err != nil {
			return 0, err
		}
		if len(got) == 0 {
			break
		}
		low = got[0].Seq
		high = low * 2
	}
	for low < high {
		mid := low + (high-low)/2
		got, err := s.eventPage(ctx, mid, 1)
		if err != nil {
			return 0, err
		}
		if len(got) == 0 {
			high = mid
		} else {
			low = got[0].Seq
		}
	}
	return low, nil
}

// reconnect is how long a follower waits before it connects again.
const reconnect = 2 * time.Second

// follow writes events and then each that comes, until it is stopped.
func (s *session) follow(ctx context.Context, events []appliance.Event, last int64) error {
	for _, e := range events {
		if err := s.writeEvent(e); err != nil {
			return err
		}
	}
	told := false
	for {
		var lost error
		for e, err := range s.Events(ctx, s.tenant, last) {
			if lost = err; err != nil {
				break
			}
			told = false
			last = e.Seq
			if err := s.writeEvent(e); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(lost, api.ErrUnreachable) && appliance.CodeOf(lost) != appliance.Unavailable:
			return lost
		}
		if !told {
			s.note("The server does not answer; connecting again.")
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

func (s *session) writeEvent(e appliance.Event) error {
	switch s.format {
	case formatJSON:
		_, err := fmt.Fprintln(s.out, jsonText(e))
		return err
	case formatYAML:
		fmt.Fprintln(s.out, "---")
		return s.data(e)
	case formatName:
		_, err := fmt.Fprintln(s.out, eventID(e))
		return err
	}
	line := fmt.Sprintf("%s  %-22s %s  %s", e.At.Local().Format("15:04:05"), e.Type, e.Subject, eventText(e))
	line = printable(strings.TrimRight(line, " "))
	if s.width > 0 && s.format == formatTable {
		line = cut(line, s.width, s.plain)
	}
	_, err := fmt.Fprintln(s.out, line)
	return err
}

func eventTable(p *printer, events []appliance.Event) *table {
	type row = appliance.Event
	return newTable(events,
		field[row]{column{head: "SEQ", right: true, drop: 4}, eventID},
		field[row]{column{head: "WHEN", drop: 1}, func(e row) string { return p.ago(e.At) }},
		field[row]{column{head: "EVENT"}, func(e row) string { return string(e.Type) }},
		field[row]{column{head: "SUBJECT"}, func(e row) string { return e.Subject }},
		field[row]{column{head: "TENANT", drop: 3}, func(e row) string { return e.TenantID }},
		field[row]{column{head: "WHAT", flex: p.format != formatWide, least: 16, drop: 2}, eventText},
		field[row]{column{head: "AT", wide: true}, func(e row) string { return e.At.Local().Format("2006-01-02 15:04:05.000 MST") }},
	)
}

// eventText picks what people look for from an event's data.
func eventText(e appliance.Event) string {
	data, err := policyObject(appliance.RawPolicy(e.Data))
	if err != nil {
		return ""
	}
	var out []string
	for _, k := range []string{"name", "hostname", "state", "resources", "resource", "max", "reason", "message"} {
		v, ok := data[k]
		if !ok || v == "" || v == e.Subject {
			continue
		}
		if m, isMap := v.(map[string]any); isMap {
			for _, r := range sortedKeys(m) {
				out = append(out, r+"="+plainText(m[r]))
			}
			continue
		}
		text := plainText(v)
		if k == "max" && text == strconv.Itoa(appliance.MaxCount) {
			text = "any"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
