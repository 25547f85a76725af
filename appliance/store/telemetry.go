package store

// metaTelemetry holds the telemetry default that nodes were last told, as JSON.
const metaTelemetry = "telemetry"

// TellTelemetry notes the default that nodes are told where their pool's policy
// does not say, as JSON, empty for none. If it is another one than before, what
// is wanted of every node is out of date.
func (tx *Tx) TellTelemetry(json string) error {
	before, err := tx.Meta(metaTelemetry)
	if err != nil || before == json {
		return err
	}
	if _, err := tx.Exec(`UPDATE nodes SET spec_version = 0 WHERE removed_at IS NULL`); err != nil {
		return err
	}
	return tx.SetMeta(metaTelemetry, json)
}
