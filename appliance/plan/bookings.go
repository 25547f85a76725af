package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Share is one reservation's part of a node.
type Share struct {
	ReservationID string
	TenantID      string
	Binding       appliance.BindingKind
	Placement     appliance.Placement
	Devices       []wire.Device // the atoms as the node's agent names them
}

// Shares lists what is booked of a node, in order of reservation.
func (x *Index) Shares(nodeID string) []Share {
	n := x.nodes[nodeID]
	if n == nil {
		return nil
	}
	out := make([]Share, len(n.shares))
	for i, s := range n.shares {
		out[i] = Share{
			ReservationID: s.booking.id, TenantID: s.booking.tenant, Binding: s.booking.binding,
			Placement: s.placement(), Devices: n.wireDevices(s.atoms),
		}
	}
	return out
}

// wireDevices names atoms for the agent. A MIG instance that the node has no
// more is named alone: its GPU is not known any longer.
func (n *node) wireDevices(atoms []string) []wire.Device {
	out := make([]wire.Device, len(atoms))
	for i, atom := range atoms {
		switch n.pool.sharing.Resource() {
		case appliance.ResourceMIG:
			out[i].Instance = atom
			if gpu, _, ok := n.findAtom(atom); ok {
				out[i].UUID = n.uuids.at(gpu)
			}
		case appliance.ResourceSlot:
			uuid, slot, _ := strings.Cut(atom, "#")
			at, _ := strconv.Atoi(slot)
			out[i] = wire.Device{UUID: uuid, Slot: &at}
		default:
			out[i].UUID = atom
		}
	}
	return out
}

// MIGProfiles lists the profiles of the MIG instances that a pool has.
func (x *Index) MIGProfiles(poolID string) []string {
	p := x.pools[poolID]
	if p == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(p.profiles))
}
