package store

// RemovedNode reads the node that was removed and had a credential, by its hash.
func (tx *Tx) RemovedNode(credentialHash string) (NodeRecord, error) {
	return one(tx, "node", scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE credential_hash = ? AND removed_at IS NOT NULL`, credentialHash)
}
