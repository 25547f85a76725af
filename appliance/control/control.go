package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// Settings are what the operator's configuration says.
type Settings struct {
	Tenant   string // the customer tenant made at first start
	Site     string // the name of its custom site
	Region   string
	AutoPool bool // make the first pool when GPUs are found and there is none

	Heartbeat        time.Duration // how often nodes report
	UnreachableAfter time.Duration // without a heartbeat

	KeepEvents time.Duration // how long events are kept; 0: for ever

	Aliases map[string]string // NVML name to family, before the table

	// Telemetry is where nodes export their metrics to if the policy of their
	// pool does not say; nil: nowhere.
	Telemetry *wire.Telemetry
}

// Defaults are the settings of an empty configuration file.
func Defaults() Settings {
	return Settings{
		Tenant: "local", Site: "site", Region: "local", AutoPool: true,
		Heartbeat: 10 * time.Second, UnreachableAfter: 45 * time.Second,
		KeepEvents: appliance.MaxDuration,
	}
}

// Control does the verbs. It is wired as a struct literal; [Control.Start] must
// have returned before any verb is called.
type Control struct {
	Store    *store.Store
	IAM      *iam.Engine
	Settings Settings
	Log      *slog.Logger
	Version  string           // of the program
	Now      func() time.Time // nil: time.Now
	Random   io.Reader        // nil: crypto/rand

	started appliance.Time

	ids sync.Mutex // guards entropy
	ent io.Reader

	mem   memory
	local localMachine
	keys  keyring
	plans planDesks
}

// Start reads the state into memory, compares the two, and makes what the
// first start makes: root, the customer tenant and its custom site.
func (c *Control) Start(ctx context.Context) error {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.ent = ulid.Monotonic(c.Random, 0)
	c.started = c.now()
	if err := c.bootstrap(ctx); err != nil {
		return fmt.Errorf("make the first tenants and site: %w", err)
	}
	if err := c.tellTelemetry(ctx); err != nil {
		return fmt.Errorf("note the telemetry that nodes are told: %w", err)
	}
	if err := c.load(ctx); err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	c.Store.BeforeCommit(c.flush)
	return nil
}

// now is the instant as it is kept.
func (c *Control) now() appliance.Time { return appliance.At(c.Now()) }

// newID makes an id that sorts after every one made before it in this process.
func (c *Control) newID(prefix string) string {
	c.ids.Lock()
	defer c.ids.Unlock()
	u, err := ulid.New(ulid.Timestamp(c.Now()), c.ent)
	if err != nil { // the random part overflowed within one millisecond
		u = ulid.MustNew(ulid.Timestamp(c.Now()), c.Random)
	}
	return appliance.ID(prefix, u)
}

// trail is who does a write and what permitted it, for its events.
type trail struct {
	who      appliance.Caller
	policies string
}

// may decides an action on a tenant, or on a pool as the tenant sees it. What
// the caller may not know of is refused by the caller of may, which knows the
// thing; may itself answers ACCESS_DENIED.
func (c *Control) may(who appliance.Caller, action appliance.Action, tenant string, row *appliance.AuthzRow, subject string) (trail, error) {
	d := c.IAM.Decide(iam.Question{Caller: who, Action: action, Tenant: tenant, Pool: row, Subject: subject, At: c.Now()})
	t := trail{who: who}
	for i, p := range d.Policies {
		if i > 0 {
			t.policies += ","
		}
		t.policies += p
	}
	if !d.Allowed {
		return t, appliance.Refuse(appliance.AccessDenied, "", "%s may not do %s in tenant %s: %s", who.ID, action, tenant, d.Reason).
			WithReason("policy")
	}
	return t, nil
}

// inTenant finds the tenant in whose name the caller acts. A tenant that the
// caller may not act for is as absent as one that does not exist.
func (c *Control) inTenant(who appliance.Caller, id string) (appliance.Tenant, error) {
	if id == "" {
		return appliance.Tenant{}, appliance.Invalid("tenantId", "is required")
	}
	t, ok := c.mem.tenant(id)
	own := who.Kind == appliance.CallerOperator || who.Kind == appliance.CallerSystem || who.Tenant == id
	if !ok || !own {
		return appliance.Tenant{}, appliance.NoSuch("tenant")
	}
	return t, nil
}

// forTenant decides an action on the tenant in whose name the caller acts.
// Writes in the name of a deleted tenant are refused.
func (c *Control) forTenant(who appliance.Caller, action appliance.Action, id string) (appliance.Tenant, trail, error) {
	t, err := c.inTenant(who, id)
	if err != nil {
		return t, trail{}, err
	}
	if action.Writes() && t.State == appliance.TenantDeleted {
		return t, trail{}, appliance.Refuse(appliance.InvalidState, "tenantId", "tenantId: tenant %s is deleted", id)
	}
	tr, err := c.may(who, action, id, nil, "")
	return t, tr, err
}

