package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/go-json-experiment/json"
)

// EventSource is where /v1/events reads. All three are set, or none.
type EventSource struct {
	// Read gives the events behind after that the caller may see in the name of
	// the tenant, in order, at most limit. It refuses like events.list.
	Read func(ctx context.Context, caller appliance.Caller, tenantID string, after int64, limit int) ([]appliance.Event, error)
	// Last is the highest sequence number that Read can give, of any tenant.
	Last func(ctx context.Context) (int64, error)
	// Wake gives a channel that is closed when there are events behind those
	// that were there when it was given. Every call may give the same one.
	Wake func() <-chan struct{}
}

// Limits of the streams.
const (
	maxStreams   = 256
	streamBatch  = 100
	heartbeat    = 15 * time.Second // proxies drop what is silent for long
	streamWrites = 10 * time.Second // a reader slower than this for one batch is let go
)

// stream is one open /v1/events.
type stream struct {
	x        *exchange
	control  *http.ResponseController
	caller   appliance.Caller
	tenantID string
	after    int64
	buf      *buffer
}

// serveEvents sends events as they happen. Each carries its sequence number as
// its id; a browser that reconnects sends the last one back, and nothing is
// missed. A stream holds no state but that number, and reads at most a batch
// at a time, however many events there are.
func (s *Server) serveEvents(x *exchange) error {
	x.long = true
	caller, err := x.caller(false)
	if err != nil {
		return err
	}
	if s.Events.Read == nil {
		return appliance.Refuse(appliance.Unavailable, "", "this server has no event stream")
	}
	st := &stream{x: x, control: http.NewResponseController(x.ResponseWriter), caller: caller}
	if err := st.where(); err != nil {
		return err
	}
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		return appliance.Refuse(appliance.RateLimited, "", "%d event streams are open, the most there may be; close one or use events.list", maxStreams).
			With("retryAfterSeconds", 5)
	}
	defer s.streams.Add(-1)
	s.stats.streams.Inc()
	defer s.stats.streams.Dec()
	ctx, cancel := s.Long(x.r.Context())
	defer cancel()
	st.buf = getBuffer()
	defer st.buf.free()
	return st.run(ctx)
}

// where reads the tenant and the place to begin.
func (st *stream) where() error {
	query := st.x.r.URL.Query()
	for name, values := range query {
		if name != "tenantId" && name != "after" {
			return invalid(clip(name, 64), "no such parameter of the event stream; its parameters are tenantId, after")
		}
		if len(values) > 1 {
			return invalid(name, "is given twice")
		}
	}
	st.tenantID = query.Get("tenantId")
	if st.tenantID == "" {
		st.tenantID = st.caller.Tenant
	}
	if st.tenantID == "" {
		return invalid("tenantId", "is required")
	}
	name, text := "Last-Event-ID", st.x.r.Header.Get("Last-Event-ID")
	if text == "" {
		name, text = "after", query.Get("after")
	}
	if text == "" {
		last, err := st.x.s.Events.Last(st.x.r.Context())
		st.after = last
		return err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 {
		return invalid(name, "%q is not an event's sequence number", clip(text, 40))
	}
	st.after = n
	return nil
}

// run sends until the caller goes, the server stops, or a read is refused.
func (st *stream) run(ctx context.Context) error {
	source := st.x.s.Events
	beat := time.NewTicker(st.x.s.beat)
	defer beat.Stop()
	for {
		// The order matters: what happens after the channel was taken wakes it,
		// and what happened before Last was asked is in the read.
		wake := source.Wake()
		last, err := source.Last(ctx)
		if err != nil {
			return st.end(ctx, err)
		}
		events, err := source.Read(ctx, st.caller, st.tenantID, st.after, streamBatch)
		if err != nil {
			return st.end(ctx, err)
		}
		if err := st.send(events); err != nil {
			return nil
		}
		if len(events) == streamBatch {
			continue
		}
		// Everything up to last was looked at: the next read need not start
		// before it, though none of it was for this caller.
		st.after = max(st.after, last)
		select {
		case <-ctx.Done():
			return st.end(ctx, ctx.Err())
		case <-wake:
		case <-beat.C:
			// A key that was revoked meanwhile ends its streams here.
			if _, err := st.x.caller(false); err != nil {
				return st.end(ctx, err)
			}
			if err := st.write([]byte(": still here\n\n")); err != nil {
				return nil
			}
		}
	}
}

// send writes a batch, and the head of the answer before the first.
func (st *stream) send(events []appliance.Event) error {
	first := !st.x.wrote
	if !first && len(events) == 0 {
		return nil
	}
	st.buf.b = st.buf.b[:0]
	if first {
		h := st.x.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		st.buf.b = append(st.buf.b, "retry: 2000\n\n"...)
	}
	for _, e := range events {
		st.buf.b = append(st.buf.b, "id: "...)
		st.buf.b = strconv.AppendInt(st.buf.b, e.Seq, 10)
		st.buf.b = append(st.buf.b, "\ndata: "...)
		if err := json.MarshalWrite(st.buf, e, answers); err != nil {
			return err
		}
		st.buf.b = append(st.buf.b, "\n\n"...)
		st.after = e.Seq
	}
	return st.write(st.buf.b)
}

func (st *stream) write(b []byte) error {
	_ = st.control.SetWriteDeadline(time.Now().Add(streamWrites))
	if _, err := st.x.Write(b); err != nil {
		return err
	}
	return st.control.Flush()
}

// end closes a stream. Before the head is out an error is answered as usual;
// after it, a last event named "end" tells why.
func (st *stream) end(ctx context.Context, err error) error {
	if st.x.r.Context().Err() != nil && !errors.Is(context.Cause(st.x.r.Context()), errServerClosing) {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if !st.x.wrote {
		return err
	}
	e := st.x.refusal(err)
	if e == nil {
		return nil
	}
	st.buf.b = append(st.buf.b[:0], "event: end\ndata: "...)
	if json.MarshalWrite(st.buf, envelope{e}, answers) == nil {
		st.buf.b = append(st.buf.b, "\n\n"...)
		_ = st.write(st.buf.b)
	}
	return nil
}
