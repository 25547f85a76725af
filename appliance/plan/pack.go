package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// A node's facts are kept beside its inventory in a small form, so that ten
// thousand of them are read at a start without ten thousand inventories: what
// like machines share is apart from what is a machine's own, and is read once.

// Packed is a node's facts in three texts: the same for machines of one make,
// for machines with the same attributes, and a node's own. Who the node is, its
// pool and its rows are not in it.
type Packed struct{ Shape, Attributes, Own string }

// packedShape is where the GPUs and CPUs of a machine are. Devices are in the
// node's order; their peers are numbers in it.
type packedShape struct {
	Devices  []packedDevice `json:"devices,omitempty"`
	Topology *Topology      `json:"topology,omitempty"`
}

type packedDevice struct {
	Index   int    `json:"index"`
	Address string `json:"address"`
	NUMA    int    `json:"numa"`
	Peers   []int  `json:"peers,omitempty"`
}

type packedOwn struct {
	UUIDs         []string       `json:"uuids,omitempty"`
	Unhealthy     map[int]string `json:"unhealthy,omitempty"`
	Instances     [][]Instance   `json:"instances,omitempty"`
	Waits         []int          `json:"waits,omitempty"`
	Replicas      int            `json:"replicas,omitempty"`
	Schedulable   bool           `json:"schedulable"`
	Unschedulable string         `json:"unschedulable,omitempty"`
}

var packing = json.JoinOptions(json.Deterministic(true), jsonv1.OmitEmptyWithLegacySemantics(true))

// Pack gives the node's facts in their small form.
func (n *Node) Pack() (Packed, error) {
	shape := packedShape{Topology: n.Topology, Devices: make([]packedDevice, len(n.Devices))}
	own := packedOwn{Replicas: n.Replicas, Schedulable: n.Schedulable, Unschedulable: n.Unschedulable, UUIDs: make([]string, len(n.Devices))}
	at := make(map[string]int, len(n.Devices))
	for i, d := range n.Devices {
		at[d.UUID] = i
	}
	for i, d := range n.Devices {
		shape.Devices[i] = packedDevice{Index: d.Index, Address: d.Address, NUMA: d.NUMANode}
		for _, peer := range d.NVLinkPeers {
			if j, ok := at[peer]; ok {
				shape.Devices[i].Peers = append(shape.Devices[i].Peers, j)
			}
		}
		own.UUIDs[i] = d.UUID
		if !d.Healthy {
			if own.Unhealthy == nil {
				own.Unhealthy = map[int]string{}
			}
			own.Unhealthy[i] = d.HealthReason
		}
		if d.Waits {
			own.Waits = append(own.Waits, i)
		}
		if len(d.Instances) > 0 {
			if own.Instances == nil {
				own.Instances = make([][]Instance, len(n.Devices))
			}
			own.Instances[i] = d.Instances
		}
	}
	attributes := make(map[string]string, len(n.Attributes))
	for name, value := range n.Attributes {
		if name != AttributeHostname {
			attributes[name] = value
		}
	}
	var p Packed
	for _, part := range []struct {
		to *string
		v  any
	}{{&p.Shape, shape}, {&p.Attributes, attributes}, {&p.Own, own}} {
		text, err := json.Marshal(part.v, packing)
		if err != nil {
			return p, fmt.Errorf("pack the facts of node %s: %w", n.ID, err)
		}
		*part.to = string(text)
	}
	return p, nil
}

// Unpacker reads packed facts for an index. What nodes share it reads once, and
// gives each the same topology and attributes, which must not be changed.
type Unpacker struct {
	shapes     map[string]*unpackedShape
	attributes map[string]map[string]string
	last       *unpackedShape
	own        packedOwn
}

// unpackedShape is a shape as the index takes it.
type unpackedShape struct {
	packedShape
	text   string
	places []place
}

// Unpacked is what the index need not find out anew for each of many like
// nodes: where its GPUs are, in the order of its devices, and the text that its
// attributes came from.
type Unpacked struct {
	places     []place
	attributes string
}

