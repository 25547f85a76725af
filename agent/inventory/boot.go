package inventory

import (
	"strings"
	"unicode/utf16"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// The boot loaders that [wire.BootInfo] names.
const (
	loaderGRUBDebian  = "grub-debian"
	loaderGRUBBLS     = "grub-bls"
	loaderSystemdBoot = "systemd-boot"
	loaderUKI         = "uki"
	loaderRPMOSTree   = "rpm-ostree"
	loaderUnknown     = "unknown"
)

// EFI variables carry their vendor: the UEFI specification for SecureBoot, the
// boot loader interface (systemd.io/BOOT_LOADER_INTERFACE) for the others.
const (
	efiSecureBoot = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	efiLoaderInfo = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	efiStubInfo   = "/sys/firmware/efi/efivars/StubInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
)

func collectBoot(root *host.Root) wire.BootInfo {
	boot := wire.BootInfo{
		CommandLine: first(root, "/proc/cmdline"),
		Loader:      bootLoader(root),
		UEFI:        root.IsDir("/sys/firmware/efi"),
	}
	if data := efiVariable(root, efiSecureBoot); len(data) == 1 {
		on := data[0] == 1
		boot.SecureBoot = &on
	}
	return boot
}

// bootLoader tells who reads the kernel arguments at the next boot. A unified
// kernel image carries its own, so it comes before the loader that started it;
// what booted comes before what is merely configured.
func bootLoader(root *host.Root) string {
	if root.Exists("/run/ostree-booted") {
		return loaderRPMOSTree
	}
	if efiVariable(root, efiStubInfo) != nil {
		return loaderUKI
	}
	if strings.HasPrefix(utf16Text(efiVariable(root, efiLoaderInfo)), "systemd-boot") {
		return loaderSystemdBoot
	}
	if data, err := root.ReadHead("/etc/default/grub", 64<<10); err == nil {
		if strings.EqualFold(assignments(string(data))["GRUB_ENABLE_BLSCFG"], "true") {
			return loaderGRUBBLS
		}
		if root.Exists("/usr/sbin/update-grub") || debian(root) {
			return loaderGRUBDebian
		}
		return loaderUnknown
	}
	for _, name := range []string{"/efi/loader/loader.conf", "/boot/efi/loader/loader.conf", "/boot/loader/loader.conf"} {
		if root.Exists(name) {
			return loaderSystemdBoot
		}
	}
	return loaderUnknown
}

func debian(root *host.Root) bool {
	release := osRelease(root)
	for id := range strings.FieldsSeq(release["ID"] + " " + release["ID_LIKE"]) {
		if id == "debian" || id == "ubuntu" {
			return true
		}
	}
	return false
}

// efiVariable reads a variable without the four bytes of attributes that
// efivarfs puts before it. It is nil if there is none.
func efiVariable(root *host.Root, name string) []byte {
	data, err := root.ReadHead(name, 4<<10)
	if err != nil || len(data) < 4 {
		return nil
	}
	return data[4:]
}

func utf16Text(data []byte) string {
	var units []uint16
	for i := 0; i+1 < len(data); i += 2 {
		units = append(units, uint16(data[i])|uint16(data[i+1])<<8)
	}
	return strings.TrimRight(string(utf16.Decode(units)), "\x00")
}
