package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/api"
	"github.com/bettercompute/bc/appliance/control"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/reconcile"
	"github.com/bettercompute/bc/appliance/store"
)

var localOperator = appliance.Operator("", "unix")

// plane is a control plane behind a real socket with its loops running every
// second, over a file whose commits are synced.
type plane struct {
	t        *testing.T
	c        *control.Control
	socket   string
	own, loc string
	log      *logged
}

// logged keeps what a server logs as an error: no failure of ours may hide
// behind an answer.
type logged struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *logged) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logged) WithGroup(string) slog.Handler                    { return l }
func (l *logged) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "bc") // t.TempDir can be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "state.db")})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, socket: filepath.Join(dir, "s"), log: &logged{}}
	log := slog.New(p.log)
	p.c = &control.Control{Store: s, IAM: iam.New(), Settings: control.Defaults(), Log: log}
	if err := p.c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	home, site, err := p.c.Home(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.own, p.loc = home, site.ID
	server := &api.Server{Log: log}
	api.Register(server, p.c)
	l, err := api.ListenUnix(p.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { reconcile.Run(ctx, log, reconcile.Tasks(p.c, time.Second, time.Second)) })
	running.Go(func() {
		if err := server.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
		for _, line := range p.log.lines {
			t.Errorf("the server logged an error: %s", line)
		}
	})
	return p
}

// pool makes a pool with machines of eight GPUs.
func (p *plane) pool(gpuQuota, machines int) string {
	p.t.Helper()
	pool, err := p.c.CreatePool(p.t.Context(), localOperator, appliance.CreatePool{
		TenantID: p.own, SiteID: p.loc, Class: appliance.ClassMetalHost, GPUModel: "H100",
		OwnerQuota: appliance.QuotaMap{"gpu": gpuQuota, "vcpu": 1 << 20},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range machines {
		p.join(pool.ID, fmt.Sprintf("n%d", i))
	}
	return pool.ID
}

func (p *plane) join(pool, name string) string {
	p.t.Helper()
	inv := wire.Inventory{
		Version: wire.Version, Hostname: name, MachineID: "machine-" + name, CPU: wire.CPUInfo{Logical: 66, Cores: 66}, MemoryKiB: 520 << 20,
		GPULibrary: wire.GPULibrary{State: wire.GPULibraryReady},
	}
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, wire.GPU{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, NUMANode: -1, Health: wire.GPUHealthy})
	}
	w, err := p.c.Hello(p.t.Context(), localOperator, wire.Hello{Version: wire.Version, MachineID: inv.MachineID, Hostname: name, PoolID: pool, Inventory: inv, InventoryHash: "1"})
	if err != nil {
		p.t.Fatal(err)
	}
	return w.NodeID
}

