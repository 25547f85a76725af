// Package gputest gives tests a machine with GPUs: it builds the small NVML
// library of testdata/nvml and edits the state file that the library shows.
// It is for tests alone and is never linked into the product.
//
// The library is loaded by the code under test, through go-nvml. A process can
// load one NVML library, so a test that needs its own runs in its own process.
//
// Start reading at [State].
package gputest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const goNVML = "github.com/NVIDIA/go-nvml"

// Library builds libnvidia-ml.so.1 and answers its path. Without a C compiler
// the test is skipped.
func Library(t testing.TB) string {
	t.Helper()
	return LibraryWithout(t)
}

// LibraryWithout builds a library that lacks functions, as an older driver's
// does. The result is kept in the user's cache, by a hash of all that goes
// into it.
func LibraryWithout(t testing.TB, functions ...string) string {
	t.Helper()
	path, err := build(functions)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("no C compiler, so there is no NVML library to test with: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// moduleRoot finds this module from the folder in which go test runs a test.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "testdata", "nvml", "nvml.c")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("testdata/nvml is not above the working directory: run the test from its package's folder")
		}
		dir = up
	}
}

func build(without []string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "testdata", "nvml")
	files, err := filepath.Glob(filepath.Join(source, "*.[ch]"))
	if err != nil {
		return "", err
	}
	header, err := headerFolder(root)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range append(slices.Clone(files), filepath.Join(header, "nvml.h")) {
		b, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.Base(f), len(b))
		sum.Write(b)
	}
	slices.Sort(without)
	fmt.Fprintln(sum, flags, without)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "better-compute", "nvml-"+hex.EncodeToString(sum.Sum(nil)[:8]))
	out := filepath.Join(dir, "libnvidia-ml.so.1")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	return out, compile(out, header, files, without)
}

// headerFolder finds nvml.h, without the network: go test has the module.
func headerFolder(root string) (string, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", goNVML)
	list.Dir = root
	b, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("finding the folder of %s: %w", goNVML, err)
	}
	return filepath.Join(strings.TrimSpace(string(b)), "pkg", "nvml"), nil
}

var flags = []string{
	"-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
	"-Wno-deprecated-declarations", "-Wl,-soname,libnvidia-ml.so.1",
}

// compile writes the library beside its final name first: another test may
// build the same one.
func compile(out, header string, files, without []string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	script := filepath.Join(work, "version")
	// An exact name in "local" goes before the pattern in "global".
	hidden := strings.Join(append(slices.Clone(without), "*"), "; ")
	if err := os.WriteFile(script, []byte("{ global: nvml*; local: "+hidden+"; };\n"), 0o600); err != nil {
		return err
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	temp := filepath.Join(work, "libnvidia-ml.so.1")
	args := slices.Concat(flags, []string{"-I", header, "-Wl,--version-script=" + script, "-o", temp})
	for _, f := range files {
		if strings.HasSuffix(f, ".c") {
			args = append(args, f)
		}
	}
	if b, err := exec.Command(cc, append(args, "-ldl", "-lpthread")...).CombinedOutput(); err != nil {
		return fmt.Errorf("building the NVML library of testdata/nvml: %w\n%s", err, b)
	}
	if err := os.Rename(temp, out); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
