package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/control"
)

// maxSpecWait bounds a long poll, so that proxies and dead peers cost little.
const maxSpecWait = time.Minute

// registerAgent gives the server what nodes call: hello, inventory, heartbeat,
// and the long poll for what is wanted of them.
func registerAgent(s *Server, c *control.Control) {
	AgentRPC(s, "hello", func(ctx context.Context, who appliance.Caller, h wire.Hello) (wire.Welcome, error) {
		if who.Kind == "" {
			return wire.Welcome{}, appliance.Refuse(appliance.Unauthenticated, "", "a machine joins over the Unix socket as the local operator")
		}
		return c.Hello(ctx, who, h)
	})
	AgentRPC(s, "inventory", c.ReportInventory)
	AgentRPC(s, "heartbeat", c.Heartbeat)
	s.spec = c.Spec
}

// serveSpec is GET /agent/v1/spec?node=ID&after=GENERATION&wait=30s: the spec
// if its generation is above, else 204 once the wait is over.
func (s *Server) serveSpec(x *exchange) error {
	x.long = true
	who, err := x.caller(false)
	if err != nil {
		return err
	}
	q := x.r.URL.Query()
	after, err := strconv.ParseInt(q.Get("after"), 10, 64)
	if err != nil && q.Get("after") != "" {
		return invalid("after", "%q is not a generation", clip(q.Get("after"), 40))
	}
	wait := time.Duration(0)
	if text := q.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			return invalid("wait", "%q is not a duration such as 30s", clip(text, 40))
		}
	}
	ctx, cancel := s.Long(x.r.Context())
	defer cancel()
	timer := time.NewTimer(min(wait, maxSpecWait))
	defer timer.Stop()
	for {
		spec, newer, changed, err := s.spec(ctx, who, q.Get("node"), after)
		if err != nil {
			return err
		}
		if newer {
			body, err := json.Marshal(spec, answers)
			if err != nil {
				return err
			}
			x.write(body)
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			x.WriteHeader(http.StatusNoContent)
			return nil
		case <-ctx.Done():
			x.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
}
