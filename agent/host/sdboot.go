package host

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// TrialEntry names the entry of a trial: GRUB's id of it, and its file below
// loader/entries without .conf. It has no counter of tries: systemd-boot 252 takes
// the counter for a part of the name, and systemd-bless-boot takes it away from
// whatever boots, agent or not.
const TrialEntry = "better-compute-trial"

// LoaderTrial is what systemd-boot knows the trial's entry by.
const LoaderTrial = TrialEntry + ".conf"

// Variables of systemd-boot (systemd.io/BOOT_LOADER_INTERFACE).
const (
	efiLoaderFeatures = efiVars + "LoaderFeatures-" + efiLoader
	efiLoaderOneShot  = efiVars + "LoaderEntryOneShot-" + efiLoader
	efiLoaderDefault  = efiVars + "LoaderEntryDefault-" + efiLoader
	efiLoaderSaved    = efiVars + "LoaderEntryLastBooted-" + efiLoader
	efiLoaderEntries  = efiVars + "LoaderEntries-" + efiLoader

	// Bits of LoaderFeatures. A loader that knows sort-key also forgets a one-shot
	// entry when the saved default is written.
	loaderOneShot = 1 << 3
	loaderSorts   = 1 << 8
)

// NextBoot is the entry that the boot loader is told to boot next, once, as the
// loader names it; "" for none, and for a loader that cannot.
func (r *Root) NextBoot() string {
	switch r.BootLoader() {
	case LoaderGRUBDebian:
		return r.GRUBNext()
	case LoaderSystemdBoot:
		return utf16Text(r.efiVariable(efiLoaderOneShot))
	}
	return ""
}

// LoaderTries says why an entry cannot be booted once by systemd-boot on this
// machine; it is nil if one can.
func (r *Root) LoaderTries() error {
	features := r.efiVariable(efiLoaderFeatures)
	if len(features) != 8 {
		return errors.New("systemd-boot did not start this machine, or is too old to say what it can do")
	}
	if can := binary.LittleEndian.Uint64(features); can&loaderOneShot == 0 || can&loaderSorts == 0 {
		return errors.New("this version of systemd-boot boots no entry just once, or does not know sort-key (systemd 251)")
	}
	data, err := r.ReadHead("/proc/self/mountinfo", 1<<20)
	if err != nil {
		return errors.New("it cannot be told whether the firmware's variables can be written")
	}
	writable := false
	for m := range mounts(data) {
		if m.at == strings.TrimSuffix(efiVars, "/") { // the last mount of a place hides the others
			writable = m.kind == "efivarfs" && !m.readOnly
		}
	}
	if !writable {
		return fmt.Errorf("the firmware's variables cannot be written: no efivarfs is mounted for writing at %s", strings.TrimSuffix(efiVars, "/"))
	}
	if now, err := r.ReadManaged(r.LoaderTrialFile()); err != nil || now.Exists && !now.Ours {
		return fmt.Errorf("%s is someone else's", r.LoaderTrialFile())
	}
	return nil
}

// LoaderTrialFile is where the trial's entry lies: beside those of the system's
// kernels, which are named from the top of the same file system.
func (r *Root) LoaderTrialFile() string {
	dir := ""
	for _, d := range loaderDirs {
		files := r.Glob(d + "/entries/*.conf")
		if slices.ContainsFunc(files, func(f string) bool { return path.Base(f) != LoaderTrial }) {
			return d + "/entries/" + LoaderTrial
		}
		if len(files) > 0 {
			dir = d
		}
	}
	return cmp.Or(dir, loaderDirs[0]) + "/entries/" + LoaderTrial
}

// LoaderLine is a line of a boot loader specification entry.
type LoaderLine struct{ Key, Value string }

func loaderLines(data []byte) []LoaderLine {
	var lines []LoaderLine
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(line), "\t", " "), " ")
		if key != "" && !strings.HasPrefix(key, "#") {
			lines = append(lines, LoaderLine{key, strings.TrimSpace(value)})
		}
	}
	return lines
}

// LoaderDefault finds the entry that systemd-boot boots when nobody chooses. It
// is an error if that is none of this system's own kernels, or if a copy of it
// without sort-key could be taken for the default in its place.
func (r *Root) LoaderDefault() ([]LoaderLine, error) {
	entries := r.loaderEntries()
	if len(entries) == 0 {
		return nil, errors.New("systemd-boot has no entries where they are looked for")
	}
	chosen := entries[0]
	for _, pattern := range r.loaderPatterns() {
		match := func(id string) bool { ok, err := path.Match(pattern, id); return ok && err == nil }
		if i := slices.IndexFunc(entries, func(e loaderEntry) bool { return match(e.id) }); i >= 0 {
			chosen = entries[i]
			break
		}
		for id := range strings.SplitSeq(utf16Text(r.efiVariable(efiLoaderEntries)), "\x00") {
			if id = strings.ToLower(id); id != LoaderTrial && match(id) {
				return nil, fmt.Errorf("systemd-boot boots %s by default, which is not an entry of its own file", id)
			}
		}
	}
	switch {
	case chosen.value("sort-key") == "":
		return nil, fmt.Errorf("the default entry %s has no sort-key, so that a copy of it could become the default", chosen.id)
	case chosen.value("linux") == "" || strings.Contains(chosen.id, "rescue"):
		return nil, fmt.Errorf("the default entry %s is none of this system's own kernels", chosen.id)
	}
	return chosen.lines, nil
}

