package inventory_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// compose writes a machine as an archive.
func compose(m machine) *host.Archive {
	c := composer{machine: m, a: host.NewArchive(m.comment + "\n\n")}
	c.system()
	c.cpus()
	c.memory()
	c.boot()
	for i := range m.iommuUnits {
		unit := fmt.Sprintf("%s%d", m.iommuUnit, i)
		c.a.AddDir("sys/devices/virtual/iommu/" + unit)
		c.a.AddLink("sys/class/iommu/"+unit, "../../devices/virtual/iommu/"+unit)
	}
	for _, f := range m.functions {
		c.pci(f)
	}
	for _, at := range m.gpuAt {
		c.pci(function{at, "030200", flip(m.gpu.PCIID), flip(m.gpu.PCISubID), "nvidia"})
	}
	for _, d := range m.disks {
		c.disk(d)
	}
	for _, p := range m.ports {
		c.port(p)
	}
	c.gpus()
	return c.a
}

type composer struct {
	machine
	a      *host.Archive
	groups int
}

func (c *composer) file(name string, lines ...any) {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	c.a.AddFile(name, []byte(b.String()))
}

func (c *composer) system() {
	c.file("etc/hostname", c.name)
	c.file("proc/sys/kernel/hostname", c.name)
	c.file("proc/sys/kernel/osrelease", c.kernel)
	c.file("proc/sys/kernel/arch", "x86_64")
	c.file("proc/sys/kernel/random/boot_id", uuid(c.name, "boot"))
	c.file("etc/machine-id", strings.ReplaceAll(uuid(c.name, "machine"), "-", ""))
	c.file("proc/cmdline", c.cmdline)
	c.file("etc/os-release", `PRETTY_NAME="`+c.os+`"`, "ID="+c.osID)
	c.file("sys/class/dmi/id/sys_vendor", c.vendor)
	c.file("sys/class/dmi/id/product_name", c.product)
	c.file("sys/class/dmi/id/bios_version", c.bios)
}

// cpus numbers the first threads of all cores before the second ones, as
// Linux does on x86.
func (c *composer) cpus() {
	const dir = "sys/devices/system/cpu/"
	cores := c.sockets * c.cores
	all := "0-" + strconv.Itoa(2*cores-1)
	for _, name := range []string{"online", "present", "possible"} {
		c.file(dir+name, all)
	}
	c.file(dir+"offline", "")
	c.file(dir+"isolated", "")
	c.file(dir+"smt/active", 1)
	c.file(dir+"smt/control", "on")
	for cpu := range 2 * cores {
		core := cpu % cores
		at := fmt.Sprintf("%scpu%d/topology/", dir, cpu)
		c.file(at+"physical_package_id", core/c.cores)
		c.file(at+"core_id", core%c.cores)
		c.file(at+"thread_siblings_list", fmt.Sprintf("%d,%d", core, core+cores))
		policy := fmt.Sprintf("%scpufreq/policy%d/", dir, cpu)
		c.file(policy+"affected_cpus", cpu)
		c.file(policy+"scaling_driver", c.freqDriver)
		c.file(policy+"scaling_governor", c.governor)
		c.file(policy+"scaling_available_governors", c.governors+" ")
	}
	c.file("proc/cpuinfo", "processor\t: 0", "vendor_id\t: "+c.cpuVendor, "model name\t: "+c.cpuModel,
		"physical id\t: 0", fmt.Sprintf("siblings\t: %d", 2*c.cores), "core id\t\t: 0", fmt.Sprintf("cpu cores\t: %d", c.cores), "")
}

