package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/otlp"
	"github.com/bettercompute/bc/agent/wire"
)

// telemetry exports the node's metrics while its pool wants that. It works
// beside the node, in a goroutine of its own, and reads the GPUs by itself. It
// changes nothing on the machine, so it needs no leave to manage it.
//
// A sample that the collector does not take is sent again until the next one is
// due, and then dropped and counted: there is never more than one.
type telemetry struct {
	gpus GPUs
	root *host.Root // where the secrets are
	log  *slog.Logger

	poke    chan struct{} // something else is wanted
	changed chan struct{} // the status is another one

	mu     sync.Mutex
	wanted *wire.Telemetry
	facts  facts
	xids   map[string]xids // by UUID
	began  time.Time
	lost   int              // samples
	status *wire.UnitStatus // nil: nothing is known yet
}

const (
	// telemetryTimeout is how long a collector may take to answer, and less where
	// samples follow sooner. OpenTelemetry's own OTEL_EXPORTER_OTLP_TIMEOUT.
	telemetryTimeout = 10 * time.Second
	// telemetryRetry is the longest pause between two tries, unless the collector
	// asks for a longer one.
	telemetryRetry = time.Minute
	// telemetryNews is how often a status says the time of the last export anew:
	// each time is a report to the control plane.
	telemetryNews = 10 * time.Minute
)

func newTelemetry(gpus GPUs, root *host.Root, log *slog.Logger) *telemetry {
	return &telemetry{
		gpus: gpus, root: root, log: log, poke: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		xids: map[string]xids{}, began: time.Now(),
	}
}

// want says what is to be exported, nil for nothing, and what of.
func (t *telemetry) want(spec *wire.Telemetry, f facts) {
	t.mu.Lock()
	same := reflect.DeepEqual(spec, t.wanted)
	t.facts = f
	if !same {
		t.wanted, t.status = spec, nil
	}
	t.mu.Unlock()
	if !same {
		signal(t.poke)
	}
}

func (t *telemetry) spec() *wire.Telemetry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wanted
}

// state is how the unit stands, if that is known.
func (t *telemetry) state() (wire.UnitStatus, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status == nil {
		return wire.UnitStatus{}, false
	}
	return *t.status, true
}

// xid counts an error of a GPU.
func (t *telemetry) xid(x gpu.Xid) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.xids[x.UUID]
	if e.times == nil {
		e.times = map[int]int{}
	}
	e.last = x.Code
	e.times[x.Code]++
	t.xids[x.UUID] = e
}

// run exports what is wanted until ctx ends.
func (t *telemetry) run(ctx context.Context) {
	for ctx.Err() == nil {
		spec := t.spec()
		if spec == nil {
			select {
			case <-ctx.Done():
			case <-t.poke:
			}
			continue
		}
		of, cancel := context.WithCancel(ctx)
		var exporting sync.WaitGroup
		exporting.Go(func() { t.export(of, spec) })
		for ctx.Err() == nil && t.spec() == spec { // want keeps what is the same
			select {
			case <-ctx.Done():
			case <-t.poke:
			}
		}
		cancel()
		exporting.Wait()
	}
}

// exporter sends samples to one collector.
type exporter struct {
	*telemetry
	spec      *wire.Telemetry
	client    *otlp.Client
	interval  time.Duration
	retry     backoff
	notBefore time.Time // no try before this

	last    string    // the kind of the last outcome
	since   time.Time // of that kind
	told    time.Time
	success time.Time // of the last export
	sent    int       // data points in it
}

// outcome is what came of a try.
type outcome struct {
	kind   string // what is news and what is not
	state  wire.UnitState
	reason string
	taken  bool
	again  bool          // the same may be taken later
	wait   time.Duration // that the collector asks for
}

