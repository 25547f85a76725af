package control

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/plan"
	"github.com/bettercompute/bc/appliance/store"
)

// A reservation that ends gives back its quota, its host resources and its
// charge at once. Its atoms stay taken, as releasing, while its node raises
// walls: until the node has said that the wall is gone and nobody holds a device
// behind it. That costs the end of a reservation nothing: the rows of its atoms
// are marked where they would have been deleted. Of a node that only observes,
// and of a simulated one, there is nothing to wait for.

// release is what is known of one ended reservation on one node, beside its
// atoms, which the placement index holds.
type release struct {
	tenant     string
	generation int64  // of the first NodeSpec without the binding
	message    string // who still holds it, as the node said last
}

// releaseAtoms frees a placement's atoms, or keeps them until its node says that
// its wall is gone. The node's generation has risen for it.
func (c *Control) releaseAtoms(tx *store.Tx, r appliance.Reservation, p appliance.Placement) error {
	m := &c.mem
	m.mu.Lock()
	n := m.nodes[p.NodeID]
	if n == nil || !n.walled || len(p.Atoms) == 0 {
		m.mu.Unlock()
		return tx.FreeAtoms(p.NodeID, r.ID, p.Atoms)
	}
	rel := &release{tenant: r.TenantID, generation: n.generation}
	err := m.hold(p.NodeID, r.ID, p.Atoms, rel)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.free(p.NodeID, r.ID)
	})
	return tx.KeepAtoms(p.NodeID, r.ID, p.Atoms, rel.generation)
}

// hold and free keep the index and what is known beside it together.
func (m *memory) hold(nodeID, reservationID string, atoms []string, rel *release) error {
	if err := m.index.Hold(nodeID, reservationID, atoms); err != nil {
		return err
	}
	if m.releasing[nodeID] == nil {
		m.releasing[nodeID] = map[string]*release{}
	}
	m.releasing[nodeID][reservationID] = rel
	return nil
}

func (m *memory) free(nodeID, reservationID string) (atoms []string, rel *release) {
	rel = m.releasing[nodeID][reservationID]
	if delete(m.releasing[nodeID], reservationID); len(m.releasing[nodeID]) == 0 {
		delete(m.releasing, nodeID)
	}
	return m.index.Free(nodeID, reservationID), rel
}

// freed gives away what an ended reservation kept of a node.
func (c *Control) freed(tx *store.Tx, nodeID, reservationID string) error {
	m := &c.mem
	m.mu.Lock()
	atoms, rel := m.free(nodeID, reservationID)
	m.mu.Unlock()
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.hold(nodeID, reservationID, atoms, rel); err != nil {
			panic(err) // memory would no longer equal the rows
		}
	})
	return tx.FreeAtoms(nodeID, reservationID, atoms)
}

// freeAll gives away whatever ended reservations kept of a node: it is removed,
// or nobody raises walls there any more.
func (c *Control) freeAll(tx *store.Tx, nodeID string) error {
	c.mem.mu.RLock()
	ids := sortedKeys(c.mem.releasing[nodeID])
	c.mem.mu.RUnlock()
	for _, id := range ids {
		if err := c.freed(tx, nodeID, id); err != nil {
			return err
		}
	}
	return nil
}

// takeWalls takes what a node says of the walls that come down. One is gone when
// the node has brought its walls to a NodeSpec without the binding and does not
// list it; a list that is of an older NodeSpec, or of one that was never given,
// says nothing of it.
func (c *Control) takeWalls(tx *store.Tx, p *pool, rec store.NodeRecord, h wire.Heartbeat) error {
	m := &c.mem
	m.mu.RLock()
	ids := sortedKeys(m.releasing[rec.ID])
	m.mu.RUnlock()
	if len(ids) == 0 {
		return nil
	}
	changed := false
	for _, id := range ids {
		m.mu.RLock()
		rel, newest := m.releasing[rec.ID][id], m.nodes[rec.ID].generation
		m.mu.RUnlock()
		i := slices.IndexFunc(*h.Bindings, func(b wire.BindingStatus) bool { return b.ReservationID == id })
		switch {
		case !rec.Walled, i < 0 && h.Walls.Generation >= rel.generation && h.Walls.Generation <= newest:
			if err := c.freed(tx, rec.ID, id); err != nil {
				return err
			}
			changed = true
		case i >= 0:
			changed = c.noteHolder(tx, rel, endingWords((*h.Bindings)[i])) || changed
		}
	}
	if !changed {
		return nil
	}
	if p.Sharing == appliance.SharingMIG {
		c.dirty(tx, rec.ID) // its NodeSpec names the GPUs that keep their layout
	}
	c.stir(tx, p.ID)
	return nil
}

func (c *Control) noteHolder(tx *store.Tx, rel *release, message string) bool {
	m := &c.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	before := rel.message
	if rel.message = message; before == message {
		return false
	}
	tx.Undo(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		rel.message = before
	})
	return true
}

