package bench

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

var (
	bars   = flag.Bool("bars", false, "measure the product against its bars and print a table (minutes)")
	rounds = flag.Int("rounds", 5, "how often each pair is measured; the table has medians")
)

// needBars skips a measurement that was not asked for. The measurements hold
// nothing to a time: a machine is as fast as it is. They print ratios of things
// that were measured in turn in one run, and make bench prints them all.
func needBars(t *testing.T) {
	if !*bars {
		t.Skip("run by make bench")
	}
}

func report(t *testing.T, what string, format string, args ...any) {
	t.Helper()
	fmt.Printf("| %-58s | %s |\n", what, fmt.Sprintf(format, args...))
}

func createBody(f *fleet, extra string) []byte {
	return fmt.Appendf(nil, `{"tenantId":"local","poolId":%q,"resources":{"gpu":1}%s}`, f.pool, extra)
}

// creates makes reservations over HTTP and releases them out of the measured
// time.
func creates(t testing.TB, f *fleet, clients []*wireClient, n int) result {
	t.Helper()
	body := createBody(f, "")
	ids := make([]string, n)
	r := load(t, clients, n, func(c *wireClient, i int) error {
		var out struct{ ID, State string }
		status, answer, err := c.post("/v1/reservations.create", f.key, body)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("create: %d %s %w", status, answer, err)
		}
		const from = len(`{"id":"`)
		out.ID = string(answer[from : from+30])
		if !strings.Contains(string(answer), `"placed"`) {
			return fmt.Errorf("create was not placed: %s", answer)
		}
		ids[i] = out.ID
		return nil
	})
	load(t, clients, n, func(c *wireClient, i int) error {
		return c.callRaw(f.key, "reservations.release", refBody(ids[i]), nil)
	})
	return r
}

func refBody(id string) []byte {
	return fmt.Appendf(nil, `{"tenantId":"local","reservationId":%q}`, id)
}

// sameRows writes what one create writes, and nothing else: the floor.
type sameRows struct {
	s        *store.Store // synced
	n        atomic.Int64
	body     string
	event    string
	hold     string
	resource string
}

