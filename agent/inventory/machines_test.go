package inventory_test

import "github.com/bettercompute/bc/agent/wire"

// machine is what a recorded machine is composed from. The numbers are public:
// of NVIDIA's user guides for DGX systems (addresses of GPUs, switches and
// network ports, NUMA layout), of the open-gpu-kernel-modules README (PCI ids)
// and of published logs (memory, power limits, clocks). What nobody published,
// such as the addresses of disks, is made up; each comment says so.
type machine struct {
	name    string
	comment string

	vendor, product, bios string
	os, osID, kernel      string
	cmdline               string
	bls, secureBoot       bool

	cpuVendor, cpuModel    string
	sockets, cores, nodes  int // cores of each socket, nodes of the machine
	nodeKiB                uint64
	local, near, far       int // distances: the node itself, of the same socket, of another
	freqDriver, governor   string
	governors              string
	hugepages1Gi           int // on each node
	iommuUnit, iommuType   string
	iommuUnits             int
	functions              []function
	disks                  []disk
	ports                  []port
	gpu                    *wire.GPU // what all GPUs of the machine have in common
	gpuAt                  []place
	nvlinks                int // from each GPU, through switches; 0: none
	driver, cuda, nvmlVers string
}

// place is a PCI address and its NUMA node.
type place struct {
	address string
	node    int
}

type function struct {
	place
	class, id, sub, driver string // ids are vendor:device
}

type disk struct {
	place
	name, model string
	sectors     uint64
}

type port struct {
	place
	name, driver, id string
	infiniband       bool
	speed            int // Mbit/s, -1: down
}

const composed = "Composed from public facts, not captured from hardware: "

const terabyte = 1_000_000_000_000 / 512 // sectors

var machines = []machine{
	dgxH100("dgx-h100", "NVIDIA DGX H100: 8 x H100 SXM5 80 GB.", nil),
	dgxH100("h100-mig", "NVIDIA DGX H100 with MIG on, 7 x 1g.10gb on each GPU.", sevenInstances()),
	dgxA100(),
	l40s(),
	cpuOnly(),
}

