package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// NodeRecord is a node's row: what is known of it apart from its inventory and
// its counters.
type NodeRecord struct {
	ID             string
	PoolID         string
	MachineID      string
	Hostname       string
	Role           appliance.NodeRole
	Control        appliance.NodeControl
	State          appliance.NodeState
	Hold           appliance.NodeState // "", cordoned or draining: what an operator set
	Simulated      bool
	Local          bool
	CredentialHash string
	Labels         map[string]string
	Conditions     []appliance.Condition
	Units          []appliance.Unit
	Checks         []wire.CheckResult
	Spec           wire.NodeSpec // without generation and bindings
	SpecVersion    int           // of the pool, that Spec and the counters were made from
	InventoryHash  string
	JoinedAt       appliance.Time
	RemovedAt      *appliance.Time
	Walled         bool               // its agent walls bookings in, and says when a wall is gone
	Rollout        *appliance.Rollout // nil: it has all of its pool's policy, and is at rest
}

const nodeColumns = `id, pool_id, machine_id, hostname, role, control, state, hold, simulated, local, credential_hash,
	labels_json, conditions_json, units_json, checks_json, spec_json, spec_version, inventory_hash, joined_at, removed_at, walled, rollout_json`

func scanNode(r *Rows) (n NodeRecord, err error) {
	var labels, conditions, units, checks, spec, rollout string
	if err := r.Scan(&n.ID, &n.PoolID, &n.MachineID, &n.Hostname, &n.Role, &n.Control, &n.State, &n.Hold, &n.Simulated, &n.Local, &n.CredentialHash,
		&labels, &conditions, &units, &checks, &spec, &n.SpecVersion, &n.InventoryHash, &n.JoinedAt, &n.RemovedAt, &n.Walled, &rollout); err != nil {
		return n, err
	}
	if rollout != "" {
		n.Rollout = &appliance.Rollout{}
		if err := fromJSON(rollout, n.Rollout); err != nil {
			return n, err
		}
	}
	return n, errors.Join(fromJSON(labels, &n.Labels), fromJSON(conditions, &n.Conditions), fromJSON(units, &n.Units),
		fromJSON(checks, &n.Checks), fromJSON(spec, &n.Spec))
}

// PutNode makes or replaces a node's row.
func (tx *Tx) PutNode(n NodeRecord) error {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	rollout := ""
	if n.Rollout != nil {
		rollout = toJSON(n.Rollout)
	}
	_, err := tx.Exec(`INSERT INTO nodes (`+nodeColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET pool_id = excluded.pool_id, hostname = excluded.hostname, role = excluded.role,
			control = excluded.control, state = excluded.state, hold = excluded.hold, simulated = excluded.simulated, local = excluded.local,
			credential_hash = excluded.credential_hash, labels_json = excluded.labels_json, conditions_json = excluded.conditions_json,
			units_json = excluded.units_json, checks_json = excluded.checks_json, spec_json = excluded.spec_json, spec_version = excluded.spec_version,
			inventory_hash = excluded.inventory_hash, removed_at = excluded.removed_at,
			walled = excluded.walled, rollout_json = excluded.rollout_json`,
		n.ID, n.PoolID, n.MachineID, n.Hostname, n.Role, n.Control, n.State, n.Hold, n.Simulated, n.Local, n.CredentialHash,
		toJSON(n.Labels), toJSON(n.Conditions), toJSON(n.Units), toJSON(n.Checks), toJSON(n.Spec), n.SpecVersion, n.InventoryHash, n.JoinedAt, n.RemovedAt, n.Walled, rollout)
	return err
}

// Node reads one node, removed ones too.
func (tx *Tx) Node(id string) (NodeRecord, error) {
	return one(tx, "node", scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE id = ?`, id)
}

