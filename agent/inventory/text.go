package inventory

import (
	"github.com/bettercompute/bc/agent/wire"
	"io"
)

func Text(w io.Writer, inv wire.Inventory) {}
