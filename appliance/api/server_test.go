package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// syncBuffer is a log that requests write and the test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// rig is a server with test verbs on a real Unix socket and a real TLS port.
type rig struct {
	*Server
	log        *syncBuffer
	certs      *Certificates
	socket     string
	unix, tls  *Client // the local operator, goodKey
	entered    chan struct{}
	tlsAddress string
	stop       func() error
}

// The keys of a viewer of root and of a member of acme.
const (
	goodKey   = "bck_good"
	memberKey = "bck_member"
)

func authenticate(_ context.Context, bearer string) (appliance.Caller, error) {
	switch bearer {
	case goodKey:
		return appliance.Caller{Kind: appliance.CallerKey, ID: "key_1", Tenant: appliance.Root, Role: appliance.RoleViewer}, nil
	case memberKey:
		return appliance.Caller{Kind: appliance.CallerKey, ID: "key_2", Tenant: "acme", Role: appliance.RoleMember}, nil
	}
	return appliance.Caller{}, appliance.Refuse(appliance.Unauthenticated, "", "key %s is not known", bearer)
}

type echoed struct {
	In     thing            `json:"in"`
	Caller appliance.Caller `json:"caller"`
}

// addTestVerbs registers one verb for each way in which a handler ends. Those
// that wait say on entered that they do.
func addTestVerbs(s *Server, entered chan<- struct{}) {
	RPC(s, "things.echo", "test:things:echo", "Give the input back.",
		func(_ context.Context, c appliance.Caller, in thing) (echoed, error) { return echoed{in, c}, nil })
	RPC(s, "things.list", "test:things:read", "List nothing.",
		func(_ context.Context, _ appliance.Caller, _ appliance.TenantList) (appliance.List[part], error) {
			return appliance.List[part]{}, nil
		})
	RPC(s, "things.refuse", "", "Refuse with the code in name, or fail.",
		func(ctx context.Context, _ appliance.Caller, in thing) (part, error) {
			switch in.Name {
			case "plain":
				return part{}, errors.New("dial /secret/path: broken")
			case "panic":
				panic("secret state")
			case "late":
				return part{}, fmt.Errorf("read: %w", context.DeadlineExceeded)
			case "wrap":
				return part{}, fmt.Errorf("control: %w", appliance.NoSuch("pool"))
			case "bad":
				return part{}, appliance.Refuse(appliance.ConflictCode, "", "taken").With("f", func() {})
			}
			return part{}, appliance.Refuse(appliance.Code(in.Labels["code"]), in.Labels["field"], "as asked").WithReason("r").
				With("resource", "gpu").With("retryAfterSeconds", 2.5).Because(errors.New("cause for the log"))
		})
	RPC(s, "things.wait", "", "Wait until the request ends.",
		func(ctx context.Context, _ appliance.Caller, _ struct{}) (part, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return part{}, ctx.Err()
		})
	RPC(s, "things.poll", "", "Wait until the request or the server ends.",
		func(ctx context.Context, _ appliance.Caller, _ struct{}) (part, error) {
			ctx, cancel := s.Long(ctx)
			defer cancel()
			entered <- struct{}{}
			<-ctx.Done()
			return part{Kind: "a"}, nil
		})
	AgentRPC(s, "hello", func(_ context.Context, c appliance.Caller, in part) (echoed, error) {
		if c.Kind == "" && in.Kind != "token" {
			return echoed{}, appliance.Refuse(appliance.Unauthenticated, "", "no such join token")
		}
		return echoed{Caller: c}, nil
	})
}

func newRig(t *testing.T, with func(*Server)) *rig {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	r := &rig{log: new(syncBuffer), entered: make(chan struct{}, 8), socket: filepath.Join(dir, "api.sock")}
	r.Server = &Server{Version: "1.2.3", Log: slog.New(slog.NewTextHandler(r.log, nil)), Authenticate: authenticate}
	addTestVerbs(r.Server, r.entered)
	if with != nil {
		with(r.Server)
	}
	var err error
	if r.certs, err = OpenCertificates(dir, CertificateOptions{}); err != nil {
		t.Fatal(err)
	}
	unix, err := ListenUnix(r.socket)
	if err != nil {
		t.Fatal(err)
	}
	tls, err := ListenTLS("127.0.0.1:0", r.certs)
	if err != nil {
		t.Fatal(err)
	}
	r.tlsAddress = tls.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, unix, tls) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-served })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	r.unix = dial(t, "unix:"+r.socket, Options{})
	r.tls = dial(t, tls.String(), Options{Token: goodKey, Fingerprint: r.certs.Fingerprint()})
	return r
}

