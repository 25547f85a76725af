package plan

import (
	"math/bits"
	"slices"
)

// DeviceState is what the index knows of one GPU of a node and of who holds it.
type DeviceState struct {
	UUID         string
	Missing      bool // booked, but no longer among the node's devices
	Atoms        int  // that it yields when healthy
	Free         int  // that can be booked now, if the node takes bookings
	Releasing    int  // that ended reservations still keep
	Reservations []string
}

// Devices lists the GPUs of a node in order of index, then those that are
// missing, by UUID. It is nil if there is no such node.
func (x *Index) Devices(nodeID string) []DeviceState {
	n := x.nodes[nodeID]
	if n == nil {
		return nil
	}
	out := make([]DeviceState, n.uuids.len())
	for i, uuid := range n.uuids.all() {
		out[i] = DeviceState{UUID: uuid, Atoms: bits.OnesCount64(n.atomsOf(i)), Free: bits.OnesCount64(n.freeAtoms(i)), Releasing: bits.OnesCount64(n.releasingOf(i))}
	}
	for _, s := range n.shares {
		for _, uuid := range s.devices {
			i := slices.IndexFunc(out, func(d DeviceState) bool { return d.UUID == uuid })
			if i < 0 {
				i = len(out)
				for i > n.uuids.len() && out[i-1].UUID > uuid {
					i--
				}
				out = slices.Insert(out, i, DeviceState{UUID: uuid, Missing: true})
			}
			out[i].Reservations = append(out[i].Reservations, s.booking.id)
		}
	}
	return out
}

// NodeCount is how many nodes a pool has.
func (x *Index) NodeCount(poolID string) int {
	if p := x.pools[poolID]; p != nil {
		return p.tally.nodes
	}
	return 0
}
