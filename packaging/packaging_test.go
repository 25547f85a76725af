// Package packaging_test checks what the packages are made of. The packages
// themselves are installed by e2e_test.go.
package packaging_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the list of contents anew")

// content is one entry of nfpm's list.
type content struct {
	Src, Dst, Type, Packager string
	FileInfo                 struct {
		Owner string
		Mode  int
	} `json:"file_info"`
}

func contents(t *testing.T) []content {
	t.Helper()
	text, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Contents []content }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	return list.Contents
}

// What a package puts on a machine changes only with this list.
func TestContentsAreAsListed(t *testing.T) {
	var lines []string
	for _, c := range contents(t) {
		if c.FileInfo.Owner != "" && c.FileInfo.Owner != "root" {
			t.Errorf("%s is %s's, not root's", c.Dst, c.FileInfo.Owner)
		}
		kinds := []string{"deb", "rpm"}
		if c.Packager != "" {
			kinds = []string{c.Packager}
		}
		for _, kind := range kinds {
			switch c.Type {
			case "symlink":
				lines = append(lines, fmt.Sprintf("%s link %s -> %s", kind, c.Dst, c.Src))
			case "dir":
				lines = append(lines, fmt.Sprintf("%s %04o %s/", kind, c.FileInfo.Mode, c.Dst))
			default:
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %04o %s %s", kind, c.FileInfo.Mode, c.Dst, c.Type)))
			}
		}
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/contents.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("contents (-listed +nfpm.yaml), -update accepts them:\n%s", d)
	}
}

func TestEverySourceIsThere(t *testing.T) {
	for _, c := range contents(t) {
		if c.Type == "symlink" || c.Type == "dir" || strings.HasPrefix(c.Src, "dist/stage/") {
			continue // a target, none, or made by build
		}
		if _, err := os.Stat(filepath.Join("..", c.Src)); err != nil {
			t.Error(err)
		}
	}
}

// The calculator's package owns these on every distribution: a file of ours
// there could not be installed beside it.
func TestNoFileOfTheCalculators(t *testing.T) {
	for _, c := range contents(t) {
		switch c.Dst {
		case "/usr/bin/bc", "/usr/bin/dc", "/usr/share/man/man1/bc.1.gz", "/usr/share/doc/bc", "/usr/share/info/bc.info.gz":
			t.Errorf("%s is the calculator's", c.Dst)
		}
	}
}

// unit is a unit's text with programs that every machine has, since systemd
// looks for them.
func unit(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	text = regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAll(text, []byte("ExecStart=/bin/sh"))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tool runs a program that checks something, or skips the test without it.
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func TestUnitsAreWellFormed(t *testing.T) {
	for _, name := range []string{"better-compute.service", "bcd.service"} {
		tool(t, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit(t, name))
	}
}

func TestTheControlPlaneIsExposedAtMost2(t *testing.T) {
	tool(t, "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", unit(t, "better-compute.service"))
}

func TestScriptsAreSound(t *testing.T) {
	for shell, pattern := range map[string]string{"sh": "deb/p*", "dash": "rpm/p*t*[nt]", "bash": "build"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			tool(t, "shellcheck", "--shell="+shell, f)
		}
	}
	tool(t, "shellcheck", "--shell=sh", "rpm/profile.sh")
}
