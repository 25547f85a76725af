// Package hosts keeps the recorded machines that demonstrations, simulations
// and tests run on, in the format of agent/host's Archive. They are part of
// the program. It keeps the files to itself and does not know what is in them.
//
// Start reading at [Names]. Each file's comment says what the machine is and
// where its facts are from; all are composed by the tests of agent/inventory
// (machines_test.go, written with go test ./agent/inventory -update), none was
// captured from hardware.
package hosts

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.txtar
var files embed.FS

// Names lists the machines in alphabetical order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil // an embedded directory has no way to fail
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txtar"))
	}
	return names
}

// Read returns the archive of a machine.
func Read(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".txtar")
	if err != nil {
		return nil, fmt.Errorf("no recorded machine %q: there are %s", name, strings.Join(Names(), ", "))
	}
	return data, nil
}
