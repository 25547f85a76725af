package gputest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Every stands for all devices of a machine.
const Every = -2

// machine is the device number of what is the machine's own.
const machine = -1

// Machine is a machine with GPUs that a test may change while a program looks
// at it.
type Machine struct {
	// Path is the state file.
	Path string
	// Library is a library beside the state file, which shows it by itself: no
	// environment is needed, only its path.
	Library string

	t testing.TB
}

// State makes a machine in a temporary folder from testdata/nvml/states, such
// as dgx-h100, dgx-a100, l40s-4, h100-mig or none.
func State(t testing.TB, name string) *Machine {
	t.Helper()
	m := &Machine{t: t, Library: Library(t)}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "testdata", "nvml", "states", name+".state"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m.Path = filepath.Join(dir, "nvml.state")
	if err := os.WriteFile(m.Path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return m.Use(m.Library)
}

// Use puts another library beside the state file.
func (m *Machine) Use(library string) *Machine {
	m.t.Helper()
	b, err := os.ReadFile(library)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Library = filepath.Join(filepath.Dir(m.Path), "libnvidia-ml.so.1")
	temp := m.Library + ".new" // a program may have the old file mapped
	if err := os.WriteFile(temp, b, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(temp, m.Library); err != nil {
		m.t.Fatal(err)
	}
	return m
}

// Env is the setting by which a library elsewhere shows this machine.
func (m *Machine) Env() string { return "BC_NVML_STATE=" + m.Path }

// Set gives a device a value; device may be [Every]. The value "-" unsets. The
// keys stand in testdata/nvml/README.md.
func (m *Machine) Set(device int, key, value string) {
	m.t.Helper()
	m.edit(func(lines []string) []string {
		prefix := linePrefix(device, key)
		kept := lines[:0]
		for _, l := range lines {
			if !strings.HasPrefix(l, prefix) {
				kept = append(kept, l)
			}
		}
		return append(kept, prefix+value)
	})
}

// SetMachine gives the machine itself a value.
func (m *Machine) SetMachine(key, value string) {
	m.t.Helper()
	m.Set(machine, key, value)
}

// Get answers a device's value as the library reads it: "" when unset.
func (m *Machine) Get(device int, key string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.Path)
	if err != nil {
		m.t.Fatal(err)
	}
	value := ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		for _, d := range []int{device, Every} {
			if device == machine && d == Every {
				continue
			}
			if v, ok := strings.CutPrefix(line, linePrefix(d, key)); ok {
				value = v
			}
		}
	}
	if value == "-" {
		return ""
	}
	return value
}

// Lose lets a GPU fall off the bus.
func (m *Machine) Lose(device int) { m.t.Helper(); m.Set(device, "error", "lost") }

// Find puts a lost GPU back.
func (m *Machine) Find(device int) { m.t.Helper(); m.Set(device, "error", "-") }

// Remove takes a GPU out of the machine: those after it move up.
func (m *Machine) Remove(device int) { m.t.Helper(); m.Set(device, "absent", "yes") }

// Fail makes nvmlInit answer an error word, such as driver_not_loaded.
func (m *Machine) Fail(word string) { m.t.Helper(); m.SetMachine("init", word) }

// Die makes every call answer an error word from now on, such as unknown.
func (m *Machine) Die(word string) { m.t.Helper(); m.SetMachine("run", word) }

// Reload is a driver that was unloaded and loaded: all errors end, and the
// library must be initialised anew.
func (m *Machine) Reload() {
	m.t.Helper()
	n, _ := strconv.Atoi(m.Get(machine, "boot"))
	m.SetMachine("init", "ok")
	m.SetMachine("run", "ok")
	m.SetMachine("boot", strconv.Itoa(n+1))
}

// Reset is a GPU reset: what was pending holds now, a lost GPU is back, the
// power cap is the default and MIG instances are gone.
func (m *Machine) Reset(device int) {
	m.t.Helper()
	for now, pending := range map[string]string{"ecc": "ecc-pending", "mig-mode": "mig-pending"} {
		if v := m.Get(device, pending); v != "" {
			m.Set(device, now, v)
			m.Set(device, pending, "-")
		}
	}
	m.Set(device, "error", "-")
	m.Set(device, "power-limit-mw", "-")
	for gi := range 15 {
		for ci := range 7 {
			if key := fmt.Sprintf("ci.%d.%d", gi, ci); m.Get(device, key) != "" {
				m.Set(device, key, "-")
			}
		}
		if key := fmt.Sprintf("gi.%d", gi); m.Get(device, key) != "" {
			m.Set(device, key, "-")
		}
	}
}

// Xid lets the driver report an error of a GPU.
func (m *Machine) Xid(device, code int) {
	m.t.Helper()
	m.edit(func(lines []string) []string {
		n := 1
		for _, l := range lines {
			if strings.HasPrefix(l, "xid.") {
				n++
			}
		}
		return append(lines, fmt.Sprintf("xid.%d %d %d", n, device, code))
	})
}

func linePrefix(device int, key string) string {
	switch device {
	case machine:
		return key + " "
	case Every:
		return "device * " + key + " "
	}
	return fmt.Sprintf("device %d %s ", device, key)
}

// edit changes the file under the lock that the library's setters take.
func (m *Machine) edit(change func(lines []string) []string) {
	m.t.Helper()
	lock, err := os.OpenFile(m.Path+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		m.t.Fatal(err)
	}
	b, err := os.ReadFile(m.Path)
	if err != nil {
		m.t.Fatal(err)
	}
	lines := change(strings.Split(string(bytes.TrimRight(b, "\n")), "\n"))
	temp := m.Path + ".new"
	if err := os.WriteFile(temp, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(temp, m.Path); err != nil {
		m.t.Fatal(err)
	}
}
