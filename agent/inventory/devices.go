package inventory

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

const vendorNVIDIA = "10de"

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// collectPCI lists the functions that matter here, by address. Virtual
// functions are parts of one that is listed and are left out.
func collectPCI(root *host.Root) []wire.PCIDevice {
	devices := []wire.PCIDevice{}
	const dir = "/sys/bus/pci/devices"
	names, _ := root.ReadDir(dir)
	for _, address := range names {
		if !pciAddress.MatchString(address) {
			continue
		}
		at := path.Join(dir, address)
		d := wire.PCIDevice{
			Address: address,
			Class:   pciID(root, at+"/class"),
			Vendor:  pciID(root, at+"/vendor"),
		}
		if !pciMatters(d) || root.Exists(at+"/physfn") {
			continue
		}
		d.Device = pciID(root, at+"/device")
		d.SubVendor = pciID(root, at+"/subsystem_vendor")
		d.SubDevice = pciID(root, at+"/subsystem_device")
		d.NUMANode = numaNode(root, at+"/numa_node")
		d.Driver = root.LinkBase(at + "/driver")
		d.IOMMUGroup = -1
		if group, ok := number(root.LinkBase(at + "/iommu_group")); ok {
			d.IOMMUGroup = group
		}
		devices = append(devices, d)
	}
	return devices
}

// pciMatters selects, by the class codes of the PCI ID assignment: network
// (02), display (03), processing accelerators (12), NVMe (0108), and of NVIDIA
// the other bridges (0680), which are NVSwitches.
func pciMatters(d wire.PCIDevice) bool {
	for _, class := range []string{"02", "03", "12", "0108"} {
		if strings.HasPrefix(d.Class, class) {
			return true
		}
	}
	return d.Vendor == vendorNVIDIA && strings.HasPrefix(d.Class, "0680")
}

func pciID(root *host.Root, name string) string {
	s, _ := root.String(name)
	return strings.ToLower(strings.TrimPrefix(s, "0x"))
}

// numaNode is the node of a device, -1 where the firmware does not say.
func numaNode(root *host.Root, names ...string) int {
	for _, name := range names {
		if n, ok := root.Int(name); ok && n >= 0 && n < wire.MaxCPU {
			return int(n)
		}
	}
	return -1
}

func collectIOMMU(root *host.Root) wire.IOMMUInfo {
	info := wire.IOMMUInfo{Units: []string{}}
	if names, err := root.ReadDir("/sys/class/iommu"); err == nil && names != nil {
		info.Units = names
	}
	groups, _ := root.ReadDir("/sys/kernel/iommu_groups")
	info.Groups = len(groups)
	for _, group := range groups {
		kind, ok := root.String(path.Join("/sys/kernel/iommu_groups", group, "type"))
		if !ok {
			continue
		}
		if info.DefaultTypes == nil {
			info.DefaultTypes = make(map[string]int)
		}
		info.DefaultTypes[kind]++
	}
	return info
}

// collectDisks lists the block devices that are hardware, or a hypervisor's:
// loop devices, RAM disks, mapped and removable ones hold no instances.
func collectDisks(root *host.Root) []wire.Disk {
	disks := []wire.Disk{}
	names, _ := root.ReadDir("/sys/block")
	for _, name := range names {
		dir := path.Join("/sys/block", name)
		sectors, _ := root.Int(dir + "/size") // of 512 bytes, whatever the disk's own are
		if !root.Exists(dir+"/device") || sectors <= 0 || flag(root, dir+"/removable") || flag(root, dir+"/hidden") {
			continue
		}
		disks = append(disks, wire.Disk{
			Name:       name,
			SizeGiB:    int(sectors >> 21),
			Rotational: flag(root, dir+"/queue/rotational"),
			Model:      strings.Join(strings.Fields(first(root, dir+"/device/model")), " "),
			// An NVMe disk's device is its controller, whose device is the PCI function.
			NUMANode: numaNode(root, dir+"/device/numa_node", dir+"/device/device/numa_node"),
		})
	}
	return disks
}

func flag(root *host.Root, name string) bool {
	n, ok := root.Int(name)
	return ok && n != 0
}

// The kernel's ARPHRD numbers of what is listed.
const (
	arpEthernet   = 1
	arpInfiniBand = 32
)

// collectNICs lists the interfaces of hardware, not their virtual functions.
func collectNICs(root *host.Root) []wire.NIC {
	nics := []wire.NIC{}
	names, _ := root.ReadDir("/sys/class/net")
	for _, name := range names {
		dir := path.Join("/sys/class/net", name)
		if !root.Exists(dir+"/device") || root.Exists(dir+"/device/physfn") {
			continue
		}
		nic := wire.NIC{
			Name:     name,
			Address:  nicAddress(root, dir),
			Driver:   root.LinkBase(dir + "/device/driver"),
			NUMANode: numaNode(root, dir+"/device/numa_node"),
		}
		switch kind, _ := root.Int(dir + "/type"); kind {
		case arpEthernet:
			nic.Kind = "ethernet"
		case arpInfiniBand:
			nic.Kind = "infiniband"
		default:
			continue
		}
		nic.SpeedMbps = count(root, dir+"/speed") // -1, or an error, while the link is down
		state, _ := root.String(dir + "/operstate")
		nic.Up = state == "up"
		nics = append(nics, nic)
	}
	return nics
}

// nicAddress finds the PCI function an interface belongs to; a virtio
// interface's device is below it.
func nicAddress(root *host.Root, dir string) string {
	at, err := root.Resolve(dir + "/device")
	if err != nil {
		return ""
	}
	for _, part := range slices.Backward(strings.Split(at, "/")) {
		if pciAddress.MatchString(part) {
			return part
		}
	}
	return ""
}

// locateGPUs asks the kernel for the NUMA node of the GPUs of which the GPU library
// does not tell it, or of which it names several.
func locateGPUs(root *host.Root, gpus []wire.GPU) {
	for i, g := range gpus {
		if address := strings.ToLower(g.Address); g.NUMANode < 0 && pciAddress.MatchString(address) {
			gpus[i].NUMANode = numaNode(root, path.Join("/sys/bus/pci/devices", address, "numa_node"))
		}
	}
}

// noteGPUs compares what the PCI bus has with what can be used.
func noteGPUs(inv *wire.Inventory, note func(string, ...any)) {
	listed := make(map[string]bool)
	for _, gpu := range inv.GPUs {
		listed[strings.ToLower(gpu.Address)] = true
	}
	for _, d := range inv.PCI {
		compute := strings.HasPrefix(d.Class, "0302") || strings.HasPrefix(d.Class, "12")
		what := "GPU " + d.Address + " (" + d.Vendor + ":" + d.Device + ")"
		switch {
		case d.Vendor != vendorNVIDIA && compute:
			note("Accelerator %s (%s:%s) is not NVIDIA's: it is shown and not booked", d.Address, d.Vendor, d.Device)
		case d.Vendor != vendorNVIDIA || !compute && !strings.HasPrefix(d.Class, "03"):
		case d.Driver == "":
			note("%s has no driver: install NVIDIA's; the agent notices it by itself", what)
		case d.Driver == "vfio-pci":
			note("%s is held by vfio-pci for virtual machines: it cannot be booked", what)
		case d.Driver != "nvidia":
			note("%s is driven by %s, not by nvidia: it cannot be booked", what, d.Driver)
		case inv.GPULibrary.State == wire.GPULibraryReady && !listed[d.Address]:
			note("%s is on the PCI bus with its driver, and NVML does not list it: look for Xid errors in the kernel's log", what)
		}
	}
}
