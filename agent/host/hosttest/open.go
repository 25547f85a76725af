package hosttest

import (
	"testing"

	"github.com/bettercompute/bc/agent/host"
)

// Open goes on with the folder of a machine of another process. What only that
// process knew is forgotten: what it made fail, and what systemd said.
func Open(t testing.TB, dir string) *Machine {
	t.Helper()
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{Edge: host.NewTreeEdge(root), root: root, active: map[string]bool{}, free: map[string]uint64{}, fails: map[string]string{}, boot: 1}
	e.remember()
	return &Machine{Machine: &host.Machine{Root: root, Edge: e}, edge: e}
}
