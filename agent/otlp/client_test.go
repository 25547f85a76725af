package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

var sample = Batch{
	Resource: map[string]string{"service.name": "bcd", "bc.node.id": "node_1"},
	Scope:    "bcd",
	At:       time.Unix(1800000000, 5),
	Metrics: []Metric{
		{Name: "temp", Description: "in C", Points: []Point{{Labels: map[string]string{"b": "2\xff", "a": "1"}, Value: 35.5}}},
		{Name: "errors", Sum: true, Since: time.Unix(1790000000, 0), Points: []Point{{Value: 7}}},
		{Name: "unknown start", Sum: true, Points: []Point{{Value: 9007199254740991}}},
		{Name: "without points"},
	},
}

// What is posted is read by the protocol's own schema.
func TestBatchIsWhatACollectorReads(t *testing.T) {
	body, err := sample.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var got collector.ExportMetricsServiceRequest
	if err := proto.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	var want collector.ExportMetricsServiceRequest
	if err := protojson.Unmarshal([]byte(`{"resourceMetrics":[{
		"resource":{"attributes":[{"key":"bc.node.id","value":{"stringValue":"node_1"}},{"key":"service.name","value":{"stringValue":"bcd"}}]},
		"scopeMetrics":[{"scope":{"name":"bcd"},"metrics":[
			{"name":"temp","description":"in C","gauge":{"dataPoints":[
				{"attributes":[{"key":"a","value":{"stringValue":"1"}},{"key":"b","value":{"stringValue":"2?"}}],"timeUnixNano":"1800000000000000005","asDouble":35.5}]}},
			{"name":"errors","sum":{"isMonotonic":true,"aggregationTemporality":2,"dataPoints":[
				{"startTimeUnixNano":"1790000000000000000","timeUnixNano":"1800000000000000005","asInt":"7"}]}},
			{"name":"unknown start","sum":{"isMonotonic":true,"aggregationTemporality":2,"dataPoints":[
				{"timeUnixNano":"1800000000000000005","asInt":"9007199254740991"}]}}]}]}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, &want) {
		t.Error(cmp.Diff(protojson.Format(&want), protojson.Format(&got)))
	}
	for range 8 {
		if again, _ := sample.Marshal(); !bytes.Equal(again, body) {
			t.Fatal("the same batch gave other bytes")
		}
	}
	if n := sample.Len(); n != 3 {
		t.Errorf("Len says %d", n)
	}
}

func TestEndpointWithoutAPathIsTheCollectorsOwn(t *testing.T) {
	for endpoint, want := range map[string]string{
		"https://otel.example:4318":                      "https://otel.example:4318/v1/metrics",
		"http://10.0.0.7:4318/":                          "http://10.0.0.7:4318/v1/metrics",
		"https://otel.example/api/v1/otlp/v1/metrics?k=": "https://otel.example/api/v1/otlp/v1/metrics",
		"https://[fd00::1]:4318":                         "https://[fd00::1]:4318/v1/metrics",
	} {
		c, err := NewClient(endpoint)
		if err != nil {
			t.Errorf("%s: %v", endpoint, err)
		} else if got := c.Address(); got != want {
			t.Errorf("%s: got %s, want %s", endpoint, got, want)
		}
	}
	for _, endpoint := range []string{"", "otel.example:4318", "grpc://otel.example", "https://"} {
		if _, err := NewClient(endpoint); err == nil {
			t.Errorf("%q was taken", endpoint)
		}
	}
}

// partial is an answer that rejects some points; status a google.rpc.Status.
func partial(t *testing.T, points int64, message string) string {
	t.Helper()
	b, err := proto.Marshal(&collector.ExportMetricsServiceResponse{
		PartialSuccess: &collector.ExportMetricsPartialSuccess{RejectedDataPoints: points, ErrorMessage: message},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func status(message string) string {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 3)
	return string(protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), message))
}

func TestAnswersMeanWhatTheProtocolSays(t *testing.T) {
	const pb = "application/x-protobuf"
	long := strings.Repeat("x", maxText+50)
	for name, c := range map[string]struct {
		status int
		kind   string
		body   string
		header http.Header
		want   error
	}{
		"taken":                     {200, pb, "", nil, nil},
		"taken, in words":           {202, "text/plain", "ok", nil, nil},
		"taken, garbage":            {200, pb, "\xff\xff", nil, nil},
		"a warning":                 {200, pb, partial(t, 0, "use another name"), nil, nil},
		"partly taken":              {200, pb, partial(t, 3, "too\nold"), nil, &Rejected{3, "too old"}},
		"bad request":               {400, pb, status("no such tenant"), nil, &Refusal{Status: 400, Message: "no such tenant"}},
		"bad request, cut status":   {400, pb, status("no such tenant")[:6], nil, &Refusal{Status: 400}},
		"unauthorised, in words":    {401, "text/plain; charset=utf-8", "bad\x1b[31m  key\n", nil, &Refusal{Status: 401, Message: "bad[31m key"}},
		"HTML is not passed on":     {404, "text/html", "<h1>nginx</h1>", nil, &Refusal{Status: 404}},
		"long words are cut":        {400, "application/json", long, nil, &Refusal{Status: 400, Message: long[:maxText] + "…"}},
		"500 is final":              {500, "", "", http.Header{"Retry-After": {"3"}}, &Refusal{Status: 500}},
		"429":                       {429, "", "", http.Header{"Retry-After": {"3"}}, &Refusal{Status: 429, Retry: true, After: 3 * time.Second}},
		"502":                       {502, "", "", nil, &Refusal{Status: 502, Retry: true}},
		"503 until a date":          {503, "", "", http.Header{"Retry-After": {"Sun, 06 Nov 1994 08:50:37 GMT"}, "Date": {"Sun, 06 Nov 1994 08:49:37 GMT"}}, &Refusal{Status: 503, Retry: true, After: time.Minute}},
		"503 until long ago":        {503, "", "", http.Header{"Retry-After": {"Sun, 06 Nov 1994 08:49:37 GMT"}}, &Refusal{Status: 503, Retry: true}},
		"504 for ever":              {504, "", "", http.Header{"Retry-After": {"999999999"}}, &Refusal{Status: 504, Retry: true, After: maxRetryAfter}},
		"503 in nonsense":           {503, "", "", http.Header{"Retry-After": {"-5"}}, &Refusal{Status: 503, Retry: true}},
		"a redirect is no delivery": {307, "", "", http.Header{"Location": {"/elsewhere"}}, &Refusal{Status: 307}},
	} {
		t.Run(name, func(t *testing.T) {
			var requests int
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				if r.URL.Path != metricsPath {
					t.Errorf("%s was asked for", r.URL.Path)
				}
				for key, values := range c.header {
					w.Header()[key] = values
				}
				w.Header()["Content-Type"] = []string{c.kind}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			}))
			defer server.Close()
			client, err := NewClient(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			got := client.Send(t.Context(), nil, []byte("x"))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if requests != 1 {
				t.Errorf("%d requests for one Send", requests)
			}
		})
	}
}

func TestSendPostsTheHeadersAndTheBytes(t *testing.T) {
	body, err := sample.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("the body arrived as %d bytes, %v", len(got), err)
		}
		for name, want := range map[string]string{"Content-Type": contentType, "User-Agent": "bcd", "X-Scope-Orgid": "lab"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if r.Method != http.MethodPost || r.ContentLength != int64(len(body)) {
			t.Errorf("%s of %d bytes", r.Method, r.ContentLength)
		}
	}))
	defer server.Close()
	client, err := NewClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if client.trans.Proxy != nil { // Go never proxies a test's own address, so that it cannot be seen at work
		t.Error("the environment's proxies would get the metrics")
	}
	headers := http.Header{"X-Scope-Orgid": {"lab"}, "Content-Type": {"text/plain"}}
	if err := client.Send(t.Context(), headers, body); err != nil {
		t.Error(err)
	}
}

// A certificate that the system does not trust, and a collector that is silent,
// are told without the URL, whose query may hold a key.
func TestCollectorThatIsNotTrustedOrSilentIsAnError(t *testing.T) {
	tls := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the batch was handed over") }))
	tls.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshake's failure is what is wanted
	defer tls.Close()
	silent := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-silent:
		case <-r.Context().Done():
		}
	}))
	defer slow.Close()
	defer close(silent)
	for _, c := range []struct {
		url  string
		wait time.Duration
		want string
	}{
		{tls.URL, time.Minute, "certificate"}, {slow.URL, 100 * time.Millisecond, "deadline"},
	} {
		client, err := NewClient(c.url + "/?key=hunter2")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), c.wait)
		err = client.Send(ctx, nil, []byte("x"))
		cancel()
		client.Close()
		var refusal *Refusal
		if err == nil || errors.As(err, &refusal) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
}
