package hosttest

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/host"
)

// program imitates what one of the programs does with its arguments.
func (e *edge) program(argv []string) error {
	switch argv[0] {
	case "update-grub":
		e.updateGRUB()
		return nil
	case "grub-editenv":
		return e.grubEditenv(argv)
	case "bootctl":
		return e.bootctl(argv)
	case "grubby":
		return e.grubby(argv)
	case "kernel-install":
		return e.kernelInstall(argv)
	case "kubeadm":
		return e.kubeadm(argv)
	case "modprobe":
		return e.modprobe(argv[len(argv)-1])
	case "update-initramfs", "dracut":
		return nil
	}
	return fmt.Errorf("%s: nothing imitates it", argv[0])
}

// half runs a program and leaves what it wrote half written. A variable of the
// firmware is written as a whole or not at all.
func (e *edge) half(argv []string) {
	if argv[0] == "bootctl" {
		return
	}
	before := e.bootFiles()
	if err := e.program(argv); err != nil {
		panic(err)
	}
	for name, text := range e.bootFiles() {
		if was, known := before[name]; !known || was != text {
			if err := e.write(name, []byte(text[:len(text)/2])); err != nil {
				panic(err)
			}
		}
	}
}

func (e *edge) bootFiles() map[string]string {
	files := map[string]string{}
	for _, pattern := range []string{"/boot/grub/*", "/boot/loader/entries/*", "/efi/loader/entries/*"} {
		for _, name := range e.root.Glob(pattern) {
			data, _ := e.root.ReadFile(name)
			files[name] = string(data)
		}
	}
	return files
}

// updateGRUB makes grub.cfg as Debian's grub-mkconfig does: the settings, then
// the drop-ins in order, each of which may use what was set before.
func (e *edge) updateGRUB() {
	values := map[string]string{}
	for _, file := range append([]string{"/etc/default/grub"}, e.root.Glob("/etc/default/grub.d/*.cfg")...) {
		text, _ := e.root.String(file)
		for line := range strings.Lines(text) {
			for name, value := range host.Assignments(line) {
				values[name] = os.Expand(value, func(known string) string { return values[known] })
			}
		}
	}
	image, root := "/boot/vmlinuz", []string{"ro"}
	cmdline, _ := e.root.String("/proc/cmdline")
	for word := range strings.FieldsSeq(cmdline) {
		if v, ok := strings.CutPrefix(word, "BOOT_IMAGE="); ok {
			image = v
		} else if strings.HasPrefix(word, "root=") {
			root = []string{word, "ro"}
		}
	}
	entry := func(title, id string, arguments ...string) string {
		words := append(append([]string{image}, root...), strings.Fields(strings.Join(arguments, " "))...)
		return "menuentry '" + title + "' --class debian --class os $menuentry_id_option '" + id + "' {\n" +
			"\tload_video\n\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi\n" +
			"\tlinux\t" + strings.Join(words, " ") + "\n\tinitrd\t/boot/initrd.img\n}\n"
	}
	chosen := values["GRUB_DEFAULT"]
	if chosen == "saved" {
		chosen = "${saved_entry}"
	}
	linux, normal := values["GRUB_CMDLINE_LINUX"], values["GRUB_CMDLINE_LINUX_DEFAULT"]
	e.put(host.GRUBConfig, "### BEGIN /etc/grub.d/00_header ###\n"+
		"if [ -s $prefix/grubenv ]; then\n  set have_grubenv=true\n  load_env\nfi\n"+
		"if [ \"${next_entry}\" ] ; then\n   set default=\"${next_entry}\"\n   set next_entry=\n   save_env next_entry\n   set boot_once=true\n"+
		"else\n   set default=\""+chosen+"\"\nfi\n"+
		"function savedefault {\n  if [ -z \"${boot_once}\" ]; then\n    saved_entry=\"${chosen}\"\n    save_env saved_entry\n  fi\n}\n"+
		"### END /etc/grub.d/00_header ###\n\n### BEGIN /etc/grub.d/10_linux ###\n"+
		entry("Debian GNU/Linux", "gnulinux-simple-1", linux, normal)+
		"submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {\n"+
		entry("Debian GNU/Linux, with Linux 6", "gnulinux-6-advanced-1", linux, normal)+
		entry("Debian GNU/Linux, with Linux 6 (recovery mode)", "gnulinux-6-recovery-1", "single", linux)+
		"}\n### END /etc/grub.d/10_linux ###\n\n### BEGIN /etc/grub.d/41_custom ###\n"+
		"if [ -f  ${config_directory}/custom.cfg ]; then\n  source ${config_directory}/custom.cfg\nfi\n"+
		"### END /etc/grub.d/41_custom ###\n")
}

