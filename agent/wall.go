package agent

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// wall is what keeps a reservation's work to what it has booked: a slice, and
// a CDI spec for containers. It is made of a binding and of what the machine is,
// and of nothing else.
type wall struct {
	Reservation string      `json:"reservation"`
	Tenant      string      `json:"tenant"`
	Kind        string      `json:"kind"`
	Slice       host.Slice  `json:"slice"`
	Nodes       []host.Node `json:"nodes,omitempty"`
	// Atoms are what it has to itself: UUIDs of GPUs or of MIG instances, and for
	// a slot UUID/N.
	Atoms []string `json:"atoms,omitempty"`
	// Visible is what CUDA programs are told to use.
	Visible []string `json:"visible,omitempty"`
	// MPS are the GPUs, by UUID, that its programs reach through an MPS daemon.
	MPS []string `json:"mps,omitempty"`
	// Note is what of the binding no wall can limit, for people.
	Note string `json:"note,omitempty"`
}

// legalID are the ids that may become the names of files and units: a dash
// would be a level of slices.
var legalID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_]{1,64}$`) })

// sliceName is the slice of a reservation. Its parent is bc.slice.
func sliceName(reservation string) string { return "bc-" + reservation + ".slice" }

// reservationOf is the reservation whose slice has a name, "" if none can have it.
func reservationOf(slice string) string {
	id := strings.TrimSuffix(strings.TrimPrefix(slice, "bc-"), ".slice")
	if !legalID().MatchString(id) || slice != sliceName(id) {
		return ""
	}
	return id
}

// wallOf is the wall for a binding. The GPUs are those of the inventory, and
// migMinors is the text of /proc/driver/nvidia-caps/mig-minors. It is an error
// if a device node cannot be told: leaving it out would wall off what is booked.
// A slot of a GPU that mps names is reached through its daemon.
func wallOf(b wire.Binding, gpus []wire.GPU, migMinors string, mps func(uuid string) bool) (wall, error) {
	if !legalID().MatchString(b.ReservationID) {
		return wall{}, fmt.Errorf("reservation id %q cannot be the name of a slice", b.ReservationID)
	}
	w := wall{
		Reservation: b.ReservationID, Tenant: b.TenantID, Kind: b.Kind,
		Slice: host.Slice{
			Name:        sliceName(b.ReservationID),
			Description: "Better Compute reservation " + b.ReservationID + " of " + b.TenantID,
			CPUs:        b.CPUs, MemoryNodes: b.NUMANodes, MemoryMax: uint64(max(b.MemoryGiB, 0)) << 30,
			Hugepages2Mi: max(b.Hugepages2Mi, 0), Hugepages1Gi: max(b.Hugepages1Gi, 0),
		},
	}
	for what, list := range map[string]*string{"CPUs": &w.Slice.CPUs, "NUMA nodes": &w.Slice.MemoryNodes} {
		set, err := wire.ParseCPUList(*list)
		if err != nil {
			return wall{}, fmt.Errorf("%s %q: %w", what, *list, err)
		}
		*list = set.String()
	}
	for _, d := range b.Devices {
		if err := w.admit(d, gpus, migMinors); err != nil {
			return wall{}, err
		}
		if d.Slot != nil && mps(d.UUID) && !slices.Contains(w.MPS, d.UUID) {
			w.MPS = append(w.MPS, d.UUID)
		}
	}
	if len(b.Devices) > 0 {
		w.Nodes = append(w.Nodes, controlNodes...)
	}
	for _, n := range w.Nodes {
		w.Slice.Devices = append(w.Slice.Devices, n.Path)
	}
	w.Note = w.limits(b)
	return w, nil
}

// limits says what of a binding no wall enforces.
func (w *wall) limits(b wire.Binding) string {
	var parts []string
	if b.VCPU > 0 && b.CPUs == "" {
		parts = append(parts, "vCPUs are booked by number and not walled in")
	}
	if n := len(w.MPS); n > 1 {
		parts = append(parts, fmt.Sprintf("each of its %d GPUs has an MPS daemon of its own, and a program uses one at a time", n))
	}
	return strings.Join(parts, "; ")
}

// The names under which the kernel driver registers its majors: 195 was
// nvidia-frontend before driver 550.
var (
	frontendDriver = []string{"nvidia", "nvidia-frontend"}
	uvmDriver      = []string{"nvidia-uvm"}
	capsDriver     = []string{"nvidia-caps"}
)

// controlNodes are those that every CUDA program opens beside its GPUs'. Minor
// numbers and modes are those that nvidia-modprobe makes them with.
var controlNodes = []host.Node{
	{Path: "/dev/nvidiactl", Drivers: frontendDriver, Minor: 255, Mode: 0o666},
	{Path: "/dev/nvidia-uvm", Drivers: uvmDriver, Minor: 0, Mode: 0o666},
	{Path: "/dev/nvidia-uvm-tools", Drivers: uvmDriver, Minor: 1, Mode: 0o666},
}

// admit lets one booked atom through the wall.
func (w *wall) admit(d wire.Device, gpus []wire.GPU, migMinors string) error {
	i := slices.IndexFunc(gpus, func(g wire.GPU) bool { return g.UUID == d.UUID })
	if i < 0 {
		return fmt.Errorf("%s is not in this machine", d.UUID)
	}
	g := &gpus[i]
	if g.Minor < 0 {
		return fmt.Errorf("the driver does not say which /dev/nvidiaN is %s", deviceName(g))
	}
	w.allow(host.Node{Path: "/dev/nvidia" + strconv.Itoa(g.Minor), Drivers: frontendDriver, Minor: g.Minor, Mode: 0o666})
	atom := cmp.Or(d.Instance, d.UUID)
	if !slices.Contains(w.Visible, atom) { // of two slots on one GPU it is named once
		w.Visible = append(w.Visible, atom)
	}
	if d.Slot != nil {
		atom += "/" + strconv.Itoa(*d.Slot)
	}
	w.Atoms = append(w.Atoms, atom)
	if d.Instance == "" {
		return nil
	}
	var m *wire.MIGInstance
	if g.MIG != nil {
		if i := slices.IndexFunc(g.MIG.Instances, func(m wire.MIGInstance) bool { return m.UUID == d.Instance }); i >= 0 {
			m = &g.MIG.Instances[i]
		}
	}
	if m == nil {
		return fmt.Errorf("%s has no MIG instance %s", deviceName(g), d.Instance)
	}
	gi := fmt.Sprintf("gpu%d/gi%d", g.Minor, m.GPUInstance)
	for _, key := range []string{gi + "/access", fmt.Sprintf("%s/ci%d/access", gi, m.ComputeInstance)} {
		minor, ok := migMinor(migMinors, key)
		if !ok {
			return fmt.Errorf("the driver names no capability %s for MIG instance %s", key, d.Instance)
		}
		w.allow(host.Node{Path: "/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(minor), Drivers: capsDriver, Minor: minor, Mode: 0o444})
	}
	return nil
}

func (w *wall) allow(n host.Node) {
	if !slices.ContainsFunc(w.Nodes, func(there host.Node) bool { return there.Path == n.Path }) {
		w.Nodes = append(w.Nodes, n)
	}
}

// migMinorsFile lists the capabilities of MIG: "gpu0/gi1/ci0/access 13", one a
// line. Those named config and monitor change layouts and see all instances;
// no wall lets them through.
const migMinorsFile = "/proc/driver/nvidia-caps/mig-minors"

func migMinor(text, key string) (int, bool) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, err := strconv.Atoi(f[1])
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// environment tells CUDA programs, and the NVIDIA container runtime, which
// GPUs to use. Without any they see none: void is that runtime's word for it. An
// MPS daemon serves one GPU, and its clients are to name no other: of several the
// first is set, and a program that wants another sets both variables itself.
func (w *wall) environment() []string {
	all := strings.Join(w.Visible, ",")
	if len(w.MPS) == 0 {
		return []string{"CUDA_VISIBLE_DEVICES=" + all, "NVIDIA_VISIBLE_DEVICES=" + cmp.Or(all, "void")}
	}
	return []string{
		"CUDA_VISIBLE_DEVICES=" + w.MPS[0], "NVIDIA_VISIBLE_DEVICES=" + all,
		"CUDA_MPS_PIPE_DIRECTORY=" + unit.MPSPipes(w.MPS[0]),
	}
}

// outsider reports whether a process that holds a device of the wall keeps it
// from being given away. Services of the system are the operator's own, such as
// a GPU monitor, or ours, such as an MPS daemon with its server; work below another reservation's slice has its own wall.
func (w *wall) outsider(h host.Holder, self int) bool {
	if h.PID == self {
		return false
	}
	if own, ok := strings.CutPrefix(h.Cgroup, "/system.slice/"); ok {
		for part := range strings.SplitSeq(own, "/") {
			if path.Ext(part) != ".slice" { // that of a template's units, system-NAME.slice
				return path.Ext(part) != ".service"
			}
		}
		return true
	}
	if other, ok := strings.CutPrefix(h.Cgroup, "/bc.slice/"); ok {
		slice, _, _ := strings.Cut(other, "/")
		return slice == w.Slice.Name
	}
	return true
}

// exclusiveNodes are the nodes that nobody may hold when the wall's GPUs are
// given away. A GPU that is shared, in slots or by MIG, has other users: of a
// MIG instance only its own capabilities are looked at.
func (w *wall) exclusiveNodes() []string {
	var out []string
	for _, n := range w.Nodes {
		switch {
		case slices.Equal(n.Drivers, uvmDriver), n.Path == "/dev/nvidiactl":
		case slices.Equal(n.Drivers, frontendDriver) && slices.ContainsFunc(w.Visible, func(v string) bool { return strings.HasPrefix(v, "MIG-") }):
		default:
			out = append(out, n.Path)
		}
	}
	return out
}
