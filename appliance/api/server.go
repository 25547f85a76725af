// Package api is the door of the control plane: HTTP over a Unix socket and
// over TLS. It keeps the wire to itself: how an input is read strictly, how a
// refusal is written, who calls, the listeners and their certificates, the
// OpenAPI document, the event stream, and the Go client of all this. It may
// not know what any verb does: a verb is a function registered by [RPC].
//
// Start reading at [Server] and [RPC]; then decode.go, which turns every bad
// input into words for people.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/go-chi/chi/v5"
)

// Transport is the kind of a listener. It decides how a caller is found.
type Transport string

// Over the Unix socket a peer whose uid is 0 or the server's own is the local
// operator, with no secret; any other peer needs a bearer, as everyone does
// over TLS.
const (
	Unix Transport = "unix"
	TLS  Transport = "tls"
)

// Server answers the HTTP interface. It is wired as a struct literal; every
// method must be registered before [Server.Handler] is called.
type Server struct {
	Version string
	Log     *slog.Logger // nil: nothing is logged

	// Authenticate finds the caller that a bearer credential stands for. A
	// credential it does not know is refused with [appliance.Unauthenticated];
	// what the refusal says is not shown. Kind, ID, Tenant and Role are its to
	// set; the door adds the request id and the address.
	Authenticate func(ctx context.Context, bearer string) (appliance.Caller, error)

	// Session finds the caller of a console session, by the request's cookie.
	// It is asked only when a request carries no Authorization header, and
	// refuses with [appliance.Unauthenticated] when there is no session. A
	// request that a browser sends from another site is refused before it is
	// asked. Nil: no sessions.
	Session func(r *http.Request) (appliance.Caller, error)

	// Ready says why the server cannot serve yet, nil when it can. The text is
	// shown to anyone who asks /readyz. Nil: always ready.
	Ready func(ctx context.Context) error

	Events EventSource
	Now    func() time.Time // nil: time.Now

	setup    sync.Once
	doc      document
	methods  []*method
	mounts   []mount
	stats    *stats
	failures *failures
	built    atomic.Bool
	stopping chan struct{}

	addExamples func() // documents the methods; called when the document is first asked for

	// spec is what is wanted of a node if that is newer than a generation, and
	// else a channel that is closed when it may be.
	spec func(ctx context.Context, who appliance.Caller, nodeID string, after int64) (spec wire.NodeSpec, newer bool, changed <-chan struct{}, err error)
	// planAsks hands a node's long poll the plans that it is asked for.
	planAsks func(who appliance.Caller, nodeID string) (asks <-chan wire.PlanRequest, leave func(), err error)
	stopOnce sync.Once
	streams  atomic.Int64
	beat     time.Duration // between heartbeats of a stream
}

type mount struct {
	pattern string
	handler http.Handler
}

func (s *Server) init() {
	s.setup.Do(func() {
		if s.Log == nil {
			s.Log = slog.New(slog.DiscardHandler)
		}
		if s.Now == nil {
			s.Now = time.Now
		}
		s.doc = newDocument()
		s.stats = newStats()
		s.failures = newFailures()
		s.stopping = make(chan struct{})
		if s.beat == 0 {
			s.beat = heartbeat
		}
	})
}

// Mount serves a handler of another package, such as the console, below a chi
// pattern ("/*"). It gets request ids, metrics and the recovery from panics;
// whom it serves is its own matter.
func (s *Server) Mount(pattern string, h http.Handler) {
	s.init()
	s.mounts = append(s.mounts, mount{pattern, h})
}

// Handler serves everything on one kind of listener.
func (s *Server) Handler(t Transport) http.Handler {
	s.init()
	s.built.Store(true)
	mux := chi.NewRouter()
	for _, m := range s.methods {
		mux.Method(http.MethodPost, m.path, s.handle(t, m.name, m.serve))
	}
	mux.Method(http.MethodGet, "/v1/events", s.handle(t, "events.stream", s.serveEvents))
	if s.spec != nil {
		mux.Method(http.MethodGet, "/agent/v1/spec", s.handle(t, "agent.spec", s.serveSpec))
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		mux.Method(method, "/healthz", s.handle(t, "healthz", s.serveHealth))
		mux.Method(method, "/readyz", s.handle(t, "readyz", s.serveReady))
	}
	mux.Method(http.MethodGet, "/metrics", s.handle(t, "metrics", s.serveMetrics))
	mux.Method(http.MethodGet, "/openapi.json", s.handle(t, "openapi", s.serveOpenAPI))
	mux.Method(http.MethodGet, "/docs", s.handle(t, "docs", s.serveDocs))
	for _, m := range s.mounts {
		mux.Handle(m.pattern, s.handle(t, "mount "+m.pattern, func(x *exchange) error {
			m.handler.ServeHTTP(x, x.r)
			return nil
		}))
	}
	none := s.handle(t, "none", s.serveNone)
	for _, pattern := range []string{"/v1/*", "/agent/*"} { // not the mounts' business
		mux.Handle(pattern, none)
	}
	mux.NotFound(none)
	mux.MethodNotAllowed(none)
	return mux
}