func (t *telemetry) export(ctx context.Context, spec *wire.Telemetry) {
	x := &exporter{telemetry: t, spec: spec, interval: time.Duration(spec.IntervalSeconds) * time.Second, retry: backoff{limit: telemetryRetry}}
	err := spec.Validate()
	if err == nil {
		x.client, err = otlp.NewClient(spec.OTLPEndpoint)
	}
	if err != nil {
		x.tell(outcome{kind: "invalid", state: wire.Failed, reason: err.Error()})
		<-ctx.Done()
		return
	}
	defer x.client.Close()
	// Nodes that start together, as after a power cut, do not send together.
	for due := time.Now().Add(rand.N(x.interval/10 + 1)); pause(ctx, time.Until(due)); {
		next := due.Add(x.interval)
		if now := time.Now(); next.Before(now) {
			next = now.Add(x.interval) // the machine slept, or the driver was slow
		}
		x.sample(ctx, next)
		due = next
	}
}

// pause waits, and reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// sample measures once and sends that until the collector takes it, refuses it
// for good, or the next sample is due. Pauses grow from one sample to the next
// while the collector is away, so that some samples are dropped without a try.
func (x *exporter) sample(ctx context.Context, next time.Time) {
	if time.Now().Before(x.notBefore) {
		x.drop()
		return
	}
	batch := x.measure(ctx)
	body, err := batch.Marshal()
	if err != nil {
		x.drop()
		x.tell(outcome{kind: "unwritable", state: wire.Failed, reason: "the metrics cannot be written: " + err.Error()})
		return
	}
	for {
		o := x.send(ctx, body)
		if ctx.Err() != nil {
			return
		}
		if o.taken {
			x.retry.reset()
			x.success, x.sent = time.Now(), batch.Len()
			x.tell(o)
			return
		}
		wait := max(o.wait, x.retry.next())
		x.notBefore = time.Now().Add(wait)
		if !o.again || x.notBefore.After(next) {
			x.drop()
			x.tell(o)
			return
		}
		x.tell(o)
		if !pause(ctx, wait) {
			return
		}
	}
}

func (x *exporter) measure(ctx context.Context) otlp.Batch {
	limited, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	readings := x.gpus.Readings(limited)
	x.mu.Lock()
	defer x.mu.Unlock()
	batch := measured(x.facts, readings, x.xids, x.lost, x.began, time.Now())
	batch.Resource = resource(x.facts, x.spec.ResourceAttributes)
	return batch
}

// send tries once. The headers are read each time: a token that is renewed on
// disk is in force with the next sample.
func (x *exporter) send(ctx context.Context, body []byte) outcome {
	var headers http.Header
	if ref := x.spec.HeadersRef; ref != "" {
		secret, err := x.root.Secret(ref)
		if err == nil {
			headers, err = parseHeaders(ref, secret)
		}
		if err != nil {
			return outcome{kind: "secret", state: wire.Failed, reason: err.Error()}
		}
	}
	limited, cancel := context.WithTimeout(ctx, min(telemetryTimeout, x.interval*4/5))
	defer cancel()
	return judged(x.client.Send(limited, headers, body))
}

// judged says what an answer means. A collector that is away or busy is no
// fault of the node's; one that will never take this, until somebody mends
// something, is.
func judged(err error) outcome {
	var refusal *otlp.Refusal
	var rejected *otlp.Rejected
	var certificate *tls.CertificateVerificationError
	switch {
	case err == nil:
		return outcome{kind: "taken", state: wire.InSync, taken: true}
	case errors.As(err, &rejected):
		return outcome{kind: "rejected", state: wire.Partial, taken: true, reason: err.Error()}
	case errors.As(err, &refusal) && refusal.Retry:
		return outcome{kind: fmt.Sprint(refusal.Status), state: wire.Partial, again: true, wait: refusal.After, reason: err.Error()}
	case errors.As(err, &refusal):
		return outcome{kind: fmt.Sprint(refusal.Status), state: wire.Failed, reason: err.Error()}
	case errors.As(err, &certificate):
		return outcome{kind: "certificate", state: wire.Failed, reason: "the collector is not trusted: " + err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return outcome{kind: "slow", state: wire.Partial, again: true, reason: "the collector did not answer in time"}
	}
	return outcome{kind: "away", state: wire.Partial, again: true, reason: "the collector does not answer: " + err.Error()}
}

func (x *exporter) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lost++
}

