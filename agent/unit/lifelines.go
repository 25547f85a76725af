package unit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// lifelines are what a machine boots and is reached by: the modules that drive
// the disks of its system, and the network of its default route. An option that
// one of them does not take shows at the next boot, when it is too late. Nothing
// here unloads or rebinds a module: the agent has no program and no change for it.
type lifelines struct {
	modules map[string]string // what each drives: "the disk of /"
	devices []lifeDevice
}

// lifeDevice is a PCI device on the way to a disk or a network.
type lifeDevice struct {
	address, vendor, device string // 0000:01:00.0, 8086, 1563
	drives                  string
}

// systemMounts are the file systems without which a machine does not come up.
var systemMounts = []string{"/", "/usr", "/boot", "/boot/efi", "/efi"}

// findLifelines follows the system's disks and the network of the default route
// down to their drivers. What a recorded machine does not tell is not in it.
func findLifelines(root *host.Root) lifelines {
	l := lifelines{modules: map[string]string{}}
	for _, m := range mounts(root) {
		if slices.Contains(systemMounts, m.point) {
			l.add(m.kind, "the file system of "+m.point)
			l.block(root, m.block(root), "the disk of "+m.point, 0)
		}
	}
	for _, name := range routed(root) {
		l.network(root, name, "the network interface "+name, 0)
	}
	l.needed(root)
	return l
}

func (l *lifelines) add(module, drives string) {
	if module = wire.ModuleKey(module); module != "" && l.modules[module] == "" {
		l.modules[module] = drives
	}
}

type mount struct{ number, point, kind, source string }

// mounts reads mountinfo (proc(5)) of the first process, whose view of the
// machine no container changes. The last mount at a point is what is seen there.
func mounts(root *host.Root) []mount {
	data, _ := root.ReadFile("/proc/1/mountinfo")
	seen := map[string]int{}
	var out []mount
	for line := range strings.Lines(string(data)) {
		left, right, ok := strings.Cut(line, " - ")
		a, b := strings.Fields(left), strings.Fields(right)
		if !ok || len(a) < 5 || len(b) < 2 {
			continue
		}
		m := mount{number: a[2], point: a[4], kind: b[0], source: b[1]}
		if i, again := seen[m.point]; again {
			out[i] = m
			continue
		}
		seen[m.point] = len(out)
		out = append(out, m)
	}
	return out
}

// block is where sysfs has the mount's block device, "" without one. Some file
// systems (btrfs) have a number of their own and are found by their source.
func (m mount) block(root *host.Root) string {
	for _, name := range []string{"/sys/dev/block/" + m.number, "/sys/class/block/" + path.Base(m.source)} {
		if dir, err := root.Resolve(name); err == nil && strings.HasPrefix(dir, "/sys/devices/") {
			return dir
		}
	}
	return ""
}

// maxDepth bounds how deep devices are stacked upon one another.
const maxDepth = 8

// block follows a block device, through what it is made of, to its drivers.
func (l *lifelines) block(root *host.Root, dir, drives string, depth int) {
	if dir == "" || depth > maxDepth {
		return
	}
	switch name := path.Base(dir); {
	case strings.HasPrefix(name, "dm-"):
		l.add("dm_mod", drives)
	case strings.HasPrefix(name, "md") && root.IsDir(dir+"/md"):
		level, _ := root.String(dir + "/md/level")
		l.add("md_mod", drives)
		l.add(level, drives)
	}
	for _, slave := range root.Glob(dir + "/slaves/*") {
		if below, err := root.Resolve(slave); err == nil {
			l.block(root, below, drives, depth+1)
		}
	}
	l.chain(root, dir, drives)
	// An NVMe disk with several paths is virtual, and its subsystem names them.
	for up := path.Dir(dir); strings.Contains(up, "/nvme-subsystem/"); up = path.Dir(up) {
		for _, link := range root.Glob(up + "/nvme[0-9]*") {
			if below, err := root.Resolve(link); err == nil && !strings.HasPrefix(below, up) {
				l.chain(root, below, drives)
			}
		}
	}
}

// network follows an interface, through those it is made of, to its drivers.
func (l *lifelines) network(root *host.Root, name, drives string, depth int) {
	dir := "/sys/class/net/" + name
	if depth > maxDepth || !root.Exists(dir) {
		return
	}
	uevent, _ := root.String(dir + "/uevent")
	switch {
	case root.IsDir(dir + "/bonding"):
		l.add("bonding", drives)
	case root.IsDir(dir + "/bridge"):
		l.add("bridge", drives)
	case strings.Contains(uevent, "DEVTYPE=vlan"):
		l.add("8021q", drives)
	}
	below := append(root.Glob(dir+"/lower_*"), root.Glob(dir+"/brif/*")...)
	for _, link := range below {
		l.network(root, strings.TrimPrefix(path.Base(link), "lower_"), drives, depth+1)
	}
	if device, err := root.Resolve(dir + "/device"); err == nil {
		l.chain(root, device, drives)
	}
}

