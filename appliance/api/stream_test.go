package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// eventLog is a store of events in memory, as the store promises it: numbers
// without a gap, and a channel that closes when there are more.
type eventLog struct {
	mu     sync.Mutex
	events []appliance.Event
	wake   chan struct{}
	refuse error
	froms  []int64 // where the reads began
}

func newEventLog() *eventLog { return &eventLog{wake: make(chan struct{})} }

func (l *eventLog) add(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := int64(len(l.events) + 1)
	l.events = append(l.events, appliance.Event{
		Seq: seq, Type: appliance.EventPoolCreated, TenantID: tenant, Subject: "pool_1", At: appliance.AtMillis(seq),
		Data: []byte("{\n  \"n\": 1\n}"),
	})
	close(l.wake)
	l.wake = make(chan struct{})
}

func (l *eventLog) source() EventSource {
	return EventSource{
		Read: func(_ context.Context, _ appliance.Caller, tenant string, after int64, limit int) ([]appliance.Event, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.froms = append(l.froms, after)
			if l.refuse != nil {
				return nil, l.refuse
			}
			var out []appliance.Event
			for _, e := range l.events[min(after, int64(len(l.events))):] {
				if e.TenantID == tenant && len(out) < limit {
					out = append(out, e)
				}
			}
			return out, nil
		},
		Last: func(context.Context) (int64, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return int64(len(l.events)), nil
		},
		Wake: func() <-chan struct{} {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.wake
		},
	}
}

func TestStreamResumesWithoutAGapWhileEventsAreWritten(t *testing.T) {
	events := newEventLog()
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	const total = 500
	go func() {
		for i := range total {
			events.add([]string{"acme", "other"}[i%2])
		}
	}()
	var seen []int64
	after := int64(0)
	for len(seen) < total/2 {
		// Reconnect every 40 events, over both transports in turn.
		client := []*Client{r.unix, r.tls}[len(seen)/40%2]
		n := 0
		for e, err := range client.Events(t.Context(), "acme", after) {
			if err != nil {
				t.Fatal(err)
			}
			seen, after = append(seen, e.Seq), e.Seq
			if n++; n == 40 || len(seen) == total/2 {
				break
			}
		}
	}
	for i, seq := range seen {
		if seq != int64(2*i+1) {
			t.Fatalf("event %d has number %d, want %d", i, seq, 2*i+1)
		}
	}
}

func TestStreamBeginsNowUnlessToldOtherwise(t *testing.T) {
	events := newEventLog()
	events.add("acme")
	events.add("acme")
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	first := func(query, lastID string) string {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", r.unix.base+"/v1/events?tenantId=acme"+query, nil)
		if lastID != "" {
			req.Header.Set("Last-Event-ID", lastID)
		}
		resp, err := r.unix.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("Content-Type %s", got)
		}
		go events.add("acme")
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				return id
			}
		}
		return "none"
	}
	for _, c := range []struct{ query, lastID, want string }{{"", "", "3"}, {"&after=0", "", "1"}, {"&after=0", "1", "2"}, {"", "0", "1"}} {
		if got := first(c.query, c.lastID); got != c.want {
			t.Errorf("after %q, Last-Event-ID %q: the first event is %s, want %s", c.query, c.lastID, got, c.want)
		}
	}
}

// A stream of a tenant to whom nothing happens must not read the others'
// events again and again.
func TestStreamDoesNotReadAgainWhatItPassedOver(t *testing.T) {
	events := newEventLog()
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	for range 50 {
		events.add("other")
	}
	go func() {
		for range 50 {
			events.add("other")
		}
		events.add("acme")
	}()
	for e, err := range r.unix.Events(t.Context(), "acme", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != 101 {
			t.Errorf("got event %d", e.Seq)
		}
		break
	}
	events.mu.Lock()
	defer events.mu.Unlock()
	for _, from := range events.froms[1:] {
		if from < 50 {
			t.Errorf("a later read began behind %d, though 50 events had been looked at", from)
		}
	}
}