// Unpack sets what was packed of a node, for [Index.PutNode]: the NVLink peers
// of its devices are not in the devices.
func (u *Unpacker) Unpack(p Packed, n *Node) error {
	shape := u.last // most nodes are like the one before, and the text is long
	if shape == nil || shape.text != p.Shape {
		shape = u.shapes[p.Shape]
	}
	attributes := u.attributes[p.Attributes]
	if shape == nil {
		shape = &unpackedShape{text: p.Shape}
		if err := json.Unmarshal([]byte(p.Shape), &shape.packedShape); err != nil {
			return fmt.Errorf("the shape of node %s: %w", n.ID, err)
		}
		shape.places = make([]place, len(shape.Devices))
		for i, d := range shape.Devices {
			shape.places[i] = place{index: d.Index, address: d.Address, numa: d.NUMA}
			for _, peer := range d.Peers {
				if peer < 0 || peer >= len(shape.Devices) {
					return fmt.Errorf("the shape of node %s: NVLink to GPU %d of %d", n.ID, peer, len(shape.Devices))
				}
				if peer != i {
					shape.places[i].peers |= 1 << peer
				}
			}
		}
		if u.shapes == nil {
			u.shapes, u.attributes = map[string]*unpackedShape{}, map[string]map[string]string{}
		}
		u.shapes[p.Shape] = shape
	}
	u.last = shape
	if attributes == nil {
		if err := json.Unmarshal([]byte(p.Attributes), &attributes); err != nil {
			return fmt.Errorf("the attributes of node %s: %w", n.ID, err)
		}
		u.attributes[p.Attributes] = attributes
	}
	own := &u.own
	if err := own.read(p.Own); err != nil {
		return fmt.Errorf("the facts of node %s: %w", n.ID, err)
	}
	if len(own.UUIDs) != len(shape.Devices) {
		return fmt.Errorf("node %s has %d GPUs in a shape of %d", n.ID, len(own.UUIDs), len(shape.Devices))
	}
	n.Attributes, n.Topology = attributes, shape.Topology
	n.Schedulable, n.Unschedulable = own.Schedulable, own.Unschedulable
	if own.Replicas > 0 { // facts that were packed before they had it are the pool's
		n.Replicas = own.Replicas
	}
	n.Devices = slices.Grow(n.Devices[:0], len(shape.Devices))[:len(shape.Devices)]
	for i, d := range shape.Devices {
		reason, sick := own.Unhealthy[i]
		n.Devices[i] = Device{UUID: own.UUIDs[i], Index: d.Index, Address: d.Address, NUMANode: d.NUMA, Healthy: !sick, HealthReason: reason}
		if own.Instances != nil {
			n.Devices[i].Instances = own.Instances[i]
		}
	}
	for _, i := range own.Waits {
		if i < 0 || i >= len(n.Devices) {
			return fmt.Errorf("node %s has no GPU %d of %d to wait", n.ID, i, len(n.Devices))
		}
		n.Devices[i].Waits = true
	}
	n.Unpacked = &Unpacked{places: shape.places, attributes: p.Attributes}
	return nil
}

// read reads what Pack wrote, into the memory of what was read before. Nearly
// every node is well and takes bookings, and has nothing but the UUIDs of its
// GPUs: those are read without a decoder.
func (own *packedOwn) read(text string) error {
	list, ok := strings.CutPrefix(text, `{"uuids":["`)
	if ok {
		list, ok = strings.CutSuffix(list, `"],"schedulable":true}`)
	}
	*own = packedOwn{UUIDs: own.UUIDs[:0]}
	if !ok || strings.ContainsAny(list, "\\[]{}") {
		return json.Unmarshal([]byte(text), own)
	}
	own.UUIDs, own.Schedulable = slices.AppendSeq(own.UUIDs, strings.SplitSeq(list, `","`)), true
	return nil
}
