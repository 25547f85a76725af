package host

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// GRUB's files on Debian and its kin.
const (
	GRUBConfig = "/boot/grub/grub.cfg" // what update-grub writes
	// GRUBCustom is read by grub.cfg at its end and written by no program
	// (41_custom of grub-common).
	GRUBCustom = "/boot/grub/custom.cfg"
	// GRUBEnvironment is what GRUB remembers from one boot to the next.
	GRUBEnvironment = "/boot/grub/grubenv"
)

// GRUBEntry is a menu entry as it stands in grub.cfg.
type GRUBEntry struct {
	Options []string // of its menuentry command, without title and id, quoted as GRUB reads them
	Body    []string // its lines
}

// GRUBNext is the entry that GRUB is told to boot next, once; "" for none
// (next_entry, which grub-reboot(8) sets).
func (r *Root) GRUBNext() string {
	data, err := r.ReadHead(GRUBEnvironment, 64<<10)
	if err != nil {
		return ""
	}
	return Assignments(string(data))["next_entry"]
}

// GRUBTries says why an entry of GRUBCustom cannot be booted once on this
// machine; it is nil if one can. What counts is what grub.cfg does, whoever
// wrote it: it takes next_entry, clears it before the menu, and reads GRUBCustom.
func (r *Root) GRUBTries() error {
	data, err := r.ReadFile(GRUBConfig)
	if err != nil {
		return fmt.Errorf("%s cannot be read", GRUBConfig)
	}
	for _, line := range []string{"load_env", `set default="${next_entry}"`, "save_env next_entry"} {
		if !bytes.Contains(data, []byte(line)) {
			return fmt.Errorf("%s boots no entry just once: it has no %s", GRUBConfig, line)
		}
	}
	if !bytes.Contains(data, []byte("source ${config_directory}/custom.cfg")) {
		return fmt.Errorf("%s does not read %s: /etc/grub.d/41_custom is missing or not executable", GRUBConfig, GRUBCustom)
	}
	if now, err := r.ReadManaged(GRUBCustom); err != nil || now.Exists && !now.Ours {
		return fmt.Errorf("%s is someone else's", GRUBCustom)
	}
	return r.grubWrites(path.Dir(GRUBEnvironment))
}

// grubDisks are the disks that GRUB finds through the firmware, by how Linux
// names them. RAID (md) and mapped devices (LVM, encryption) are none: GRUB
// reads through them, and cannot write (grub-reboot(8), and 00_header's own check).
var grubDisks = regexp.MustCompile(`^(sd|hd|vd|xvd|nvme|mmcblk)`)

// grubWrites says why GRUB cannot write to a file in a folder. It overwrites
// the file's blocks in place, which file systems with copy on write, sums or
// compression of data do not bear.
func (r *Root) grubWrites(dir string) error {
	data, err := r.ReadHead("/proc/self/mountinfo", 1<<20)
	if err != nil {
		return fmt.Errorf("it cannot be told what holds %s, and so whether GRUB can write there", dir)
	}
	var under mount
	for m := range mounts(data) {
		if (m.at == "/" || m.at == dir || strings.HasPrefix(dir, m.at+"/")) && len(m.at) >= len(under.at) {
			under = m // the last mount of a place hides the others
		}
	}
	device, kind := under.device, under.kind
	if !slices.Contains([]string{"ext2", "ext3", "ext4", "xfs", "vfat"}, kind) {
		return fmt.Errorf("GRUB cannot write to %s, which is on %s", dir, orUnknown(kind))
	}
	event, _ := r.String("/sys/dev/block/" + device + "/uevent")
	if name := Assignments(event)["DEVNAME"]; !grubDisks.MatchString(name) {
		return fmt.Errorf("GRUB cannot write to %s, which is on %s: RAID, LVM or encryption lies between", dir, orUnknown(name))
	}
	return nil
}

// mount is a line of proc_pid_mountinfo(5).
type mount struct {
	device, at, kind string
	readOnly         bool
}

func mounts(data []byte) iter.Seq[mount] {
	return func(yield func(mount) bool) {
		for line := range strings.Lines(string(data)) {
			left, right, ok := strings.Cut(line, " - ")
			f, g := strings.Fields(left), strings.Fields(right)
			if !ok || len(f) < 6 || len(g) < 1 {
				continue
			}
			m := mount{device: f[2], at: f[4], kind: g[0]}
			for _, options := range []string{f[5], g[len(g)-1]} {
				m.readOnly = m.readOnly || slices.Contains(strings.Split(options, ","), "ro")
			}
			if !yield(m) {
				return
			}
		}
	}
}