func dgxH100(name, what string, instances []wire.MIGInstance) machine {
	m := machine{
		name: name,
		comment: what + "\n" + composed + `processors, memory, GPUs, switches and
network ports are those of NVIDIA's DGX H100 user guide; the addresses of the
disks, the IOMMU groups and the PCI bridges above the functions are made up.`,
		vendor: "NVIDIA", product: "DGXH100", bios: "1.1.3",
		os: "Ubuntu 22.04.4 LTS", osID: "ubuntu", kernel: "5.15.0-1042-nvidia",
		cmdline:   "BOOT_IMAGE=/boot/vmlinuz-5.15.0-1042-nvidia root=UUID=00000000-0000-0000-0000-000000000000 ro console=tty0 console=ttyS0,115200n8 iommu=pt quiet",
		cpuVendor: "GenuineIntel", cpuModel: "Intel(R) Xeon(R) Platinum 8480C", sockets: 2, cores: 56, nodes: 2,
		nodeKiB: 1056697764, local: 10, near: 21, far: 21,
		freqDriver: "intel_pstate", governor: "performance", governors: "performance powersave",
		iommuUnit: "dmar", iommuUnits: 10, iommuType: "identity",
		gpuAt:   []place{{"0000:1b:00.0", 0}, {"0000:43:00.0", 0}, {"0000:52:00.0", 0}, {"0000:61:00.0", 0}, {"0000:9d:00.0", 1}, {"0000:c3:00.0", 1}, {"0000:d1:00.0", 1}, {"0000:df:00.0", 1}},
		nvlinks: 18,
		gpu: &wire.GPU{
			Product: "NVIDIA H100 80GB HBM3", PCIID: "2330:10de", PCISubID: "16c1:10de", MemoryMiB: 81559,
			Architecture: "Hopper", Compute: "9.0", ClockMHz: new(1980),
			MIG:   &wire.MIGInfo{Enabled: instances != nil, Pending: instances != nil, Instances: instances},
			Power: &wire.PowerInfo{LimitWatts: 700, EnforcedWatts: 700, DefaultWatts: 700, MinWatts: 200, MaxWatts: 700},
			ECC:   &wire.ECCInfo{Enabled: true, Pending: true},
		},
		driver: "535.161.08", cuda: "12.2", nvmlVers: "12.535.161.08",
		functions: []function{{place{"0000:04:00.0", 0}, "030000", "1a03:2000", "1a03:2000", "ast"}},
		disks: []disk{
			{place{"0000:22:00.0", 0}, "nvme0", "SAMSUNG MZ1L21T9HCLS-00A07", 1920 * terabyte / 1000},
			{place{"0000:23:00.0", 0}, "nvme1", "SAMSUNG MZ1L21T9HCLS-00A07", 1920 * terabyte / 1000},
		},
		ports: []port{
			{place{"0000:18:00.0", 0}, "ibp24s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:40:00.0", 0}, "ibp64s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:4f:00.0", 0}, "ibp79s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:5e:00.0", 0}, "ibp94s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:9a:00.0", 1}, "ibp154s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:c0:00.0", 1}, "ibp192s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:ce:00.0", 1}, "ibp206s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:dc:00.0", 1}, "ibp220s0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:29:00.0", 0}, "ibp41s0f0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:29:00.1", 0}, "enp41s0f1np1", "mlx5_core", "15b3:1021", false, 200000},
			{place{"0000:aa:00.0", 1}, "ibp170s0f0", "mlx5_core", "15b3:1021", true, 400000},
			{place{"0000:aa:00.1", 1}, "enp170s0f1np1", "mlx5_core", "15b3:1021", false, -1},
			{place{"0000:0b:00.0", 0}, "eno3", "ixgbe", "8086:1563", false, 10000},
		},
	}
	for _, bus := range []string{"05", "06", "07", "08"} {
		m.functions = append(m.functions, function{place{"0000:" + bus + ":00.0", 0}, "068000", "10de:22a3", "10de:1796", "nvidia-nvswitch"})
	}
	m.disks = append(m.disks, dataDisks("SAMSUNG MZWLO3T8HCLS-00A07", 3840*terabyte/1000,
		place{"0000:2c:00.0", 0}, place{"0000:2d:00.0", 0}, place{"0000:2e:00.0", 0}, place{"0000:2f:00.0", 0},
		place{"0000:ad:00.0", 1}, place{"0000:ae:00.0", 1}, place{"0000:af:00.0", 1}, place{"0000:b0:00.0", 1})...)
	return m
}

// sevenInstances are what seven 1g.10gb are on an 80 GB H100: GPU instances 7
// to 13, a memory slice of 9.75 GiB each.
func sevenInstances() []wire.MIGInstance {
	var out []wire.MIGInstance
	for i := range 7 {
		out = append(out, wire.MIGInstance{Profile: "1g.10gb", GPUInstance: 7 + i, MemoryMiB: 9984, Start: i, Size: 1})
	}
	return out
}