// endingWords says what keeps a binding that is not wanted any more.
func endingWords(b wire.BindingStatus) string {
	if !b.Ending {
		return "its node still enforces it"
	}
	text := b.Note
	if text == "" {
		for i, h := range b.Holders {
			if i > 0 {
				text += ", "
			}
			text += fmt.Sprintf("%s (pid %d)", h.Command, h.PID)
		}
	}
	return cmp.Or(text, "its programs are being stopped")
}

// loadReleasing holds what ended reservations keep.
func (c *Control) loadReleasing(tx *store.Tx) error {
	all, err := tx.AllReleasing()
	if err != nil {
		return err
	}
	for _, r := range all {
		if err := c.mem.hold(r.NodeID, r.ReservationID, r.Atoms, &release{tenant: r.TenantID, generation: r.Generation}); err != nil {
			return fmt.Errorf("what reservation %s still keeps: %w", r.ReservationID, err)
		}
	}
	return nil
}

// verifyReleasing compares what ended reservations keep with the rows.
func (c *Control) verifyReleasing(tx *store.Tx, wrong *findings) error {
	all, err := tx.AllReleasing()
	if err != nil {
		return err
	}
	count := 0
	for _, r := range all {
		rel := c.mem.releasing[r.NodeID][r.ReservationID]
		if rel == nil || rel.generation != r.Generation || rel.tenant != r.TenantID {
			wrong.add("reservation %s keeps atoms of node %s, in memory it does not", r.ReservationID, r.NodeID)
			continue
		}
		count++
		held := c.mem.index.Releasing(r.NodeID)
		i := slices.IndexFunc(held, func(h plan.Releasing) bool { return h.ReservationID == r.ReservationID })
		if i < 0 || !slices.Equal(slices.Sorted(slices.Values(held[i].Atoms)), r.Atoms) {
			wrong.add("reservation %s keeps other atoms of node %s in memory", r.ReservationID, r.NodeID)
		}
	}
	for node, ids := range c.mem.releasing {
		count -= len(ids)
		if len(ids) != len(c.mem.index.Releasing(node)) {
			wrong.add("node %s releases for %d reservations, in the index for %d", node, len(ids), len(c.mem.index.Releasing(node)))
		}
	}
	if count != 0 {
		wrong.add("in memory %d reservations more keep atoms than in the file", -count)
	}
	return nil
}

// viewReleasing lists what ended reservations keep of a node, as a tenant sees
// it: its own, or all if the pool is its own. The caller holds mu.
func (m *memory) viewReleasing(p *pool, nodeID, tenant string) []appliance.Releasing {
	var out []appliance.Releasing
	for _, r := range m.index.Releasing(nodeID) {
		rel := m.releasing[nodeID][r.ReservationID]
		if p.OwnerTenantID == tenant || rel.tenant == tenant {
			out = append(out, appliance.Releasing{ReservationID: r.ReservationID, Atoms: slices.Clone(r.Atoms), Message: m.holder(nodeID, rel)})
		}
	}
	return out
}

// holder says who keeps what is being released, or that nobody can say.
func (m *memory) holder(nodeID string, rel *release) string {
	if m.nodes[nodeID].state == appliance.NodeUnreachable {
		return "the node does not answer, so nobody knows whether it is free"
	}
	return cmp.Or(rel.message, "waiting for the node to say that it is free")
}

// releasingShown is how many nodes an explanation names.
const releasingShown = 3

// explainReleasing adds to the explanation of a reservation that waits what is
// about to become free. Who holds it is told to those whose reservation it was
// and to the pool's owner: another tenant's programs are no concern of others.
// The caller holds mu.
func (m *memory) explainReleasing(p *pool, tenant string, x *appliance.Explanation) {
	named := 0
	for i := range x.Nodes {
		n := &x.Nodes[i]
		for _, r := range m.index.Releasing(n.NodeID) {
			rel := m.releasing[n.NodeID][r.ReservationID]
			who := "its last user's programs have not ended yet"
			if p.OwnerTenantID == tenant || rel.tenant == tenant || m.nodes[n.NodeID].state == appliance.NodeUnreachable {
				who = m.holder(n.NodeID, rel)
			}
			text := fmt.Sprintf("%s being freed on node %s: %s", atomWords(p.Sharing, len(r.Atoms)), n.Hostname, who)
			if !n.Fits {
				n.Missing = append(n.Missing, text)
			}
			if named++; named <= releasingShown {
				x.Message += "; " + text
			}
		}
	}
	if named > releasingShown {
		x.Message += fmt.Sprintf("; and of %d reservations more", named-releasingShown)
	}
}

func atomWords(s appliance.Sharing, n int) string {
	noun := map[string]string{appliance.ResourceMIG: "MIG instance", appliance.ResourceSlot: "slot"}[s.Resource()]
	if noun = cmp.Or(noun, "GPU"); n == 1 {
		return "1 " + noun + " is"
	}
	return fmt.Sprintf("%d %ss are", n, noun)
}
