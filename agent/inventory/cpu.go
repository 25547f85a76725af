package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

const cpuDir = "/sys/devices/system/cpu"

// readCPUInfo reads the first processor's paragraph of /proc/cpuinfo. The
// others differ in what sysfs says better.
func readCPUInfo(root *host.Root) map[string]string {
	info := make(map[string]string)
	data, _ := root.ReadHead("/proc/cpuinfo", 16<<10)
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		if !ok && len(info) > 0 {
			break
		}
		if ok {
			info[strings.TrimSpace(name)] = strings.ToValidUTF8(strings.TrimSpace(value), "?")
		}
	}
	return info
}

// collectCPU counts what is online: a CPU that is offline runs nothing, and
// the kernel gives no topology of it.
func collectCPU(root *host.Root, cpuinfo map[string]string, note func(string, ...any)) (wire.CPUSet, wire.CPUInfo) {
	cpu := wire.CPUInfo{Siblings: []string{}}
	cpu.Vendor, cpu.Model = cpuModel(cpuinfo)

	online := onlineCPUs(root)
	cpu.Online = online.String()
	cpu.Logical = online.Count()
	if present, ok := root.CPUs(cpuDir + "/present"); ok {
		cpu.Offline = present.Minus(online).String()
	} else if offline, ok := root.CPUs(cpuDir + "/offline"); ok {
		cpu.Offline = offline.String()
	}
	isolated, _ := root.CPUs(cpuDir + "/isolated")
	cpu.Isolated = isolated.String()
	noHz, _ := root.CPUs(cpuDir + "/nohz_full")
	cpu.NoHzFull = noHz.String()

	topology(root, online, &cpu, note)
	cpu.Cpufreq = cpufreq(root)
	return online, cpu
}

func onlineCPUs(root *host.Root) wire.CPUSet {
	if online, ok := root.CPUs(cpuDir + "/online"); ok && !online.IsEmpty() {
		return online
	}
	var cpus []int
	data, _ := root.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "processor" {
			if n, ok := number(strings.TrimSpace(value)); ok {
				cpus = append(cpus, n)
			}
		}
	}
	return wire.NewCPUSet(cpus...)
}

// topology finds the cores and sockets. It reads one thread of each core:
// threads of a core share the rest.
func topology(root *host.Root, online wire.CPUSet, cpu *wire.CPUInfo, note func(string, ...any)) {
	packages := make(map[int64]bool)
	known := false
	var seen wire.CPUSet
	for _, n := range online.CPUs() {
		if seen.Contains(n) {
			continue
		}
		dir := fmt.Sprintf("%s/cpu%d/topology", cpuDir, n)
		siblings, ok := root.CPUs(dir + "/thread_siblings_list")
		if !ok {
			siblings, ok = root.CPUs(dir + "/core_cpus_list")
		}
		known = known || ok
		siblings = siblings.Intersect(online).Union(wire.NewCPUSet(n))
		seen = seen.Union(siblings)
		cpu.Siblings = append(cpu.Siblings, siblings.String())
		cpu.ThreadsPerCore = max(cpu.ThreadsPerCore, siblings.Count())
		// -1 is how some firmware says that it does not know.
		if id, ok := root.Int(dir + "/physical_package_id"); ok && id >= 0 {
			packages[id] = true
		}
	}
	cpu.Cores = len(cpu.Siblings)
	cpu.Sockets = len(packages)
	if cpu.Sockets == 0 && cpu.Logical > 0 {
		cpu.Sockets = 1
	}
	if !known && cpu.Logical > 0 {
		note("The kernel tells no CPU topology: every logical CPU counts as a core of one socket")
	}
}

// cpufreq groups the policies that have driver, governor and offer in common.
// A machine whose firmware keeps the frequencies to itself has none.
func cpufreq(root *host.Root) []wire.CpufreqSet {
	var sets []wire.CpufreqSet
	var cpus []wire.CPUSet
	for _, dir := range root.Glob(cpuDir + "/cpufreq/policy[0-9]*") {
		affected, ok := policyCPUs(root, dir)
		if !ok {
			continue
		}
		set := wire.CpufreqSet{
			Driver:    first(root, dir+"/scaling_driver"),
			Governor:  first(root, dir+"/scaling_governor"),
			Available: strings.Fields(first(root, dir+"/scaling_available_governors")),
		}
		if set.Available == nil {
			set.Available = []string{}
		}
		i := slices.IndexFunc(sets, func(s wire.CpufreqSet) bool {
			return s.Driver == set.Driver && s.Governor == set.Governor && slices.Equal(s.Available, set.Available)
		})
		if i < 0 {
			sets, cpus = append(sets, set), append(cpus, affected)
			continue
		}
		cpus[i] = cpus[i].Union(affected)
	}
	for i := range sets {
		sets[i].CPUs = cpus[i].String()
	}
	slices.SortFunc(sets, func(a, b wire.CpufreqSet) int { return firstCPU(a.CPUs) - firstCPU(b.CPUs) })
	return sets
}

// policyCPUs reads the online CPUs of a policy, which are written with blanks
// between. A policy whose CPUs are all offline has none and does not count.
func policyCPUs(root *host.Root, dir string) (wire.CPUSet, bool) {
	list, _ := root.String(dir + "/affected_cpus")
	set, err := wire.ParseCPUList(strings.Join(strings.Fields(list), ","))
	return set, err == nil && !set.IsEmpty()
}

func firstCPU(list string) int {
	set, _ := wire.ParseCPUList(list)
	return set.Min()
}

// cpuModel names the maker and the model. Arm's kernels give numbers, whose
// names are of Linux's arch/arm64/include/asm/cputype.h.
func cpuModel(info map[string]string) (vendor, model string) {
	if info["vendor_id"] != "" || info["model name"] != "" {
		return info["vendor_id"], strings.Join(strings.Fields(info["model name"]), " ")
	}
	implementer, part := info["CPU implementer"], info["CPU part"]
	if implementer == "" {
		return "", info["cpu"] // POWER
	}
	vendor, ok := map[string]string{
		"0x41": "ARM", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x51": "Qualcomm", "0xc0": "Ampere",
	}[implementer]
	if !ok {
		vendor = implementer
	}
	model, ok = map[string]string{
		"0x41 0xd0c": "Neoverse-N1", "0x41 0xd40": "Neoverse-V1", "0x41 0xd49": "Neoverse-N2", "0x41 0xd4f": "Neoverse-V2",
		"0x41 0xd85": "Cortex-X925", "0x41 0xd87": "Cortex-A725", "0xc0 0xac3": "Ampere-1",
	}[implementer+" "+part]
	if !ok {
		model = vendor + " part " + part
	}
	return vendor, model
}