// loaderPatterns are what is set as the default, the strongest first.
func (r *Root) loaderPatterns() []string {
	set := []string{utf16Text(r.efiVariable(efiLoaderDefault))}
	// It lies with systemd-boot, where the entries need not be.
	for _, dir := range loaderDirs {
		data, err := r.ReadHead(dir+"/loader.conf", 64<<10)
		if err != nil {
			continue
		}
		for _, l := range loaderLines(data) {
			if l.Key == "default" {
				set = append(set, l.Value)
			}
		}
		break
	}
	var patterns []string
	for _, p := range set {
		if p == "@saved" {
			p = utf16Text(r.efiVariable(efiLoaderSaved))
		}
		if p != "" {
			patterns = append(patterns, strings.ToLower(p))
		}
	}
	return patterns
}

type loaderEntry struct {
	id    string // as systemd-boot compares it
	lines []LoaderLine
	spent bool // no tries are left
}

func (e loaderEntry) value(key string) string {
	for _, l := range slices.Backward(e.lines) {
		if l.Key == key {
			return l.Value
		}
	}
	return ""
}

// loaderEntries are the entries of the system, in the order in which systemd-boot
// sorts them ("Sorting", boot loader specification). The trial's is not one.
func (r *Root) loaderEntries() []loaderEntry {
	var entries []loaderEntry
	for _, file := range r.Glob(path.Dir(r.LoaderTrialFile()) + "/*.conf") {
		id := strings.ToLower(path.Base(file))
		data, err := r.ReadHead(file, 64<<10)
		if err != nil || id == LoaderTrial || strings.HasPrefix(id, "auto-") || strings.HasPrefix(id, ".") {
			continue
		}
		e := loaderEntry{id: id, lines: loaderLines(data)}
		if i := strings.LastIndexByte(id, '+'); i >= 0 {
			left, _, _ := strings.Cut(strings.TrimSuffix(id[i+1:], ".conf"), "-")
			e.spent = left != "" && strings.Trim(left, "0") == ""
		}
		entries = append(entries, e)
	}
	last := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(entries, func(a, b loaderEntry) int {
		order := cmp.Or(last(a.spent)-last(b.spent), last(a.value("sort-key") == "")-last(b.value("sort-key") == ""))
		if order == 0 && a.value("sort-key") != "" {
			order = cmp.Or(cmp.Compare(a.value("sort-key"), b.value("sort-key")), cmp.Compare(a.value("machine-id"), b.value("machine-id")),
				compareVersions(b.value("version"), a.value("version")))
		}
		return cmp.Or(order, compareVersions(b.id, a.id))
	})
	return entries
}

// compareVersions orders versions as systemd-boot does (UAPI.10 Version Format
// Specification): segments of digits and of letters, ~ before everything, then
// the end, then the separators - ^ and the dot.
func compareVersions(a, b string) int {
	digit := func(c rune) bool { return c >= '0' && c <= '9' }
	letter := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	dropped := func(c rune) bool { return !digit(c) && !letter(c) && !strings.ContainsRune("~-^.", c) }
	segment := func(s string, of func(rune) bool) (string, string) {
		rest := strings.TrimLeftFunc(s, of)
		return s[:len(s)-len(rest)], rest
	}
	separator := func(mark string) int {
		restA, inA := strings.CutPrefix(a, mark)
		restB, inB := strings.CutPrefix(b, mark)
		a, b = restA, restB
		switch {
		case inA && !inB:
			return -1
		case inB && !inA:
			return 1
		}
		return 0
	}
	for {
		a, b = strings.TrimLeftFunc(a, dropped), strings.TrimLeftFunc(b, dropped)
		if order := separator("~"); order != 0 {
			return order
		}
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		if order := cmp.Or(separator("-"), separator("^"), separator(".")); order != 0 {
			return order
		}
		var partA, partB string
		if a != "" && digit(rune(a[0])) || b != "" && digit(rune(b[0])) {
			partA, a = segment(a, digit)
			partB, b = segment(b, digit)
			if partA == "" || partB == "" {
				return cmp.Compare(len(partA), len(partB))
			}
			partA, partB = strings.TrimLeft(partA, "0"), strings.TrimLeft(partB, "0")
			if order := cmp.Compare(len(partA), len(partB)); order != 0 {
				return order
			}
		} else {
			partA, a = segment(a, letter)
			partB, b = segment(b, letter)
		}
		if order := cmp.Compare(partA, partB); order != 0 {
			return order
		}
	}
}
