package inventory

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/agent/host"
)

// A machine with cgroups of version 1, or of both, says that nothing is walled in
// there; one of version 2 alone, and one of which nothing is known, does not.
func TestCgroupV1IsNoted(t *testing.T) {
	for _, c := range []struct {
		name, file string
		noted      bool
	}{
		{"v1", "sys/fs/cgroup/memory/memory.limit_in_bytes", true},
		{"hybrid", "sys/fs/cgroup/unified/cgroup.controllers", true},
		{"v2 alone", "sys/fs/cgroup/cgroup.controllers", false},
		{"not recorded", "etc/hostname", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte("x\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			root, err := host.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			notes := Collect(root, GPUs{}).Notes
			if noted := slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "not walled in here") }); noted != c.noted {
				t.Errorf("%v", notes)
			}
		})
	}
}
