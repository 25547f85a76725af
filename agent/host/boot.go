package host

import (
	"path"
	"slices"
	"strings"
	"unicode/utf16"
)

// The boot loaders that are told apart, by who reads the kernel arguments at
// the next boot.
const (
	LoaderGRUBDebian  = "grub-debian" // GRUB with a generated grub.cfg
	LoaderGRUBBLS     = "grub-bls"    // GRUB with boot loader specification entries
	LoaderSystemdBoot = "systemd-boot"
	LoaderUKI         = "uki" // a unified kernel image carries its own arguments
	LoaderRPMOSTree   = "rpm-ostree"
	LoaderUnknown     = "unknown"
)

// EFI variables carry their vendor: the UEFI specification for SecureBoot, the
// boot loader interface (systemd.io/BOOT_LOADER_INTERFACE) for the others.
const (
	efiVars       = "/sys/firmware/efi/efivars/"
	efiSecureBoot = efiVars + "SecureBoot-" + efiGlobal
	efiLoaderInfo = efiVars + "LoaderInfo-" + efiLoader
	efiStubInfo   = efiVars + "StubInfo-" + efiLoader
)

// BootLoader tells who reads the kernel arguments at the next boot. A unified
// kernel image carries its own, so it comes before the loader that started it;
// what booted comes before what is merely configured.
func (r *Root) BootLoader() string {
	if r.Exists("/run/ostree-booted") {
		return LoaderRPMOSTree
	}
	if r.efiVariable(efiStubInfo) != nil {
		return LoaderUKI
	}
	if strings.HasPrefix(utf16Text(r.efiVariable(efiLoaderInfo)), "systemd-boot") {
		return LoaderSystemdBoot
	}
	if data, err := r.ReadHead("/etc/default/grub", 64<<10); err == nil {
		if strings.EqualFold(Assignments(string(data))["GRUB_ENABLE_BLSCFG"], "true") {
			return LoaderGRUBBLS
		}
		if r.Exists("/usr/sbin/update-grub") || r.debian() {
			return LoaderGRUBDebian
		}
		return LoaderUnknown
	}
	for _, dir := range loaderDirs {
		if r.Exists(dir + "/loader.conf") {
			return LoaderSystemdBoot
		}
	}
	return LoaderUnknown
}

// SecureBoot reports whether the firmware checks what it boots. It is known
// only on machines with EFI variables.
func (r *Root) SecureBoot() (on, known bool) {
	data := r.efiVariable(efiSecureBoot)
	return len(data) == 1 && data[0] == 1, len(data) == 1
}

// OSRelease reads os-release(5).
func (r *Root) OSRelease() map[string]string {
	data, err := r.ReadHead("/etc/os-release", 64<<10)
	if err != nil {
		data, _ = r.ReadHead("/usr/lib/os-release", 64<<10)
	}
	return Assignments(string(data))
}

func (r *Root) debian() bool {
	release := r.OSRelease()
	for id := range strings.FieldsSeq(release["ID"] + " " + release["ID_LIKE"]) {
		if id == "debian" || id == "ubuntu" {
			return true
		}
	}
	return false
}

// Assignments reads the plain NAME=value lines of a shell fragment, the value
// perhaps quoted. The last one of a name wins; nothing is expanded.
func Assignments(text string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.ContainsAny(name, " #") {
			continue
		}
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		values[name] = strings.ToValidUTF8(value, "?")
	}
	return values
}

