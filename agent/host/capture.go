package host

import (
	"path"
	"regexp"
	"strings"
	"sync"
)

// captured lists what is recorded of a machine: a directory and the files in
// it. Nothing else is read. Serial numbers, UUIDs and hardware addresses have
// files of their own in sysfs, which are not on the list.
var captured = []struct{ dir, files string }{
	{"/proc", "cmdline cpuinfo meminfo modules devices"},
	{"/proc/sys/kernel", "osrelease arch"},
	{"/proc/driver/nvidia", "version params gpus/*/information"},
	{"/proc/driver/nvidia-caps", "mig-minors nvlink-minors"},

	{"/sys/devices/system/cpu", "online offline present possible isolated nohz_full smt/active smt/control"},
	{"/sys/devices/system/cpu", "intel_pstate/status amd_pstate/status cpuidle/current_driver"},
	{"/sys/devices/system/cpu/cpu[0-9]*/topology", "physical_package_id die_id core_id thread_siblings_list"},
	{"/sys/devices/system/cpu/cpufreq/policy*", "affected_cpus related_cpus scaling_driver scaling_governor " +
		"scaling_available_governors energy_performance_preference"},

	{"/sys/devices/system/node", "online possible has_cpu has_memory"},
	{"/sys/devices/system/node/node[0-9]*", "cpulist distance meminfo"},
	{"/sys/devices/system/node/node[0-9]*/hugepages/*", "nr_hugepages free_hugepages surplus_hugepages"},
	{"/sys/kernel/mm/hugepages/*", "nr_hugepages free_hugepages resv_hugepages surplus_hugepages nr_overcommit_hugepages"},

	{"/sys/class/iommu", "*"},
	{"/sys/kernel/iommu_groups/*", "type devices/*"},
	{"/sys/bus/pci/devices/*", "class vendor device subsystem_vendor subsystem_device numa_node iommu_group driver physfn"},

	{"/sys/block/*", "size removable hidden queue/rotational device device/model device/numa_node device/device device/device/numa_node"},
	{"/sys/class/net/*", "type speed operstate device device/driver device/numa_node device/physfn"},
	{"/sys/class/dmi/id", "sys_vendor product_name bios_vendor bios_version"},
	{"/sys/firmware/efi/efivars", "SecureBoot-" + efiGlobal + " LoaderInfo-" + efiLoader + " StubInfo-" + efiLoader},

	{"/etc", "os-release debian_version default/grub default/grub.d/*.cfg"},
	{"/usr/lib", "os-release"},
	{"/etc/kernel", "cmdline tries install.conf"},
	{"/boot/loader", "loader.conf entries.srel entries/*.conf"},
	{"/boot/efi/loader", "loader.conf entries.srel entries/*.conf"},
	{"/efi/loader", "loader.conf entries.srel entries/*.conf"},
}

// capturedNames lists files whose being there says something; they are
// recorded empty.
var capturedNames = []string{
	"/run/ostree-booted",
	"/usr/sbin/update-grub",
	"/usr/sbin/grubby",
	"/usr/bin/kernelstub",
	"/usr/bin/bootctl",
	"/sys/bus/pci/devices/*/reset",
}

// The vendors of EFI variables: the UEFI specification's own, and the boot
// loader interface's.
const (
	efiGlobal = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	efiLoader = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
)

// Capture records a machine: the files that discovery and the config units
// read, nothing else. Identifiers in texts are blanked: UUIDs and machine ids
// become zeros, also in the names of boot entries, and so do hardware
// addresses and kernel addresses; serial numbers, and values of kernel
// arguments that look like secrets, become empty. Host name and machine id
// are left out. What cannot be read is left out too.
func Capture(r *Root, comment string) *Archive {
	a := NewArchive(comment)
	for _, c := range captured {
		for file := range strings.FieldsSeq(c.files) {
			for _, name := range r.Glob(path.Join(c.dir, file)) {
				a.capture(r, name, false)
			}
		}
	}
	for _, pattern := range capturedNames {
		for _, name := range r.Glob(pattern) {
			a.capture(r, name, true)
		}
	}
	if r.IsDir("/sys/firmware/efi") {
		a.AddDir("/sys/firmware/efi")
	}
	return a
}

// capture records what is at a path and every symbolic link on the way. Names
// with white space in them are left out: none of the list has any.
func (a *Archive) capture(r *Root, name string, nameOnly bool) {
	if !plainName(name) {
		return
	}
	rest, done := strings.Trim(name, "/"), ""
	for links := 0; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			done = parent(done)
			continue
		}
		next := path.Join(done, part)
		target, err := r.src.readlink(next)
		if err != nil {
			return
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxLinks || !plainName(target) {
			return
		}
		a.AddLink(blankName(next), blank(target))
		if path.IsAbs(target) {
			done = ""
		}
		rest = target + "/" + rest
	}
	dir, err := r.src.isDir(done)
	switch {
	case err != nil:
	case dir:
		a.AddDir(blankName(done))
	case nameOnly:
		a.AddFile(blankName(done), nil)
	default:
		if data, err := r.src.read(done, maxFile); err == nil {
			if textual(data) {
				data = []byte(blank(string(data)))
			}
			a.AddFile(blankName(done), data)
		}
	}
}

var machineIDs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b[0-9a-fA-F]{32}\b`) })

type blanking struct {
	what *regexp.Regexp
	with string
}

// blankings are compiled when they are needed: they take 60 KB, and every start
// of the program would.
var blankings = sync.OnceValue(func() []blanking {
	return []blanking{
		{regexp.MustCompile(`\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`), "00000000-0000-0000-0000-000000000000"},
		{machineIDs(), strings.Repeat("0", 32)},
		// Ethernet addresses, also with the type that BOOTIF= puts before
		// them, and InfiniBand's of 8 and 20 bytes.
		{regexp.MustCompile(`\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5,19}\b`), "00:00:00:00:00:00"},
		{regexp.MustCompile(`\b0x[0-9a-fA-F]{16}\b`), "0x0000000000000000"},
		{regexp.MustCompile(`(?mi)^(\s*(?:[a-z]+ )?serial(?: ?(?:number|no))?\s*[:=])[^\n]*$`), "$1"},
		{regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:passw|secret|token|credential)[a-z0-9_.-]*=)("[^"\n]*"|\S+)`), "$1"},
		{regexp.MustCompile(`(?i)\b(iscsi:)\S+`), "$1"},
	}
})

// blank takes the identifiers out of a text.
func blank(text string) string {
	for _, b := range blankings() {
		text = b.what.ReplaceAllString(text, b.with)
	}
	return text
}

// blankName takes machine ids out of a path. The UUIDs of EFI variables stay:
// they name a vendor.
func blankName(name string) string {
	return machineIDs().ReplaceAllString(name, strings.Repeat("0", 32))
}