// client is one caller with a connection of its own.
func (p *plane) client() *api.Client {
	p.t.Helper()
	c, err := api.Dial("unix:"+p.socket, api.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

func TestParallelCreatesNeverExceedAQuota(t *testing.T) {
	p := startPlane(t)
	pool := p.pool(4, 2)
	codes := map[appliance.Code]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	start := make(chan struct{})
	for range 32 {
		c := p.client()
		all.Go(func() {
			<-start
			var r appliance.Reservation
			err := c.Call(context.Background(), "reservations.create", appliance.CreateReservation{TenantID: p.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}}, &r)
			mu.Lock()
			defer mu.Unlock()
			codes[appliance.CodeOf(err)]++
		})
	}
	close(start)
	all.Wait()
	if codes[""] != 4 || codes[appliance.QuotaExceeded] != 28 {
		t.Fatalf("of 32 creates under a quota of 4: %v", codes)
	}
	if err := p.c.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Sixty-four writers of every kind, while all loops run and nodes come, go and
// report: nobody is told of the file or of a failure of ours.
func TestSixtyFourWritersBesideTheLoops(t *testing.T) {
	p := startPlane(t)
	pool := p.pool(1<<20, 8)
	var bad atomic.Int64
	stop := time.Now().Add(time.Second)
	var all sync.WaitGroup
	for i := range 64 {
		c := p.client()
		all.Go(func() {
			for n := 0; time.Now().Before(stop); n++ {
				if err := p.oneWrite(c, pool, i, n); err != nil && !expected(err) {
					if bad.Add(1) < 10 {
						t.Errorf("writer %d: %v", i, err)
					}
					return
				}
			}
		})
	}
	all.Wait()
	if err := p.c.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// expected tells a refusal from a failure.
func expected(err error) bool {
	switch appliance.CodeOf(err) {
	case "", appliance.QuotaExceeded, appliance.NotFound, appliance.InvalidState, appliance.ConflictCode:
		return !strings.Contains(err.Error(), "BUSY")
	}
	return false
}

func (p *plane) oneWrite(c *api.Client, pool string, i, n int) error {
	ctx := context.Background()
	switch {
	case i%16 == 0: // the pool's owner moves limits and policies
		if n%2 == 0 {
			return c.Call(ctx, "quotas.set", appliance.SetQuota{TenantID: p.own, PoolID: pool, Resource: "gpu", Max: 1000 + n}, nil)
		}
		policy := appliance.RawPolicy(fmt.Sprintf(`{"hostReserve":{"vcpu":%d}}`, n%8))
		return c.Call(ctx, "pools.update", appliance.UpdatePool{TenantID: p.own, PoolID: pool, Policy: &policy}, nil)
	case i%16 == 1: // machines join, are cordoned, and leave
		name := fmt.Sprintf("m%d-%d", i, n)
		inv := wire.Inventory{Hostname: name, MachineID: name, CPU: wire.CPUInfo{Logical: 8}, MemoryKiB: 64 << 20, GPULibrary: wire.GPULibrary{State: wire.GPULibraryReady}}
		w, err := p.c.Hello(ctx, localOperator, wire.Hello{MachineID: name, Hostname: name, PoolID: pool, Inventory: inv, InventoryHash: "1"})
		if err != nil {
			return err
		}
		if err := c.Call(ctx, "nodes.cordon", appliance.NodeRef{TenantID: p.own, NodeID: w.NodeID}, nil); err != nil {
			return err
		}
		return c.Call(ctx, "nodes.remove", appliance.NodeRef{TenantID: p.own, NodeID: w.NodeID}, nil)
	}
	var r appliance.Reservation
	in := appliance.CreateReservation{TenantID: p.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1 + i%3}}
	if i%4 == 2 {
		in.Duration = "1s"
	}
	if err := c.Call(ctx, "reservations.create", in, &r); err != nil {
		return err
	}
	if i%4 == 2 {
		return nil // it expires
	}
	return c.Call(ctx, "reservations.release", appliance.ReservationRef{TenantID: p.own, ReservationID: r.ID}, nil)
}

// A caller that repeats a create, also before the first was answered, gets one
// reservation.
func TestParallelRepeatsUnderOneKeyMakeOneReservation(t *testing.T) {
	p := startPlane(t)
	pool := p.pool(100, 1)
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		c := p.client()
		all.Go(func() {
			for range 2 {
				var r appliance.Reservation
				in := appliance.CreateReservation{TenantID: p.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}, IdempotencyKey: "again"}
				if err := c.Call(context.Background(), "reservations.create", in, &r); err != nil {
					t.Error(err)
				}
				ids[i] = r.ID
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("two reservations under one key: %s and %s", ids[0], id)
		}
	}
	other := appliance.CreateReservation{TenantID: p.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 2}, IdempotencyKey: "again"}
	if err := p.client().Call(t.Context(), "reservations.create", other, nil); appliance.CodeOf(err) != appliance.ConflictCode {
		t.Errorf("another request under the same key: %v", err)
	}
	var got appliance.List[appliance.Reservation]
	if err := p.client().Call(t.Context(), "reservations.list", appliance.ListReservations{TenantID: p.own}, &got); err != nil || len(got.Items) != 1 {
		t.Fatalf("%d reservations: %v", len(got.Items), err)
	}
}
