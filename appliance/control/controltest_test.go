package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// operator is who does everything here that is not about who may do what.
var operator = appliance.Operator("req_test", "unix")

// fixture is a control plane over a real file, with a clock that stands still
// until it is moved.
type fixture struct {
	t      failer
	c      *Control
	path   string
	sync   string
	starts byte // seeds the ids, so that a run can be repeated

	mu  sync.Mutex
	at  time.Time
	own string // tenant that owns the site
	loc string // the site
}

// failer is what a test and a property both have.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// newFixture starts a control plane on an empty file.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "state.db"), sync: "OFF", at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	f.start()
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *fixture) advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = f.at.Add(d)
}

// start opens the file, as the server does.
func (f *fixture) start() {
	f.t.Helper()
	s, err := store.Open(context.Background(), store.Options{Path: f.path, Synchronous: f.sync})
	if err != nil {
		f.t.Fatalf("open: %v", err)
	}
	settings := Defaults()
	settings.Tenant = "acme"
	f.starts++
	f.c = &Control{Store: s, IAM: iam.New(), Settings: settings, Now: f.now, Random: rand.NewChaCha8([32]byte{f.starts})}
	if err := f.c.Start(context.Background()); err != nil {
		_ = s.Close()
		f.t.Fatalf("start: %v", err)
	}
	tenant, site, err := f.c.Home(context.Background())
	if err != nil {
		f.t.Fatalf("home: %v", err)
	}
	f.own, f.loc = tenant, site.ID
}

func (f *fixture) stop() {
	if err := f.c.Store.Close(); err != nil {
		f.t.Fatalf("close: %v", err)
	}
}

// restart is a stop and a start on the same file.
func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("%v", err)
	}
}

// tenant makes a tenant below root.
func (f *fixture) tenant(id string) {
	f.t.Helper()
	_, err := f.c.CreateTenant(context.Background(), operator, appliance.CreateTenant{TenantID: appliance.Root, ID: id})
	f.must(err)
}

// pool makes a pool of the site's owner, with plenty of quota for it.
func (f *fixture) pool(sharing appliance.Sharing, policy string) string {
	f.t.Helper()
	quota := appliance.QuotaMap{}
	for _, r := range []string{sharing.Resource(), appliance.ResourceVCPU, appliance.ResourceMemoryGiB} {
		quota[r] = 1 << 20
	}
	if policy == "" {
		policy = "{}"
	}
	p, err := f.c.CreatePool(context.Background(), operator, appliance.CreatePool{
		TenantID: f.own, SiteID: f.loc, Class: appliance.ClassMetalHost, GPUModel: "H100", Sharing: sharing,
		Policy: appliance.RawPolicy(policy), OwnerQuota: quota,
	})
	f.must(err)
	return p.ID
}

