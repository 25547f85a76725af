package wire

// Inventory is what one machine is, as far as its kernel and its GPU driver
// say. What cannot be read is absent, never a guess.
type Inventory struct {
	Version   int    `json:"version"`
	Hostname  string `json:"hostname"`
	MachineID string `json:"machineId"` // hash of the host's machine id, 32 hex digits
	BootID    string `json:"bootId,omitempty"`
	Arch      string `json:"arch"` // as Go names it: amd64, arm64
	Kernel    string `json:"kernel"`
	OS        string `json:"os,omitempty"` // PRETTY_NAME of os-release

	// Recorded names the recorded machine this inventory was made from. Empty
	// on a real one. A recorded machine is shown as simulated everywhere.
	Recorded string `json:"recorded,omitempty"`

	// Agent is what the machine's agent can be asked for; nil of one that is
	// older than that.
	Agent *AgentFacts `json:"agent,omitempty"`

	DMI        DMI            `json:"dmi"`
	CPU        CPUInfo        `json:"cpu"`
	MemoryKiB  uint64         `json:"memoryKiB"`
	NUMA       []NUMANode     `json:"numa"`
	Hugepages  []HugepagePool `json:"hugepages"` // the whole host's pools, one for each size
	PCI        []PCIDevice    `json:"pci"`
	IOMMU      IOMMUInfo      `json:"iommu"`
	Boot       BootInfo       `json:"boot"`
	Disks      []Disk         `json:"disks"`
	NICs       []NIC          `json:"nics"`
	GPULibrary GPULibrary     `json:"gpuLibrary"`
	GPUs       []GPU          `json:"gpus"`

	// Notes are findings for the operator: what was found and could not be
	// used, and why ("GPU 0000:17:00.0 has no driver").
	Notes []string `json:"notes,omitempty"`
}

// DMI is what the firmware calls the machine.
type DMI struct {
	Vendor  string `json:"vendor,omitempty"`
	Product string `json:"product,omitempty"`
	BIOS    string `json:"bios,omitempty"`
}

// CPUInfo counts the host's processors. Lists are kernel cpulists.
type CPUInfo struct {
	Model          string `json:"model"`
	Vendor         string `json:"vendor"` // GenuineIntel, AuthenticAMD, ARM …
	Logical        int    `json:"logical"`
	Cores          int    `json:"cores"`
	Sockets        int    `json:"sockets"`
	ThreadsPerCore int    `json:"threadsPerCore"`
	Online         string `json:"online"`
	Offline        string `json:"offline,omitempty"`
	Isolated       string `json:"isolated,omitempty"`
	NoHzFull       string `json:"nohzFull,omitempty"`
	// Siblings are the hardware threads of each core, a cpulist for each, in
	// order of the first CPU.
	Siblings []string     `json:"siblings"`
	Cpufreq  []CpufreqSet `json:"cpufreq,omitempty"`
}

// CpufreqSet is a set of cpufreq policies that are alike.
type CpufreqSet struct {
	CPUs      string   `json:"cpus"`
	Driver    string   `json:"driver"`
	Governor  string   `json:"governor"`
	Available []string `json:"available"`
}

// NUMANode is one memory node. A node without CPUs (memory only, or a GPU's
// memory) has an empty CPUs.
type NUMANode struct {
	ID        int            `json:"id"`
	CPUs      string         `json:"cpus"`
	MemoryKiB uint64         `json:"memoryKiB"`
	Distances []int          `json:"distances,omitempty"` // in the order of the nodes listed
	Hugepages []HugepagePool `json:"hugepages,omitempty"`
}

// HugepagePool is one pool of huge pages: counts are pages.
type HugepagePool struct {
	SizeKiB int `json:"sizeKiB"`
	Total   int `json:"total"`
	Free    int `json:"free"`
	Surplus int `json:"surplus,omitempty"`
}

// PCIDevice is one PCI function of a class that matters here: display and
// 3D controllers, processing accelerators, network, NVMe, NVIDIA bridges.
type PCIDevice struct {
	Address    string `json:"address"` // 0000:17:00.0
	Class      string `json:"class"`   // six hex digits: 030200
	Vendor     string `json:"vendor"`  // four hex digits: 10de
	Device     string `json:"device"`
	SubVendor  string `json:"subVendor,omitempty"`
	SubDevice  string `json:"subDevice,omitempty"`
	NUMANode   int    `json:"numaNode"` // -1: the firmware does not say
	Driver     string `json:"driver,omitempty"`
	IOMMUGroup int    `json:"iommuGroup"` // -1: none
}

// IOMMUInfo says whether devices stand behind an IOMMU, and how.
type IOMMUInfo struct {
	Units  []string `json:"units"`  // dmar0, ivhd0, smmu3.0x…
	Groups int      `json:"groups"` // 0: the IOMMU is off, whatever the arguments say
	// DefaultTypes counts the groups by default domain type (DMA, DMA-FQ, identity).
	DefaultTypes map[string]int `json:"defaultTypes,omitempty"`
}

// BootInfo says how the machine boots.
type BootInfo struct {
	CommandLine string `json:"commandLine"`
	Loader      string `json:"loader"` // grub-debian, grub-bls, systemd-boot, uki, rpm-ostree, unknown
	UEFI        bool   `json:"uefi"`
	SecureBoot  *bool  `json:"secureBoot,omitempty"` // absent: not known
}

