package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

// openNodes opens a store with a pool and nodes, and what a start reads of each.
func openNodes(t *testing.T, nodes []NodeRecord) *Store {
	t.Helper()
	s := openTest(t, Options{migrations: embedded})
	err := s.Write(t.Context(), func(tx *Tx) error {
		for _, q := range []string{
			`INSERT INTO tenants (id, parent_id, name, state, created_at) VALUES ('root', NULL, 'root', 'active', 1)`,
			`INSERT INTO sites (id, owner_tenant_id, kind, name, region, created_at) VALUES ('site_1', 'root', 'custom', 'site', 'local', 1)`,
			`INSERT INTO pools (id, owner_tenant_id, site_id, class, gpu_model, sharing, agent, policy, version, created_at)
				VALUES ('pool_1', 'root', 'site_1', 'metal-host', 'H100', 'exclusive', 'host', '{}', 1, 1)`,
		} {
			if _, err := tx.Exec(q); err != nil {
				return err
			}
		}
		for i, n := range nodes {
			if err := tx.PutNode(n); err != nil {
				return err
			}
			if err := tx.PutNodeFacts(n.ID, factsOf(i)); err != nil {
				return err
			}
			if err := tx.PutLedger(ledgerOf(n.ID, i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func factsOf(i int) NodeFacts {
	return NodeFacts{Shape: fmt.Sprintf(`{"shape":%d}`, i%2), Attributes: `{"a":"b\tc"}`, Own: fmt.Sprintf(`{"own":%d}`, i)}
}

func ledgerOf(id string, i int) NodeLedger {
	return NodeLedger{NodeID: id, Generation: int64(i) << 40, Resources: []appliance.ResourceRow{{Resource: "vcpu", Total: 8, Allocated: i % 2, Overcommit: 1.5}}}
}

// someNodes are nodes with whatever a machine may call itself.
func someNodes() []NodeRecord {
	removed := appliance.AtMillis(2)
	var out []NodeRecord
	for i, name := range []string{"gpu-1", "", "a\tb", "two\nlines", "größe", "nul\x00nul", "12\t3", "gone"} {
		out = append(out, NodeRecord{
			ID: fmt.Sprintf("node_%d", i), PoolID: "pool_1", MachineID: fmt.Sprintf("%d\t", i) + name, Hostname: name,
			Role: appliance.RoleHost, Control: appliance.ControlPlatform, State: appliance.NodeReady, Simulated: i%2 == 1,
			CredentialHash: strings.Repeat("c", i) + "\t", SpecVersion: i, InventoryHash: strings.Repeat("\tx", i), JoinedAt: appliance.AtMillis(1),
		})
	}
	out[len(out)-1].RemovedAt = &removed
	return out
}

// What a start reads of a node in one text is what its row says, whatever the
// machine calls itself.
func TestALoadedNodeIsWhatItsRowsSay(t *testing.T) {
	nodes := someNodes()
	s := openNodes(t, nodes)
	var want, got []LoadedNode
	for i, n := range nodes[:len(nodes)-1] { // the last one is removed
		want = append(want, LoadedNode{
			ID: n.ID, PoolID: n.PoolID, MachineID: n.MachineID, Hostname: n.Hostname, CredentialHash: n.CredentialHash, InventoryHash: n.InventoryHash,
			Role: n.Role, Control: n.Control, State: n.State, Simulated: n.Simulated, SpecVersion: n.SpecVersion,
			Facts: factsOf(i), Ledger: ledgerOf(n.ID, i),
		})
	}
	err := s.Read(t.Context(), func(tx *Tx) error {
		return tx.LoadNodes(func(n *LoadedNode) error { got = append(got, *n); return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-rows +loaded):\n%s", diff)
	}
}

func TestANodeOfWhichARowIsMissingIsNotLoaded(t *testing.T) {
	for table, says := range map[string]string{"node_facts": "what the placer knows of it", "node_ledgers": "its counters"} {
		for _, id := range []string{"node_0", "node_3", "node_6"} {
			s := openNodes(t, someNodes())
			err := s.Write(t.Context(), func(tx *Tx) error {
				_, err := tx.Exec(`DELETE FROM `+table+` WHERE node_id = ?`, id)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Read(t.Context(), func(tx *Tx) error {
				return tx.LoadNodes(func(n *LoadedNode) error {
					if n.ID == id {
						t.Errorf("%s without its row of %s: it was loaded", id, table)
					}
					return nil
				})
			})
			if err == nil || !strings.Contains(err.Error(), id) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s without its row of %s: %v", id, table, err)
			}
		}
	}
}

func TestATextThatIsNoNodeIsRefused(t *testing.T) {
	var whole string
	s := openNodes(t, someNodes()[:1])
	err := s.Read(t.Context(), func(tx *Tx) error {
		return tx.QueryRow(`SELECT ` + loadedColumns + ` FROM nodes`).Scan(&whole)
	})
	if err != nil {
		t.Fatal(err)
	}
	var same shared
	for n := range len(whole) {
		if err := same.readNode(whole[:n], &LoadedNode{}); err == nil {
			t.Errorf("%q, which is cut short, was read", whole[:n])
		}
	}
	if err := same.readNode(whole, &LoadedNode{}); err != nil {
		t.Errorf("%q: %v", whole, err)
	}
}
