package control

import (
	"context"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// keyring remembers the keys that were used lately, so that a call costs no
// read, and when each was last used until that is written down.
type keyring struct {
	mu     sync.Mutex
	byHash map[string]appliance.Key
	used   map[string]appliance.Time
}

const maxKeyring = 4096 // keys; past that the ring starts anew

// Authenticate finds the caller that a bearer credential stands for.
func (c *Control) Authenticate(ctx context.Context, bearer string) (appliance.Caller, error) {
	prefix, err := iam.ParseSecret(bearer)
	if err != nil {
		return appliance.Caller{}, err
	}
	hash := iam.HashSecret(bearer)
	switch prefix {
	case iam.NodeSecret:
		if who, ok := c.nodeCaller(hash); ok {
			return who, nil
		}
		return appliance.Caller{}, c.strangeNode(ctx, hash)
	case iam.SessionSecret:
		if who, ok, err := c.sessionCaller(ctx, hash); ok || err != nil {
			return who, err
		}
	case iam.APIKeySecret:
		k, err := c.keys.find(ctx, c.Store, hash)
		if err != nil && !isNotFound(err) {
			return appliance.Caller{}, err
		}
		now := c.now()
		if err == nil && k.RevokedAt == nil && (k.ExpiresAt == nil || k.ExpiresAt.After(now.Time)) {
			c.keys.use(k.ID, now)
			return appliance.Caller{Kind: appliance.CallerKey, ID: k.ID, Tenant: k.TenantID, Role: k.Role}, nil
		}
	}
	return appliance.Caller{}, notKnown()
}

func notKnown() error {
	return appliance.Refuse(appliance.Unauthenticated, "", "the credential is not known, has expired or was revoked")
}

// strangeNode tells the agent of a node that was removed that it was, so that it
// puts its machine back, and no one else anything.
func (c *Control) strangeNode(ctx context.Context, hash string) error {
	var rec store.NodeRecord
	err := c.Store.Read(ctx, func(tx *store.Tx) (err error) {
		rec, err = tx.RemovedNode(hash)
		return err
	})
	switch {
	case isNotFound(err):
		return notKnown()
	case err != nil:
		return err
	}
	return appliance.Refuse(appliance.NotFound, "", "node %s was removed", rec.Hostname).WithReason(wire.ReasonNodeRemoved)
}

func (r *keyring) find(ctx context.Context, s *store.Store, hash string) (k appliance.Key, err error) {
	r.mu.Lock()
	k, ok := r.byHash[hash]
	r.mu.Unlock()
	if ok {
		return k, nil
	}
	err = s.Read(ctx, func(tx *store.Tx) error {
		k, err = tx.KeyByHash(hash)
		return err
	})
	if err != nil {
		return k, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHash == nil || len(r.byHash) >= maxKeyring {
		r.byHash = map[string]appliance.Key{}
	}
	r.byHash[hash] = k
	return k, nil
}

// forget drops a key that was revoked.
func (r *keyring) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hash, k := range r.byHash {
		if k.ID == id {
			delete(r.byHash, hash)
		}
	}
}

func (r *keyring) use(id string, at appliance.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used == nil {
		r.used = map[string]appliance.Time{}
	}
	if last, ok := r.used[id]; !ok || at.Sub(last.Time) > time.Second {
		r.used[id] = at
	}
}

// NoteKeyUse writes down when keys were last used.
func (c *Control) NoteKeyUse(ctx context.Context) error {
	c.keys.mu.Lock()
	used := c.keys.used
	c.keys.used = nil
	c.keys.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return c.Store.Write(ctx, func(tx *store.Tx) error { return tx.TouchKeys(used) })
}