// Disk is one block device that could hold instances.
type Disk struct {
	Name       string `json:"name"`
	SizeGiB    int    `json:"sizeGiB"`
	Rotational bool   `json:"rotational,omitempty"`
	Model      string `json:"model,omitempty"`
	NUMANode   int    `json:"numaNode"`
}

// NIC is one physical network interface.
type NIC struct {
	Name      string `json:"name"`
	Address   string `json:"address,omitempty"` // PCI address
	Driver    string `json:"driver,omitempty"`
	SpeedMbps int    `json:"speedMbps,omitempty"`
	Up        bool   `json:"up,omitempty"`
	NUMANode  int    `json:"numaNode"`
	Kind      string `json:"kind"` // ethernet or infiniband
}

// GPULibraryState says whether the GPU library answered.
type GPULibraryState string

// What the GPU library may answer as a whole.
const (
	GPULibraryReady    GPULibraryState = "ready"
	GPULibraryMissing  GPULibraryState = "missing"  // no libnvidia-ml on this machine
	GPULibraryNoDriver GPULibraryState = "noDriver" // the library is there, the kernel driver is not
	GPULibraryMismatch GPULibraryState = "mismatch" // library and kernel driver differ: reboot or reload
	GPULibraryDenied   GPULibraryState = "denied"   // no permission on the device nodes
	GPULibraryFailed   GPULibraryState = "failed"   // anything else; the reason says what
	GPULibraryNoCGO    GPULibraryState = "noCgo"    // this binary was built without NVML
)

// GPULibrary is the state of NVML on the machine. When it is not ready the
// GPUs of the inventory are those last seen: NVML failing is not an empty
// inventory.
type GPULibrary struct {
	State   GPULibraryState `json:"state"`
	Reason  string          `json:"reason,omitempty"` // for people
	Driver  string          `json:"driver,omitempty"` // 535.161.08
	CUDA    string          `json:"cuda,omitempty"`   // 12.2
	Version string          `json:"version,omitempty"`
}

// GPUHealth is the state of one GPU.
type GPUHealth string

// A GPU is healthy, or it is not and says why in HealthReason.
const (
	GPUHealthy   GPUHealth = "healthy"
	GPUUnhealthy GPUHealth = "unhealthy"
	GPULost      GPUHealth = "lost"    // fallen off the bus
	GPUMissing   GPUHealth = "missing" // in an earlier inventory, not in this one
)

// GPU is one physical GPU. Pointers are absent where the board does not
// support the thing or the driver would not say.
type GPU struct {
	UUID         string    `json:"uuid"`
	Index        int       `json:"index"` // NVML's, for show
	Minor        int       `json:"minor"` // N of /dev/nvidiaN, -1: not known
	Address      string    `json:"address"`
	PCIID        string    `json:"pciId,omitempty"`    // device and vendor: 2330:10de
	PCISubID     string    `json:"pciSubId,omitempty"` // subsystem device and vendor
	Product      string    `json:"product"`            // the NVML name as given
	SerialHash   string    `json:"serialHash,omitempty"`
	MemoryMiB    int       `json:"memoryMiB"`
	NUMANode     int       `json:"numaNode"` // -1: not known
	Architecture string    `json:"architecture,omitempty"`
	Compute      string    `json:"compute,omitempty"` // compute capability: 9.0
	Display      bool      `json:"display,omitempty"` // display-only or integrated: never booked
	Health       GPUHealth `json:"health"`
	HealthReason string    `json:"healthReason,omitempty"`

	NVLinkPeers []NVLinkPeer `json:"nvlinkPeers,omitempty"`

	MIG      *MIGInfo   `json:"mig,omitempty"` // absent: the board has no MIG
	Power    *PowerInfo `json:"power,omitempty"`
	ECC      *ECCInfo   `json:"ecc,omitempty"`
	ClockMHz *int       `json:"maxClockMHz,omitempty"`

	Persistence *bool  `json:"persistence,omitempty"`
	ComputeMode string `json:"computeMode,omitempty"` // default, exclusiveProcess, prohibited
}

// NVLinkPeer counts the active links from one GPU to another. On a switched
// fabric every GPU of the host is a peer.
type NVLinkPeer struct {
	UUID  string `json:"uuid"`
	Links int    `json:"links"`
}

// MIGInfo is the MIG mode of a GPU and the instances that exist.
type MIGInfo struct {
	Enabled   bool          `json:"enabled"`
	Pending   bool          `json:"pending"` // the mode after the next reset
	Instances []MIGInstance `json:"instances,omitempty"`
}

// MIGInstance is one GPU instance with its compute instance. The profile is as
// the device names it: 1g.10gb is never 1g.10gb+me.
type MIGInstance struct {
	UUID            string `json:"uuid"`
	Profile         string `json:"profile"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
	MemoryMiB       int    `json:"memoryMiB"`
	Start           int    `json:"start"` // first memory slice
	Size            int    `json:"size"`  // memory slices
}

// PowerInfo is the power cap of a GPU and the range its board allows, in watts
// rounded from the milliwatts that NVML gives.
type PowerInfo struct {
	LimitWatts    int `json:"limitWatts"`
	EnforcedWatts int `json:"enforcedWatts,omitempty"`
	DefaultWatts  int `json:"defaultWatts"`
	MinWatts      int `json:"minWatts"`
	MaxWatts      int `json:"maxWatts"`
}

// ECCInfo is the ECC mode of a GPU, now and after the next reset.
type ECCInfo struct {
	Enabled bool `json:"enabled"`
	Pending bool `json:"pending"`
}
