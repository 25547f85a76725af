package inventory

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/bettercompute/bc/agent/wire"
)

const (
	textWidth  = 100 // columns that a report keeps to
	labelWidth = 12
)

// Text writes an inventory for people: at most 100 columns, plain text, in
// the same order always. A recorded machine is marked in the first line.
// Characters that a terminal would act on are shown as "?".
func Text(w io.Writer, inv wire.Inventory) error {
	r := new(report)
	r.system(inv)
	r.processors(inv)
	r.numa(inv)
	r.gpus(inv)
	r.nvlinks(inv.GPUs)
	r.otherPCI(inv)
	r.nics(inv.NICs)
	r.disks(inv.Disks)
	if len(inv.Notes) > 0 {
		r.heading("Notes")
		for _, note := range inv.Notes {
			r.line("- %s", note)
		}
	}
	_, err := io.WriteString(w, r.String())
	return err
}

// report gathers lines; what is too wide is folded when it is written out.
type report struct{ b strings.Builder }

func (r *report) line(format string, args ...any) { fmt.Fprintf(&r.b, format+"\n", args...) }

func (r *report) heading(format string, args ...any) { r.line("\n"+format, args...) }

// fact writes a labelled line, and nothing without a value.
func (r *report) fact(label, format string, args ...any) {
	if value := fmt.Sprintf(format, args...); value != "" {
		r.line("%-*s%s", labelWidth, label, value)
	}
}

// table writes rows under a header in aligned columns.
func (r *report) table(header string, rows [][]string) {
	t := tabwriter.NewWriter(&r.b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(header, "|", "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cmp.Or(printable(cell), "-")
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush() // into a strings.Builder, which takes everything
}

func (r *report) String() string {
	var out strings.Builder
	for line := range strings.Lines(r.b.String()) {
		fold(&out, printable(strings.TrimRight(line, " \n")))
	}
	return out.String()
}

// fold breaks a line at blanks and commas, and in a long word where it has to.
func fold(out *strings.Builder, line string) {
	for indent := ""; ; indent = strings.Repeat(" ", labelWidth) {
		room := textWidth - len(indent)
		if utf8.RuneCountInString(line) <= room {
			out.WriteString(strings.TrimRight(indent+line, " ") + "\n")
			return
		}
		// The cut is in bytes, the room in characters.
		cut, count := 0, 0
		for i := range line {
			if count++; count > room {
				cut = i
				break
			}
		}
		if i := strings.LastIndexAny(line[:cut], " ,"); i > room/3 {
			cut = i + 1
		}
		out.WriteString(strings.TrimRight(indent+line[:cut], " ") + "\n")
		line = strings.TrimLeft(line[cut:], " ")
	}
}

func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, s)
}

func (r *report) system(inv wire.Inventory) {
	name := cmp.Or(inv.Hostname, "(no host name)")
	if inv.Recorded != "" {
		r.line("%s   SIMULATED: the recorded machine %s, not this host", name, inv.Recorded)
	} else {
		r.line("%s", name)
	}
	r.line("")
	r.fact("Machine", "%s", list(strings.TrimSpace(inv.DMI.Vendor+" "+inv.DMI.Product), prefixed("BIOS ", inv.DMI.BIOS)))
	r.fact("System", "%s", list(inv.OS, prefixed("kernel ", inv.Kernel), inv.Arch))
	r.fact("Machine id", "%s", cmp.Or(inv.MachineID, "none"))
	r.fact("Boot", "%s", list(prefixed("loader ", inv.Boot.Loader), firmware(inv.Boot)))
	r.fact("Arguments", "%s", inv.Boot.CommandLine)
	r.fact("IOMMU", "%s", iommu(inv.IOMMU))
}