func TestStreamRefusals(t *testing.T) {
	events := newEventLog()
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	for _, c := range []struct {
		query, lastID, field string
		status               int
	}{
		{"", "", "tenantId", 400}, // the operator has no tenant of its own
		{"?tenantId=acme&after=x", "", "after", 400},
		{"?tenantId=acme&after=-1", "", "after", 400},
		{"?tenantId=acme", "1.5", "Last-Event-ID", 400},
		{"?tenantId=acme&tenant=b", "", "tenant", 400},
		{"?tenantId=acme&tenantId=b", "", "tenantId", 400},
	} {
		resp, body := send(t, r.unix, "GET", "/v1/events"+c.query, "", "Last-Event-ID", c.lastID)
		if resp.StatusCode != c.status || !strings.Contains(body, fmt.Sprintf(`"field":%q`, c.field)) {
			t.Errorf("%s %q: %d %s", c.query, c.lastID, resp.StatusCode, body)
		}
	}
	if resp, _ := send(t, r.tls, "GET", "/v1/events?tenantId=acme", ""); resp.StatusCode != 401 {
		t.Errorf("without a credential: %d", resp.StatusCode)
	}
	events.refuse = appliance.NoSuch("tenant")
	for _, err := range r.unix.Events(t.Context(), "acme", 0) {
		if appliance.CodeOf(err) != appliance.NotFound {
			t.Errorf("refused at once: %v", err)
		}
	}
}

func TestStreamEndsWithTheReasonWhenAReadIsRefused(t *testing.T) {
	events := newEventLog()
	events.add("acme")
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	n := 0
	for e, err := range r.tls.Events(t.Context(), "acme", 0) {
		n++
		switch n {
		case 1:
			if err != nil || e.Seq != 1 || string(e.Data) != `{"n":1}` {
				t.Fatalf("%+v %v", e, err)
			}
			events.mu.Lock()
			events.refuse = appliance.NoSuch("tenant")
			events.mu.Unlock()
			events.add("acme")
		case 2:
			var refused *appliance.Error
			if !errors.As(err, &refused) || refused.Code != appliance.NotFound {
				t.Errorf("the stream ended with %v", err)
			}
		}
	}
	if n != 2 {
		t.Errorf("%d items", n)
	}
}

func TestASilentStreamIsKeptAliveAndEndsWhenItsKeyIsRevoked(t *testing.T) {
	var revoked atomic.Bool
	r := newRig(t, func(s *Server) {
		s.Events, s.beat = newEventLog().source(), 10*time.Millisecond
		s.Authenticate = func(ctx context.Context, bearer string) (appliance.Caller, error) {
			if revoked.Load() {
				return appliance.Caller{}, appliance.Refuse(appliance.Unauthenticated, "", "revoked")
			}
			return authenticate(ctx, bearer)
		}
	})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", r.tls.base+"/v1/events", nil) // the key's own tenant
	req.Header.Set("Authorization", "Bearer "+memberKey)
	resp, err := r.tls.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	beats, end := 0, ""
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), ": ") {
			if beats++; beats == 3 {
				revoked.Store(true)
			}
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			end = data
		}
	}
	if beats < 3 || !strings.Contains(end, "UNAUTHENTICATED") {
		t.Errorf("%d heartbeats, ended with %q", beats, end)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	r := newRig(t, func(s *Server) { s.Events = newEventLog().source() })
	r.streams.Store(maxStreams)
	for _, err := range r.unix.Events(t.Context(), "acme", -1) {
		if appliance.CodeOf(err) != appliance.RateLimited {
			t.Errorf("one stream too many: %v", err)
		}
	}
	if n := r.streams.Load(); n != maxStreams {
		t.Errorf("%d streams are counted after the refusal", n)
	}
}
