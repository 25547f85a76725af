package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

// fakeControl is the other half of the wire contract. What it knows outlives
// its listener, as a control plane's database does.
type fakeControl struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change

	noPool  string // the reason why nobody is let in
	onJoin  func(*fakeNode)
	lean    bool // inventories are not kept
	nodes   map[string]*fakeNode
	hellos  []wire.Hello
	beats   []wire.Heartbeat
	reports int
	asks    []wire.PlanRequest  // for whoever polls next and takes plans
	plans   []wire.PlanReport   // that were made
	leave   []wire.RebootReport // that was asked for
	refused bool                // no leave is given
	biggest int                 // bytes of the biggest quiet heartbeat request, head and body
}

// fakeNode is one node as its control plane has it.
type fakeNode struct {
	id, machine, credential string
	inventory               wire.Inventory
	hash                    string
	spec                    *wire.NodeSpec
	taken                   int64 // the generation of its last heartbeat
	units                   []wire.UnitStatus
	checks                  []wire.CheckResult
	bindings                []wire.BindingStatus
	beats                   int
	gone                    bool
	retrySeconds            int
}

func newControl() *fakeControl {
	return &fakeControl{changed: make(chan struct{}), nodes: map[string]*fakeNode{}}
}

// change runs f on the state and wakes all who wait for it.
func (c *fakeControl) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// awaitLimit is far above what anything takes, for machines busy with more.
const awaitLimit = time.Minute

// await waits until the state is as wanted, and fails the test with the reason
// if it is not in time.
func (c *fakeControl) await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	deadline := time.After(awaitLimit)
	for {
		c.mu.Lock()
		ok, changed := reached(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Fatalf("in %v not seen: %s\nhellos %d, beats %d, nodes %s", awaitLimit, what, len(c.hellos), len(c.beats), c.dump())
		}
	}
}

func (c *fakeControl) dump() string {
	var b strings.Builder
	for _, n := range c.nodes {
		fmt.Fprintf(&b, "\n%s: taken %d, units %v, checks %v, bindings %v", n.id, n.taken, n.units, n.checks, n.bindings)
		if b.Len() > 4000 {
			break
		}
	}
	return b.String()
}