func dial(t *testing.T, server string, o Options) *Client {
	t.Helper()
	c, err := Dial(server, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// send makes a request by hand through a client's connection.
func send(t *testing.T, c *Client, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, c.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestEveryCodeHasAStatusAndAMeaning(t *testing.T) {
	for _, code := range []appliance.Code{
		appliance.InvalidInput, appliance.Unauthenticated, appliance.SpendLimitReached, appliance.AccessDenied, appliance.NotFound,
		appliance.ConflictCode, appliance.InvalidState, appliance.QuotaExceeded, appliance.RateLimited, appliance.Unavailable, appliance.Internal,
	} {
		if _, ok := statuses[code]; !ok {
			t.Errorf("%s has no status", code)
		}
		if codeDoc[code] == "" {
			t.Errorf("%s is not described", code)
		}
	}
	source, err := os.ReadFile("../error.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), ` Code = "`); n != len(statuses) {
		t.Errorf("package appliance declares %d codes, the table has %d", n, len(statuses))
	}
}

// The golden file holds the answer to each way of ending badly: status,
// headers that matter, body.
func TestTheErrorEnvelope(t *testing.T) {
	r := newRig(t, nil)
	var out strings.Builder
	ask := func(method, path, body string, header ...string) {
		header = append(header, "X-Request-Id", "req-1")
		resp, answer := send(t, r.unix, method, path, body, header...)
		fmt.Fprintf(&out, "%s %s %.60s\n%d", method, path, body, resp.StatusCode)
		for _, name := range []string{"Content-Type", "X-Request-Id", "Retry-After", "WWW-Authenticate", "Allow"} {
			if v := resp.Header.Get(name); v != "" {
				fmt.Fprintf(&out, " %s: %s", name, v)
			}
		}
		fmt.Fprintf(&out, "\n%s\n\n", answer)
		var e struct {
			Error struct{ Code, Message string }
		}
		if json.Unmarshal([]byte(answer), &e) != nil || e.Error.Code == "" || e.Error.Message == "" {
			t.Errorf("%s %s: %s is not the envelope", method, path, answer)
		}
		for _, secret := range []string{"secret", "cause for the log", "appliance.", "*json"} {
			if strings.Contains(answer, secret) {
				t.Errorf("%s %s: the answer leaks %q: %s", method, path, secret, answer)
			}
		}
	}
	for _, code := range []appliance.Code{"INVALID_INPUT", "UNAUTHENTICATED", "SPEND_LIMIT_REACHED", "ACCESS_DENIED", "NOT_FOUND", "CONFLICT",
		"INVALID_STATE", "QUOTA_EXCEEDED", "RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "NEW_CODE"} {
		ask("POST", "/v1/things.refuse", fmt.Sprintf(`{"tenantId":"a","labels":{"code":%q,"field":"f.g"}}`, code))
	}
	for _, how := range []string{"plain", "panic", "late", "wrap", "bad"} {
		ask("POST", "/v1/things.refuse", fmt.Sprintf(`{"tenantId":"a","name":%q}`, how))
	}
	ask("POST", "/v1/things.none", `{}`)
	ask("POST", "/nowhere", `{}`)
	ask("GET", "/v1/things.echo", "")
	ask("POST", "/healthz", "")
	ask("POST", "/v1/things.echo", `{"tenantId":"a"}`, "Content-Type", "application/x-www-form-urlencoded")
	ask("POST", "/v1/things.echo", `{"tenantId":"a"}`, "Content-Type", "application/json; charset=latin1")
	ask("POST", "/v1/things.echo", `{"tenantId":"a"}`, "Content-Encoding", "gzip")
	ask("POST", "/v1/things.echo", `{"tenantId":"a","cursor":"`+strings.Repeat("x", MaxBody)+`"}`)
	ask("POST", "/v1/things.echo", `{}`, "Authorization", "Bearer wrong")
	golden(t, "envelope.txt", []byte(out.String()))

	log := r.log.String()
	for _, want := range []string{"dial /secret/path: broken", "secret state", "server_test.go", "cause for the log", "request=req-1"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if n := strings.Count(log, "dial /secret/path: broken"); n != 1 {
		t.Errorf("the failure is logged %d times", n)
	}
}

func TestABodyOfExactlyTheLimitIsTakenAndOneByteMoreIsNot(t *testing.T) {
	r := newRig(t, nil)
	frame := len(`{"tenantId":"a","cursor":""}`)
	for _, c := range []struct{ size, status int }{{MaxBody, 200}, {MaxBody + 1, 413}} {
		body := `{"tenantId":"a","cursor":"` + strings.Repeat("x", c.size-frame) + `"}`
		for name, client := range map[string]*Client{"unix": r.unix, "tls": r.tls} {
			resp, answer := send(t, client, "POST", "/v1/things.echo", body, "Authorization", "Bearer "+goodKey)
			if resp.StatusCode != c.status {
				t.Errorf("%s, %d bytes: %d %.200s, want %d", name, c.size, resp.StatusCode, answer, c.status)
			}
		}
	}
	// Without a length, the limit holds while reading.
	req, _ := http.NewRequest("POST", r.unix.base+"/v1/things.echo", io.MultiReader(strings.NewReader(`{"cursor":"`), io.LimitReader(endless{}, 2*MaxBody)))
	resp, err := r.unix.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("chunked: %d", resp.StatusCode)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestJSONIsTakenUnderItsContentTypesOrNone(t *testing.T) {
	r := newRig(t, nil)
	for _, kind := range []string{"", "application/json", "application/json; charset=UTF-8", "application/merge-patch+json"} {
		resp, answer := send(t, r.unix, "POST", "/v1/things.list", `{"tenantId":"a"}`, "Content-Type", kind)
		if resp.StatusCode != 200 || answer != `{"items":[]}` || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", kind, resp.StatusCode, answer)
		}
	}
}

func TestRequestIDsAreKeptWhenSaneAndMadeOtherwise(t *testing.T) {
	r := newRig(t, nil)
	seen := map[string]bool{}
	for given, kept := range map[string]bool{"abc-1.2_X": true, strings.Repeat("a", 64): true, "": false, strings.Repeat("a", 65): false, "a b": false, "é": false, `a"b`: false} {
		resp, _ := send(t, r.unix, "GET", "/healthz", "", "X-Request-Id", given)
		id := resp.Header.Get("X-Request-Id")
		if (id == given) != kept || id == "" || seen[id] {
			t.Errorf("%q came back as %q", given, id)
		}
		seen[id] = true
	}
}

func TestReadinessSaysWhyNot(t *testing.T) {
	var reason error
	r := newRig(t, func(s *Server) { s.Ready = func(context.Context) error { return reason } })
	if body, err := r.unix.Get(t.Context(), "/readyz"); err != nil || string(body) != "ok\n" {
		t.Errorf("%s %v", body, err)
	}
	reason = errors.New("the schema is being migrated")
	resp, body := send(t, r.unix, "GET", "/readyz", "")
	if resp.StatusCode != 503 || !strings.Contains(body, "not ready: the schema is being migrated") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := send(t, r.unix, "GET", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("healthz: %d", resp.StatusCode)
	}
}

func TestMetricsCountByMethodAndCode(t *testing.T) {
	r := newRig(t, nil)
	for range 3 {
		send(t, r.unix, "POST", "/v1/things.list", `{"tenantId":"a"}`)
	}
	send(t, r.unix, "POST", "/v1/things.list", `{"limit":0}`)
	send(t, r.unix, "POST", "/v1/nothing.there", `{}`)
	body, err := r.unix.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`bc_api_requests_total{code="ok",method="things.list"} 3`,
		`bc_api_requests_total{code="INVALID_INPUT",method="things.list"} 1`,
		`bc_api_requests_total{code="NOT_FOUND",method="none"} 1`,
		`bc_api_request_seconds_count{method="things.list"} 4`,
		`bc_api_requests_in_flight 1`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for token, status := range map[string]int{"": 401, "wrong": 401, memberKey: 403, goodKey: 200} {
		header := []string{}
		if token != "" {
			header = []string{"Authorization", "Bearer " + token}
		}
		if resp, _ := send(t, r.tls, "GET", "/metrics", "", header...); resp.StatusCode != status {
			t.Errorf("metrics over TLS with %q: %d, want %d", token, resp.StatusCode, status)
		}
	}
}

// A shutdown ends long polls and streams at once and cancels what does not
// look at it, so nothing holds it up for longer than its 4 seconds.
func TestShutdownEndsPollsStreamsAndStuckRequests(t *testing.T) {
	events := newEventLog()
	r := newRig(t, func(s *Server) { s.Events = events.source() })
	var waiting sync.WaitGroup
	answers := make(chan string, 8)
	wait := func(c *Client, method, path string) {
		waiting.Go(func() {
			req, _ := http.NewRequest(method, c.base+path, nil)
			req.Header.Set("Authorization", "Bearer "+goodKey)
			resp, err := c.http.Do(req)
			if err != nil {
				answers <- err.Error()
				return
			}
			defer resp.Body.Close()
			if method == "GET" {
				r.entered <- struct{}{} // the stream's head is there
			}
			body, _ := io.ReadAll(resp.Body)
			answers <- fmt.Sprintf("%s %d %s", path, resp.StatusCode, body)
		})
	}
	wait(r.unix, "POST", "/v1/things.poll")
	wait(r.tls, "GET", "/v1/events?tenantId=a")
	wait(r.tls, "POST", "/v1/things.wait")
	for range 3 {
		<-r.entered
	}
	// A connection that never sends anything must not count as a request.
	silent, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 4500*time.Millisecond {
		t.Errorf("shutdown took %v", took)
	}
	waiting.Wait()
	close(answers)
	got := map[string]bool{}
	for a := range answers {
		switch {
		case strings.HasPrefix(a, `/v1/things.poll 200 {"kind":"a"}`):
			got["poll"] = true
		case strings.HasPrefix(a, "/v1/events") && strings.Contains(a, `event: end`) && strings.Contains(a, "shutting down"):
			got["stream"] = true
		case strings.HasPrefix(a, "/v1/things.wait 503") && strings.Contains(a, "shutting down"):
			got["stuck"] = true
		default:
			t.Errorf("unexpected end: %s", a)
		}
	}
	if len(got) != 3 {
		t.Errorf("ended: %v", got)
	}
	if _, err := os.Stat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's file is still there: %v", err)
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	ok := func(context.Context, appliance.Caller, part) (part, error) { return part{}, nil }
	for name, mistake := range map[string]func(*Server){
		"name without a dot": func(s *Server) { RPC(s, "things", "", "", ok) },
		"taken":              func(s *Server) { RPC(s, "things.a", "", "", ok); RPC(s, "things.a", "", "", ok) },
		"late":               func(s *Server) { s.Handler(Unix); RPC(s, "things.a", "", "", ok) },
		"example of nothing": func(s *Server) { s.Example("things.a", "x", part{}, part{}) },
		"example not legal":  func(s *Server) { RPC(s, "things.a", "", "", ok); s.Example("things.a", "x", `{"kind":"c"}`, `{}`) },
		"answer not legal":   func(s *Server) { RPC(s, "things.a", "", "", ok); s.Example("things.a", "x", `{"kind":"a"}`, `{"x":1}`) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			mistake(&Server{})
		}()
	}
}

func TestAMountTakesEverythingButTheAPI(t *testing.T) {
	r := newRig(t, func(s *Server) {
		s.Mount("/*", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				panic("in the console")
			}
			io.WriteString(w, "console")
		}))
	})
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/", 200, "console"},
		{"POST", "/pools/new", 200, "console"},
		{"GET", "/panic", 500, "INTERNAL"},
		{"POST", "/v1/no.such", 404, "NOT_FOUND"},
		{"GET", "/v1/things.list", 405, "INVALID_INPUT"},
		{"GET", "/agent/v1/none", 404, "NOT_FOUND"},
		{"HEAD", "/readyz", 200, ""},
	} {
		resp, body := send(t, r.tls, c.method, c.path, "{}")
		if resp.StatusCode != c.status || !strings.Contains(body, c.body) || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, resp.StatusCode, body, c.status, c.body)
		}
		if resp.ProtoMajor != 2 {
			t.Errorf("TLS speaks %s, want HTTP/2", resp.Proto)
		}
	}
}