// chain takes the drivers of a device and of all that it hangs on.
func (l *lifelines) chain(root *host.Root, dir, drives string) {
	for ; strings.HasPrefix(dir, "/sys/devices/") && path.Dir(dir) != "/sys/devices"; dir = path.Dir(dir) {
		driver := root.LinkBase(dir + "/driver")
		if driver == "" || driver == "pcieport" {
			continue
		}
		module := root.LinkBase(dir + "/driver/module")
		if module == "" {
			module = driver
		}
		l.add(module, drives)
		vendor, ok := root.String(dir + "/vendor")
		device, _ := root.String(dir + "/device")
		if ok && strings.HasPrefix(vendor, "0x") && strings.HasPrefix(device, "0x") {
			l.devices = append(l.devices, lifeDevice{path.Base(dir), vendor[2:], device[2:], drives})
		}
	}
}

// needed adds the modules that the others use: nvme_core for nvme.
func (l *lifelines) needed(root *host.Root) {
	data, _ := root.ReadFile("/proc/modules")
	for more := true; more; {
		more = false
		for line := range strings.Lines(string(data)) { // NAME SIZE COUNT USER,USER, STATE
			f := strings.Fields(line)
			if len(f) < 4 || l.modules[f[0]] != "" {
				continue
			}
			for user := range strings.SplitSeq(f[3], ",") {
				if drives := l.modules[user]; drives != "" && l.modules[f[0]] == "" {
					l.add(f[0], drives)
					more = true
				}
			}
		}
	}
}

// routed lists the interfaces of the default routes, and without one those that
// are up on a device of their own.
func routed(root *host.Root) []string {
	var out []string
	v4, _ := root.ReadFile("/proc/net/route")
	for line := range strings.Lines(string(v4)) { // IFACE DESTINATION GATEWAY FLAGS … MASK
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			out = append(out, f[0])
		}
	}
	v6, _ := root.ReadFile("/proc/net/ipv6_route")
	for line := range strings.Lines(string(v6)) { // DESTINATION PREFIX … IFACE
		if f := strings.Fields(line); len(f) > 9 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[9] != "lo" {
			out = append(out, f[9])
		}
	}
	if len(out) == 0 {
		for _, dir := range root.Glob("/sys/class/net/*") {
			if state, _ := root.String(dir + "/operstate"); state == "up" && root.Exists(dir+"/device") {
				out = append(out, path.Base(dir))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refuse says why a module's options are not for the agent to set on this
// machine, "" if they are.
func (l lifelines) refuse(root *host.Root, module, options string) string {
	module = wire.ModuleKey(module)
	if drives := l.modules[module]; drives != "" {
		return fmt.Sprintf("%s drives %s: an option that it does not take would cut the machine off at its next boot, so the agent sets none; "+
			"set it by hand in /etc/modprobe.d, beside the console", module, drives)
	}
	for option := range strings.FieldsSeq(options) {
		key, value, _ := strings.Cut(option, "=")
		switch {
		case module == "vfio_pci" && key == "ids":
			for id := range strings.SplitSeq(value, ",") {
				if i := slices.IndexFunc(l.devices, func(d lifeDevice) bool { return d.is(id) }); i >= 0 {
					d := l.devices[i]
					return fmt.Sprintf("ids=%s would have vfio-pci take %s (%s:%s), which drives %s, at the next boot", id, d.address, d.vendor, d.device, d.drives)
				}
			}
		case module == "nvidia_drm" && (key == "modeset" || key == "fbdev"):
			if screen := nvidiaScreen(root); screen != "" {
				return fmt.Sprintf("nvidia_drm %s changes how %s is driven, where a screen is attached that may be the machine's console", option, screen)
			}
		}
	}
	return ""
}

// is reports whether an entry of vfio-pci.ids takes the device. An entry with
// more than vendor and device takes some of the same kind, and counts as all.
func (d lifeDevice) is(id string) bool {
	f := strings.Split(strings.ToLower(id), ":")
	same := func(want, have string) bool {
		return strings.TrimLeft(strings.TrimPrefix(want, "0x"), "0") == strings.TrimLeft(have, "0")
	}
	return len(f) >= 2 && same(f[0], d.vendor) && same(f[1], d.device)
}

// nvidiaScreen is the NVIDIA GPU that drives a screen, "" without one: the one
// that the firmware booted with, or one with a connected output.
func nvidiaScreen(root *host.Root) string {
	for _, dir := range root.Glob("/sys/bus/pci/devices/*") {
		vendor, _ := root.String(dir + "/vendor")
		if vga, _ := root.String(dir + "/boot_vga"); vendor == "0x10de" && vga == "1" {
			return "GPU " + path.Base(dir)
		}
	}
	for _, output := range root.Glob("/sys/class/drm/card*-*") {
		status, _ := root.String(output + "/status")
		vendor, _ := root.String(output + "/device/device/vendor")
		if status == "connected" && vendor == "0x10de" {
			return path.Base(output)
		}
	}
	return ""
}
