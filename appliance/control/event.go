package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// ListEvents shows what a tenant may read after a sequence number.
func (c *Control) ListEvents(ctx context.Context, who appliance.Caller, in appliance.ListEvents) (out appliance.List[appliance.Event], err error) {
	if _, _, err := c.forTenant(who, appliance.EventsRead, in.TenantID); err != nil {
		return out, err
	}
	if in.After < 0 {
		return out, appliance.Invalid("after", "%d is below zero", in.After)
	}
	page := appliance.Page{Limit: in.Limit}
	if err := page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		if err := resumable(tx, in.After); err != nil {
			return err
		}
		out.Items, err = tx.Events(in.TenantID, in.After, page.Size())
		return err
	})
	return out, err
}

// resumable refuses a cursor behind which events were removed: a reader that
// goes on from there would have missed some without knowing.
func resumable(tx *store.Tx, after int64) error {
	if after == 0 { // from the first that is kept
		return nil
	}
	pruned, err := tx.PrunedEvents()
	if err != nil || after >= pruned {
		return err
	}
	return appliance.Refuse(appliance.InvalidState, "after",
		"after: the events up to %d were removed by retention, so some behind %d are missing; go on from %d, or from 0 for all that are kept", pruned, after, pruned).
		WithReason("EventsRemoved").With("removedUpTo", pruned)
}

// prunedAtOnce bounds one write of PruneEvents, so that it holds up no other.
const prunedAtOnce = 2000

// PruneEvents removes the events that are older than the settings keep them.
func (c *Control) PruneEvents(ctx context.Context) error {
	if c.Settings.KeepEvents <= 0 {
		return nil
	}
	before := appliance.At(c.Now().Add(-c.Settings.KeepEvents))
	for removed := int64(prunedAtOnce); removed == prunedAtOnce; {
		err := c.Store.Write(ctx, func(tx *store.Tx) (err error) {
			removed, err = tx.PruneEvents(before, prunedAtOnce)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Changed is closed after the next commit that wrote something. Take it before
// reading, so that nothing falls between.
func (c *Control) Changed() <-chan struct{} { return c.Store.Changed() }
