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
		out.Items, err = tx.Events(in.TenantID, in.After, page.Size())
		return err
	})
	return out, err
}

// Changed is closed after the next commit that wrote something. Take it before
// reading, so that nothing falls between.
func (c *Control) Changed() <-chan struct{} { return c.Store.Changed() }