// grubEditenv imitates grub-editenv FILE set NAME=VALUE, and unset NAME.
func (e *edge) grubEditenv(argv []string) error {
	if len(argv) != 4 {
		return fmt.Errorf("grub-editenv: %q is not imitated", argv)
	}
	text, _ := e.root.String(argv[1])
	name, value, _ := strings.Cut(argv[3], "=")
	e.putEnvironment(argv[1], text, name, value, argv[2] == "set")
	return nil
}

// putEnvironment writes a GRUB environment block, of a fixed size, with one
// variable anew.
func (e *edge) putEnvironment(file, text, name, value string, set bool) {
	block := "# GRUB Environment Block\n"
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, name+"=") {
			block += line
		}
	}
	if set {
		block += name + "=" + value + "\n"
	}
	if err := e.write(file, []byte(block+strings.Repeat("#", 1024-len(block)))); err != nil {
		panic(err)
	}
}

// grubBoots imitates GRUB up to the kernel: it answers the command line that it
// starts one with. An entry to boot once is forgotten first, if GRUB can write.
func (e *edge) grubBoots() string {
	env, _ := e.root.String(host.GRUBEnvironment)
	chosen := host.Assignments(env)["next_entry"]
	if chosen != "" && !e.grubStuck {
		e.putEnvironment(host.GRUBEnvironment, env, "next_entry", "", true)
	}
	custom, _ := e.root.String(host.GRUBCustom)
	if _, body, ok := strings.Cut(custom, "$menuentry_id_option '"+chosen+"' {\n"); ok && chosen != "" {
		return e.runEntry(body)
	}
	entry, err := e.root.GRUBDefault()
	if err != nil {
		panic(err)
	}
	return e.runEntry(strings.Join(entry.Body, "\n") + "\n}\n")
}

// runEntry runs the commands of a menu entry as GRUB does. Of conditions it
// knows the one on next_entry; others hold, and have no effect here.
func (e *edge) runEntry(body string) string {
	nextEntry, skip, ours := "", false, false
	for line := range strings.Lines(body) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "load_env":
			env, _ := e.root.String(host.GRUBEnvironment)
			nextEntry = host.Assignments(env)["next_entry"]
		case "if":
			if ours = words[2] == `"${next_entry}"`; ours {
				skip = strings.Trim(words[4], `"`) != nextEntry
			}
		case "else":
			skip = ours && !skip
		case "fi":
			skip, ours = false, false
		case "linux":
			if !skip {
				return strings.Join(append([]string{"BOOT_IMAGE=" + words[1]}, words[2:]...), " ")
			}
		case "}":
			panic("the entry starts no kernel")
		}
	}
	panic("the entry has no end")
}

// grubby changes the options of the entry of one kernel.
func (e *edge) grubby(argv []string) error {
	var kernel string
	var add, remove []string
	for _, arg := range argv[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--update-kernel":
			kernel = value
		case "--args":
			add = strings.Fields(value)
		case "--remove-args":
			remove = strings.Fields(value)
		default:
			return fmt.Errorf("grubby: %s is not imitated", arg)
		}
	}
	for _, entry := range e.root.BootEntries() {
		if path.Base(entry.Kernel) == path.Base(kernel) {
			e.setOptions(entry.File, func(options []string) []string {
				options = slices.DeleteFunc(options, func(o string) bool { return slices.Contains(remove, o) })
				for _, a := range add {
					if !slices.Contains(options, a) {
						options = append(options, a)
					}
				}
				return options
			})
			return nil
		}
	}
	return fmt.Errorf("grubby: the param %s is incorrect", kernel)
}

func (e *edge) setOptions(file string, change func([]string) []string) {
	text, _ := e.root.String(file)
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if options, ok := strings.CutPrefix(line, "options "); ok {
			line = "options " + strings.Join(change(strings.Fields(options)), " ")
		}
		out = append(out, line)
	}
	e.put(file, strings.Join(out, "\n"))
}

