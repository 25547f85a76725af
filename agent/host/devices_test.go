package host

import (
	"os"
	"os/user"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A holder is found by the device's number, whatever name it was opened by, and
// is told with its command and its user.
func TestHoldersSayWhoTheyAre(t *testing.T) {
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	name := t.TempDir() + "/nvidia0"
	if err := unix.Mknod(name, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil {
		t.Skipf("no device can be made here: %v", err)
	}
	holders, err := Holders(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range holders {
		if h.PID != os.Getpid() {
			continue
		}
		if h.User != me.Username || h.Command != "host.test" || h.Path != name {
			t.Errorf("%+v", h)
		}
		if want := name + " is held by host.test (pid " + strconv.Itoa(h.PID) + ", user " + me.Username + ")"; h.String() != want {
			t.Errorf("said as %q, want %q", h, want)
		}
		return
	}
	t.Errorf("this process is not among %v", holders)
}