func dgxA100() machine {
	m := machine{
		name: "dgx-a100",
		comment: "NVIDIA DGX A100 640 GB: 8 x A100 SXM4 80 GB.\n" + composed + `processors, memory, NUMA layout,
GPUs, switches and network ports are those of NVIDIA's DGX A100 user guide; the
addresses of the disks, the IOMMU groups and the PCI bridges are made up.`,
		vendor: "NVIDIA", product: "DGXA100 920-23687-2530-000", bios: "1.18",
		os: "Ubuntu 20.04.6 LTS", osID: "ubuntu", kernel: "5.4.0-144-generic",
		cmdline:   "BOOT_IMAGE=/boot/vmlinuz-5.4.0-144-generic root=UUID=00000000-0000-0000-0000-000000000000 ro rd.driver.blacklist=nouveau quiet",
		cpuVendor: "AuthenticAMD", cpuModel: "AMD EPYC 7742 64-Core Processor", sockets: 2, cores: 64, nodes: 8,
		nodeKiB: 264217428, local: 10, near: 12, far: 32,
		freqDriver: "acpi-cpufreq", governor: "performance", governors: "conservative ondemand userspace powersave performance schedutil",
		iommuUnit: "ivhd", iommuUnits: 8, iommuType: "DMA",
		gpuAt:   []place{{"0000:07:00.0", 3}, {"0000:0f:00.0", 3}, {"0000:47:00.0", 1}, {"0000:4e:00.0", 1}, {"0000:87:00.0", 7}, {"0000:90:00.0", 7}, {"0000:b7:00.0", 5}, {"0000:bd:00.0", 5}},
		nvlinks: 12,
		gpu: &wire.GPU{
			Product: "NVIDIA A100-SXM4-80GB", PCIID: "20b2:10de", PCISubID: "1463:10de", MemoryMiB: 81920,
			Architecture: "Ampere", Compute: "8.0", ClockMHz: new(1410),
			MIG:   &wire.MIGInfo{},
			Power: &wire.PowerInfo{LimitWatts: 400, EnforcedWatts: 400, DefaultWatts: 400, MinWatts: 100, MaxWatts: 400},
			ECC:   &wire.ECCInfo{Enabled: true, Pending: true},
		},
		driver: "525.147.05", cuda: "12.0", nvmlVers: "12.525.147.05",
		functions: []function{{place{"0000:67:00.0", 2}, "030000", "1a03:2000", "1a03:2000", "ast"}},
		disks: []disk{
			{place{"0000:22:00.0", 2}, "nvme0", "SAMSUNG MZ1LB1T9HALS-00007", 1920 * terabyte / 1000},
			{place{"0000:23:00.0", 2}, "nvme1", "SAMSUNG MZ1LB1T9HALS-00007", 1920 * terabyte / 1000},
		},
		ports: []port{
			{place{"0000:0c:00.0", 3}, "ibp12s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:12:00.0", 3}, "ibp18s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:4b:00.0", 1}, "ibp75s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:54:00.0", 1}, "ibp84s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:8d:00.0", 7}, "ibp141s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:94:00.0", 7}, "ibp148s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:ba:00.0", 5}, "ibp186s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:cc:00.0", 5}, "ibp204s0", "mlx5_core", "15b3:101b", true, 200000},
			{place{"0000:e1:00.0", 4}, "enp225s0f0", "mlx5_core", "15b3:101b", false, 200000},
			{place{"0000:e1:00.1", 4}, "enp225s0f1", "mlx5_core", "15b3:101b", false, -1},
			{place{"0000:e2:00.0", 4}, "enp226s0", "igb", "8086:1533", false, 1000},
		},
	}
	for _, bus := range []string{"c4", "c5", "c6", "c7", "c8", "c9"} {
		m.functions = append(m.functions, function{place{"0000:" + bus + ":00.0", 5}, "068000", "10de:1af1", "10de:0000", "nvidia-nvswitch"})
	}
	m.disks = append(m.disks, dataDisks("SAMSUNG MZWLJ3T8HBLS-00007", 3840*terabyte/1000,
		place{"0000:08:00.0", 3}, place{"0000:09:00.0", 3}, place{"0000:48:00.0", 1}, place{"0000:49:00.0", 1},
		place{"0000:88:00.0", 7}, place{"0000:89:00.0", 7}, place{"0000:b8:00.0", 5}, place{"0000:b9:00.0", 5})...)
	return m
}