// NodesSeen lists the live nodes in pools that a tenant sees, or in one of
// them, in order of id, after a cursor.
func (tx *Tx) NodesSeen(tenant, pool, after string, limit int) ([]NodeRecord, error) {
	return collect(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes
		WHERE removed_at IS NULL AND id > ?3 AND (?2 = '' OR pool_id = ?2)
			AND pool_id IN (SELECT pool_id FROM pool_authz WHERE tenant_id = ?1)
		ORDER BY id LIMIT ?4`, tenant, pool, after, limit)
}

// PutInventory keeps a node's last inventory.
func (tx *Tx) PutInventory(node string, inv wire.Inventory) error {
	_, err := tx.Exec(`INSERT INTO node_inventories (node_id, body) VALUES (?, ?)
		ON CONFLICT (node_id) DO UPDATE SET body = excluded.body`, node, toJSON(inv))
	return err
}

// Inventory reads a node's last inventory.
func (tx *Tx) Inventory(node string) (wire.Inventory, error) {
	return one(tx, "node", func(r *Rows) (inv wire.Inventory, err error) {
		var body string
		if err := r.Scan(&body); err != nil {
			return inv, err
		}
		return inv, fromJSON(body, &inv)
	}, `SELECT body FROM node_inventories WHERE node_id = ?`, node)
}

// NodeLedger is what changes with each booking of a node.
type NodeLedger struct {
	NodeID     string
	Generation int64 // of the NodeSpec, bindings included
	Resources  []appliance.ResourceRow
}

func scanLedger(r *Rows) (l NodeLedger, err error) {
	var body string
	if err := r.Scan(&l.NodeID, &l.Generation, &body); err != nil {
		return l, err
	}
	return l, fromJSON(body, &l.Resources)
}

// PutLedger makes or replaces a node's counters.
func (tx *Tx) PutLedger(l NodeLedger) error {
	if l.Resources == nil {
		l.Resources = []appliance.ResourceRow{}
	}
	_, err := tx.Exec(`INSERT INTO node_ledgers (node_id, generation, resources) VALUES (?, ?, ?)
		ON CONFLICT (node_id) DO UPDATE SET generation = excluded.generation, resources = excluded.resources`,
		l.NodeID, l.Generation, toJSON(l.Resources))
	return err
}

// Ledger reads a node's counters.
func (tx *Tx) Ledger(node string) (NodeLedger, error) {
	return one(tx, "node", scanLedger, `SELECT node_id, generation, resources FROM node_ledgers WHERE node_id = ?`, node)
}

// Ledgers reads the counters of every live node, in order of node.
func (tx *Tx) Ledgers() ([]NodeLedger, error) {
	return collect(tx, scanLedger, `SELECT l.node_id, l.generation, l.resources FROM node_ledgers l
		JOIN nodes n ON n.id = l.node_id AND n.removed_at IS NULL ORDER BY l.node_id`)
}

// NodesUnwell lists live nodes that are not ready, or of which a condition is
// not as it should be, in order of id.
func (tx *Tx) NodesUnwell(limit int) ([]NodeRecord, error) {
	return collect(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes
		WHERE removed_at IS NULL AND (state NOT IN ('ready', 'cordoned', 'draining') OR EXISTS (
			SELECT 1 FROM json_each(conditions_json) WHERE value ->> 'type' IN ('GPUHealthy', 'ConfigApplied') AND NOT value ->> 'status'
				AND value ->> 'reason' NOT IN ('UnitOpen', 'RolloutWaiting', 'RolloutChanging')))
		ORDER BY id LIMIT ?`, limit)
}

// WasRemoved tells whether a machine was a node that was removed.
func (tx *Tx) WasRemoved(machineID string) (bool, error) {
	var n int
	err := tx.QueryRow(`SELECT count(*) FROM nodes WHERE machine_id = ? AND removed_at IS NOT NULL`, machineID).Scan(&n)
	return n > 0, err
}

// NodeFacts is what the placer has to know of a node, in the small form that
// package plan makes of it.
type NodeFacts struct{ Shape, Attributes, Own string }

