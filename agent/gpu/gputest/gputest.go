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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	header, err := headerFolder()
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
	fmt.Fprintln(sum, flags)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "better-compute", "nvml-"+hash(sum.Sum(nil)))
	object := filepath.Join(dir, "nvml.o")
	err = once(object, func(out string) error { return compile(out, header, files) })
	if err != nil {
		return "", err
	}
	slices.Sort(without)
	variant := sha256.Sum256([]byte(strings.Join(without, " ")))
	library := filepath.Join(dir, hash(variant[:]), "libnvidia-ml.so.1")
	return library, once(library, func(out string) error { return link(out, object, without) })
}

func hash(sum []byte) string { return hex.EncodeToString(sum[:8]) }

// once makes a file that is not there. It is written elsewhere first, because
// another test may make the same one at the same time.
func once(path string, make func(out string) error) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	out := filepath.Join(work, filepath.Base(path))
	if err := make(out); err != nil {
		return err
	}
	return os.Rename(out, path)
}

// headerFolder finds nvml.h, without the network: go test has the module.
var headerFolder = sync.OnceValues(func() (string, error) {
	b, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", goNVML).Output()
	if err != nil {
		return "", fmt.Errorf("finding the folder of %s: %w", goNVML, err)
	}
	return filepath.Join(strings.TrimSpace(string(b)), "pkg", "nvml"), nil
})

var flags = []string{
	"-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations",
}

// compile makes one object of all sources: the variants of the library differ
// in linking only.
func compile(out, header string, files []string) error {
	args := slices.Concat(flags, []string{"-r", "-nostdlib", "-I", header, "-o", out})
	for _, f := range files {
		if strings.HasSuffix(f, ".c") {
			args = append(args, f)
		}
	}
	return gcc(args...)
}

// link hides the functions that the library is to lack. An exact name in
// "local" goes before the pattern in "global".
func link(out, object string, without []string) error {
	script := out + ".version"
	hidden := strings.Join(append(slices.Clone(without), "*"), "; ")
	if err := os.WriteFile(script, []byte("{ global: nvml*; local: "+hidden+"; };\n"), 0o600); err != nil {
		return err
	}
	return gcc("-shared", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,--version-script="+script, "-o", out, object, "-ldl", "-lpthread")
}

func gcc(args ...string) error {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if b, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("building the NVML library of testdata/nvml: %w\n%s", err, b)
	}
	return nil
}

// Alone runs a test in a process of its own, because a process can load one
// NVML library only. It answers true in that process; else the test is to
// return.
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv("BC_GPU_TEST") == t.Name() {
		return true
	}
	t.Parallel()
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	args := []string{"-test.run=" + pattern, "-test.v", "-test.timeout=60s"}
	for _, arg := range os.Args[1:] {
		if !strings.HasPrefix(arg, "-test.") {
			args = append(args, arg) // such as -update
		}
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "BC_GPU_TEST="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in its own process: %v\n%s", err, out)
	}
	return false
}
