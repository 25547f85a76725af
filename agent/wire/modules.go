package wire

import (
	"fmt"
	"slices"
	"strings"
)

// deniedOption is a module's option with values that can keep a machine from
// booting, take away a way into it, or open the walls between its tenants. Who
// wants one all the same sets it on the machine, beside its console.
type deniedOption struct {
	modules string // names, as ModuleKey spells them; "" is every module
	option  string
	legal   func(value string) bool // nil: no value is
	why     string                  // what any other value does
}

func off(v string) bool { return v == "0" || v == "N" || v == "n" }
func on(v string) bool  { return v == "1" || v == "Y" || v == "y" }

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

// deniedOptions are parameters of the kernel's own modules (modinfo -p, and
// kernel-parameters.txt) and of NVIDIA's. A value that is legal is one that the
// module has by default, or that does the same.
var deniedOptions = []deniedOption{
	{"scsi_mod", "scan", oneOf("sync", "async"), "has the kernel look for no disks, so that the machine does not boot"},
	{"libata", "force", func(v string) bool { return !strings.Contains(v, "disable") }, "can switch off the port of the root disk, so that the machine does not boot"},
	{"", "start_now", off, "starts a watchdog that nothing feeds yet, so that the machine resets again and again"},
	{"watchdog", "handle_boot_enabled", on, "leaves a watchdog that the firmware started without anyone who feeds it, so that the machine resets again and again"},
	{"thermal", "off", off, "switches off the shutdown that saves an overheated machine"},
	{"thermal", "nocrt", off, "switches off the shutdown that saves an overheated machine"},
	{"thermal", "crt", nil, "moves the temperature at which an overheated machine is shut down"},

	{"ipv6", "disable", off, "cuts off a machine that is reached over IPv6"},
	{"ipv6", "disable_ipv6", off, "cuts off a machine that is reached over IPv6"},
	{"usbcore", "nousb", off, "takes away the keyboard, also that of a management controller's console"},
	{"usbcore", "authorized_default", on, "takes away the keyboard, also that of a management controller's console"},
	{"i8042", "nokbd", off, "takes away the keyboard of the console"},
	{"8250", "nr_uarts", nil, "can take away the serial console"},
	{"ast mgag200 i915 xe amdgpu radeon nouveau virtio_gpu", "modeset", oneOf("1", "2", "-1"), "takes away the picture of the console"},

	{"vfio", "enable_unsafe_noiommu_mode", off, "gives devices to guests without an IOMMU, through which a guest reads and writes all of the host's memory"},
	{"vfio_iommu_type1", "allow_unsafe_interrupts", off, "lets a guest raise interrupts of the host"},
	{"nvidia", "NVreg_DeviceFileUID", nil, "changes who may open GPUs, which is for reservations to say"},
	{"nvidia", "NVreg_DeviceFileGID", nil, "changes who may open GPUs, which is for reservations to say"},
	{"nvidia", "NVreg_DeviceFileMode", nil, "changes who may open GPUs, which is for reservations to say"},
	{"nvidia", "NVreg_ModifyDeviceFiles", on, "changes who may open GPUs, which is for reservations to say"},
	{"nvidia", "NVreg_InitializeSystemMemoryAllocations", on, "hands memory on with what its last owner left in it"},
	{"nvidia", "NVreg_RegistryDwords", nil, "sets switches of the driver that NVIDIA does not document"},
	{"nvidia", "NVreg_RegistryDwordsPerDevice", nil, "sets switches of the driver that NVIDIA does not document"},
	{"nvidia", "NVreg_AssignGpus", nil, "hides GPUs that the pool offers"},
	{"nvidia", "NVreg_ExcludedGpus", nil, "hides GPUs that the pool offers"},
	{"nvidia_uvm", "uvm_enable_builtin_tests", off, "lets every process run the driver's own tests, which NVIDIA calls a security risk"},
}

// deniedModules are modules that are never loaded for a pool.
var deniedModules = []struct{ modules, why string }{
	{"nouveau nova_core nvidiafb", "takes GPUs that the NVIDIA driver is to have"},
	{"lkdtm test_lockup", "crashes the kernel, which is what it is for"},
	{"torture locktorture rcutorture scftorture rcuscale refscale", "loads the kernel until it fails, which is what it is for"},
}

// deniedLoad says why a module is not loaded for a pool, "" if it may be.
func deniedLoad(module string) string {
	for _, d := range deniedModules {
		if slices.Contains(strings.Fields(d.modules), ModuleKey(module)) {
			return fmt.Sprintf("%s %s", module, d.why)
		}
	}
	return ""
}

// deniedWord says why an option of a module is not set for a pool, "" if it
// may be.
func deniedWord(module, option, value string) string {
	for _, d := range deniedOptions {
		if d.modules != "" && !slices.Contains(strings.Fields(d.modules), ModuleKey(module)) ||
			d.option != ModuleKey(option) || d.legal != nil && d.legal(value) {
			continue
		}
		return fmt.Sprintf("%s=%s %s", option, clip(value, 40), d.why)
	}
	return ""
}
