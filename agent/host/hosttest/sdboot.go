package hosttest

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"
	"unicode/utf16"

	"github.com/bettercompute/bc/agent/host"
)

func efiVariable(name string) string {
	return "/sys/firmware/efi/efivars/" + name + "-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
}

// efivars is a mount of the firmware's variables that can be written.
const efivars = "31 24 0:27 / /sys/firmware/efi/efivars rw,nosuid,nodev,noexec,relatime shared:8 - efivarfs efivarfs rw"

// StartedBySystemdBoot has the machine started by systemd-boot 252 in place of what
// it has, with the entries of two kernels as its kernel-install writes them.
func (m *Machine) StartedBySystemdBoot() {
	e := m.edge
	e.setVariable("LoaderInfo", []byte(utf16le("systemd-boot 252.39-1~deb12u2")))
	e.setVariable("LoaderFeatures", binary.LittleEndian.AppendUint64(nil, 1<<11-1))
	m.Put("/proc/self/mountinfo", efivars)
	m.Put("/usr/bin/bootctl", "")
	m.Put("/usr/bin/kernel-install", "")
	m.Put("/efi/loader/loader.conf", "default aaa-*")
	for _, version := range []string{"6.1.0-18-amd64", "6.1.0-9-amd64"} {
		m.Put("/lib/modules/"+version+"/vmlinuz", "")
		m.Put("/efi/loader/entries/aaa-"+version+".conf", "title Debian GNU/Linux 12 (bookworm)\nversion "+version+
			"\nmachine-id aaa\nsort-key debian\noptions root=LABEL=root ro quiet\nlinux /aaa/"+version+"/linux\ninitrd /aaa/"+version+"/initrd.img")
	}
	m.Put("/proc/cmdline", e.systemdBoots())
}

// SetVariable sets a text of systemd-boot's in the firmware, or takes it away, as
// someone else would.
func (m *Machine) SetVariable(name, text string) {
	if text == "" {
		m.Remove(efiVariable(name))
		return
	}
	m.edge.setVariable(name, []byte(utf16le(text)))
}

func utf16le(text string) string {
	var b []byte
	for _, unit := range append(utf16.Encode([]rune(text)), 0) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return string(b)
}

// setVariable writes a variable as efivarfs shows it, behind its attributes.
func (e *edge) setVariable(name string, value []byte) {
	if err := e.write(efiVariable(name), append([]byte{7, 0, 0, 0}, value...)); err != nil {
		panic(err)
	}
}

// bootctl imitates bootctl set-oneshot ID, and with no ID that forgets it.
func (e *edge) bootctl(argv []string) error {
	if len(argv) != 3 || argv[1] != "set-oneshot" {
		return fmt.Errorf("bootctl: %q is not imitated", argv)
	}
	if argv[2] == "" {
		return e.Edge.RemoveFile(efiVariable("LoaderEntryOneShot"))
	}
	e.setVariable("LoaderEntryOneShot", []byte(utf16le(argv[2])))
	return nil
}

// systemdBoots imitates systemd-boot up to the kernel: it answers the command line
// that it starts one with. An entry to boot once is forgotten first, whether there
// is such an entry or not.
func (e *edge) systemdBoots() string {
	once := e.root.NextBoot()
	if err := e.Edge.RemoveFile(efiVariable("LoaderEntryOneShot")); err != nil {
		panic(err)
	}
	files := e.root.Glob("/efi/loader/entries/*.conf")
	for _, file := range files {
		if path.Base(file) == once {
			return e.startEntry(file)
		}
	}
	lines, err := e.root.LoaderDefault()
	if err != nil { // what the agent does not copy, boots all the same
		return e.startEntry(files[0])
	}
	return startLines(lines)
}

func (e *edge) startEntry(file string) string {
	text, _ := e.root.String(file)
	var lines []host.LoaderLine
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, host.LoaderLine{Key: key, Value: strings.TrimSpace(value)})
	}
	return startLines(lines)
}

// startLines gives what a kernel of the entry finds in /proc/cmdline: systemd-boot
// passes the options, and the initrd as one of them.
func startLines(lines []host.LoaderLine) string {
	var words []string
	for _, l := range lines {
		switch l.Key {
		case "initrd":
			words = append([]string{"initrd=" + strings.ReplaceAll(l.Value, "/", "\\")}, words...)
		case "options":
			words = append(words, strings.Fields(l.Value)...)
		}
	}
	return strings.Join(words, " ")
}
