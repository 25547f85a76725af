package host

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	godbus "github.com/godbus/dbus/v5"
)

// testBus is a bus with nobody on it but who is put there.
func testBus(t *testing.T) (address string) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("there is no dbus-daemon here")
	}
	dir, err := os.MkdirTemp("", "bus") // the test's own folder can be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := filepath.Join(dir, "bus.conf")
	socket := filepath.Join(dir, "bus")
	err = os.WriteFile(config, []byte(`<busconfig><type>session</type><listen>unix:path=`+socket+`</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config-file="+config, "--nofork", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line := make([]byte, 4096)
	n, err := out.Read(line) // it prints when it listens
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ = strings.Cut(string(bytes.TrimSpace(line[:n])), "\n")
	return address
}

func connect(t *testing.T, address string) *godbus.Conn {
	t.Helper()
	conn, err := godbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// asked counts what is asked of logind or systemd, and refuses if it is told to.
type asked struct {
	calls  []string
	refuse *godbus.Error
}

// Reboot is logind's.
func (a *asked) Reboot(interactive bool) *godbus.Error {
	a.calls = append(a.calls, map[bool]string{false: "Reboot", true: "Reboot interactively"}[interactive])
	return a.refuse
}

// StartUnit is systemd's.
func (a *asked) StartUnit(unit, mode string) (godbus.ObjectPath, *godbus.Error) {
	a.calls = append(a.calls, "StartUnit "+unit+" "+mode)
	return "/org/freedesktop/systemd1/job/1", a.refuse
}

func (a *asked) own(t *testing.T, address, name string, path godbus.ObjectPath) {
	t.Helper()
	conn := connect(t, address)
	if err := conn.Export(a, path, name+".Manager"); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(name, godbus.NameFlagDoNotQueue); err != nil || reply != godbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("own %s: %v, %v", name, reply, err)
	}
}

// logind is asked for a plain reboot, once; systemd only where there is no logind;
// and a refusal is an error that says why, never gone round.
func TestARebootIsAskedForOnce(t *testing.T) {
	inhibited := godbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"There's already a shutdown or sleep operation in progress"})
	for name, c := range map[string]struct {
		logind, systemd *asked
		want            string // of the calls
		err             string
	}{
		"with logind":                  {&asked{}, &asked{}, "Reboot", ""},
		"with a logind that refuses":   {&asked{refuse: inhibited}, &asked{}, "Reboot", "logind refuses: There's already a shutdown"},
		"without logind":               {nil, &asked{}, "StartUnit reboot.target replace-irreversibly", ""},
		"without logind, and refused":  {nil, &asked{refuse: inhibited}, "StartUnit reboot.target replace-irreversibly", "systemd refuses: There's already"},
		"with neither, as in a prison": {nil, nil, "", "systemd refuses"},
	} {
		t.Run(name, func(t *testing.T) {
			address := testBus(t)
			if c.logind != nil {
				c.logind.own(t, address, logindName, logindPath)
			}
			if c.systemd != nil {
				c.systemd.own(t, address, systemdName, systemdPath)
			}
			err := reboot(t.Context(), connect(t, address))
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("the error is %v, want %q", err, c.err)
			}
			var calls []string
			for _, a := range []*asked{c.logind, c.systemd} {
				if a != nil {
					calls = append(calls, a.calls...)
				}
			}
			if got := strings.Join(calls, ", "); got != c.want {
				t.Errorf("asked for %q, want %q", got, c.want)
			}
		})
	}
}

// The files of a machine are not rebooted.
func TestARecordedMachineIsNotRebooted(t *testing.T) {
	root, err := OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := NewMachine(root)
	if m.CanReboot() == nil || m.Reboot(t.Context()) == nil {
		t.Error("a folder could be rebooted")
	}
}