// machine is an inventory of a host with GPUs, each cut into MIG instances of
// the profiles.
func machine(name string, cpus, memoryGiB, gpus int, profiles ...string) wire.Inventory {
	inv := wire.Inventory{
		Version: wire.Version, Hostname: name, MachineID: "machine-" + name, Arch: "amd64", Kernel: "6.8",
		CPU: wire.CPUInfo{Model: "test", Logical: cpus, Cores: cpus}, MemoryKiB: uint64(memoryGiB) << 20,
		GPULibrary: wire.GPULibrary{State: wire.GPULibraryReady, Driver: "550.1", CUDA: "12.4"},
	}
	for i := range gpus {
		g := wire.GPU{
			UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, Address: fmt.Sprintf("0000:%02x:00.0", i+1),
			Product: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, NUMANode: -1, Health: wire.GPUHealthy,
		}
		if len(profiles) > 0 {
			g.MIG = &wire.MIGInfo{Enabled: true, Pending: true}
			for j, p := range profiles {
				g.MIG.Instances = append(g.MIG.Instances, wire.MIGInstance{UUID: fmt.Sprintf("MIG-%s-%d-%d", name, i, j), Profile: p})
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

// join makes a machine a node of a pool.
func (f *fixture) join(poolID string, inv wire.Inventory) string {
	f.t.Helper()
	w, err := f.c.Hello(context.Background(), operator, wire.Hello{
		Version: wire.Version, MachineID: inv.MachineID, Hostname: inv.Hostname, PoolID: poolID, Inventory: inv, InventoryHash: "1",
	})
	f.must(err)
	return w.NodeID
}

// asNode is the caller that a node's credential stands for.
func (f *fixture) asNode(id string) appliance.Caller {
	return appliance.Caller{Kind: appliance.CallerNode, ID: id, Tenant: f.own}
}

// report sends a node's whole inventory.
func (f *fixture) report(id string, inv wire.Inventory) {
	f.t.Helper()
	_, err := f.c.ReportInventory(context.Background(), f.asNode(id), wire.InventoryReport{NodeID: id, Hash: strconv.Itoa(len(inv.GPUs)), Inventory: inv})
	f.must(err)
}

// silence makes a node one that was not heard of for too long.
func (f *fixture) silence(id string) {
	f.t.Helper()
	f.c.mem.mu.Lock()
	f.c.mem.nodes[id].seen = f.now().Add(-f.c.Settings.UnreachableAfter - time.Second)
	f.c.mem.mu.Unlock()
	f.must(f.c.CheckLiveness(context.Background()))
}

// beat is a quiet heartbeat.
func (f *fixture) beat(id string) {
	f.t.Helper()
	_, err := f.c.Heartbeat(context.Background(), f.asNode(id), wire.Heartbeat{NodeID: id, InventoryHash: "1"})
	f.must(err)
}

// reserve asks for GPUs of a pool in the owner's name.
func (f *fixture) reserve(poolID string, gpus int) appliance.Reservation {
	f.t.Helper()
	r, err := f.c.CreateReservation(context.Background(), operator, appliance.CreateReservation{
		TenantID: f.own, PoolID: poolID, Resources: appliance.Amounts{appliance.ResourceGPU: gpus},
	})
	f.must(err)
	return r
}

func (f *fixture) get(r appliance.Reservation) appliance.Reservation {
	f.t.Helper()
	r, err := f.c.GetReservation(context.Background(), operator, appliance.ReservationRef{TenantID: r.TenantID, ReservationID: r.ID})
	f.must(err)
	return r
}

func (f *fixture) release(r appliance.Reservation) {
	f.t.Helper()
	_, err := f.c.ReleaseReservation(context.Background(), operator, appliance.ReservationRef{TenantID: r.TenantID, ReservationID: r.ID})
	f.must(err)
}

// verify holds memory and rows against the invariants.
func (f *fixture) verify() {
	f.t.Helper()
	f.must(f.c.Verify(context.Background()))
}

// errTaken is what a transaction that is to leave no trace ends with.
var errTaken = errors.New("taken back by the test")

// takenBack runs what a transaction would do, and takes it back.
func (f *fixture) takenBack(do func(tx *store.Tx) error) {
	f.t.Helper()
	err := f.c.Store.Write(context.Background(), func(tx *store.Tx) error {
		if err := do(tx); err != nil {
			return err
		}
		return errTaken
	})
	if !errors.Is(err, errTaken) {
		f.t.Fatalf("a write that fails at its end answered %v", err)
	}
}

// together runs calls so that most of them share one commit: the writer is
// held until all had time to queue. With fail, the shared commit fails after
// all of them have run, as on a full disk.
func (f *fixture) together(fail bool, calls ...func() error) []error {
	f.t.Helper()
	held, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = f.c.Store.Write(context.Background(), func(*store.Tx) error { close(held); <-release; return nil })
	})
	<-held
	errs := make([]error, len(calls))
	queue := func(call func()) { // in this order, as good as surely: each is given time to get to the writer
		all.Go(call)
		for range 50 {
			runtime.Gosched()
		}
	}
	for i, call := range calls {
		queue(func() { errs[i] = call() })
	}
	if fail {
		queue(f.poison)
		for range 2 { // a batch leaves some of those who wait to the next: these, and not the one that fails it
			queue(func() { _ = f.c.Store.Write(context.Background(), func(*store.Tx) error { return nil }) })
		}
	}
	close(release)
	all.Wait()
	return errs
}

// poison makes the commit of the batch that it is in fail: a broken reference,
// looked at only at COMMIT.
func (f *fixture) poison() {
	err := f.c.Store.Write(context.Background(), func(tx *store.Tx) error {
		if _, err := tx.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		_, err := tx.Exec("INSERT INTO node_inventories (node_id, body) VALUES ('no such node', '{}')")
		return err
	})
	if err == nil {
		f.t.Fatalf("a commit with a broken reference was made")
	}
}
