//go:build !cgo

package gpu

import (
	"context"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
)

func TestBinaryWithoutCGOSaysSo(t *testing.T) {
	l := Open("")
	s := l.Snapshot(t.Context())
	if s.Library.State != wire.GPULibraryNoCGO || s.Library.Reason == "" || s.Known() {
		t.Errorf("%+v", s)
	}
	if r := l.Readings(t.Context()); r.Library.State != wire.GPULibraryNoCGO {
		t.Errorf("%+v", r)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := l.Events(ctx)
	cancel()
	if x, open := <-events; open {
		t.Errorf("%+v", x)
	}
}