// efiVariable reads a variable without the four bytes of attributes that
// efivarfs puts before it. It is nil if there is none.
func (r *Root) efiVariable(name string) []byte {
	data, err := r.ReadHead(name, 4<<10)
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

// loaderDirs are where the entries of the boot loader specification may be.
var loaderDirs = []string{"/efi/loader", "/boot/efi/loader", "/boot/loader"}

// BootEntry is one way to boot that is no rescue or recovery: those are the way
// back in, and no argument is ever put there.
type BootEntry struct {
	File      string // with the entry
	Kernel    string // the path of its kernel, as the entry names it
	Version   string // of the kernel, "" if the entry does not tell
	Arguments []string
}

// BootEntries reads what the boot loader will boot, the way the loader would.
// Without an error it may still be empty: the loader's files are not where they
// are looked for.
func (r *Root) BootEntries() []BootEntry {
	switch r.BootLoader() {
	case LoaderGRUBDebian:
		return r.grubEntries()
	case LoaderGRUBBLS:
		return r.blsEntries(grubEnvironment(r))
	case LoaderSystemdBoot:
		return r.blsEntries(nil)
	}
	return nil
}

// grubEntries reads the part of grub.cfg that is of this system's own kernels.
func (r *Root) grubEntries() []BootEntry {
	data, err := r.ReadFile(GRUBConfig)
	if err != nil {
		return nil
	}
	_, part, ok := strings.Cut(string(data), "### BEGIN /etc/grub.d/10_linux ###")
	if !ok {
		return nil
	}
	part, _, _ = strings.Cut(part, "### END /etc/grub.d/10_linux ###")
	var entries []BootEntry
	recovery := false
	for line := range strings.Lines(part) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "menuentry":
			recovery = strings.Contains(line, "-recovery-") || strings.Contains(line, "(recovery mode)")
		case "linux", "linuxefi":
			if !recovery {
				version, _ := strings.CutPrefix(path.Base(words[1]), "vmlinuz-")
				entries = append(entries, BootEntry{File: GRUBConfig, Kernel: words[1], Version: version, Arguments: words[2:]})
			}
		}
	}
	return entries
}

// grubEnvironment reads the variables that GRUB expands in entries.
func grubEnvironment(r *Root) map[string]string {
	for _, name := range []string{"/boot/grub2/grubenv", "/boot/grub/grubenv"} {
		if data, err := r.ReadHead(name, 64<<10); err == nil {
			return Assignments(string(data))
		}
	}
	return map[string]string{}
}

// blsEntries reads boot loader specification type 1 entries. Variables are
// expanded if vars is not nil; other loaders than GRUB take them literally.
func (r *Root) blsEntries(vars map[string]string) []BootEntry {
	var entries []BootEntry
	for _, dir := range loaderDirs {
		for _, file := range r.Glob(dir + "/entries/*.conf") {
			if strings.Contains(path.Base(file), "rescue") || path.Base(file) == LoaderTrial {
				continue
			}
			data, err := r.ReadHead(file, 64<<10)
			if err != nil {
				continue
			}
			e := BootEntry{File: file}
			for _, line := range loaderLines(data) {
				switch line.Key {
				case "linux":
					e.Kernel = line.Value
				case "version":
					e.Version = line.Value
				case "options":
					e.Arguments = append(e.Arguments, expand(line.Value, vars)...)
				}
			}
			if e.Kernel != "" {
				entries = append(entries, e)
			}
		}
		if len(entries) > 0 {
			return entries // the same folder may be reached by two of the paths
		}
	}
	return nil
}

func expand(options string, vars map[string]string) []string {
	var words []string
	for word := range strings.FieldsSeq(options) {
		name, variable := strings.CutPrefix(word, "$")
		if !variable || vars == nil {
			words = append(words, word)
			continue
		}
		words = append(words, strings.Fields(vars[strings.Trim(name, "{}")])...)
	}
	return words
}

// Lacks reports whether the entry does not have tokens, or still has old ones.
func (e BootEntry) Lacks(tokens, old []string) bool {
	return !HasArguments(e.Arguments, tokens) || slices.ContainsFunc(old, func(t string) bool { return slices.Contains(e.Arguments, t) })
}

// HasArguments reports whether all tokens stand in args, in their order.
func HasArguments(args, tokens []string) bool {
	for _, token := range tokens {
		i := slices.Index(args, token)
		if i < 0 {
			return false
		}
		args = args[i+1:]
	}
	return true
}
