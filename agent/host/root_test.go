package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is a machine with links of all kinds.
func small() *Archive {
	a := NewArchive("A test machine.\n")
	a.AddFile("/proc/cmdline", []byte("ro quiet\n"))
	a.AddFile("/sys/devices/pci0000:00/0000:00:01.0/vendor", []byte("0x10de"))
	a.AddFile("/sys/devices/system/cpu/online", []byte("0-3\n"))
	a.AddFile("/sys/devices/system/cpu/nohz_full", []byte("  (null)\n"))
	a.AddFile("/sys/devices/system/cpu/broken", []byte("0-\n"))
	a.AddFile("/usr/lib/os-release", []byte("ID=test\nNAME=\"A test\"\n"))
	a.AddFile("/sys/firmware/efi/efivars/raw", []byte{6, 0, 0, 0, 1})
	a.AddDir("/sys/bus/pci/drivers/nvidia")
	a.AddLink("/sys/bus/pci/devices/0000:00:01.0", "../../../devices/pci0000:00/0000:00:01.0")
	a.AddLink("/sys/devices/pci0000:00/0000:00:01.0/driver", "../../../bus/pci/drivers/nvidia")
	a.AddLink("/etc/os-release", "/usr/lib/os-release")        // absolute
	a.AddLink("/etc/out", "../../../../../../../proc/cmdline") // above the root
	a.AddLink("/etc/passwd", "/etc/passwd.real")               // to nothing
	a.AddLink("/etc/loop", "loop2")
	a.AddLink("/etc/loop2", "loop")
	return a
}

// roots gives the test machine in a folder and in memory: they read alike.
func roots(t *testing.T) map[string]*Root {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "machine")
	if err := Unpack(small(), dir); err != nil {
		t.Fatal(err)
	}
	disk, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*Root{"folder": disk, "memory": small().Root()}
}

func TestPathsAreFollowedInsideTheRoot(t *testing.T) {
	for kind, r := range roots(t) {
		for name, want := range map[string]string{
			"/proc/cmdline":                            "ro quiet",
			"proc/cmdline":                             "ro quiet",
			"/proc//./cmdline":                         "ro quiet",
			"/../../../../proc/../proc/cmdline":        "ro quiet",
			"/etc/out":                                 "ro quiet",
			"/etc/os-release":                          "ID=test\nNAME=\"A test\"",
			"/sys/bus/pci/devices/0000:00:01.0/vendor": "0x10de",
			// ".." is taken where a link leads, not where it stands.
			"/sys/bus/pci/devices/0000:00:01.0/../../system/cpu/online": "0-3",
		} {
			if got, ok := r.String(name); !ok || got != want {
				t.Errorf("%s: %s reads %q, %v; want %q", kind, name, got, ok, want)
			}
		}
		for _, name := range []string{
			"/etc/passwd", "/etc/loop", "/etc/shadow", "/proc/cmdline/x", "/proc", "/nothing/../proc/cmdline",
			"../../../../../../../../etc/hostname", filepath.Join(r.Dir(), "proc/cmdline"),
		} {
			if r.Real() || name == "proc/cmdline" {
				continue
			}
			if data, err := r.ReadFile(name); err == nil {
				t.Errorf("%s: %s reads %q, want an error", kind, name, data)
			}
		}
		if _, err := r.ReadFile("/etc/nothing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a missing file gives %v", kind, err)
		}
		if at, err := r.Resolve("/sys/bus/pci/devices/0000:00:01.0/driver"); at != "/sys/bus/pci/drivers/nvidia" {
			t.Errorf("%s: the driver is at %q, %v", kind, at, err)
		}
		if got := r.LinkBase("/sys/bus/pci/devices/0000:00:01.0/driver"); got != "nvidia" {
			t.Errorf("%s: the driver is %q", kind, got)
		}
		if got := r.LinkBase("/proc/cmdline"); got != "" {
			t.Errorf("%s: a plain file links to %q", kind, got)
		}
	}
}

func TestGlob(t *testing.T) {
	for kind, r := range roots(t) {
		for pattern, want := range map[string][]string{
			"/sys/bus/pci/devices/*/vendor":          {"/sys/bus/pci/devices/0000:00:01.0/vendor"},
			"/sys/devices/system/cpu/[bo]*":          {"/sys/devices/system/cpu/broken", "/sys/devices/system/cpu/online"},
			"/etc/passwd":                            {"/etc/passwd"}, // a link to nothing is there
			"/etc/nothing":                           nil,
			"/proc/cmdline/*":                        nil,
			"/sys/*/pci/devices/*/driver":            {"/sys/bus/pci/devices/0000:00:01.0/driver"},
			"/sys/bus/pci/devices/0000:00:01.0/clas": nil,
		} {
			if diff := cmp.Diff(want, r.Glob(pattern)); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", kind, pattern, diff)
			}
		}
	}
}

func TestTypedReaders(t *testing.T) {
	for kind, r := range roots(t) {
		if set, ok := r.CPUs("/sys/devices/system/cpu/online"); !ok || set.String() != "0-3" {
			t.Errorf("%s: online %q, %v", kind, set, ok)
		}
		if set, ok := r.CPUs("/sys/devices/system/cpu/nohz_full"); !ok || !set.IsEmpty() {
			t.Errorf("%s: nohz_full %q, %v: (null) is no CPU", kind, set, ok)
		}
		if _, ok := r.CPUs("/sys/devices/system/cpu/broken"); ok {
			t.Errorf("%s: a broken cpulist reads", kind)
		}
		if _, ok := r.Int("/proc/cmdline"); ok {
			t.Errorf("%s: a text reads as a number", kind)
		}
		if b, err := r.ReadHead("/proc/cmdline", 2); err != nil || string(b) != "ro" {
			t.Errorf("%s: head %q, %v", kind, b, err)
		}
		if !r.IsDir("/sys/bus/pci/devices/0000:00:01.0") || r.IsDir("/proc/cmdline") || r.Exists("/etc/passwd") || !r.Exists("/etc/out") {
			t.Errorf("%s: IsDir or Exists is wrong", kind)
		}
		if b, err := r.ReadFile("/sys/firmware/efi/efivars/raw"); err != nil || len(b) != 5 || b[4] != 1 {
			t.Errorf("%s: a binary file reads %v, %v", kind, b, err)
		}
	}
}

func TestReadFileRefusesWhatIsTooLong(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "long"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(maxFile + 1); err != nil { // a hole: takes no space
		t.Fatal(err)
	}
	f.Close()
	r, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadFile("/long"); !errors.Is(err, errTooLong) {
		t.Errorf("error %v, want %v", err, errTooLong)
	}
	if b, err := r.ReadHead("/long", 1000); err != nil || len(b) != 1000 {
		t.Errorf("head of %d bytes, %v", len(b), err)
	}
}

func TestOpenRootRefusesWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "-missing"} {
		if _, err := OpenRoot(dir); err == nil {
			t.Errorf("%s opens as a root", dir)
		}
	}
}

func TestThisMachineReadsThroughItsRoot(t *testing.T) {
	r, err := OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Real() {
		t.Error("/ is not the real machine")
	}
	want, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Skip("no /proc here")
	}
	if got, _ := r.String("/proc/sys/kernel/osrelease"); got != strings.TrimSpace(string(want)) {
		t.Errorf("kernel %q, want %q", got, want)
	}
	if names := r.Glob("/proc/sys/kernel/os*"); !slices.Contains(names, "/proc/sys/kernel/osrelease") {
		t.Errorf("glob lists %v", names)
	}
}
