package control

import (
	"context"
	"encoding/json"

	"github.com/bettercompute/bc/appliance/store"
)

// tellTelemetry has every node looked at again if the configuration's default
// changed since the last start: their pools' versions did not.
func (c *Control) tellTelemetry(ctx context.Context) error {
	var text string
	if t := c.Settings.Telemetry; t != nil {
		b, err := json.Marshal(t)
		if err != nil {
			return err
		}
		text = string(b)
	}
	return c.Store.Write(ctx, func(tx *store.Tx) error { return tx.TellTelemetry(text) })
}
