package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// tree makes a folder that has a cgroup's files in it.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Both counts are set where the kernel has both, and an older kernel has one.
func TestHugePagesOfOneSizeAreLimited(t *testing.T) {
	both := tree(t, map[string]string{"hugetlb.2MB.max": "max", "hugetlb.2MB.rsvd.max": "max"})
	old := tree(t, map[string]string{"hugetlb.2MB.max": "max"})
	for dir, files := range map[string][]string{both: {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"}, old: {"hugetlb.2MB.max"}} {
		for _, most := range []struct {
			bytes uint64
			text  string
		}{{512 << 21, "1073741824"}, {0, "0"}} {
			if err := limitSize(dir, "2MB", most.bytes); err != nil {
				t.Error(err)
			}
			for _, name := range files {
				if got := readTrimmed(filepath.Join(dir, name)); got != most.text {
					t.Errorf("%s has %q, want %q", name, got, most.text)
				}
			}
		}
		if err := limitSize(dir, "1GB", 0); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a size that the kernel does not have: %v", err)
		}
	}
}

// A controller is turned on from the mount on down and only where it is off. One
// that the kernel does not have here is an error that can be told.
func TestAControllerIsTurnedOn(t *testing.T) {
	mount := tree(t, map[string]string{
		"cgroup.controllers": "cpuset hugetlb", "cgroup.subtree_control": "cpuset hugetlb",
		"bc.slice/cgroup.controllers": "cpuset hugetlb", "bc.slice/cgroup.subtree_control": "cpuset",
		"bc.slice/bc-res_1.slice/cgroup.subtree_control": "",
	})
	if err := enableController(mount, "/bc.slice/bc-res_1.slice", "hugetlb"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"cgroup.subtree_control": "cpuset hugetlb", "bc.slice/cgroup.subtree_control": "+hugetlb", "bc.slice/bc-res_1.slice/cgroup.subtree_control": "",
	} {
		if got := readTrimmed(filepath.Join(mount, name)); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if err := enableController(mount, "/bc.slice/bc-res_1.slice", "misc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a controller that is not there: %v", err)
	}
}
