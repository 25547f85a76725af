package control

import (
	"context"
	"slices"

	"github.com/bettercompute/bc/appliance/store"
)

// SpecsChanged is closed after the next commit that changed a pool's policy.
func (c *Control) SpecsChanged() <-chan struct{} { return c.Store.ChangedIn(topicSpecs) }

// RefreshNodes brings the nodes whose pool was updated since to its policy:
// what is wanted of them, and what can be booked of them. Where that disrupts,
// they get their turn as the pool's disruptionBudget allows. A node that is up to
// date costs no read and no write.
func (c *Control) RefreshNodes(ctx context.Context) error {
	m := &c.mem
	m.mu.RLock()
	var stale []string
	for id, n := range m.nodes {
		if p := m.pools[n.pool]; p != nil && p.Version != n.version {
			stale = append(stale, id)
		}
	}
	m.mu.RUnlock()
	slices.Sort(stale)
	for batch := range slices.Chunk(stale, 50) { // so that no write holds the others up for long
		err := c.Store.Write(ctx, func(tx *store.Tx) error {
			for _, id := range batch {
				if err := c.refreshNode(tx, system("specs"), id); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return c.giveTurns(ctx)
}

// refreshNode settles a node again from what is stored of it.
func (c *Control) refreshNode(tx *store.Tx, tr trail, id string) error {
	rec, err := tx.Node(id)
	if err != nil || rec.RemovedAt != nil {
		return err
	}
	_, err = c.resettle(tx, tr, rec)
	return err
}
