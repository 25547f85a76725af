package wire

import (
	"strings"
	"testing"
)

// What could keep a machine from booting, shut people out of it or open the
// walls between its tenants is refused with what it would do.
func TestDeniedModuleOptions(t *testing.T) {
	for _, c := range []struct{ module, refused, legal, why string }{
		{"scsi_mod", "scan=none", "scan=async", "no disks"},
		{"scsi-mod", "scan=manual", "scan=sync", "no disks"},
		{"libata", "force=1:disable", "force=1:noncq", "root disk"},
		{"ipmi_watchdog", "start_now=1", "start_now=0", "resets again and again"},
		{"ipmi-watchdog", "timeout=60 start-now=Y", "timeout=60", "resets again and again"},
		{"watchdog", "handle_boot_enabled=0", "handle_boot_enabled=1", "resets again and again"},
		{"thermal", "off=1", "off=0", "overheated"},
		{"thermal", "nocrt=Y", "nocrt=N", "overheated"},
		{"thermal", "crt=-1", "psv=90", "overheated"},
		{"ipv6", "disable=1", "disable=0", "IPv6"},
		{"ipv6", "disable_ipv6=0x1", "autoconf=1", "IPv6"},
		{"usbcore", "nousb=1", "autosuspend=-1", "keyboard"},
		{"usbcore", "authorized_default=0", "authorized_default=1", "keyboard"},
		{"i8042", "nokbd=1", "noaux=1", "keyboard"},
		{"8250", "nr_uarts=0", "share_irqs=1", "serial console"},
		{"ast", "modeset=0", "modeset=1", "picture"},
		{"i915", "modeset=0", "enable_guc=3", "picture"},
		{"vfio", "enable_unsafe_noiommu_mode=1", "enable_unsafe_noiommu_mode=N", "without an IOMMU"},
		{"vfio_iommu_type1", "allow_unsafe_interrupts=on", "dma_entry_limit=65535", "interrupts of the host"},
		{"nvidia", "NVreg_DeviceFileMode=0666", "NVreg_EnableGpuFirmware=0", "who may open GPUs"},
		{"nvidia", "NVreg_DeviceFileUID=1000", "NVreg_RestrictProfilingToAdminUsers=0", "who may open GPUs"},
		{"nvidia", "NVreg_DeviceFileGID=44", "NVreg_EnableMSI=1", "who may open GPUs"},
		{"nvidia", "NVreg_ModifyDeviceFiles=0", "NVreg_ModifyDeviceFiles=1", "who may open GPUs"},
		{"nvidia", "NVreg_InitializeSystemMemoryAllocations=0", "NVreg_InitializeSystemMemoryAllocations=1", "last owner"},
		{"nvidia", "NVreg_RegistryDwords=RMx=1", "NVreg_EnablePCIeGen3=1", "document"},
		{"nvidia", "NVreg_RegistryDwordsPerDevice=pci=0", "NVreg_EnablePCIeGen3=1", "document"},
		{"nvidia", "NVreg_AssignGpus=0:1:0", "NVreg_EnablePCIeGen3=1", "hides GPUs"},
		{"nvidia", "NVreg_ExcludedGpus=x", "NVreg_EnablePCIeGen3=1", "hides GPUs"},
		{"nvidia-uvm", "uvm_enable_builtin_tests=1", "uvm_enable_builtin_tests=0", "security risk"},
	} {
		err := (&KernelModules{Options: map[string]string{c.module: c.refused}}).Validate()
		if err == nil || !strings.Contains(err.Error(), c.why) || !strings.HasPrefix(err.Error(), "kernel-modules: options."+c.module+": ") {
			t.Errorf("%s %s: %v, want a refusal that says %q", c.module, c.refused, err, c.why)
		}
		if err := (&KernelModules{Options: map[string]string{c.module: c.legal}}).Validate(); err != nil {
			t.Errorf("%s %s is refused: %v", c.module, c.legal, err)
		}
	}
	for _, d := range deniedOptions { // the same option of a module without it is harmless
		if d.modules != "" {
			if problem := deniedWord("dummy", d.option, "x"); problem != "" {
				t.Errorf("%s of any module is refused: %s", d.option, problem)
			}
		}
	}
}

func TestDeniedModules(t *testing.T) {
	for module, why := range map[string]string{"nouveau": "NVIDIA driver", "nova-core": "NVIDIA driver", "lkdtm": "crashes", "rcutorture": "fails"} {
		err := (&KernelModules{Load: []string{"vfio_pci", module}}).Validate()
		if err == nil || !strings.HasPrefix(err.Error(), "kernel-modules: load[1]: "+module) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", module, err)
		}
	}
}
