package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// GPUs is what the GPU library answered: its own state, and the GPUs it
// lists, or listed last when it does not answer now.
type GPUs struct {
	Library wire.GPULibrary `json:"library"`
	Devices []wire.GPU      `json:"gpus"`
}

// Collect reads the whole inventory of a machine. It only reads, and what is
// not there is absent in the result: it has no error. Findings that an
// operator should know are in Notes.
//
// MachineID is a hash of /etc/machine-id, never the id itself. Without one it
// is of the DMI product's UUID; without that, of the boot id, which is another
// one after each boot: both are noted.
func Collect(root *host.Root, gpus GPUs) wire.Inventory {
	inv := wire.Inventory{
		Version:    wire.Version,
		GPULibrary: gpus.Library,
		GPUs:       slices.Clone(gpus.Devices),
	}
	if inv.GPUs == nil {
		inv.GPUs = []wire.GPU{}
	}
	note := func(format string, args ...any) { inv.Notes = append(inv.Notes, fmt.Sprintf(format, args...)) }

	inv.Hostname = first(root, "/proc/sys/kernel/hostname", "/etc/hostname")
	inv.BootID = first(root, "/proc/sys/kernel/random/boot_id")
	inv.MachineID = machineID(root, inv.BootID, note)
	inv.Kernel = first(root, "/proc/sys/kernel/osrelease")
	inv.OS = root.OSRelease()["PRETTY_NAME"]
	inv.DMI = wire.DMI{
		Vendor:  first(root, "/sys/class/dmi/id/sys_vendor"),
		Product: first(root, "/sys/class/dmi/id/product_name"),
		BIOS:    first(root, "/sys/class/dmi/id/bios_version"),
	}

	cpuinfo := readCPUInfo(root)
	inv.Arch = arch(root, cpuinfo)
	online, cpu := collectCPU(root, cpuinfo, note)
	inv.CPU = cpu
	inv.MemoryKiB = memoryKiB(root)
	inv.Hugepages = hugepages(root, "/sys/kernel/mm/hugepages")
	inv.NUMA = collectNUMA(root, online, inv.MemoryKiB, inv.Hugepages)
	inv.PCI = collectPCI(root)
	inv.IOMMU = collectIOMMU(root)
	inv.Boot = collectBoot(root)
	inv.Disks = collectDisks(root)
	inv.NICs = collectNICs(root)
	locateGPUs(root, inv.GPUs)
	noteGPUs(&inv, note)
	// As long as cgroups of version 1 are mounted, slices wall nothing in.
	if root.Exists("/sys/fs/cgroup") && !root.Exists("/sys/fs/cgroup/cgroup.controllers") {
		note("Reservations are booked and not walled in here: /sys/fs/cgroup is not cgroup v2 alone; boot with systemd.unified_cgroup_hierarchy=1")
	}
	return inv
}

// first is the content of the first of the files that has any.
func first(root *host.Root, names ...string) string {
	for _, name := range names {
		if s, ok := root.String(name); ok && s != "" {
			return strings.ToValidUTF8(s, "?")
		}
	}
	return ""
}

func machineID(root *host.Root, bootID string, note func(string, ...any)) string {
	if id, _ := root.String("/etc/machine-id"); hexDigits(id, 32) {
		return identity("machine-id", id)
	}
	const advice = "run systemd-machine-id-setup, then restart the agent"
	if id, _ := root.String("/sys/class/dmi/id/product_uuid"); usableUUID(id) {
		note("/etc/machine-id is missing or empty: the machine is known by its firmware's UUID, which some makers give to many machines; %s", advice)
		return identity("product-uuid", id)
	}
	if bootID != "" {
		note("The machine has no id of its own and will be taken for another one after the next boot; %s", advice)
		return identity("boot-id", bootID)
	}
	note("The machine has no id: it cannot join; %s", advice)
	return ""
}

// identity hashes an id together with its kind and ours, as machine-id(5) asks
// for: the id itself is confidential.
func identity(kind, id string) string {
	sum := sha256.Sum256([]byte("better-compute.local " + kind + " " + strings.ToLower(id)))
	return hex.EncodeToString(sum[:16])
}

func hexDigits(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdefABCDEF") == "" && strings.Trim(s, "0") != ""
}

// usableUUID reports whether a firmware's UUID may tell machines apart. All
// zeros and all ones are placeholders, and so is the one that unprogrammed
// AMI firmware gives to every board.
func usableUUID(id string) bool {
	id = strings.ToLower(id)
	plain := strings.ReplaceAll(id, "-", "")
	return hexDigits(plain, 32) && strings.Trim(plain, "f") != "" && id != "03000200-0400-0500-0006-000700080009"
}

// arch names the architecture as Go does. A recorded machine may be of
// another one than this program.
func arch(root *host.Root, cpuinfo map[string]string) string {
	if root.Real() {
		return runtime.GOARCH
	}
	switch machine, _ := root.String("/proc/sys/kernel/arch"); {
	case machine == "x86_64", cpuinfo["vendor_id"] != "":
		return "amd64"
	case machine == "aarch64", cpuinfo["CPU implementer"] != "":
		return "arm64"
	default:
		return machine
	}
}

// Hash is the hash of an inventory that decides whether it has to be sent
// again: 16 hex digits of the SHA-256 of its JSON. Three readings that move by
// themselves while the machine stays what it is count as if they were still:
// the free and surplus pages of huge page pools (the persistent pages count)
// and the enforced power limit of GPUs, which a board controller may vary.
func Hash(inv wire.Inventory) string {
	inv.Hugepages = persistent(inv.Hugepages)
	inv.NUMA = slices.Clone(inv.NUMA)
	for i := range inv.NUMA {
		inv.NUMA[i].Hugepages = persistent(inv.NUMA[i].Hugepages)
	}
	inv.GPUs = slices.Clone(inv.GPUs)
	for i, gpu := range inv.GPUs {
		if gpu.Power != nil {
			power := *gpu.Power
			power.EnforcedWatts = 0
			inv.GPUs[i].Power = &power
		}
	}
	data, err := json.Marshal(inv)
	if err != nil {
		// An inventory is plain data; Marshal has no way to refuse it.
		data = []byte(err.Error())
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

func persistent(pools []wire.HugepagePool) []wire.HugepagePool {
	out := slices.Clone(pools)
	for i, p := range out {
		out[i] = wire.HugepagePool{SizeKiB: p.SizeKiB, Total: p.Total - p.Surplus}
	}
	return out
}