func list(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func firmware(boot wire.BootInfo) string {
	switch {
	case !boot.UEFI:
		return "no UEFI"
	case boot.SecureBoot == nil:
		return "UEFI, Secure Boot not known"
	}
	return "UEFI, Secure Boot " + onOff(*boot.SecureBoot)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func iommu(info wire.IOMMUInfo) string {
	if info.Groups == 0 {
		if len(info.Units) == 0 {
			return "off: no units, no groups"
		}
		return fmt.Sprintf("off: %s, no groups", plural(len(info.Units), "unit"))
	}
	var types []string
	for _, kind := range slices.Sorted(maps.Keys(info.DefaultTypes)) {
		types = append(types, fmt.Sprintf("%d %s", info.DefaultTypes[kind], kind))
	}
	s := fmt.Sprintf("on: %s, %s", plural(len(info.Units), "unit"), plural(info.Groups, "group"))
	if len(types) > 0 {
		s += " (" + strings.Join(types, ", ") + ")"
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (r *report) processors(inv wire.Inventory) {
	cpu := inv.CPU
	r.line("")
	r.fact("CPU", "%s x %s", strconv.Itoa(cpu.Sockets), cmp.Or(cpu.Model, cpu.Vendor, "unknown processor"))
	r.fact("", "%s, %s, %s per core", plural(cpu.Logical, "CPU"), plural(cpu.Cores, "core"), plural(cpu.ThreadsPerCore, "thread"))
	r.fact("Online", "%s", cpu.Online)
	r.fact("Offline", "%s", cpu.Offline)
	r.fact("Isolated", "%s", cpu.Isolated)
	r.fact("Tickless", "%s", cpu.NoHzFull)
	if len(cpu.Cpufreq) == 0 {
		r.fact("Governor", "none: the firmware or the hypervisor sets the frequency")
	}
	for _, set := range cpu.Cpufreq {
		r.fact("Governor", "%s by %s on CPUs %s; offered: %s", cmp.Or(set.Governor, "none"), set.Driver, set.CPUs, strings.Join(set.Available, " "))
	}
	r.fact("Memory", "%s", gib(inv.MemoryKiB))
	for _, pool := range inv.Hugepages {
		r.fact("Huge pages", "%s: %s", pageSize(pool.SizeKiB), poolText(pool))
	}
	if len(inv.Hugepages) == 0 {
		r.fact("Huge pages", "the kernel has none")
	}
}

func gib(kib uint64) string { return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20)) }

// pageSize writes a size of pages in the largest unit it is a whole number of.
func pageSize(kib int) string {
	switch {
	case kib >= 1<<20 && kib%(1<<20) == 0:
		return fmt.Sprintf("%d GiB", kib>>20)
	case kib >= 1<<10 && kib%(1<<10) == 0:
		return fmt.Sprintf("%d MiB", kib>>10)
	}
	return fmt.Sprintf("%d KiB", kib)
}

func poolText(pool wire.HugepagePool) string {
	if pool.Total == 0 {
		return "0"
	}
	s := fmt.Sprintf("%d, %d free", pool.Total, pool.Free)
	if pool.Surplus > 0 {
		s += fmt.Sprintf(", %d surplus", pool.Surplus)
	}
	return s
}

func (r *report) numa(inv wire.Inventory) {
	r.heading("NUMA nodes")
	var rows [][]string
	for _, node := range inv.NUMA {
		var pools, distances []string
		for _, pool := range node.Hugepages {
			if pool.Total > 0 {
				pools = append(pools, fmt.Sprintf("%d x %s", pool.Total, pageSize(pool.SizeKiB)))
			}
		}
		for _, d := range node.Distances {
			distances = append(distances, strconv.Itoa(d))
		}
		rows = append(rows, []string{
			strconv.Itoa(node.ID), gib(node.MemoryKiB), strings.Join(pools, ", "), strings.Join(distances, " "), node.CPUs,
		})
	}
	r.table("NODE|MEMORY|HUGE PAGES|DISTANCES|CPUS", rows)
}

func (r *report) gpus(inv wire.Inventory) {
	lib := inv.GPULibrary
	r.heading("GPUs: %d", len(inv.GPUs))
	r.fact("NVML", "%s", list(cmp.Or(string(lib.State), "not asked"), prefixed("driver ", lib.Driver), prefixed("CUDA ", lib.CUDA), lib.Reason))
	if len(inv.GPUs) == 0 {
		return
	}
	var kinds []string
	of := make(map[string]int)
	for _, gpu := range inv.GPUs {
		kind := gpuKind(gpu)
		if of[kind]++; of[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for _, kind := range kinds {
		r.fact("Model", "%d x %s", of[kind], kind)
	}
	var rows [][]string
	for _, gpu := range inv.GPUs {
		rows = append(rows, []string{
			strconv.Itoa(gpu.Index), gpu.UUID, gpu.Address, nodeText(gpu.NUMANode), migText(gpu.MIG), list(string(gpu.Health), gpu.HealthReason),
		})
	}
	r.table("GPU|UUID|ADDRESS|NODE|MIG|HEALTH", rows)
}

// gpuKind says what GPUs of a machine mostly have in common.
func gpuKind(gpu wire.GPU) string {
	s := fmt.Sprintf("%s (%s), %d MiB", gpu.Product, wire.GPUFamily(gpu.Product), gpu.MemoryMiB)
	if gpu.Display {
		s += ", display only: never booked"
	}
	s += prefixed(", compute ", gpu.Compute)
	if p := gpu.Power; p != nil {
		s += fmt.Sprintf(", power cap %d W (%d to %d, default %d)", p.LimitWatts, p.MinWatts, p.MaxWatts, p.DefaultWatts)
	}
	if e := gpu.ECC; e != nil {
		s += ", ECC " + onOff(e.Enabled)
		if e.Pending != e.Enabled {
			s += " (" + onOff(e.Pending) + " after a reset)"
		}
	}
	return s
}

func nodeText(node int) string {
	if node < 0 {
		return ""
	}
	return strconv.Itoa(node)
}

func migText(mig *wire.MIGInfo) string {
	if mig == nil {
		return ""
	}
	if mig.Pending != mig.Enabled {
		return onOff(mig.Enabled) + ", " + onOff(mig.Pending) + " after a reset"
	}
	if len(mig.Instances) == 0 {
		return onOff(mig.Enabled)
	}
	count := make(map[string]int)
	for _, i := range mig.Instances {
		count[i.Profile]++
	}
	var parts []string
	for _, profile := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d x %s", count[profile], profile))
	}
	return strings.Join(parts, ", ")
}

// nvlinks writes how many links join each two GPUs, where there are any.
func (r *report) nvlinks(gpus []wire.GPU) {
	if !slices.ContainsFunc(gpus, func(g wire.GPU) bool { return len(g.NVLinkPeers) > 0 }) {
		return
	}
	r.heading("NVLinks between GPUs")
	header := "GPU"
	var rows [][]string
	for _, gpu := range gpus {
		header += "|" + strconv.Itoa(gpu.Index)
		row := []string{strconv.Itoa(gpu.Index)}
		for _, other := range gpus {
			links := 0
			for _, peer := range gpu.NVLinkPeers {
				if peer.UUID == other.UUID {
					links = peer.Links
				}
			}
			switch {
			case other.UUID == gpu.UUID:
				row = append(row, "x")
			case links == 0:
				row = append(row, "")
			default:
				row = append(row, strconv.Itoa(links))
			}
		}
		rows = append(rows, row)
	}
	r.table(header, rows)
}

// otherPCI counts the PCI devices that no other table shows.
func (r *report) otherPCI(inv wire.Inventory) {
	shown := make(map[string]bool)
	for _, gpu := range inv.GPUs {
		shown[strings.ToLower(gpu.Address)] = true
	}
	for _, nic := range inv.NICs {
		shown[nic.Address] = true
	}
	type kind struct{ class, id, driver string }
	count := make(map[kind]int)
	where := make(map[kind][]string)
	var kinds []kind
	for _, d := range inv.PCI {
		if shown[d.Address] || strings.HasPrefix(d.Class, "0108") {
			continue
		}
		k := kind{d.Class, d.Vendor + ":" + d.Device, d.Driver}
		if count[k]++; count[k] == 1 {
			kinds = append(kinds, k)
		}
		where[k] = append(where[k], d.Address)
	}
	if len(kinds) == 0 {
		return
	}
	r.heading("Other PCI devices")
	var rows [][]string
	for _, k := range kinds {
		rows = append(rows, []string{strconv.Itoa(count[k]), className(k.class), k.id, k.driver, strings.Join(where[k], " ")})
	}
	r.table("COUNT|WHAT|ID|DRIVER|ADDRESSES", rows)
}

// className names the classes that an inventory lists, as the PCI ID
// assignment does.
func className(class string) string {
	for _, c := range []struct{ prefix, name string }{
		{"0300", "VGA controller"}, {"0302", "3D controller"}, {"03", "display controller"},
		{"12", "accelerator"}, {"0680", "NVSwitch"}, {"02", "network controller"},
	} {
		if strings.HasPrefix(class, c.prefix) {
			return c.name
		}
	}
	return "class " + class
}

func (r *report) nics(nics []wire.NIC) {
	if len(nics) == 0 {
		return
	}
	r.heading("Network interfaces")
	var rows [][]string
	for _, nic := range nics {
		state, speed := "down", ""
		if nic.Up {
			state = "up"
		}
		if nic.SpeedMbps > 0 {
			speed = fmt.Sprintf("%g Gbit/s", float64(nic.SpeedMbps)/1000)
		}
		rows = append(rows, []string{nic.Name, nic.Kind, state, speed, nic.Address, nic.Driver, nodeText(nic.NUMANode)})
	}
	r.table("NAME|KIND|STATE|SPEED|ADDRESS|DRIVER|NODE", rows)
}

func (r *report) disks(disks []wire.Disk) {
	if len(disks) == 0 {
		return
	}
	r.heading("Disks")
	var rows [][]string
	for _, d := range disks {
		kind := "solid state"
		if d.Rotational {
			kind = "rotating"
		}
		rows = append(rows, []string{d.Name, fmt.Sprintf("%d GiB", d.SizeGiB), kind, nodeText(d.NUMANode), d.Model})
	}
	r.table("NAME|SIZE|KIND|NODE|MODEL", rows)
}
