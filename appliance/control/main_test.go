package control

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs fewer random sequences than rapid does by default, unless told:
// go test ./appliance/control -rapid.checks=1000 looks for longer.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "15")
	flag.Parse()
	os.Exit(m.Run())
}