func l40s() machine {
	return machine{
		name: "l40s-4",
		comment: "A two-socket server with 4 x L40S, MIG-less, no NVLink.\n" + composed + `processor, GPU and driver are
real products; the server itself, its addresses and its disks are made up.`,
		vendor: "Supermicro", product: "SYS-421GE-TNRT", bios: "2.1",
		os: "Red Hat Enterprise Linux 9.4 (Plow)", osID: "rhel", kernel: "5.14.0-427.13.1.el9_4.x86_64", bls: true, secureBoot: true,
		cmdline:   "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-5.14.0-427.13.1.el9_4.x86_64 root=/dev/mapper/rhel-root ro crashkernel=1G-4G:192M,4G-64G:256M,64G-:512M resume=/dev/mapper/rhel-swap rd.lvm.lv=rhel/root",
		cpuVendor: "GenuineIntel", cpuModel: "Intel(R) Xeon(R) Gold 6430", sockets: 2, cores: 32, nodes: 2,
		nodeKiB: 263821312, local: 10, near: 21, far: 21,
		freqDriver: "intel_pstate", governor: "powersave", governors: "performance powersave",
		iommuUnit: "dmar", iommuUnits: 10, iommuType: "DMA-FQ",
		gpuAt: []place{{"0000:31:00.0", 0}, {"0000:4b:00.0", 0}, {"0000:b1:00.0", 1}, {"0000:ca:00.0", 1}},
		gpu: &wire.GPU{
			Product: "NVIDIA L40S", PCIID: "26b9:10de", PCISubID: "1851:10de", MemoryMiB: 46068,
			Architecture: "Ada", Compute: "8.9", ClockMHz: new(2520),
			Power: &wire.PowerInfo{LimitWatts: 350, EnforcedWatts: 350, DefaultWatts: 350, MinWatts: 100, MaxWatts: 350},
			ECC:   &wire.ECCInfo{Enabled: true, Pending: true},
		},
		driver: "550.54.15", cuda: "12.4", nvmlVers: "12.550.54.15",
		functions: []function{{place{"0000:03:00.0", 0}, "030000", "1a03:2000", "1a03:2000", "ast"}},
		disks: append([]disk{{place{"0000:01:00.0", 0}, "nvme0", "Micron_7450_MTFDKBA960TFR", 960 * terabyte / 1000}},
			dataDisksFrom(1, "KIOXIA KCD8XPUG7T68", 7680*terabyte/1000, place{"0000:2a:00.0", 0}, place{"0000:ab:00.0", 1})...),
		ports: []port{
			{place{"0000:6a:00.0", 0}, "ens5f0np0", "mlx5_core", "15b3:101f", false, 25000},
			{place{"0000:6a:00.1", 0}, "ens5f1np1", "mlx5_core", "15b3:101f", false, -1},
		},
	}
}

func cpuOnly() machine {
	return machine{
		name: "cpu-only",
		comment: "A two-socket server without a GPU, with 1 GiB pages for instances.\n" + composed + `the processor is a real
product; the server itself, its addresses and its disks are made up.`,
		vendor: "Dell Inc.", product: "PowerEdge R7625", bios: "1.6.10",
		os: "Debian GNU/Linux 12 (bookworm)", osID: "debian", kernel: "6.1.0-18-amd64",
		cmdline:   "BOOT_IMAGE=/boot/vmlinuz-6.1.0-18-amd64 root=UUID=00000000-0000-0000-0000-000000000000 ro quiet hugepagesz=1G hugepages=0:32,1:32",
		cpuVendor: "AuthenticAMD", cpuModel: "AMD EPYC 9354 32-Core Processor", sockets: 2, cores: 32, nodes: 2,
		nodeKiB: 197872640, local: 10, near: 32, far: 32,
		freqDriver: "acpi-cpufreq", governor: "schedutil", governors: "conservative ondemand userspace powersave performance schedutil",
		iommuUnit: "ivhd", iommuUnits: 8, iommuType: "DMA-FQ",
		hugepages1Gi: 32,
		functions:    []function{{place{"0000:c4:00.0", 1}, "030000", "102b:0536", "1028:0a6b", "mgag200"}},
		disks: append([]disk{{place{"0000:01:00.0", 0}, "nvme0", "Dell BOSS-N1", 480 * terabyte / 1000}},
			dataDisksFrom(1, "Dell Ent NVMe P5600 MU U.2 3.2TB", 3200*terabyte/1000, place{"0000:41:00.0", 0}, place{"0000:a1:00.0", 1})...),
		ports: []port{
			{place{"0000:e1:00.0", 1}, "eno8303", "tg3", "14e4:165f", false, 1000},
			{place{"0000:21:00.0", 0}, "ens2f0np0", "mlx5_core", "15b3:101f", false, 25000},
			{place{"0000:21:00.1", 0}, "ens2f1np1", "mlx5_core", "15b3:101f", false, 25000},
		},
	}
}

func dataDisks(model string, sectors uint64, at ...place) []disk {
	return dataDisksFrom(2, model, sectors, at...)
}

func dataDisksFrom(first int, model string, sectors uint64, at ...place) []disk {
	var out []disk
	for i, p := range at {
		out = append(out, disk{p, "nvme" + string(rune('0'+first+i)), model, sectors})
	}
	return out
}