func (c *composer) memory() {
	const dir = "sys/devices/system/node/"
	cores := c.sockets * c.cores
	width := cores / c.nodes
	ids := "0-" + strconv.Itoa(c.nodes-1)
	for _, name := range []string{"online", "possible", "has_cpu", "has_memory"} {
		c.file(dir+name, ids)
	}
	huge := uint64(c.hugepages1Gi) << 20
	free := (c.nodeKiB - huge) / 100 * 97
	for n := range c.nodes {
		node := fmt.Sprintf("%snode%d/", dir, n)
		c.file(node+"cpulist", fmt.Sprintf("%d-%d,%d-%d", n*width, (n+1)*width-1, cores+n*width, cores+(n+1)*width-1))
		c.file(node+"meminfo",
			fmt.Sprintf("Node %d MemTotal:       %d kB", n, c.nodeKiB),
			fmt.Sprintf("Node %d MemFree:        %d kB", n, free),
			fmt.Sprintf("Node %d MemUsed:        %d kB", n, c.nodeKiB-free))
		var distances []string
		for other := range c.nodes {
			d := c.far
			if perSocket := c.nodes / c.sockets; other == n {
				d = c.local
			} else if other/perSocket == n/perSocket {
				d = c.near
			}
			distances = append(distances, strconv.Itoa(d))
		}
		c.file(node+"distance", strings.Join(distances, " "))
		c.pool(node+"hugepages/hugepages-2048kB/", 0)
		c.pool(node+"hugepages/hugepages-1048576kB/", c.hugepages1Gi)
	}
	nodes := uint64(c.nodes)
	c.file("proc/meminfo", fmt.Sprintf("MemTotal:       %d kB", nodes*c.nodeKiB), fmt.Sprintf("MemFree:        %d kB", nodes*free),
		fmt.Sprintf("MemAvailable:   %d kB", nodes*free), "Hugepagesize:       2048 kB")
	c.pool("sys/kernel/mm/hugepages/hugepages-2048kB/", 0)
	c.pool("sys/kernel/mm/hugepages/hugepages-1048576kB/", c.nodes*c.hugepages1Gi)
	c.file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", 0)
	c.file("sys/kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages", 0)
}

func (c *composer) pool(dir string, pages int) {
	c.file(dir+"nr_hugepages", pages)
	c.file(dir+"free_hugepages", pages)
	c.file(dir+"surplus_hugepages", 0)
}

func (c *composer) boot() {
	secure := byte(0)
	if c.secureBoot {
		secure = 1
	}
	c.a.AddFile("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", []byte{6, 0, 0, 0, secure})
	if c.bls {
		c.file("etc/default/grub", "GRUB_TIMEOUT=5", `GRUB_CMDLINE_LINUX="`+c.cmdline[strings.Index(c.cmdline, "ro ")+3:]+`"`, "GRUB_ENABLE_BLSCFG=true")
		c.file("etc/kernel/cmdline", c.cmdline[strings.Index(c.cmdline, "root="):])
		c.file("boot/loader/entries/00000000000000000000000000000000-"+c.kernel+".conf", "title "+c.os, "version "+c.kernel,
			"linux /vmlinuz-"+c.kernel, "initrd /initramfs-"+c.kernel+".img", "options "+c.cmdline[strings.Index(c.cmdline, "root="):])
		c.file("usr/sbin/grubby", "")
		return
	}
	c.file("etc/default/grub", "GRUB_DEFAULT=0", "GRUB_TIMEOUT=5", `GRUB_CMDLINE_LINUX_DEFAULT="`+c.cmdline[strings.Index(c.cmdline, "ro ")+3:]+`"`, `GRUB_CMDLINE_LINUX=""`)
	c.file("usr/sbin/update-grub", "")
}

// pci writes a function and returns its directory. Each stands on a root bus
// of its own.
func (c *composer) pci(f function) string {
	bus := "devices/pci" + f.address[:7]
	dir := "sys/" + bus + "/" + f.address
	vendor, device, _ := strings.Cut(f.id, ":")
	subVendor, subDevice, _ := strings.Cut(f.sub, ":")
	c.file(dir+"/class", "0x"+f.class)
	c.file(dir+"/vendor", "0x"+vendor)
	c.file(dir+"/device", "0x"+device)
	c.file(dir+"/subsystem_vendor", "0x"+subVendor)
	c.file(dir+"/subsystem_device", "0x"+subDevice)
	c.file(dir+"/numa_node", f.node)
	c.a.AddDir("sys/bus/pci/drivers/" + f.driver)
	c.a.AddLink(dir+"/driver", "../../../bus/pci/drivers/"+f.driver)
	c.a.AddLink("sys/bus/pci/devices/"+f.address, "../../../"+bus+"/"+f.address)
	group := fmt.Sprintf("kernel/iommu_groups/%d", c.groups)
	c.groups++
	c.file("sys/"+group+"/type", c.iommuType)
	c.a.AddLink("sys/"+group+"/devices/"+f.address, "../../../../"+bus+"/"+f.address)
	c.a.AddLink(dir+"/iommu_group", "../../../"+group)
	return dir
}

