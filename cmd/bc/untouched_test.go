package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// untouchable are the trees in which the agent's config units work. Files that
// the kernel moves by itself are left out by name.
var untouchable = []string{
	"/etc", "/boot", "/proc/cmdline", "/proc/modules", "/proc/sys/vm", "/sys/kernel/mm/hugepages",
	"/sys/devices/system/node", "/sys/devices/system/cpu", "/sys/module", "/lib/systemd/system", "/usr/lib/systemd/system",
}

var moving = []string{"numastat", "vmstat", "meminfo", "free_hugepages", "scaling_cur_freq", "cpuinfo_cur_freq", "time", "usage", "above", "below",
	"time_in_state", "total_trans", "stat_interval", "drop_caches", "compact_memory", "thermal_throttle", "refcnt", "initsize", "coresize"}

// snapshot hashes every readable file of the trees.
func snapshot(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, root := range untouchable {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // what cannot be read cannot be compared
			}
			for _, m := range moving {
				if strings.Contains(filepath.Base(path), m) || strings.Contains(path, "/"+m+"/") {
					return nil
				}
			}
			info, err := d.Info()
			if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o444 == 0 || info.Size() > 8<<20 {
				return nil
			}
			if strings.Contains(path, "/parameters/") && info.Mode().Perm()&0o222 == 0 {
				return nil // a counter that a module shows: nobody can write it
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			out[path] = fmt.Sprintf("%s %x", info.Mode(), sha256.Sum256(b))
			return nil
		})
	}
	return out
}

// TestUpChangesNothingOnTheHost runs bc up as a person would on this machine,
// until it has said how to go on, and compares the trees before and after.
func TestUpChangesNothingOnTheHost(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bc")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	state := t.TempDir()
	before := snapshot(t)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "up", "--state-dir", state, "--listen", "none")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "This machine ") {
			said = true
			break
		}
	}
	if !said {
		t.Error("bc up did not say what became of this machine")
	}
	_ = cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("bc up ended with %v after an interrupt", err)
	}

	after := snapshot(t)
	for path, was := range before {
		if now, ok := after[path]; !ok {
			t.Errorf("%s is gone", path)
		} else if now != was {
			t.Errorf("%s has changed", path)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s is new", path)
		}
	}
	if len(before) < 100 {
		t.Errorf("only %d files were compared", len(before))
	}
}
