package inventory

import (
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

func collectBoot(root *host.Root) wire.BootInfo {
	boot := wire.BootInfo{
		CommandLine: first(root, "/proc/cmdline"),
		Loader:      root.BootLoader(),
		UEFI:        root.IsDir("/sys/firmware/efi"),
	}
	if on, known := root.SecureBoot(); known {
		boot.SecureBoot = &on
	}
	return boot
}
