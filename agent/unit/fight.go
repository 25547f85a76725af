package unit

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// rivals are the services that are known to set what a unit sets.
var rivals = map[wire.UnitKind][]string{
	wire.UnitHugepages: {"tuned.service", "libvirtd.service"},
	wire.UnitCPU: {
		"tuned.service", "tuned-ppd.service", "power-profiles-daemon.service", "tlp.service", "auto-cpufreq.service", "cpupower.service",
		"thermald.service", "cpufrequtils.service",
	},
	wire.UnitIOMMU:         {"tuned.service"},
	wire.UnitKernelModules: {"tuned.service"},
	wire.UnitGPUSettings:   {"tuned.service", "nvidia-powerd.service"},
}

// fight says who may be changing a unit again and again.
func (r *Runner) fight(ctx context.Context, kind wire.UnitKind, plan Plan) string {
	var who []string
	for _, service := range rivals[kind] {
		if r.Machine.UnitActive(ctx, service) {
			who = append(who, strings.TrimSuffix(service, ".service"))
		}
	}
	if kind == wire.UnitHugepages {
		for _, s := range sysctlSettings(r.Machine.Root, pageSettings...) {
			who = append(who, s.file)
		}
	}
	text := fmt.Sprintf("someone else changed it back %d times in %v, so the agent stopped: %s", conflictFlips, conflictWindow, summary(plan))
	if who = slices.Compact(who); len(who) > 0 {
		return text + ". Suspected: " + strings.Join(who, ", ")
	}
	return text + ". None of the services known to do that runs here"
}

// settings are lines of sysctl.d files that set one of the names.
type setting struct{ file, value string }

// sysctlSettings lists what sets one of the names, in the order in which it is
// applied: of files with one name the first folder's counts, then files go by
// name, and the last setting wins (sysctl.d(5)).
func sysctlSettings(root *host.Root, names ...string) []setting {
	files := map[string]string{} // path by name
	for _, dir := range []string{"/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d"} {
		for _, file := range root.Glob(dir + "/*.conf") {
			files[path.Base(file)] = file
		}
	}
	var order []string
	for _, name := range sortedKeys(files) {
		order = append(order, files[name])
	}
	if !slices.ContainsFunc(order, func(file string) bool { // distributions link it there
		target, err := root.Resolve(file)
		return err == nil && target == "/etc/sysctl.conf"
	}) {
		order = append(order, "/etc/sysctl.conf")
	}
	var out []setting
	for _, file := range order {
		data, _ := root.ReadHead(file, 64<<10)
		for line := range strings.Lines(string(data)) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			key = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(key), "-"), "/", ".")
			if ok && slices.Contains(names, key) {
				out = append(out, setting{file, strings.TrimSpace(value)})
			}
		}
	}
	return out
}

// pageSettings are the kernel settings of the pool of the default size.
var pageSettings = []string{"vm.nr_hugepages", "vm.nr_hugepages_mempolicy"}

// sysctlPages says that a sysctl.d file gives the pool another size at every
// boot, and whenever someone runs sysctl.
func sysctlPages(root *host.Root, want *wire.Hugepages) string {
	meminfo, _ := root.ReadHead("/proc/meminfo", 8<<10)
	if size, ok := memoryLine(string(meminfo), "Hugepagesize:"); ok && size != want.SizeKiB || !ok && want.SizeKiB != wire.Hugepage2MiKiB {
		return ""
	}
	set := sysctlSettings(root, pageSettings...)
	if len(set) == 0 {
		return ""
	}
	last := set[len(set)-1]
	if n, err := strconv.Atoi(last.value); err == nil && !want.PerNUMA && n == want.Count {
		return ""
	}
	return fmt.Sprintf("%s sets vm.nr_hugepages = %s at every boot: take it out there, or the agent sets it right each time", last.file, last.value)
}

// crashKernelPages says that a crash kernel would be given the pages too, which
// are more than the memory that is reserved for it. Which arguments it gets from
// the running kernel is said in RHEL's and Debian's own files (kdump.conf(5),
// kdump-tools(5)).
func crashKernelPages(root *host.Root) string {
	line, _ := root.String("/proc/cmdline")
	reserved, told := root.Int("/sys/kernel/kexec_crash_size")
	if told && reserved == 0 || !told && !strings.Contains(" "+line, " crashkernel=") {
		return ""
	}
	const why = "the crash kernel would be given hugepages= too, and run out of its reserve: "
	if data, err := root.ReadHead("/etc/sysconfig/kdump", 64<<10); err == nil {
		values := host.Assignments(string(data))
		if values["KDUMP_COMMANDLINE"] == "" && !slices.Contains(strings.Fields(values["KDUMP_COMMANDLINE_REMOVE"]), "hugepages") {
			return why + "add hugepages and hugepagesz to KDUMP_COMMANDLINE_REMOVE in /etc/sysconfig/kdump"
		}
		return ""
	}
	if data, err := root.ReadHead("/etc/default/kdump-tools", 64<<10); err == nil {
		values := host.Assignments(string(data))
		if values["USE_KDUMP"] != "0" && values["KDUMP_CMDLINE"] == "" && !slices.Contains(strings.Fields(values["KDUMP_CMDLINE_APPEND"]), "hugepages=0") {
			return why + "add hugepages=0 to KDUMP_CMDLINE_APPEND in /etc/default/kdump-tools"
		}
	}
	return ""
}
