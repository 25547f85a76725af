package main_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
	"github.com/bettercompute/bc/testdata/hosts"
)

// What the black-box tests of the whole program share: a server that runs as a
// process of its own, people who call it over real sockets, and nodes that are
// agents of the real kind over recorded machines.

// anonymous is the action of methods that need no credential.
const anonymous appliance.Action = "none"

// patience is how long a test waits for what must come. A wait that ends early
// costs nothing, and the machine may be a busy one.
const patience = 30 * time.Second

// box is a running control plane.
type box struct {
	dir, socket string
	https       string // address of the TLS listener, "" without one
	flags       []string
	cmd         *exec.Cmd
	log         *bytes.Buffer
	keys        int // made by key
}

// startBox runs `bc serve` on an empty state directory until the test ends.
// Without --listen it has no TLS listener.
func startBox(t *testing.T, flags ...string) *box {
	t.Helper()
	dir, err := os.MkdirTemp("", "bc") // t.TempDir can be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &box{dir: dir, socket: filepath.Join(dir, "api.sock"), flags: flags}
	b.start(t)
	t.Cleanup(func() {
		b.stop(t)
		if t.Failed() && b.log.Len() > 0 {
			t.Logf("the server's log:\n%s", b.log)
		}
	})
	return b
}

func (b *box) start(t *testing.T) {
	t.Helper()
	config := filepath.Join(b.dir, "appliance.toml")
	if err := os.WriteFile(config, []byte("[reconcile]\nheartbeat = \"1s\"\npending_retry = \"1s\"\nunreachable_after = \"1h\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"serve", "--state-dir", b.dir, "--config", config}, b.flags...)
	listeners := 2
	if !strings.Contains(strings.Join(b.flags, " "), "--listen") {
		args, listeners = append(args, "--listen", "none"), 1
	}
	b.cmd, b.log = exec.Command("bc", args...), new(bytes.Buffer)
	b.cmd.Env = append(os.Environ(), "BC_CONFIG=", "BC_STATE_DIR=")
	b.cmd.Stderr = b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range listeners { // each is open by the time its line is out
		if !lines.Scan() {
			_ = b.cmd.Wait()
			t.Fatalf("bc %s ended before it listened:\n%s", strings.Join(args, " "), b.log)
		}
		if _, address, ok := strings.Cut(lines.Text(), "https://"); ok {
			b.https = "https://" + strings.TrimSpace(address)
		}
	}
	go io.Copy(io.Discard, out)
}

// stop ends the server as systemd does.
func (b *box) stop(t *testing.T) {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	if err := b.cmd.Wait(); err != nil {
		t.Errorf("bc serve ended with %v:\n%s", err, b.log)
	}
	b.cmd = nil
}

// person is somebody who calls the server: the local operator over the socket,
// or whoever holds a key.
type person struct {
	*api.Client
	name, token string
	http        *http.Client
	base        string
}

func (b *box) operator(t *testing.T) *person { return b.person(t, "operator", "") }

// person calls over the Unix socket with a bearer token.
func (b *box) person(t *testing.T, name, token string) *person {
	t.Helper()
	client, err := api.Dial("unix:"+b.socket, api.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	transport := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", b.socket) },
		MaxIdleConnsPerHost: 64,
	}
	t.Cleanup(func() { client.Close(); transport.CloseIdleConnections() })
	return &person{Client: client, name: name, token: token, http: &http.Client{Transport: transport, Timeout: patience}, base: "http://unix"}
}

// overTLS calls the TLS listener, trusting the server's own authority.
func (b *box) overTLS(t *testing.T, name, token, caFile string) *person {
	t.Helper()
	client, err := api.Dial(b.https, api.Options{Token: token, CAFile: caFile})
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	t.Cleanup(func() { client.Close(); transport.CloseIdleConnections() })
	return &person{Client: client, name: name, token: token, http: &http.Client{Transport: transport, Timeout: patience}, base: b.https}
}

// answer is what came back, as it came.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// code is the code of a refusal, OK for none.
func (a answer) code() appliance.Code {
	if a.status == http.StatusOK {
		return "OK"
	}
	return a.refusal().Code
}

func (a answer) refusal() appliance.Error {
	var e struct{ Error appliance.Error }
	_ = json.Unmarshal(a.body, &e)
	return e.Error
}

// post sends bytes as they are to a method.
func (p *person) post(t *testing.T, method string, body []byte, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, p.base+"/v1/"+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := p.http.Do(req)
	if err != nil {
		t.Fatalf("%s calls %s: %v", p.name, method, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s calls %s: %v", p.name, method, err)
	}
	return answer{resp.StatusCode, resp.Header, got}
}

// object is a JSON object of an input.
type object = map[string]any

// try sends an input to a method.
func (p *person) try(t *testing.T, method string, in any) answer {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return p.post(t, method, body)
}

// do calls a method that must not be refused.
func do[O any](t *testing.T, p *person, method string, in any) O {
	t.Helper()
	var out O
	if err := p.Call(context.WithoutCancel(t.Context()), method, in, &out); err != nil { // cleanups call too
		t.Fatalf("%s calls %s with %v: %v", p.name, method, in, err)
	}
	return out
}

// refuse calls a method that must be refused with a code, and with a field if
// one is named.
func refuse(t *testing.T, p *person, method string, in any, code appliance.Code, field string) *appliance.Error {
	t.Helper()
	err := p.Call(t.Context(), method, in, nil)
	var e *appliance.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s calls %s with %v: got %v, want %s", p.name, method, in, err, code)
	}
	if e.Code != code || field != "" && e.Field != field {
		t.Fatalf("%s calls %s with %v: got %s on field %q (%s), want %s on %q", p.name, method, in, e.Code, e.Field, e.Message, code, field)
	}
	if len(e.Message) < 10 {
		t.Errorf("%s refuses with the message %q, which helps nobody", method, e.Message)
	}
	return e
}

type (
	pools  = appliance.List[appliance.Pool]
	events = appliance.List[appliance.Event]
	nodes  = appliance.List[appliance.Node]
	quotas = appliance.List[appliance.Quota]
)

// eventsOf reads everything a tenant may read behind a sequence number.
func eventsOf(t *testing.T, p *person, tenant string, after int64) []appliance.Event {
	t.Helper()
	var out []appliance.Event
	for {
		page := do[events](t, p, "events.list", appliance.ListEvents{TenantID: tenant, After: after, Limit: 500})
		out = append(out, page.Items...)
		if len(page.Items) < 500 {
			return out
		}
		after = page.Items[len(page.Items)-1].Seq
	}
}

// types lists what happened, in order.
func types(events []appliance.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, string(e.Type))
	}
	return out
}