// PutNodeFacts keeps what the placer has to know of a node.
func (tx *Tx) PutNodeFacts(node string, f NodeFacts) error {
	sum := sha256.Sum256([]byte(f.Shape))
	hash := hex.EncodeToString(sum[:16])
	if _, err := tx.Exec(`INSERT INTO node_shapes (hash, body) VALUES (?, ?) ON CONFLICT DO NOTHING`, hash, f.Shape); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO node_facts (node_id, shape, attributes, own) VALUES (?, ?, ?, ?)
		ON CONFLICT (node_id) DO UPDATE SET shape = excluded.shape, attributes = excluded.attributes, own = excluded.own`,
		node, hash, f.Attributes, f.Own)
	return err
}

// LoadedNode is what a start reads of a node: no more than decisions need.
// Resources may be shared by nodes that have the same, and must not be changed.
type LoadedNode struct {
	ID, PoolID, MachineID, Hostname, CredentialHash, InventoryHash string

	Role        appliance.NodeRole
	Control     appliance.NodeControl
	State       appliance.NodeState
	Simulated   bool
	SpecVersion int

	Facts  NodeFacts
	Ledger NodeLedger
}

// LoadNodes calls each for every node that is not removed, in order of id, with
// what the placer has to know of it and its counters. A row comes as one text,
// which costs the driver less than its columns do: fields are set apart by tabs,
// which are in no id and no JSON.
func (tx *Tx) LoadNodes(each func(*LoadedNode) error) error {
	shapes := map[string]string{}
	_, err := collect(tx, func(r *Rows) (_ struct{}, err error) {
		var hash, body string
		err = r.Scan(&hash, &body)
		shapes[hash] = body
		return struct{}{}, err
	}, `SELECT hash, body FROM node_shapes`)
	if err != nil {
		return err
	}
	facts, err := tx.Query(`SELECT concat_ws(char(9), node_id, shape, attributes, own) FROM node_facts ORDER BY node_id`)
	if err != nil {
		return err
	}
	ledgers, err := tx.Query(`SELECT concat_ws(char(9), node_id, generation, resources) FROM node_ledgers ORDER BY node_id`)
	if err != nil {
		return err
	}
	nodes, err := tx.Query(`SELECT ` + loadedColumns + ` FROM nodes WHERE removed_at IS NULL ORDER BY id`)
	if err != nil {
		return err
	}
	var same shared
	resources := map[string][]appliance.ResourceRow{}
	var n LoadedNode
	var text string
	for nodes.Next() {
		n = LoadedNode{}
		if err := nodes.Scan(&text); err != nil {
			return err
		}
		if err := same.readNode(text, &n); err != nil {
			return fmt.Errorf("the row of node %s: %w", n.ID, err)
		}
		if text, err = rowOf(facts, n.ID, "what the placer knows of it"); err != nil {
			return err
		}
		var shape string
		shape, text, _ = strings.Cut(text, "\t")
		n.Facts.Shape = shapes[shape]
		n.Facts.Attributes, n.Facts.Own, _ = strings.Cut(text, "\t")
		if text, err = rowOf(ledgers, n.ID, "its counters"); err != nil {
			return err
		}
		generation, rest, _ := strings.Cut(text, "\t")
		n.Ledger.NodeID = n.ID
		if n.Ledger.Generation, err = strconv.ParseInt(generation, 10, 64); err != nil {
			return fmt.Errorf("the counters of node %s: %w", n.ID, err)
		}
		rows, ok := resources[rest]
		if !ok {
			if err := fromJSON(rest, &rows); err != nil {
				return err
			}
			resources[rest] = rows
		}
		n.Ledger.Resources = rows
		if err := each(&n); err != nil {
			return err
		}
	}
	return nodes.Err()
}

// loadedColumns are what readNode reads. What others than we have named is
// last, and the lengths of it in bytes before it: it may hold tabs.
const loadedColumns = `concat_ws(char(9), id, pool_id, role, control, state, simulated, spec_version,
	octet_length(credential_hash), octet_length(machine_id), octet_length(hostname), '') || credential_hash || machine_id || hostname || inventory_hash`

// readNode sets what one text says of a node. What is a node's own is cut from
// one string.
func (h *shared) readNode(text string, n *LoadedNode) error {
	var f [10]string
	for i := range f {
		f[i], text, _ = strings.Cut(text, "\t")
	}
	n.ID = f[0]
	var number [5]int // simulated, version, lengths
	for i := range number {
		var err error
		if number[i], err = strconv.Atoi(f[5+i]); err != nil {
			return err
		}
	}
	credential, machine, hostname := number[2], number[3], number[4]
	if credential < 0 || machine < 0 || hostname < 0 || credential+machine+hostname > len(text) {
		return errors.New("it is shorter than it says")
	}
	n.PoolID, n.Role, n.Control, n.State = h.name(f[1]), appliance.NodeRole(h.name(f[2])), appliance.NodeControl(h.name(f[3])), appliance.NodeState(h.name(f[4]))
	n.Simulated, n.SpecVersion = number[0] != 0, number[1]
	own := f[0] + text // without what is shared
	n.ID, own = own[:len(f[0])], own[len(f[0]):]
	n.CredentialHash, own = own[:credential], own[credential:]
	n.MachineID, own = own[:machine], own[machine:]
	n.Hostname, n.InventoryHash = own[:hostname], own[hostname:]
	return nil
}

// rowOf goes on to the row of a node in rows that are in order of node, and
// gives it without the node.
func rowOf(rows *Rows, id, what string) (string, error) {
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return "", err
		}
		node, rest, _ := strings.Cut(text, "\t")
		if node == id {
			return rest, nil
		}
		if node > id {
			break
		}
	}
	if err := rows.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("of node %s there is no row of %s", id, what)
}
