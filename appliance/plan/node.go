package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// Node is what the index has to know of one machine. Its bookings are not part
// of it: they come through [Index.Book].
type Node struct {
	ID       string                `json:"id"`
	PoolID   string                `json:"poolId"`
	Hostname string                `json:"hostname"`
	Role     appliance.NodeRole    `json:"role"`
	Control  appliance.NodeControl `json:"control"`

	// Schedulable tells whether the node takes new bookings; Unschedulable says
	// why not, in words that follow "node is" ("cordoned").
	Schedulable   bool   `json:"schedulable"`
	Unschedulable string `json:"unschedulable,omitempty"`

	// Attributes are what selectors match. The attribute hostname is always the
	// node's hostname, given or not.
	Attributes map[string]string `json:"attributes"`

	// Sharing is that of the pool; empty means exclusive. Replicas is the number
	// of slots of each GPU, 1 to 48, where the sharing has slots.
	Sharing  appliance.Sharing `json:"sharing"`
	Replicas int               `json:"replicas,omitempty"`

	Devices []Device `json:"devices"` // at most 64

	// Rows are the counted host resources. Allocated is not read: the index
	// counts its bookings.
	Rows []appliance.ResourceRow `json:"rows"`

	// Topology is nil where it is not known: no CPUs are then set aside. It must
	// not be changed once the node was put: nodes may share one.
	Topology *Topology `json:"topology,omitempty"`

	// Unpacked is set by an [Unpacker] alone.
	Unpacked *Unpacked `json:"-"`
}

// Device is one GPU that can be booked. Display-only GPUs are none.
type Device struct {
	UUID         string `json:"uuid"`
	Index        int    `json:"index"`
	Address      string `json:"address"`
	NUMANode     int    `json:"numaNode"` // -1: not known
	Healthy      bool   `json:"healthy"`
	HealthReason string `json:"healthReason,omitempty"`
	// Waits says that the GPU is to get another MIG layout as soon as nothing of
	// it is booked: none of it is booked anew.
	Waits bool `json:"waits,omitempty"`
	// NVLinkPeers are UUIDs of GPUs of the same node. Others are passed over.
	NVLinkPeers []string   `json:"nvlinkPeers,omitempty"`
	Instances   []Instance `json:"instances,omitempty"` // MIG instances, at most 64
}

// Instance is one MIG instance that exists on a device.
type Instance struct {
	UUID    string `json:"uuid"`
	Profile string `json:"profile"` // as the device names it
}

// The attributes that every inventory gives.
const (
	AttributeGPUProduct    = "gpuProduct" // the NVML name as given
	AttributeVRAMGiB       = "vramGiB"    // of one GPU, rounded to nearest
	AttributeGPUCount      = "gpuCount"
	AttributeDriverVersion = "driverVersion"
	AttributeCUDAVersion   = "cudaVersion"
	AttributeNUMANodes     = "numaNodes" // that have CPUs
	AttributeCPUModel      = "cpuModel"
	AttributeKernel        = "kernel"
	AttributeArch          = "arch"
	AttributeHostname      = "hostname"
)

// NodeFrom reads hostname, attributes, devices and topology from an inventory.
// The rest of the node is left to the caller: who it is, whether it takes
// bookings, how it is shared, its resource rows. Labels become attributes, but
// never replace one that the inventory gives. GPUs that only drive displays are
// left out; what the inventory does not know gives no attribute. On a host
// whose GPUs differ, gpuProduct is that of the first one and vramGiB that of
// the smallest one.
func NodeFrom(inv wire.Inventory, labels map[string]string) Node {
	n := Node{Hostname: inv.Hostname, Attributes: map[string]string{}, Topology: TopologyFrom(inv)}
	maps.Copy(n.Attributes, labels)
	set := func(key, value string) {
		if value != "" {
			n.Attributes[key] = value
		}
	}
	vram := math.MaxInt
	product, first := "", math.MaxInt
	for _, g := range inv.GPUs {
		if g.Display {
			continue
		}
		n.Devices = append(n.Devices, deviceFrom(g))
		vram = min(vram, VRAMGiB(g.MemoryMiB))
		if g.Index < first {
			product, first = g.Product, g.Index
		}
	}
	numa := 0
	for _, m := range inv.NUMA {
		if m.CPUs != "" {
			numa++
		}
	}
	set(AttributeGPUProduct, product)
	if len(n.Devices) > 0 {
		set(AttributeVRAMGiB, strconv.Itoa(vram))
	}
	set(AttributeGPUCount, strconv.Itoa(len(n.Devices)))
	set(AttributeDriverVersion, inv.GPULibrary.Driver)
	set(AttributeCUDAVersion, inv.GPULibrary.CUDA)
	if numa > 0 {
		set(AttributeNUMANodes, strconv.Itoa(numa))
	}
	set(AttributeCPUModel, inv.CPU.Model)
	set(AttributeKernel, inv.Kernel)
	set(AttributeArch, inv.Arch)
	set(AttributeHostname, inv.Hostname)
	return n
}

// VRAMGiB is a GPU's memory in GiB, rounded to nearest: 81559 MiB is 80.
func VRAMGiB(mib int) int { return (mib + 512) / 1024 }