func (c *composer) disk(d disk) {
	dir := c.pci(function{d.place, "010802", "144d:a80a", "144d:aa01", "nvme"})
	controller := dir + "/nvme/" + d.name
	block := controller + "/" + d.name + "n1"
	c.file(controller+"/model", fmt.Sprintf("%-40s", d.model))
	c.file(controller+"/numa_node", d.node)
	c.a.AddLink(controller+"/device", "../../../"+d.address)
	c.file(block+"/size", d.sectors)
	c.file(block+"/removable", 0)
	c.file(block+"/hidden", 0)
	c.file(block+"/queue/rotational", 0)
	c.a.AddLink(block+"/device", "../../"+d.name)
	c.a.AddLink("sys/block/"+d.name+"n1", "../"+strings.TrimPrefix(block, "sys/"))
}

func (c *composer) port(p port) {
	class, kind, state := "020000", 1, "up"
	if p.infiniband {
		class, kind = "020700", 32
	}
	if p.speed < 0 {
		state = "down"
	}
	dir := c.pci(function{p.place, class, p.id, p.id, p.driver})
	iface := dir + "/net/" + p.name
	c.file(iface+"/type", kind)
	c.file(iface+"/speed", p.speed)
	c.file(iface+"/operstate", state)
	c.a.AddLink(iface+"/device", "../../../"+p.address)
	c.a.AddLink("sys/class/net/"+p.name, "../../"+strings.TrimPrefix(iface, "sys/"))
}

// gpus writes what the driver shows in /proc and what NVML answered.
func (c *composer) gpus() {
	rec := inventory.GPUs{Library: wire.GPULibrary{State: wire.GPULibraryMissing, Reason: "libnvidia-ml.so.1 is not installed"}, Devices: []wire.GPU{}}
	if c.gpu != nil {
		rec.Library = wire.GPULibrary{State: wire.GPULibraryReady, Driver: c.driver, CUDA: c.cuda, Version: c.nvmlVers}
		c.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+c.driver)
		c.file("proc/devices", "Character devices:", "195 nvidia", "508 nvidia-uvm", "509 nvidia-caps")
		c.file("proc/modules", "nvidia_uvm 1540096 0 - Live 0x0000000000000000", "nvidia_modeset 1306624 0 - Live 0x0000000000000000",
			"nvidia 56717312 17 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000")
	}
	for i, at := range c.gpuAt {
		gpu := *c.gpu
		gpu.UUID, gpu.Index, gpu.Minor = c.gpuUUID(i), i, i
		gpu.Address, gpu.NUMANode = at.address, at.node
		gpu.SerialHash = strings.ReplaceAll(uuid(c.name, "serial", i), "-", "")[:16]
		gpu.Health, gpu.Persistence, gpu.ComputeMode = wire.GPUHealthy, new(true), "default"
		if c.nvlinks > 0 {
			for j := range c.gpuAt {
				if j != i {
					gpu.NVLinkPeers = append(gpu.NVLinkPeers, wire.NVLinkPeer{UUID: c.gpuUUID(j), Links: c.nvlinks})
				}
			}
		}
		if gpu.MIG != nil {
			mig := *gpu.MIG
			mig.Instances = slices.Clone(mig.Instances)
			for j := range mig.Instances {
				mig.Instances[j].UUID = "MIG-" + uuid(c.name, "mig", i, j)
			}
			gpu.MIG = &mig
		}
		rec.Devices = append(rec.Devices, gpu)
		c.file("proc/driver/nvidia/gpus/"+at.address+"/information", "Model: \t\t "+gpu.Product,
			"GPU UUID: \t GPU-00000000-0000-0000-0000-000000000000", "Bus Location: \t "+at.address, fmt.Sprintf("Device Minor: \t %d", i))
	}
	data, err := json.MarshalIndent(rec, "", " ")
	if err != nil {
		panic(err)
	}
	c.a.SetDocument(inventory.RecordedGPUsFile, append(data, '\n'))
}

func (c *composer) gpuUUID(i int) string { return "GPU-" + uuid(c.name, "gpu", i) }

// uuid makes up an id from what it is for.
func uuid(of ...any) string {
	sum := sha256.Sum256([]byte(fmt.Sprintln(of...)))
	d := hex.EncodeToString(sum[:16])
	return d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:]
}

// flip turns NVML's device:vendor into vendor:device.
func flip(id string) string {
	device, vendor, _ := strings.Cut(id, ":")
	return vendor + ":" + device
}
