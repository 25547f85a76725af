// Package bench measures the product against its bars, end to end: a real file,
// synced commits, HTTP over a socket, and beside each number what it is to be
// compared with, measured in turn in the same run. It holds no code of the
// product and nothing imports it. Run it with make bench.
//
// Start reading at TestCreate.
package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
	"github.com/bettercompute/bc/appliance/control"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/reconcile"
	"github.com/bettercompute/bc/appliance/store"
	"github.com/bettercompute/bc/testdata/hosts"
)

// What the bars are measured with: a fleet in a file, the server over it, and
// clients that cost as little as can be, since they share the machine's CPUs
// with what they measure.

// fleet is a control plane with a pool of alike machines in a state directory.
type fleet struct {
	dir, pool, key string
	node, nodeKey  string // one of the nodes, and its credential
	nodes          int
}

var fleetOperator = appliance.Operator("", "unix")

const fleetQuota = 1 << 30

// makeFleet writes the state of a pool of so many nodes of eight GPUs. Nothing
// is synced: what is measured opens the file anew.
func makeFleet(t *testing.T, nodes int, fill func(s *server, f *fleet)) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "bars")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fleet{dir: dir, nodes: nodes}
	s := f.open(t, "OFF")
	ctx := context.Background()
	home, site, err := s.control.Home(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.control.CreatePool(ctx, fleetOperator, appliance.CreatePool{
		TenantID: home, SiteID: site.ID, Class: appliance.ClassMetalHost, GPUModel: "H100", Name: "fleet",
		OwnerQuota: appliance.QuotaMap{appliance.ResourceGPU: fleetQuota, appliance.ResourceVCPU: fleetQuota, appliance.ResourceMemoryGiB: fleetQuota},
	})
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.control.CreateKey(ctx, fleetOperator, appliance.CreateKey{TenantID: home, Name: "bars", Role: appliance.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	f.pool, f.key = p.ID, k.Secret
	text, err := hosts.Read("dgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := inventory.Recorded("dgx-h100", text)
	if err != nil {
		t.Fatal(err)
	}
	parallel(t, 32, nodes, func(i int) error {
		inv := inventory.Personalise(machine, "bars", i)
		w, err := s.control.Hello(ctx, fleetOperator, wire.Hello{
			Version: wire.Version, MachineID: inv.MachineID, Hostname: inv.Hostname, PoolID: p.ID, Inventory: inv, InventoryHash: "1",
		})
		if i == 0 {
			f.node, f.nodeKey = w.NodeID, w.Credential
		}
		return err
	})
	if fill != nil {
		fill(s, f)
	}
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

// parallel runs n numbered calls on so many goroutines.
func parallel(t testing.TB, workers, n int, call func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := call(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// server is the product, opened over a fleet.
type server struct {
	store   *store.Store
	control *control.Control
	api     *api.Server
}

// open does what bc serve does, but for the loops and the serving.
func (f *fleet) open(t testing.TB, synchronous string) *server {
	t.Helper()
	ctx := context.Background()
	st, err := store.Open(ctx, store.Options{Path: filepath.Join(f.dir, "state.db"), Synchronous: synchronous})
	if err != nil {
		t.Fatal(err)
	}
	settings := control.Defaults()
	settings.UnreachableAfter = 24 * time.Hour // no agents run here
	s := &server{store: st, control: &control.Control{Store: st, IAM: iam.New(), Settings: settings}, api: &api.Server{}}
	if err := s.control.Start(ctx); err != nil {
		t.Fatal(err)
	}
	api.Register(s.api, s.control)
	return s
}

// serve runs the server over the fleet, loops and all, until the test ends.
func (f *fleet) serve(t testing.TB) *server {
	t.Helper()
	s := f.open(t, "FULL")
	socket, err := api.ListenUnix(f.socket())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		log := slog.New(slog.DiscardHandler)
		reconcile.Run(ctx, log, reconcile.Tasks(s.control, 30*time.Second, 30*time.Second))
	})
	running.Go(func() {
		if err := s.api.Serve(ctx, socket); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (f *fleet) socket() string { return filepath.Join(f.dir, "api.sock") }

// serveBare serves a handler on a socket of its own, as the floor to compare
// with.
func serveBare(t testing.TB, h http.Handler) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bars")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() { server.Close(); os.RemoveAll(dir) })
	return socket
}

// wireClient sends prepared requests over one connection and reads answers no
// further than it must.
type wireClient struct {
	conn net.Conn
	r    *bufio.Reader
	out  bytes.Buffer
	body []byte
}

func dialWire(t testing.TB, socket string) *wireClient {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &wireClient{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
}

// post gives the status and the body, which is good until the next call.
func (c *wireClient) post(path, key string, body []byte) (int, []byte, error) {
	c.out.Reset()
	fmt.Fprintf(&c.out, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, key, len(body))
	c.out.Write(body)
	if _, err := c.conn.Write(c.out.Bytes()); err != nil {
		return 0, nil, err
	}
	return c.read()
}

func (c *wireClient) read() (status int, body []byte, err error) {
	length, chunked := 0, false
	for first := true; ; first = false {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < 12 {
				return 0, nil, fmt.Errorf("status line %q", line)
			}
			status, _ = strconv.Atoi(string(line[9:12]))
			continue
		}
		if len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); string(name) == "Content-Length" {
			length, _ = strconv.Atoi(string(value))
		} else if string(name) == "Transfer-Encoding" {
			chunked = true
		}
	}
	if chunked {
		return status, nil, fmt.Errorf("a chunked answer: the bare handlers set Content-Length")
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	_, err = io.ReadFull(c.r, c.body)
	return status, c.body, err
}

// run is what a number of clients did together.
type result struct {
	took  time.Duration
	cpu   time.Duration   // of this process, clients included
	times []time.Duration // of each request, sorted
}

// add takes another run in.
func (r *result) add(o result) {
	r.took += o.took
	r.cpu += o.cpu
	r.times = append(r.times, o.times...)
	slices.Sort(r.times)
}

func (r result) rate() float64 { return float64(len(r.times)) / r.took.Seconds() }

// each is the CPU time of one request. It says more than a rate where others
// use the machine too.
func (r result) each() time.Duration { return r.cpu / time.Duration(len(r.times)) }

func (r result) at(share float64) time.Duration {
	return r.times[min(len(r.times)-1, int(share*float64(len(r.times))))]
}

// load runs so many requests by so many clients that wait for each answer.
func load(t testing.TB, clients []*wireClient, requests int, do func(c *wireClient, i int) error) result {
	t.Helper()
	var next atomic.Int64
	times := make([][]time.Duration, len(clients))
	var all sync.WaitGroup
	start, cpu := time.Now(), ownCPU()
	for n, c := range clients {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < requests; i = int(next.Add(1)) - 1 {
				begin := time.Now()
				if err := do(c, i); err != nil {
					t.Error(err)
					return
				}
				times[n] = append(times[n], time.Since(begin))
			}
		})
	}
	all.Wait()
	r := result{took: time.Since(start), cpu: ownCPU() - cpu, times: slices.Concat(times...)}
	slices.Sort(r.times)
	if t.Failed() {
		t.FailNow()
	}
	return r
}

func dialAll(t testing.TB, socket string, n int) []*wireClient {
	out := make([]*wireClient, n)
	for i := range out {
		out[i] = dialWire(t, socket)
	}
	return out
}

// callRaw posts a verb and wants 200.
func (c *wireClient) callRaw(key, verb string, body []byte, out any) error {
	status, answer, err := c.post("/v1/"+verb, key, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s answered %d: %s", verb, status, answer)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// median is the middle of what was measured.
func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