// lastSeq is the newest event that a tenant may read.
func lastSeq(t *testing.T, p *person, tenant string) int64 {
	t.Helper()
	all := eventsOf(t, p, tenant, 0)
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Seq
}

// await reads the live stream of a tenant until something is so, asking again
// after each event.
func await(t *testing.T, p *person, tenant, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	after := lastSeq(t, p, tenant) // before the first look: what happens then is streamed
	if so() {
		return
	}
	for _, err := range p.Events(ctx, tenant, after) {
		if err != nil {
			t.Fatalf("waiting until %s: %v", what, err)
		}
		if so() {
			return
		}
	}
}

// eventually asks again and again until something is so that no event tells.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// fleet runs agents over a recorded machine until the test ends, and waits
// until a condition holds for every node: by default that it is ready.
func (b *box) fleet(t *testing.T, pool appliance.Pool, machine string, n int) []appliance.Node {
	t.Helper()
	_, stop := b.runFleet(t, pool, machine, n)
	t.Cleanup(stop)
	return b.ready(t, pool, n)
}

func (b *box) runFleet(t *testing.T, pool appliance.Pool, machine string, n int) (f *agent.Fleet, stop func()) {
	t.Helper()
	text, err := hosts.Read(machine)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Recorded(machine, text)
	if err != nil {
		t.Fatal(err)
	}
	f = &agent.Fleet{
		Server: "unix:" + b.socket, PoolID: pool.ID, Nodes: n, Machine: inv, Group: pool.ID + "/" + machine,
		Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return f, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the fleet of pool %s: %v", pool.ID, err)
		}
	}
}