func deviceFrom(g wire.GPU) Device {
	d := Device{
		UUID: g.UUID, Index: g.Index, Address: g.Address, NUMANode: g.NUMANode,
		Healthy: g.Health == wire.GPUHealthy, HealthReason: g.HealthReason,
	}
	if !d.Healthy && d.HealthReason == "" {
		d.HealthReason = string(g.Health)
	}
	for _, p := range g.NVLinkPeers {
		if p.Links > 0 {
			d.NVLinkPeers = append(d.NVLinkPeers, p.UUID)
		}
	}
	if g.MIG != nil {
		for _, i := range g.MIG.Instances {
			d.Instances = append(d.Instances, Instance{UUID: i.UUID, Profile: i.Profile})
		}
	}
	return d
}

func checkInstances(n *Node) error {
	var seen map[string]bool
	for _, d := range n.Devices {
		for _, i := range d.Instances {
			if i.UUID == "" || seen[i.UUID] {
				return fmt.Errorf("node %s names MIG instance %q twice or without a UUID", n.ID, i.UUID)
			}
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[i.UUID] = true
		}
	}
	return nil
}

const (
	maxDevices = 64 // a device set is one word
	maxAtoms   = 64 // so are the atoms of a device
)

// checkFacts refuses a node that the index cannot hold.
func checkFacts(n *Node) error {
	if n.ID == "" || n.PoolID == "" {
		return fmt.Errorf("node %q of pool %q: both need an id", n.ID, n.PoolID)
	}
	if len(n.Devices) > maxDevices {
		return fmt.Errorf("node %s has %d GPUs; at most %d can be booked", n.ID, len(n.Devices), maxDevices)
	}
	if slots := n.Sharing.Resource() == appliance.ResourceSlot; slots && (n.Replicas < 1 || n.Replicas > maxAtoms) {
		return fmt.Errorf("node %s: %d slots a GPU is not 1 to %d", n.ID, n.Replicas, maxAtoms)
	}
	for i := range n.Devices {
		d := &n.Devices[i]
		twice := d.UUID == ""
		for j := range i {
			twice = twice || n.Devices[j].UUID == d.UUID
		}
		if twice {
			return fmt.Errorf("node %s names GPU %q twice or without a UUID", n.ID, d.UUID)
		}
		if len(d.Instances) > maxAtoms {
			return fmt.Errorf("node %s: GPU %s has %d MIG instances; at most %d can be booked", n.ID, d.UUID, len(d.Instances), maxAtoms)
		}
	}
	if err := checkInstances(n); err != nil {
		return err
	}
	for i, r := range n.Rows {
		if scalarIndex(r.Resource) < 0 {
			return fmt.Errorf("node %s has a row of %q, which is no counted host resource", n.ID, r.Resource)
		}
		if r.Total < 0 || r.Total > appliance.MaxCount {
			return fmt.Errorf("node %s: %s total %d is not 0 to %d", n.ID, r.Resource, r.Total, appliance.MaxCount)
		}
		for _, other := range n.Rows[:i] {
			if other.Resource == r.Resource {
				return fmt.Errorf("node %s has two rows of %s", n.ID, r.Resource)
			}
		}
	}
	return nil
}

// scalarCount counts the resources of [appliance.Scalars]; arrays of that
// length hold one number for each, in that order.
const scalarCount = 5

const (
	vcpuIndex = iota
	memoryIndex
	hugepages2MiIndex
	hugepages1GiIndex
)

// ratio is the row's overcommit; a row that does not say has none.
func ratio(r appliance.ResourceRow) float64 {
	if r.Overcommit == 0 {
		return 1
	}
	return r.Overcommit
}

func scalarIndex(resource string) int { return slices.Index(appliance.Scalars, resource) }

// shape is what a node is to its pool and which rows it has: alike on like
// machines, and of few kinds in a pool.
type shape struct {
	role        appliance.NodeRole
	control     appliance.NodeControl
	replicas    int
	schedulable bool
	why         string // not
	present     [scalarCount]bool
	overcommit  [scalarCount]float64
}

func (s *shape) appendKey(b []byte) []byte {
	b = append(append(append(append(b, s.role...), 0), s.control...), 0)
	b = strconv.AppendInt(b, int64(s.replicas), 10)
	b = strconv.AppendBool(append(b, ' '), s.schedulable)
	for i := range scalarCount {
		b = strconv.AppendFloat(append(b, ' '), s.overcommit[i], 'g', -1, 64)
		b = strconv.AppendBool(b, s.present[i])
	}
	return append(append(b, 0), s.why...)
}

// devicesInOrder sorts devices by index, whatever the enumeration order.
func devicesInOrder(devices []Device) []Device {
	order := func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.Address, b.Address), strings.Compare(a.UUID, b.UUID))
	}
	sorted := true
	for i := 1; i < len(devices) && sorted; i++ {
		sorted = devices[i-1].Index < devices[i].Index || order(devices[i-1], devices[i]) <= 0
	}
	if sorted {
		return devices
	}
	return slices.SortedFunc(slices.Values(devices), order)
}
