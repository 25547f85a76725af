package store

import "github.com/bettercompute/bc/appliance"

// Reboot is the last reboot that was asked for on a node.
type Reboot struct {
	appliance.Reboot
	BootID  string `json:"bootId"`  // the boot that it ends
	Drained bool   `json:"drained"` // the node is held for it, and let go when it is done
}

// PutReboot makes or replaces a node's reboot.
func (tx *Tx) PutReboot(node string, r Reboot) error {
	_, err := tx.Exec(`INSERT INTO reboots (node_id, body) VALUES (?, ?)
		ON CONFLICT (node_id) DO UPDATE SET body = excluded.body`, node, toJSON(r))
	return err
}

// DropReboot forgets a node's reboot.
func (tx *Tx) DropReboot(node string) error {
	_, err := tx.Exec(`DELETE FROM reboots WHERE node_id = ?`, node)
	return err
}

// Reboot reads a node's reboot; nil if none was asked for.
func (tx *Tx) Reboot(node string) (*Reboot, error) {
	all, err := collect(tx, func(r *Rows) (out Reboot, err error) {
		var body string
		if err := r.Scan(&body); err != nil {
			return out, err
		}
		return out, fromJSON(body, &out)
	}, `SELECT body FROM reboots WHERE node_id = ?`, node)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}
