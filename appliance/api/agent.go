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
	AgentRPC(s, "plan", c.ReportPlan)
	AgentRPC(s, "reboot", c.GiveLeave)
	s.spec, s.planAsks = c.Spec, c.PlanAsks
}

// serveSpec is GET /agent/v1/spec?node=ID&after=GENERATION&wait=30s: the spec
// if its generation is above, else 204 once the wait is over. With plans=1 the
// node is also handed a plan to make, once, if one is asked for meanwhile.
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
	var asks <-chan wire.PlanRequest // nil: none come
	if q.Get("plans") == "1" && wait > 0 && s.planAsks != nil {
		var leave func()
		if asks, leave, err = s.planAsks(who, q.Get("node")); err != nil {
			return err
		}
		defer leave()
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
			return x.answer(spec)
		}
		select {
		case <-changed:
		case ask := <-asks:
			return x.answer(wire.Asked{Plan: &ask})
		case <-timer.C:
			x.WriteHeader(http.StatusNoContent)
			return nil
		case <-ctx.Done():
			x.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
}

func (x *exchange) answer(v any) error {
	body, err := json.Marshal(v, answers)
	if err != nil {
		return err
	}
	x.write(body)
	return nil
}