// forPool decides an action on a pool as a tenant sees it. A pool that the
// tenant does not see, or whose reading the caller's policies forbid, is as
// absent as one that does not exist.
func (c *Control) forPool(who appliance.Caller, action appliance.Action, tenant, poolID string) (*pool, trail, error) {
	t, err := c.inTenant(who, tenant)
	if err != nil {
		return nil, trail{}, err
	}
	p, row := c.mem.poolSeen(poolID, tenant)
	if p == nil {
		return nil, trail{}, appliance.NoSuch("pool")
	}
	if action != appliance.PoolsRead {
		if _, err := c.may(who, appliance.PoolsRead, tenant, &row, ""); err != nil {
			return nil, trail{}, appliance.NoSuch("pool").Because(err)
		}
	}
	tr, err := c.may(who, action, tenant, &row, "")
	if err != nil && action == appliance.PoolsRead {
		return nil, tr, appliance.NoSuch("pool").Because(err)
	}
	if err == nil && action.Writes() && t.State == appliance.TenantDeleted {
		err = appliance.Refuse(appliance.InvalidState, "tenantId", "tenantId: tenant %s is deleted", tenant)
	}
	return p, tr, err
}

// forOwnPool is forPool for the verbs that only the pool's owner has: to
// anyone else, also to an offered tenant, there is no such pool.
func (c *Control) forOwnPool(who appliance.Caller, action appliance.Action, tenant, poolID string) (*pool, trail, error) {
	if _, err := c.inTenant(who, tenant); err != nil {
		return nil, trail{}, err
	}
	p, _ := c.mem.poolSeen(poolID, tenant)
	if p == nil || p.OwnerTenantID != tenant {
		return nil, trail{}, appliance.NoSuch("pool")
	}
	return c.forPool(who, action, tenant, poolID)
}

// write runs one verb's transaction. A write that was denied leaves a row in
// the trail of denials, since no event carries it.
func (c *Control) write(ctx context.Context, who appliance.Caller, action appliance.Action, tenant, subject string, fn func(tx *store.Tx) error) error {
	return c.deny(ctx, who, action, tenant, subject, c.Store.Write(ctx, fn))
}

// writeChecked is write for a verb that changes nothing before everything that
// could refuse it was checked.
func (c *Control) writeChecked(ctx context.Context, who appliance.Caller, action appliance.Action, tenant, subject string, fn func(tx *store.Tx) error) error {
	return c.deny(ctx, who, action, tenant, subject, c.Store.WriteChecked(ctx, fn))
}

// deny gives the error back, and keeps the trail of a write that was denied.
func (c *Control) deny(ctx context.Context, who appliance.Caller, action appliance.Action, tenant, subject string, err error) error {
	if appliance.CodeOf(err) != appliance.AccessDenied {
		return err
	}
	trailErr := c.Store.Write(ctx, func(tx *store.Tx) error {
		return tx.InsertDenial(store.Denial{At: c.now(), Actor: who.ID, Address: who.Address, Action: action, Tenant: tenant, Subject: subject})
	})
	if trailErr != nil {
		c.Log.Error("the trail of a denied write was not kept", "action", action, "actor", who.ID, "err", trailErr)
	}
	return err
}

// event starts an event of the trail.
func (c *Control) event(t trail, kind appliance.EventType, tenant, subject string, at appliance.Time) store.Entry {
	return store.Entry{
		Event: appliance.Event{Type: kind, TenantID: tenant, Subject: subject, At: at},
		Actor: t.who.ID, Policies: t.policies,
	}
}

// ofPool addresses an event to the owner of its pool too.
func ofPool(e store.Entry, p *pool) store.Entry {
	e.PoolID = p.ID
	if e.TenantID != p.OwnerTenantID {
		e.Reader = p.OwnerTenantID
	}
	return e
}

// found tells a refusal NOT_FOUND from other errors.
func isNotFound(err error) bool {
	var e *appliance.Error
	return errors.As(err, &e) && e.Code == appliance.NotFound
}

// policyFacts is what the validation of a policy depends on.
func policyFacts(p appliance.Pool, kind appliance.SiteKind) plan.PolicyContext {
	return plan.PolicyContext{
		Class: p.Class, Sharing: p.Sharing, GPUModel: p.GPUModel, SiteKind: kind,
		OwnerTenantID: p.OwnerTenantID, Attestors: Attestors,
	}
}

// Attestors are the ids of the attestors that may admit machines.
var Attestors = []string{"join-token", "x509pop", "tpm"}

// pageOf cuts a page out of a short list that is read whole, in order of key.
func pageOf[T any](items []T, page appliance.Page, key func(T) string) appliance.List[T] {
	after := slices.IndexFunc(items, func(v T) bool { return key(v) > page.Cursor })
	if after < 0 {
		return appliance.List[T]{Items: []T{}}
	}
	return store.Page(items[after:], page.Size(), key)
}

// topicSpecs is touched when the NodeSpecs of a pool may have to change.
const topicSpecs = "specs"

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
