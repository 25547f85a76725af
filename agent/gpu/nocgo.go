//go:build !cgo

package gpu

import (
	"context"

	"github.com/bettercompute/bc/agent/wire"
)

type binding struct{}

func (*binding) start() {}

var withoutCGO = wire.GPULibrary{
	State:  wire.GPULibraryNoCGO,
	Reason: "this binary was built without cgo and cannot load NVML: install the packaged build to use GPUs",
}

func (l *Library) snapshot() Snapshot { return Snapshot{Library: withoutCGO} }

func (l *Library) readings() Readings { return Readings{Library: withoutCGO} }

func (l *Library) release() error { return nil }

func (l *Library) watch(ctx context.Context, _ chan<- Xid) { <-ctx.Done() }