func orUnknown(name string) string {
	if name == "" {
		return "an unknown device"
	}
	return name
}

// GRUBDefault finds the entry of this system's own kernels that GRUB boots when
// nobody chooses.
func (r *Root) GRUBDefault() (GRUBEntry, error) {
	data, err := r.ReadFile(GRUBConfig)
	if err != nil {
		return GRUBEntry{}, err
	}
	spec := ""
	for _, m := range grubSetDefault.FindAllSubmatch(data, -1) {
		if s := string(m[1]); s != "${next_entry}" {
			spec = s
		}
	}
	if spec == "${saved_entry}" {
		env, _ := r.ReadHead(GRUBEnvironment, 64<<10)
		spec = Assignments(string(env))["saved_entry"]
	}
	if spec == "" {
		spec = "0" // the first, as GRUB has it
	}
	menu := parseGRUB(string(data))
	for {
		part, rest := cutEntry(spec)
		i := slices.IndexFunc(menu, func(n grubNode) bool { return n.id == part || n.title == part })
		if n, err := strconv.Atoi(part); err == nil {
			i = n
		}
		if i < 0 || i >= len(menu) {
			return GRUBEntry{}, fmt.Errorf("the default entry %q is not in %s", spec, GRUBConfig)
		}
		if rest != "" && menu[i].menu != nil {
			spec, menu = rest, menu[i].menu
			continue
		}
		if n := menu[i]; n.menu == nil && n.linux {
			return n.GRUBEntry, nil
		}
		return GRUBEntry{}, errors.New("the default entry of GRUB's menu is none of this system's own kernels")
	}
}

var grubSetDefault = regexp.MustCompile(`(?m)^\s*set default="([^"]*)"`)

// cutEntry takes the first part of a path of entries: "submenu>entry". A > of
// a title is written twice.
func cutEntry(spec string) (part, rest string) {
	var b strings.Builder
	for i := 0; i < len(spec); i++ {
		if spec[i] == '>' {
			if i+1 == len(spec) || spec[i+1] != '>' {
				return b.String(), spec[i+1:]
			}
			i++
		}
		b.WriteByte(spec[i])
	}
	return b.String(), ""
}

// grubNode is an entry or a submenu of a menu.
type grubNode struct {
	GRUBEntry
	title, id string
	linux     bool       // of 10_linux
	menu      []grubNode // not nil: a submenu
}

// parseGRUB reads the menu out of a generated grub.cfg: a command that opens an
// entry or a submenu, and the brace that closes it, have their own lines.
func parseGRUB(text string) []grubNode {
	open := []grubNode{{menu: []grubNode{}}}
	inEntry := func() bool { return open[len(open)-1].menu == nil }
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(trimmed, "### BEGIN "); ok {
			section = strings.TrimSuffix(name, " ###")
		}
		switch command, _, _ := strings.Cut(trimmed, " "); {
		case (command == "menuentry" || command == "submenu") && strings.HasSuffix(trimmed, "{") && !inEntry():
			n := grubHead(trimmed)
			n.linux = section == "/etc/grub.d/10_linux"
			if command == "submenu" {
				n.menu = []grubNode{}
			}
			open = append(open, n)
		case trimmed == "}" && len(open) > 1:
			n := open[len(open)-1]
			open = open[:len(open)-1]
			into := &open[len(open)-1]
			into.menu = append(into.menu, n)
		case inEntry():
			open[len(open)-1].Body = append(open[len(open)-1].Body, line)
		}
	}
	return open[0].menu
}

// grubWord is a word of a GRUB script, with its quotes.
var grubWord = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+`)

var unquoteGRUB = strings.NewReplacer(`'\''`, `'`, `'`, ``, `"`, ``)

func grubHead(line string) grubNode {
	words := grubWord.FindAllString(strings.TrimSuffix(line, "{"), -1)
	var n grubNode
	if len(words) > 1 {
		n.title = unquoteGRUB.Replace(words[1])
		words = words[2:]
	}
	for i := 0; i < len(words); i++ {
		if (words[i] == "$menuentry_id_option" || words[i] == "--id") && i+1 < len(words) {
			n.id = unquoteGRUB.Replace(words[i+1])
			i++
			continue
		}
		n.Options = append(n.Options, words[i])
	}
	return n
}