func openSameRows(t testing.TB) *sameRows {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{Path: filepath.Join(t.TempDir(), "state.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r := appliance.Reservation{
		ID: "res_01k5c0000000000000000000000", TenantID: "local", PoolID: "pool_01k5c0000000000000000000000", State: appliance.Placed, Nodes: 1,
		Message: "placed; waiting for the nodes to confirm", Binding: appliance.BindHold, Resources: appliance.Amounts{"gpu": 1},
		Booked: appliance.Amounts{"gpu": 1, "vcpu": 27, "memoryGiB": 250}, CreatedBy: "key_01k5c0000000000000000000000", CreatedAt: appliance.AtMillis(1769846400123),
		Placements: []appliance.Placement{{
			NodeID: "node_01k5c0000000000000000000000", Devices: []string{"GPU-5b1c1f6e-0000-0000-0000-000000000000"}, Atoms: []string{"GPU-5b1c1f6e-0000-0000-0000-000000000000"},
			CPUs: "1-14,113-125", NUMANodes: "0", Amounts: appliance.Amounts{"gpu": 1, "vcpu": 27, "memoryGiB": 250},
		}},
	}
	body, _ := json.Marshal(r)
	f := &sameRows{s: s, body: string(body), event: `{"id":"res_01k5c0000000000000000000000","poolId":"pool_01k5c0000000000000000000000","resources":{"gpu":1},"state":"placed","nodes":["node_01k5c0000000000000000000000"]}`,
		hold:     "hold\tgpu=1\nnode_01k5c0000000000000000000000\tGPU-5b1c1f6e-0000-0000-0000-000000000000\t=\t1-14,113-125\t0\tgpu=1,memoryGiB=250,vcpu=27",
		resource: `[{"resource":"vcpu","total":222,"allocated":27,"overcommit":1},{"resource":"memoryGiB","total":2040,"allocated":250,"overcommit":1}]`}
	err = s.Write(context.Background(), func(tx *store.Tx) error {
		for _, q := range []string{
			"INSERT INTO tenants (id, parent_id, name, state, created_at) VALUES ('root', NULL, 'root', 'active', 1)",
			"INSERT INTO sites (id, owner_tenant_id, kind, name, region, created_at) VALUES ('s', 'root', 'custom', 's', 'r', 1)",
			"INSERT INTO pools (id, owner_tenant_id, site_id, class, gpu_model, sharing, agent, policy, version, created_at) VALUES ('p', 'root', 's', 'metal-host', 'H100', 'exclusive', 'bcd', '{}', 1, 1)",
			"INSERT INTO quotas (tenant_id, pool_id, resource, max, used) VALUES ('root', 'p', 'gpu', 100000000, 0)",
		} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		for i := range 1000 {
			id := fmt.Sprintf("node_%d", i)
			if err := tx.PutNode(store.NodeRecord{ID: id, PoolID: "p", MachineID: id, Hostname: id, Role: "host", Control: "platform", State: "ready", CredentialHash: id, JoinedAt: appliance.AtMillis(1)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// write is one create's rows, bound as they are: two events, the reservation,
// its atom, the quota counter and the node's counters.
func (f *sameRows) write(tx *store.Tx) error {
	n := f.n.Add(1)
	id, node := fmt.Sprintf("res_%026d", n), fmt.Sprintf("node_%d", n%1000)
	const event = `INSERT INTO events (type, tenant_id, reader_id, pool_id, to_pool, subject, at, data, actor, policies) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	for _, q := range []struct {
		text string
		args []any
	}{
		{event, []any{"reservation.created", "local", "", "p", 0, id, n, f.event, "key_01k5c0000000000000000000000", "role-member"}},
		{event, []any{"reservation.placed", "local", "", "p", 0, id, n, f.event, "key_01k5c0000000000000000000000", "role-member"}},
		{"INSERT INTO atoms (node_id, atom, reservation_id) VALUES (?, ?, ?)", []any{node, id, id}},
		{"INSERT INTO reservations (id, tenant_id, pool_id, state, queue, expires_at, body, hold) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", []any{id, "local", "p", "placed", n, nil, f.body, f.hold}},
		{"UPDATE quotas SET used = ? WHERE tenant_id = ? AND pool_id = ? AND resource = ?", []any{n, "root", "p", "gpu"}},
		{"INSERT INTO node_ledgers (node_id, generation, resources) VALUES (?, ?, ?) ON CONFLICT (node_id) DO UPDATE SET generation = excluded.generation, resources = excluded.resources", []any{node, n, f.resource}},
	} {
		if _, err := tx.Exec(q.text, q.args...); err != nil {
			return err
		}
	}
	return nil
}

// singles makes n commits one after another.
func (f *sameRows) singles(t testing.TB, n int) float64 {
	t.Helper()
	start := time.Now()
	for range n {
		if err := f.s.Write(context.Background(), f.write); err != nil {
			t.Fatal(err)
		}
	}
	rate := float64(n) / time.Since(start).Seconds()
	f.release(t)
	return rate
}

// release frees the atoms, out of the measured time, as [creates] does: a table of
// ever more of them would not fit into memory as one of a fleet's does.
func (f *sameRows) release(t testing.TB) {
	t.Helper()
	err := f.s.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec("DELETE FROM atoms")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// handler is chi, a JSON body in, the rows in a shared commit, a JSON body out.
func (f *sameRows) handler() http.Handler {
	mux := chi.NewRouter()
	mux.Post("/v1/reservations.create", func(w http.ResponseWriter, r *http.Request) {
		var in appliance.CreateReservation
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := f.s.Write(r.Context(), f.write); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, f.body)
	})
	mux.Post("/v1/reservations.get", func(w http.ResponseWriter, r *http.Request) {
		var in appliance.ReservationRef
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var body string
		err := f.s.Read(r.Context(), func(tx *store.Tx) error {
			return tx.QueryRow("SELECT body FROM reservations WHERE id = ?", in.ReservationID).Scan(&body)
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, body)
	})
	return mux
}

func answer(w http.ResponseWriter, body string) {
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Content-Length"] = []string{fmt.Sprint(len(body))}
	_, _ = w.Write([]byte(body))
}

// syncs overwrites 4 KiB and makes it durable, n times.
func syncs(t testing.TB, n int) float64 {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "sync"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	if _, err := f.Write(block); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i := range n {
		block[0] = byte(i)
		if _, err := f.WriteAt(block, 0); err != nil {
			t.Fatal(err)
		}
		if err := datasync(f); err != nil {
			t.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// TestCreate measures durable creates over HTTP.
func TestCreate(t *testing.T) {
	needBars(t)
	f := makeFleet(t, 1000, nil)
	f.serve(t)
	floor := openSameRows(t)
	bare := serveBare(t, floor.handler())
	body := createBody(f, "")
	var single, disk []float64
	for range *rounds {
		single = append(single, floor.singles(t, 1000))
		disk = append(disk, syncs(t, 1000))
	}
	report(t, "4 KiB overwrite + fdatasync /s", "%.0f", median(disk))
	report(t, "SQLite single commits of a create's rows /s", "%.0f", median(single))
	for _, clients := range []int{1, 8, 64} {
		ours, theirs := dialAll(t, f.socket(), clients), dialAll(t, bare, clients)
		n := map[int]int{1: 800, 8: 3000, 64: 5000}[clients]
		creates(t, f, ours, n/4) // warm
		var over, overBare, rate, p50, p99, spread, bareSpread, cpu []float64
		for range *rounds {
			single := floor.singles(t, 1000)
			r := creates(t, f, ours, n)
			b := load(t, theirs, n, func(c *wireClient, _ int) error { return c.callRaw("", "reservations.create", body, nil) })
			floor.release(t)
			rate, over, overBare = append(rate, r.rate()), append(over, r.rate()/single), append(overBare, r.rate()/b.rate())
			p50, p99 = append(p50, float64(r.at(0.5).Microseconds())), append(p99, float64(r.at(0.99).Microseconds()))
			cpu, bareSpread = append(cpu, float64(b.each())/float64(r.each())), append(bareSpread, float64(b.at(0.99))/float64(b.at(0.5)))
			spread = append(spread, float64(r.at(0.99))/float64(r.at(0.5)))
		}
		report(t, fmt.Sprintf("creates at 1,000 nodes, %d clients", clients), "%.0f/s; %.2f × single commits; %.2f × bare chi, by CPU time %.2f ×; p50 %.0f us, p99 %.0f us, %.1f × (bare chi %.1f ×)",
			median(rate), median(over), median(overBare), median(cpu), median(p50), median(p99), median(spread), median(bareSpread))
	}
}