// look reads the state while nothing else changes it.
func (c *fakeControl) look(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// only is the one node there is, nil if there is none. The caller has the lock.
func (c *fakeControl) only() *fakeNode {
	for _, n := range c.nodes {
		return n
	}
	return nil
}

// want sets a node's NodeSpec, filling in what is the node's.
func (c *fakeControl) want(spec wire.NodeSpec) {
	c.change(func() { c.only().want(spec) })
}

func (n *fakeNode) want(spec wire.NodeSpec) {
	spec.Version, spec.NodeID = wire.Version, n.id
	if spec.Generation == 0 {
		spec.Generation = 1
		if n.spec != nil {
			spec.Generation = n.spec.Generation + 1
		}
	}
	n.spec = &spec
}

func (n *fakeNode) generation() int64 {
	if n.spec == nil {
		return 0
	}
	return n.spec.Generation
}

// serve listens on a Unix socket until the test ends or stop is called, which
// also cuts the connections that are open.
func (c *fakeControl) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(listener)
	}()
	stop = sync.OnceFunc(func() {
		server.Close()
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// socketPath is short enough for a Unix socket wherever the test's folder is.
func socketPath(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.sock")
	if len(path) > 100 {
		t.Skipf("the temporary folder's name is too long for a Unix socket: %s", path)
	}
	return path
}

func (c *fakeControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head, err := httputil.DumpRequest(r, true)
	if err != nil {
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /agent/v1/hello":
		answer(w, r, c.hello)
	case "POST /agent/v1/inventory":
		answer(w, r, c.inventory)
	case "POST /agent/v1/heartbeat":
		answer(w, r, func(credential string, in wire.Heartbeat) (any, *refusal) {
			return c.heartbeat(credential, in, len(head))
		})
	case "POST /agent/v1/plan":
		answer(w, r, c.planned)
	case "POST /agent/v1/reboot":
		answer(w, r, c.reboot)
	case "GET /agent/v1/spec":
		c.spec(w, r)
	default:
		refuse(w, &refusal{Status: 404, Code: "NOT_FOUND", Message: r.URL.Path})
	}
}

func answer[T any](w http.ResponseWriter, r *http.Request, verb func(credential string, in T) (any, *refusal)) {
	var in T
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		refuse(w, &refusal{Status: 400, Code: "INVALID_INPUT", Message: err.Error()})
		return
	}
	out, refused := verb(bearer(r), in)
	if refused != nil {
		refuse(w, refused)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(out)
}

func bearer(r *http.Request) string {
	credential, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return credential
}

func refuse(w http.ResponseWriter, r *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.Status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": r.Code, "message": r.Message}})
}

var unknownNode = &refusal{Status: 401, Code: "UNAUTHENTICATED", Message: "no such node, or not this credential"}

// known finds the node that a credential is of. The caller has the lock.
func (c *fakeControl) known(id, credential string) (*fakeNode, *refusal) {
	if n := c.nodes[id]; n != nil && n.credential == credential {
		return n, nil
	}
	return nil, unknownNode
}

func (c *fakeControl) hello(credential string, in wire.Hello) (out any, refused *refusal) {
	c.change(func() {
		if c.lean {
			c.hellos = append(c.hellos, wire.Hello{NodeID: in.NodeID})
		} else {
			c.hellos = append(c.hellos, in)
		}
		welcome := wire.Welcome{Version: wire.Version, HeartbeatSeconds: 10}
		if c.noPool != "" {
			welcome.Reason = c.noPool
			out = welcome
			return
		}
		var n *fakeNode
		if in.NodeID != "" {
			if n, refused = c.known(in.NodeID, credential); refused != nil {
				return
			}
		}
		for _, of := range c.nodes {
			if n == nil && of.machine == in.MachineID {
				n = of // joined before: a new credential
				n.credential += "+"
				welcome.Credential = n.credential
			}
		}
		if n == nil {
			id := fmt.Sprintf("node_%d", len(c.nodes)+1)
			n = &fakeNode{id: id, machine: in.MachineID, credential: "bcn_" + id}
			c.nodes[id] = n
			welcome.Credential = n.credential
			if c.onJoin != nil {
				c.onJoin(n)
			}
		}
		n.inventory, n.hash = in.Inventory, in.InventoryHash
		if c.lean {
			n.inventory = wire.Inventory{}
		}
		welcome.NodeID, welcome.PoolID = n.id, "pool_1"
		out = welcome
	})
	return out, refused
}

func (c *fakeControl) inventory(credential string, in wire.InventoryReport) (out any, refused *refusal) {
	c.change(func() {
		var n *fakeNode
		if n, refused = c.known(in.NodeID, credential); refused != nil {
			return
		}
		c.reports++
		n.inventory, n.hash = in.Inventory, in.Hash
		out = wire.HeartbeatReply{Generation: n.generation()}
	})
	return out, refused
}

func (c *fakeControl) heartbeat(credential string, in wire.Heartbeat, size int) (out any, refused *refusal) {
	c.change(func() {
		var n *fakeNode
		if n, refused = c.known(in.NodeID, credential); refused != nil {
			return
		}
		c.beats = append(c.beats, in)
		n.beats++
		n.taken = in.Generation
		for _, u := range in.Units { // an empty state: no longer wanted
			n.units = slices.DeleteFunc(slices.Clone(n.units), func(old wire.UnitStatus) bool { return old.Kind == u.Kind })
			if u.State != "" {
				n.units = append(n.units, u)
			}
		}
		if in.Checks != nil {
			n.checks = in.Checks
		}
		if in.Bindings != nil {
			n.bindings = *in.Bindings
		}
		if in.Units == nil && in.Checks == nil && in.Bindings == nil {
			c.biggest = max(c.biggest, size)
		}
		out = wire.HeartbeatReply{
			Generation: n.generation(), Gone: n.gone, SendInv: n.hash != in.InventoryHash, RetrySeconds: n.retrySeconds,
		}
		if n.gone {
			delete(c.nodes, n.id)
		}
	})
	return out, refused
}

func (c *fakeControl) planned(credential string, in wire.PlanReport) (out any, refused *refusal) {
	c.change(func() {
		if _, refused = c.known(in.NodeID, credential); refused == nil {
			c.plans, out = append(c.plans, in), struct{}{}
		}
	})
	return out, refused
}

func (c *fakeControl) reboot(credential string, in wire.RebootReport) (out any, refused *refusal) {
	c.change(func() {
		if _, refused = c.known(in.NodeID, credential); refused == nil {
			c.leave, out = append(c.leave, in), wire.RebootReply{Go: !c.refused && in.Failed == ""}
		}
	})
	return out, refused
}

func (c *fakeControl) spec(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseInt(r.FormValue("after"), 10, 64)
	if err != nil {
		refuse(w, &refusal{Status: 400, Code: "INVALID_INPUT", Message: "after"})
		return
	}
	wait, err := time.ParseDuration(r.FormValue("wait"))
	if err != nil {
		refuse(w, &refusal{Status: 400, Code: "INVALID_INPUT", Message: "wait"})
		return
	}
	deadline := time.After(wait)
	for {
		c.mu.Lock()
		n, refused := c.known(r.FormValue("node"), bearer(r))
		changed := c.changed
		if refused == nil && r.FormValue("plans") == "1" && len(c.asks) > 0 {
			ask := c.asks[0]
			c.asks = c.asks[1:]
			c.mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(wire.Asked{Plan: &ask})
			return
		}
		var spec *wire.NodeSpec
		if n != nil {
			spec = n.spec
		}
		c.mu.Unlock()
		switch {
		case refused != nil:
			refuse(w, refused)
			return
		case spec != nil && spec.Generation > after:
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(spec)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-deadline:
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
}

// confirmed lists the reservations that a node has in force.
func (n *fakeNode) confirmed() []string {
	in := map[string]bool{}
	for _, b := range n.bindings {
		if b.Failed == "" {
			in[b.ReservationID] = true
		}
	}
	return slices.Sorted(maps.Keys(in))
}
