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

func (l *Library) states() States { return States{Library: withoutCGO} }

func (l *Library) stateOf(string) (State, *SetError) {
	return State{}, &SetError{Why: withoutCGO.Reason, kind: ErrLibrary}
}

// setter has no GPU to set; changeOne never makes one.
type setter struct{}

func (l *Library) changeOne(string, func(*setter) *SetError) *SetError {
	return &SetError{Why: withoutCGO.Reason, kind: ErrLibrary}
}

func (*setter) power(int) *SetError                { return nil }
func (*setter) ecc(bool) *SetError                 { return nil }
func (*setter) migMode(bool) *SetError             { return nil }
func (*setter) create(wire.MIGPlacement) *SetError { return nil }
func (*setter) destroy() *SetError                 { return nil }
func (*setter) computeMode(string) *SetError       { return nil }
func (*setter) persistence(bool) *SetError         { return nil }