// kernelInstall installs the entry of a kernel with the line that is kept for
// all kernels.
func (e *edge) kernelInstall(argv []string) error {
	line, ok := e.root.String("/etc/kernel/cmdline")
	if !ok {
		line, _ = e.root.String("/proc/cmdline")
	}
	for _, entry := range e.root.BootEntries() {
		if entry.Version == argv[2] {
			e.setOptions(entry.File, func([]string) []string { return strings.Fields(line) })
			return nil
		}
	}
	return fmt.Errorf("kernel-install: no kernel %s", argv[2])
}

func (e *edge) modprobe(name string) error {
	name = strings.ReplaceAll(name, "-", "_")
	release, _ := e.root.String("/proc/sys/kernel/osrelease")
	if dep, ok := e.root.String("/lib/modules/" + release + "/modules.dep"); ok && !strings.Contains(strings.ReplaceAll(dep, "-", "_"), name+".ko") {
		return &host.CommandError{Argv: []string{"modprobe", "--", name}, Err: fmt.Errorf("exit status 1"),
			Output: "FATAL: Module " + name + " not found in directory /lib/modules/" + release}
	}
	modules, _ := e.root.String("/proc/modules")
	if !strings.Contains("\n"+modules, "\n"+name+" ") {
		e.put("/proc/modules", strings.TrimSpace(modules+"\n"+name+" 16384 0 - Live 0x0000000000000000"))
	}
	if governor, ok := strings.CutPrefix(name, "cpufreq_"); ok {
		for _, file := range e.root.Glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_available_governors") {
			offered, _ := e.root.String(file)
			e.put(file, offered+" "+governor)
		}
	}
	return nil
}

// nextArguments is the command line of the next boot.
func (e *edge) nextArguments() string {
	switch e.root.BootLoader() {
	case host.LoaderGRUBDebian:
		return e.grubBoots()
	case host.LoaderSystemdBoot:
		if e.root.Exists(efiVariable("LoaderFeatures")) {
			return e.systemdBoots()
		}
	}
	for _, entry := range e.root.BootEntries() {
		return strings.Join(append([]string{"BOOT_IMAGE=" + entry.Kernel}, entry.Arguments...), " ")
	}
	now, _ := e.root.String("/proc/cmdline")
	return now
}

// remember keeps what a boot resets.
func (e *edge) remember() {
	e.fresh = map[string]string{}
	for _, pattern := range []string{
		"/sys/devices/system/cpu/cpufreq/policy*/scaling_governor", "/sys/kernel/iommu_groups/*/type",
		"/sys/devices/system/cpu/isolated", "/proc/modules",
	} {
		for _, file := range e.root.Glob(pattern) {
			data, _ := e.root.ReadFile(file)
			e.fresh[file] = string(data)
		}
	}
}

// bootWith is what a kernel makes of its command line.
func (e *edge) bootWith(line string) {
	for file, text := range e.fresh {
		e.put(file, text)
	}
	e.put("/proc/cmdline", line)
	size := ""
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "hugepagesz":
			size = map[string]string{"1G": "1048576", "2M": "2048"}[value]
		case "hugepages":
			e.bootPages(size, value)
		case "isolcpus":
			if e.root.Exists("/sys/devices/system/cpu/isolated") {
				e.put("/sys/devices/system/cpu/isolated", value[strings.LastIndexAny(value, "abcdefghijklmnopqrstuvwxyz_")+2:])
			}
		case "iommu", "iommu.passthrough":
			for _, file := range e.root.Glob("/sys/kernel/iommu_groups/*/type") {
				if value == "pt" || value == "1" {
					e.put(file, "identity")
				}
			}
		}
	}
}

func (e *edge) bootPages(size, count string) {
	dir := "hugepages-" + size + "kB"
	if n, err := strconv.Atoi(count); err == nil {
		e.resize(path.Join(pools, dir), n)
		return
	}
	// What a node has no place for, Linux 6.1 takes from another without a word.
	over := 0
	for part := range strings.SplitSeq(count, ",") {
		node, pages, _ := strings.Cut(part, ":")
		n, _ := strconv.Atoi(pages)
		at := nodes + "/node" + node + "/hugepages/" + dir
		e.resize(at, n)
		over += n - e.number(at+"/nr_hugepages")
	}
	for _, at := range e.poolNodes(path.Join(pools, dir)) {
		had := e.number(at + "/nr_hugepages")
		e.resize(at, had+over)
		over -= e.number(at+"/nr_hugepages") - had
	}
}
