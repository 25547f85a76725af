package agent

import (
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/otlp"
	"github.com/bettercompute/bc/agent/wire"
)

// fakeCollector takes metrics as the protocol's own schema reads them. It can be
// stopped and started again at the same address.
type fakeCollector struct {
	t       *testing.T
	address string
	got     chan delivery

	mu     sync.Mutex
	answer http.HandlerFunc // nil: the batch is taken
	server *http.Server
}

// delivery is one request.
type delivery struct {
	header http.Header
	batch  *collector.ExportMetricsServiceRequest
}

func newCollector(t *testing.T) *fakeCollector {
	t.Helper()
	c := &fakeCollector{t: t, address: "127.0.0.1:0", got: make(chan delivery, 100)}
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *fakeCollector) start() {
	c.t.Helper()
	listener, err := net.Listen("tcp", c.address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = listener.Addr().String()
	c.server = &http.Server{Handler: c}
	go c.server.Serve(listener)
}

func (c *fakeCollector) stop() { c.server.Close() }

func (c *fakeCollector) answers(with http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = with
}

func (c *fakeCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var batch collector.ExportMetricsServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &batch)
	}
	if err != nil || r.URL.Path != "/v1/metrics" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s of %s to %s: %v", r.Method, r.Header.Get("Content-Type"), r.URL.Path, err)
	}
	select {
	case c.got <- delivery{r.Header, &batch}:
	default: // nobody counts that many
	}
	c.mu.Lock()
	answer := c.answer
	c.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *fakeCollector) await() delivery {
	c.t.Helper()
	select {
	case d := <-c.got:
		return d
	case <-time.After(awaitLimit):
		c.t.Fatal("no metrics came")
		return delivery{}
	}
}

// points are the values of a metric, by the labels that are asked for.
func (d delivery) points(name string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range d.metrics() {
		if m.Name != name {
			continue
		}
		for _, p := range append(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()...) {
			var of []string
			for _, label := range labels {
				for _, a := range p.Attributes {
					if a.Key == label {
						of = append(of, a.Value.GetStringValue())
					}
				}
			}
			out[strings.Join(of, " ")] = p.GetAsDouble() + float64(p.GetAsInt())
		}
	}
	return out
}

func (d delivery) metrics() []*metrics.Metric {
	return d.batch.ResourceMetrics[0].ScopeMetrics[0].Metrics
}

