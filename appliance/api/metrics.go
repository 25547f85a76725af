package api

import (
	"net/http"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// stats counts requests. The registry is its own, so that nothing another
// package registers globally shows up.
type stats struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	streams  prometheus.Gauge
	handler  http.Handler
}

func newStats() *stats {
	st := &stats{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "bc_api_requests_total", Help: "Requests answered, by method and by code: ok, a refusal's code, or gone when the caller hung up.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bc_api_request_seconds", Help: "Time to answer, by method; long polls and streams left out.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}, []string{"method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "bc_api_requests_in_flight", Help: "Requests being served now, streams included."}),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "bc_api_event_streams", Help: "Open event streams."}),
	}
	st.registry.MustRegister(st.requests, st.seconds, st.inFlight, st.streams,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	st.handler = promhttp.HandlerFor(st.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return st
}

// Metrics is where other packages register their collectors.
func (s *Server) Metrics() prometheus.Registerer {
	s.init()
	return s.stats.registry
}

// route is one method's series, looked up once.
type route struct {
	stats   *stats
	name    string
	ok      prometheus.Counter
	seconds prometheus.Observer
}

func (st *stats) route(name string) *route {
	return &route{st, name, st.requests.WithLabelValues(name, "ok"), st.seconds.WithLabelValues(name)}
}

func (r *route) began() { r.stats.inFlight.Inc() }

func (r *route) ended(code appliance.Code, long bool, took time.Duration) {
	r.stats.inFlight.Dec()
	if code == "" {
		r.ok.Inc()
	} else {
		r.stats.requests.WithLabelValues(r.name, string(code)).Inc()
	}
	if !long {
		r.seconds.Observe(took.Seconds())
	}
}

// serveMetrics needs no secret on the Unix socket: what it tells, any local
// user may know. Over TLS it needs a credential of tenant root, with any role,
// for the numbers are those of every tenant.
func (s *Server) serveMetrics(x *exchange) error {
	if x.transport != Unix {
		caller, err := x.caller(false)
		if err != nil {
			return err
		}
		if caller.Kind != appliance.CallerOperator && caller.Tenant != appliance.Root {
			return appliance.Refuse(appliance.AccessDenied, "", "metrics tell of every tenant: use a key of tenant root, role viewer is enough, or the Unix socket")
		}
	}
	s.stats.handler.ServeHTTP(x, x.r)
	return nil
}