// serveNone answers what no route takes.
func (s *Server) serveNone(x *exchange) error {
	path := x.r.URL.Path
	allow := ""
	switch path {
	case "/v1/events", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/agent/v1/spec":
		allow = http.MethodGet
	default:
		for _, m := range s.methods {
			if m.path == path {
				allow = http.MethodPost
			}
		}
	}
	if allow == "" || allow == x.r.Method {
		return appliance.Refuse(appliance.NotFound, "", "no such path: %s %s; the methods are listed at /docs", clip(x.r.Method, 20), clip(path, 100))
	}
	x.Header().Set("Allow", allow)
	x.status = http.StatusMethodNotAllowed
	return appliance.Refuse(appliance.InvalidInput, "", "%s takes %s, not %s", path, allow, clip(x.r.Method, 20))
}

// exchange is one request and its answer. It is the ResponseWriter of
// everything that serves, and knows what became of the request.
type exchange struct {
	http.ResponseWriter
	s         *Server
	r         *http.Request
	transport Transport
	id        string // of the request
	status    int    // to answer, or answered; 0: the one that belongs to the code
	wrote     bool
	code      appliance.Code // of the refusal, "" when there was none
	long      bool           // waited on purpose: left out of the latency
}

func (x *exchange) WriteHeader(status int) {
	if !x.wrote && status >= 200 {
		x.wrote, x.status = true, status
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	if !x.wrote {
		x.wrote, x.status = true, http.StatusOK
	}
	return x.ResponseWriter.Write(b)
}

// Unwrap lets [http.ResponseController] reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Flush sends what is buffered.
func (x *exchange) Flush() { _ = http.NewResponseController(x.ResponseWriter).Flush() }

// handle wraps what serves one route with what every route has: a request id,
// the metrics, and one place where a refusal, failure or panic is answered.
func (s *Server) handle(t Transport, name string, serve func(*exchange) error) http.HandlerFunc {
	route := s.stats.route(name)
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{ResponseWriter: w, s: s, r: r, transport: t, id: requestID(r)}
		w.Header()["X-Request-Id"] = []string{x.id}
		start := time.Now()
		route.began()
		defer func() {
			if p := recover(); p != nil {
				x.recovered(p)
			}
			route.ended(x.code, x.long, time.Since(start))
		}()
		if err := serve(x); err != nil {
			x.refuse(err)
		}
	}
}

func (s *Server) serveHealth(x *exchange) error {
	return x.text("ok\n")
}

func (s *Server) serveReady(x *exchange) error {
	select {
	case <-s.stopping:
		return errStopping()
	default:
	}
	if s.Ready != nil {
		if err := s.Ready(x.r.Context()); err != nil {
			var refused *appliance.Error
			if errors.As(err, &refused) && refused.Code == appliance.Unavailable {
				return refused
			}
			return appliance.Refuse(appliance.Unavailable, "", "not ready: %s", err.Error()).Because(err)
		}
	}
	return x.text("ok\n")
}

func (x *exchange) text(s string) error {
	h := x.Header()
	h["Content-Type"] = textType
	h["Cache-Control"] = noStore
	_, _ = x.Write([]byte(s)) // if that fails, nobody is left to tell
	return nil
}

// Stopping is closed when the server begins to shut down. Whatever waits on
// purpose must stop waiting then.
func (s *Server) Stopping() <-chan struct{} {
	s.init()
	return s.stopping
}

// Stop begins the shutdown: /readyz answers 503, streams end, and whatever
// waits with [Server.Long] returns. Requests being served go on.
func (s *Server) Stop() {
	s.init()
	s.stopOnce.Do(func() { close(s.stopping) })
}

// Long gives a long poll a context that ends also when the server begins to
// shut down, so that no poll holds the shutdown up.
func (s *Server) Long(ctx context.Context) (context.Context, context.CancelFunc) {
	s.init()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.stopping:
			cancel(errStopping())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