// tell makes the status of an outcome, if that is news.
func (x *exporter) tell(o outcome) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	if o.kind == x.last && now.Sub(x.told) < telemetryNews {
		return
	}
	s := wire.UnitStatus{
		Kind: wire.UnitTelemetry, State: o.state, Reason: o.reason,
		Wanted: fmt.Sprintf("every %d s to %s", x.spec.IntervalSeconds, address(x.client)), Got: "nothing exported yet",
	}
	if !x.success.IsZero() {
		s.Got = fmt.Sprintf("%d data points at %s", x.sent, x.success.UTC().Format(time.RFC3339))
	}
	if o.kind != x.last {
		x.since = now
		level := slog.LevelWarn
		if o.state == wire.InSync {
			level = slog.LevelInfo
		}
		x.log.Log(context.Background(), level, "telemetry", "state", string(o.state), "to", address(x.client), "why", o.reason)
	}
	x.last, x.told, s.Since = o.kind, now, x.since

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lost > 0 && !o.taken {
		s.Reason += fmt.Sprintf("; samples lost since %s: %d", x.began.UTC().Format(time.RFC3339), x.lost)
	}
	if x.wanted == x.spec { // else something else is wanted meanwhile
		x.status = &s
		signal(x.changed)
	}
}

func address(c *otlp.Client) string {
	if c == nil {
		return "no collector"
	}
	return c.Address()
}

// ownHeaders are the protocol's, not a secret's.
var ownHeaders = []string{"Host", "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Connection"}

// parseHeaders reads a secret with a header on each line, "Name: value". Empty
// lines, and those that begin with #, are passed over. Errors quote nothing.
func parseHeaders(ref string, secret []byte) (http.Header, error) {
	headers := http.Header{}
	n := 0
	for line := range strings.Lines(string(secret)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name = http.CanonicalHeaderKey(name)
		if !ok || name == "" || strings.ContainsFunc(name, notInName) || strings.ContainsFunc(value, notInValue) {
			return nil, fmt.Errorf("the secret %q: line %d is not a header such as \"Authorization: Bearer …\"", ref, n)
		}
		if slices.Contains(ownHeaders, name) {
			return nil, fmt.Errorf("the secret %q: line %d: %s is set by the agent", ref, n, name)
		}
		headers.Add(name, strings.TrimSpace(value))
	}
	if len(headers) == 0 {
		return nil, fmt.Errorf("the secret %q holds no header", ref)
	}
	return headers, nil
}

// notInName is true of what is no token character of RFC 9110, 5.6.2.
func notInName(c rune) bool {
	return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
}

func notInValue(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// simulated is why some machines export nothing.
const simulated = "this is a simulated machine: it measures nothing, and exports nothing"

// unitResults are how the units stand, of the last comparison with the machine,
// and telemetry, which is nothing on it.
func (n *node) unitResults(now time.Time) []wire.UnitStatus {
	spec := n.spec.Units.Telemetry
	if n.telemetry == nil {
		if spec == nil {
			return n.results
		}
		return append(slices.Clone(n.results), wire.UnitStatus{Kind: wire.UnitTelemetry, State: wire.NotApplicable, Reason: simulated, Since: now})
	}
	n.telemetry.want(spec, facts{
		nodeID: n.book.NodeID, poolID: n.book.PoolID, hostname: n.inv.Hostname, gpus: n.inv.GPUs, units: n.book.Units,
	})
	if s, known := n.telemetry.state(); known {
		return append(slices.Clone(n.results), s)
	}
	return n.results
}