func (d delivery) resource() map[string]string {
	out := map[string]string{}
	for _, a := range d.batch.ResourceMetrics[0].Resource.Attributes {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// putSecret writes a secret where a policy's reference leads to.
func putSecret(t *testing.T, root *host.Root, ref, text string) {
	t.Helper()
	name := filepath.Join(root.Dir(), host.SecretsDir, ref)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func number(n int) *int { return &n }

// unitOf is how a unit of the only node stands. The caller has the lock.
func (c *fakeControl) unitOf(kind wire.UnitKind) wire.UnitStatus {
	if n := c.only(); n != nil {
		for _, u := range n.units {
			if u.Kind == kind {
				return u
			}
		}
	}
	return wire.UnitStatus{}
}

// An agent that may not change its host exports as its pool wants it, and stops
// when that is no longer wanted.
func TestTelemetryIsExportedWhileItIsWanted(t *testing.T) {
	to := newCollector(t)
	c := newControl()
	socket := socketPath(t)
	c.serve(t, socket)
	gpus := newTestGPUs(2)
	gpus.readings.GPUs[1] = gpu.Reading{
		UUID: "GPU-b", Index: 1, Health: wire.GPUHealthy, PowerMilliwatts: number(698123), GPUUtilization: number(97),
		MemoryUsedMiB: number(60000), MemoryFreeMiB: number(21059), MemoryTotalMiB: number(81559),
		ECC: &gpu.ECCCounts{VolatileCorrected: 2}, Remap: &gpu.Remap{Pending: true},
		Processes: &[]gpu.Process{{PID: 4711, GPUInstance: -1}},
	}
	a := testAgent(t, socket, gpus)
	putSecret(t, a.Root, "otel/headers", "# of the lab\nauthorization: Bearer hunter2\nX-Scope-OrgID:lab\n")
	start(t, a)
	c.await(t, "the node", func() bool { return c.only() != nil })
	c.want(wire.NodeSpec{Units: wire.Units{Telemetry: &wire.Telemetry{
		OTLPEndpoint: "http://" + to.address, IntervalSeconds: 5, HeadersRef: "otel/headers",
		ResourceAttributes: map[string]string{"team": "ml", "service.name": "gpus", "bc.node.id": "another"},
	}}})

	d := to.await()
	if auth, org := d.header.Get("Authorization"), d.header.Get("X-Scope-Orgid"); auth != "Bearer hunter2" || org != "lab" {
		t.Errorf("the headers came as %q and %q", auth, org)
	}
	want := map[string]string{
		"service.name": "gpus", "service.instance.id": "node_1", "host.name": "gpu-a", "bc.node.id": "node_1", "bc.pool.id": "pool_1", "team": "ml",
	}
	if diff := cmp.Diff(want, d.resource()); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]map[string]float64{
		"DCGM_FI_DEV_GPU_TEMP":          {"GPU-a 0 nvidia0 00000000:10:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": recordedCelsius},
		"DCGM_FI_DEV_POWER_USAGE":       {"GPU-b 1 nvidia1 00000000:11:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": 698.123},
		"DCGM_FI_DEV_GPU_UTIL":          {"GPU-b 1 nvidia1 00000000:11:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": 97},
		"DCGM_FI_DEV_FB_FREE":           {"GPU-b 1 nvidia1 00000000:11:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": 21059},
		"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": {"GPU-b 1 nvidia1 00000000:11:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": 2},
		"DCGM_FI_DEV_ROW_REMAP_PENDING": {"GPU-b 1 nvidia1 00000000:11:00.0 NVIDIA H100 80GB HBM3 gpu-a node_1 pool_1": 1},
		"bc_gpu_driver_ready":           {"gpu-a node_1 pool_1": 1},
		"bc_telemetry_samples_lost":     {"gpu-a node_1 pool_1": 0},
	} {
		if diff := cmp.Diff(want, d.points(name, "UUID", "gpu", "device", "pci_bus_id", "modelName", "Hostname", "node", "pool")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if text := d.batch.String(); strings.Contains(text, "4711") || strings.Contains(text, "hunter2") {
		t.Error("a process or a secret is among the metrics")
	}
	c.await(t, "telemetry in sync", func() bool { return c.unitOf(wire.UnitTelemetry).State == wire.InSync })
	c.look(func() {
		u := c.unitOf(wire.UnitTelemetry)
		if u.Wanted != "every 5 s to http://"+to.address+"/v1/metrics" || !strings.Contains(u.Got, "data points at 20") || u.Reason != "" {
			t.Errorf("the node says %+v", u)
		}
	})

	// Of an error of a GPU, the next sample tells; and the exporter that waits for
	// an answer is stopped with the unit.
	waiting := make(chan struct{})
	stopped := make(chan struct{})
	to.answers(func(_ http.ResponseWriter, r *http.Request) {
		close(waiting)
		<-r.Context().Done()
		close(stopped)
	})
	gpus.xids <- gpu.Xid{UUID: "GPU-b", Code: 79}
	gpus.xids <- gpu.Xid{UUID: "GPU-b", Code: 31}
	<-waiting
	d = to.await()
	if got := d.points(metricXID, "UUID"); got["GPU-b"] != 31 || got["GPU-a"] != 0 {
		t.Errorf("the last Xid errors are %v", got)
	}
	if diff := cmp.Diff(map[string]float64{"GPU-b 31": 1, "GPU-b 79": 1}, d.points(metricXIDs, "UUID", "xid")); diff != "" {
		t.Error(diff)
	}
	c.want(wire.NodeSpec{})
	<-stopped
	c.await(t, "telemetry gone", func() bool { return c.unitOf(wire.UnitTelemetry).State == "" })
}

// oneExporter is an exporter whose samples a test takes by itself.
func oneExporter(t *testing.T, to *fakeCollector, interval time.Duration) *exporter {
	t.Helper()
	tel := newTelemetry(newTestGPUs(1), testMachine(t, "a"), slog.New(slog.NewTextHandler(t.Output(), nil)))
	spec := &wire.Telemetry{OTLPEndpoint: "http://" + to.address, IntervalSeconds: 5}
	tel.want(spec, facts{nodeID: "node_1", poolID: "pool_1", hostname: "gpu-a", gpus: []wire.GPU{testGPU(0)}})
	client, err := otlp.NewClient(spec.OTLPEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &exporter{telemetry: tel, spec: spec, client: client, interval: interval, retry: backoff{limit: telemetryRetry}}
}

func (x *exporter) mustBe(t *testing.T, state wire.UnitState, words string, lost int) {
	t.Helper()
	s, known := x.state()
	if !known || s.State != state || !strings.Contains(s.Reason, words) || x.lost != lost {
		t.Errorf("got %s (%s), %d lost; want %s with %q, %d lost", s.State, s.Reason, x.lost, state, words, lost)
	}
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// A busy collector gets the same sample again, with the same bytes.
func TestTelemetryIsSentAgainWhenTheCollectorIsBusy(t *testing.T) {
	to := newCollector(t)
	x := oneExporter(t, to, time.Minute)
	var once sync.Once
	to.answers(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { w.WriteHeader(http.StatusServiceUnavailable) })
	})
	x.sample(t.Context(), time.Now().Add(time.Minute))
	first, second := to.await(), to.await()
	if !proto.Equal(first.batch, second.batch) {
		t.Error("the second try was another sample")
	}
	x.mustBe(t, wire.InSync, "", 0)
}

// What cannot be delivered before the next sample is dropped and counted, pauses
// are kept from one sample to the next, and the count arrives with the first one
// that does.
func TestTelemetryThatIsNotTakenIsDroppedAndCounted(t *testing.T) {
	to := newCollector(t)
	x := oneExporter(t, to, time.Minute)
	soon := func() time.Time { return time.Now().Add(time.Minute) }

	to.answers(status(http.StatusTooManyRequests, "Retry-After", "120", "Content-Type", "text/plain"))
	x.sample(t.Context(), soon())
	to.await()
	x.mustBe(t, wire.Partial, "the collector answered 429 Too Many Requests; samples lost since 20", 1)
	if wait := time.Until(x.notBefore); wait < 100*time.Second || wait > 120*time.Second {
		t.Errorf("the next try is in %v, and the collector asked for 120 s", wait)
	}
	x.sample(t.Context(), soon())
	if len(to.got) != 0 || x.lost != 2 {
		t.Errorf("%d tries within the pause, %d lost", len(to.got), x.lost)
	}

	x.notBefore = time.Time{}
	to.answers(status(http.StatusUnauthorized))
	x.sample(t.Context(), soon())
	to.await()
	if len(to.got) != 0 {
		t.Error("what was refused for good was sent again")
	}
	x.mustBe(t, wire.Failed, "401 Unauthorized", 3)

	x.notBefore = time.Time{}
	to.stop()
	x.sample(t.Context(), time.Now())
	x.mustBe(t, wire.Partial, "does not answer: ", 4)

	x.notBefore = time.Time{}
	to.answers(nil)
	to.start()
	x.sample(t.Context(), soon())
	if got := to.await().points(metricLost, "node"); got["node_1"] != 4 {
		t.Errorf("the collector heard of %v lost samples", got)
	}
	x.mustBe(t, wire.InSync, "", 4)
}

func TestTelemetryWaitsForASlowCollectorNoLongerThanForTheNextSample(t *testing.T) {
	to := newCollector(t)
	x := oneExporter(t, to, 250*time.Millisecond)
	to.answers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	began := time.Now()
	x.sample(t.Context(), began.Add(x.interval))
	if took := time.Since(began); took > telemetryTimeout/2 {
		t.Errorf("it waited for %v", took)
	}
	x.mustBe(t, wire.Partial, "did not answer in time", 1)
}

func TestTelemetryWithASecretThatCannotBeUsedSendsNothing(t *testing.T) {
	to := newCollector(t)
	for name, c := range map[string]struct{ secret, words string }{
		"missing":    {"", "write it to /etc/better-compute/secrets/otel"},
		"a token":    {"abcdef.0123456789abcdef hunter2", "line 1 is not a header"},
		"two lines":  {"A: hunter2\n\nB hunter2", "line 3 is not a header"},
		"smuggled":   {"A: b\rHost: hunter2", "line 1 is not a header"},
		"not a name": {"A B: hunter2", "line 1 is not a header"},
		"our own":    {"content-type: hunter2", "Content-Type is set by the agent"},
		"comment":    {"# A: hunter2", "holds no header"},
	} {
		t.Run(name, func(t *testing.T) {
			x := oneExporter(t, to, time.Minute)
			x.spec.HeadersRef = "otel"
			if c.secret != "" {
				putSecret(t, x.root, "otel", c.secret)
			}
			x.sample(t.Context(), time.Now().Add(time.Minute))
			x.mustBe(t, wire.Failed, c.words, 1)
			if s, _ := x.state(); strings.Contains(s.Reason, "hunter2") || len(to.got) > 0 {
				t.Errorf("%d requests; the status says %q", len(to.got), s.Reason)
			}
		})
	}
}

// The time of the last export is news now and then, another state at once.
func TestTelemetryStatusIsNoReportForEachExport(t *testing.T) {
	to := newCollector(t)
	x := oneExporter(t, to, time.Minute)
	news := func() bool {
		select {
		case <-x.changed:
			return true
		default:
			return false
		}
	}
	for i, want := range []bool{true, false, false} {
		x.sample(t.Context(), time.Now().Add(time.Minute))
		if got := news(); got != want {
			t.Errorf("export %d: news %v", i+1, got)
		}
	}
	x.told = x.told.Add(-telemetryNews)
	x.sample(t.Context(), time.Now().Add(time.Minute))
	if !news() {
		t.Error("the last export is told of never again")
	}
	to.answers(status(http.StatusForbidden))
	x.sample(t.Context(), time.Now().Add(time.Minute))
	if s, _ := x.state(); !news() || s.State != wire.Failed || !strings.Contains(s.Got, "data points at") {
		t.Errorf("after a refusal the node says %+v", s)
	}
}

func TestSimulatedMachinesExportNothingAndSaySo(t *testing.T) {
	to := newCollector(t)
	c := newControl()
	socket := socketPath(t)
	c.serve(t, socket)
	c.onJoin = func(n *fakeNode) {
		n.want(wire.NodeSpec{Units: wire.Units{Telemetry: &wire.Telemetry{OTLPEndpoint: "http://" + to.address, IntervalSeconds: 5}}})
	}
	start(t, testAgent(t, socket, RecordedGPUs{}))
	c.await(t, "an answer", func() bool { return c.unitOf(wire.UnitTelemetry).State != "" })
	c.look(func() {
		if u := c.unitOf(wire.UnitTelemetry); u.State != wire.NotApplicable || u.Reason != simulated {
			t.Errorf("got %+v", u)
		}
	})
	if len(to.got) > 0 {
		t.Error("metrics of a recorded machine were exported")
	}
}

// A real process over the NVML library in C: metrics of MIG instances, and after
// a kill they go on without the control plane.
func TestKilledAgentGoesOnExportingWithoutItsControlPlane(t *testing.T) {
	if !hasNVML(t) {
		t.Skip("this build has no NVML")
	}
	to := newCollector(t)
	machine := gputest.State(t, "h100-mig")
	c := newControl()
	p := process{socketPath(t), filepath.Join(t.TempDir(), "state"), testMachine(t, "b"), machine.Library}
	stop := c.serve(t, p.socket)
	cmd := p.start(t)
	c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
	c.want(wire.NodeSpec{Units: wire.Units{Telemetry: &wire.Telemetry{OTLPEndpoint: "http://" + to.address, IntervalSeconds: 5}}})
	check := func(d delivery) {
		t.Helper()
		instances := d.points("DCGM_FI_DEV_FB_TOTAL", "gpu", "GPU_I_ID", "GPU_I_PROFILE")
		if instances["0"] != 81559 || instances["0 9 1g.10gb"] != 9984 {
			t.Errorf("the memory is %v", instances)
		}
		if uuids := d.points("DCGM_FI_DEV_FB_TOTAL", "MIG_UUID"); len(uuids) < 8 { // 7 on the first board alone
			t.Errorf("the instances are %v", uuids)
		}
		if util := d.points("DCGM_FI_DEV_GPU_UTIL", "gpu"); len(util) > 0 {
			t.Errorf("boards in MIG mode have no utilisation, and it is %v", util)
		}
	}
	check(to.await())
	c.await(t, "telemetry in sync", func() bool { return c.unitOf(wire.UnitTelemetry).State == wire.InSync })

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	stop()
	for len(to.got) > 0 {
		<-to.got
	}
	p.start(t)
	d := to.await()
	check(d)
	if id := d.resource()["bc.node.id"]; id != "node_1" {
		t.Errorf("after the restart it is node %q", id)
	}
}

// A GPU that does not answer has its health, and no numbers that nobody measured.
func TestSilentGPUHasNoNumbers(t *testing.T) {
	f := facts{gpus: []wire.GPU{testGPU(0), testGPU(1)}, units: []wire.UnitStatus{
		{Kind: wire.UnitHugepages, State: wire.Partial}, {Kind: wire.UnitIOMMU, State: wire.NotApplicable}, {Kind: wire.UnitTelemetry, State: wire.Failed},
	}}
	f.gpus[1].Health = wire.GPUMissing
	r := gpu.Readings{Library: readyLibrary, GPUs: []gpu.Reading{{UUID: "GPU-a", Health: wire.GPULost}}}
	got := map[string][]float64{}
	for _, m := range measured(f, r, nil, 3, time.Now(), time.Now()).Metrics {
		for _, p := range m.Points {
			got[m.Name] = append(got[m.Name], p.Value)
		}
	}
	want := map[string][]float64{metricHealthy: {0, 0}, metricXID: {0, 0}, metricDriver: {1}, metricUnit: {0, 1}, metricLost: {3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The page for users lists what is exported, no more and no less.
func TestEveryMetricIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = true
	}
	names := map[string]bool{}
	for _, m := range measured(facts{gpus: []wire.GPU{testGPU(0)}}, gpu.Readings{}, nil, 0, time.Now(), time.Now()).Metrics {
		names[m.Name] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("docs/telemetry.md (-exported +documented)\n%s", diff)
	}
}