// agent runs one agent as bcd runs it, over a recorded machine below a root of
// its own, whose configuration it may change. It runs until the test ends.
func (b *box) agent(t *testing.T, pool appliance.Pool, machine string) {
	t.Helper()
	text, err := hosts.Read(machine)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := host.ParseArchive(text)
	if err != nil {
		t.Fatal(err)
	}
	root := archive.Root()
	gpus, err := agent.FindGPUs(root, "")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent.Agent{
		Server: "unix:" + b.socket, StateDir: t.TempDir(), PoolID: pool.ID, Root: root, GPUs: gpus, Recorded: machine,
		ManageHost: true, Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the agent of pool %s: %v", pool.ID, err)
		}
	})
	b.ready(t, pool, 1)
}

// ready waits until a pool has n nodes that take bookings.
func (b *box) ready(t *testing.T, pool appliance.Pool, n int) []appliance.Node {
	t.Helper()
	op := b.operator(t)
	var seen []appliance.Node
	await(t, op, pool.OwnerTenantID, "the nodes of a pool are ready", func() bool {
		seen = do[nodes](t, op, "nodes.list", object{"tenantId": pool.OwnerTenantID, "poolId": pool.ID}).Items
		ready := 0
		for _, node := range seen {
			if node.State == appliance.NodeReady {
				ready++
			}
		}
		return ready == n
	})
	return seen
}

// key makes a key of a tenant and gives the person who holds it.
func (b *box) key(t *testing.T, tenant string, role appliance.Role) *person {
	t.Helper()
	b.keys++
	name := fmt.Sprintf("of-%s-%d", role, b.keys)
	k := do[appliance.Key](t, b.operator(t), "iam.keys.create", object{"tenantId": tenant, "name": name, "role": role})
	return b.person(t, tenant+"'s "+string(role), k.Secret)
}

// tenant makes a tenant below root, or below the one given.
func (b *box) tenant(t *testing.T, id string, parent ...string) string {
	t.Helper()
	in := object{"tenantId": appliance.Root, "id": id}
	if len(parent) > 0 {
		in["parentId"] = parent[0]
	}
	do[appliance.Tenant](t, b.operator(t), "tenants.create", in)
	return id
}

func (b *box) site(t *testing.T, tenant, name string, kind appliance.SiteKind) appliance.Site {
	t.Helper()
	return do[appliance.Site](t, b.operator(t), "sites.create", object{"tenantId": tenant, "name": name, "kind": kind, "region": "eu-" + name})
}

// pool makes a pool of H100s on a site of its owner's, with what more says.
func (b *box) pool(t *testing.T, site appliance.Site, name string, more object) appliance.Pool {
	t.Helper()
	in := object{"tenantId": site.OwnerTenantID, "siteId": site.ID, "class": "metal-host", "gpuModel": "H100", "name": name}
	for k, v := range more {
		in[k] = v
	}
	return do[appliance.Pool](t, b.operator(t), "pools.create", in)
}

func (b *box) offer(t *testing.T, pool appliance.Pool, to string, quota object) appliance.Offer {
	t.Helper()
	return do[appliance.Offer](t, b.operator(t), "pools.offer",
		object{"tenantId": pool.OwnerTenantID, "poolId": pool.ID, "toTenantId": to, "quota": quota})
}
