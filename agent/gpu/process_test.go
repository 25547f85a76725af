//go:build cgo

package gpu

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

func init() { slice = 20 * time.Millisecond }

// alone runs a test in a process of its own, because a process can load one
// NVML library only, and because the faults tested here end the process. It
// answers true in that process.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv("BC_GPU_TEST") == t.Name() {
		return true
	}
	t.Parallel()
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "BC_GPU_TEST="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in its own process: %v\n%s", err, out)
	}
	return false
}

// within bounds a call that must come back by itself.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func wantState(t *testing.T, got wire.GPULibrary, want wire.GPULibraryState) {
	t.Helper()
	if got.State != want {
		t.Fatalf("library is %q (%s), want %q", got.State, got.Reason, want)
	}
	if (got.Reason == "") != (want == wire.GPULibraryReady) {
		t.Errorf("library %q with reason %q: every state but ready has one", got.State, got.Reason)
	}
}

// known asks for a snapshot that must have a list.
func known(t *testing.T, l *Library) Snapshot {
	t.Helper()
	s := l.Snapshot(within(t))
	wantState(t, s.Library, wire.GPULibraryReady)
	return s
}

// unknown asks for a snapshot that must have none.
func unknown(t *testing.T, l *Library, want wire.GPULibraryState) Snapshot {
	t.Helper()
	s := l.Snapshot(within(t))
	wantState(t, s.Library, want)
	if s.Known() || s.GPUs != nil {
		t.Fatalf("a library that is %s gave a list: %v", want, s.GPUs)
	}
	return s
}
