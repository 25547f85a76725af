//go:build cgo

package gpu

import (
	"context"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/gpu/gputest"
	"github.com/bettercompute/bc/agent/wire"
)

func init() { slice = 20 * time.Millisecond }

// alone is [gputest.Alone]: the faults tested here also end the process.
func alone(t *testing.T) bool { t.Helper(); return gputest.Alone(t) }

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
