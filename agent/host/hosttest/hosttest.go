// Package hosttest gives tests a machine that can be changed: a recorded one,
// unpacked into a folder, with an edge that imitates what a kernel, a boot
// loader's programs and systemd do with a change. It is for tests alone and is
// never linked into the product.
//
// It knows rules, not units: pools of huge pages take what memory there is,
// a governor that is not offered is refused, update-grub reads what Debian's
// reads, and GRUB boots an entry once. A machine can also refuse, fail and die on
// request.
//
// Start reading at [New].
package hosttest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/bc/agent/host"
)

// Machine is a recorded machine that can be changed.
type Machine struct {
	*host.Machine
	edge *edge
}

// New unpacks an archive into a folder of the test. The machine has what every
// machine has and no recording holds: a boot id, modprobe, compact_memory.
func New(t testing.TB, a *host.Archive) *Machine {
	t.Helper()
	dir := Dir(t)
	if err := host.Unpack(a, dir); err != nil {
		t.Fatal(err)
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{Edge: host.NewTreeEdge(root), root: root, active: map[string]bool{}, free: map[string]uint64{}, fails: map[string]string{}, breaks: map[string]string{}, boot: 1}
	m := &Machine{Machine: &host.Machine{Root: root, Edge: e}, edge: e}
	m.Put("/proc/sys/kernel/random/boot_id", "boot-1")
	m.Put("/proc/sys/vm/compact_memory", "0")
	m.Put("/usr/sbin/modprobe", "")
	if root.Exists("/usr/sbin/update-grub") {
		m.Put("/usr/sbin/update-initramfs", "")
		m.Put("/usr/bin/grub-editenv", "")
		e.putEnvironment(host.GRUBEnvironment, "", "", "", false)
		m.Put("/proc/self/mountinfo", "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw")
		m.Put("/sys/dev/block/8:2/uevent", "MAJOR=8\nMINOR=2\nDEVNAME=sda2\nDEVTYPE=partition")
		e.updateGRUB()
	}
	e.remember()
	if root.Exists("/usr/sbin/grubby") {
		m.Put("/usr/bin/dracut", "")
	}
	if root.BootLoader() == host.LoaderSystemdBoot {
		m.Put("/usr/bin/kernel-install", "")
	}
	return m
}

// Dir is a folder of the test, in memory where the system has one: what is
// written there waits for no disk.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hosttest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover in memory goes with the next boot
	return dir
}

// Put writes a file of the machine, as someone else would. The text gets a
// newline at its end.
func (m *Machine) Put(name, text string) { m.edge.put(name, text) }

// Remove removes a file of the machine, as someone else would.
func (m *Machine) Remove(name string) {
	if err := m.edge.Edge.RemoveFile(name); err != nil {
		panic(err)
	}
}

// Ran lists the programs that were run since the last call.
func (m *Machine) Ran() []string {
	ran := m.edge.ran
	m.edge.ran = nil
	return ran
}

// Effects is how many changes reached the machine.
func (m *Machine) Effects() int { return m.edge.effects }

// DieAt has the process die, as Died, at a moment: 2n-1 is right before the nth
// change from now reaches the machine, 2n right after. 0 lets it live.
func (m *Machine) DieAt(moment int) { m.edge.effects, m.edge.dieAt = 0, moment }

// Died is the panic of DieAt.
type Died struct{}

// ReadOnly makes writes of files below a folder fail, as on an immutable system.
func (m *Machine) ReadOnly(dir string) { m.edge.readOnly = append(m.edge.readOnly, dir) }

// Full leaves so many bytes in a folder.
func (m *Machine) Full(dir string, bytes uint64) { m.edge.free[dir] = bytes }

// Fails makes a program fail with an output.
func (m *Machine) Fails(program, output string) { m.edge.fails[program] = output }

// FailsFor makes a program fail with an output when its last argument is this.
func (m *Machine) FailsFor(program, argument, output string) {
	m.edge.fails[program+" "+argument] = output
}

// Breaks makes a program fail with an output after it has written half of its
// files: its disk is full, or it was killed.
func (m *Machine) Breaks(program, output string) { m.edge.breaks[program] = output }

// DieIn has the process die, as Died, when a program that it runs has written
// half of its files.
func (m *Machine) DieIn(program string) { m.edge.dieIn = program }

// Works takes Fails, Breaks and DieIn back.
func (m *Machine) Works(program string) {
	delete(m.edge.fails, program)
	delete(m.edge.breaks, program)
	m.edge.dieIn = ""
}

// GRUBCannotWrite has GRUB unable to forget which entry it was to boot once.
func (m *Machine) GRUBCannotWrite() { m.edge.grubStuck = true }

// Active has systemd say that units are active.
func (m *Machine) Active(units ...string) {
	for _, u := range units {
		m.edge.active[u] = true
	}
}

// Install has systemd know a unit, and what it does when it runs.
func (m *Machine) Install(unit string, run func() error) {
	if m.edge.units == nil {
		m.edge.units = make(map[string]func() error)
	}
	m.edge.units[unit] = run
}

// Files is everything on the machine, by path, to compare it with another time.
// What programs leave as a side effect (the machine's own grub.cfg) is in it.
func (m *Machine) Files(t testing.TB) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(m.Dir(), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(p, m.Dir()), "/")
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(p)
			files[name] = "-> " + target
			return err
		}
		data, err := os.ReadFile(p)
		files[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

type edge struct {
	host.Edge
	root     *host.Root
	ran      []string
	effects  int
	dieAt    int
	readOnly []string
	free     map[string]uint64
	fails    map[string]string
	breaks   map[string]string
	dieIn    string
	active   map[string]bool
	units    map[string]func() error
	cluster  *Cluster
	boot     int
	// grubStuck says that GRUB cannot write.
	grubStuck bool
	fresh     map[string]string // what a boot resets, by path
}

// effect surrounds what reaches the machine, so that a test can stop it there.
func (e *edge) effect(do func() error) error {
	e.effects++
	if e.dieAt == 2*e.effects-1 {
		panic(Died{})
	}
	err := do()
	if e.dieAt == 2*e.effects {
		panic(Died{})
	}
	return err
}

func (e *edge) put(name, text string) {
	if !strings.HasSuffix(text, "\n") && text != "" {
		text += "\n"
	}
	if err := e.write(name, []byte(text)); err != nil {
		panic(err)
	}
}

// write writes a file without waiting for a disk: a test's machine needs no
// power cut.
func (e *edge) write(name string, data []byte) error {
	p, err := e.root.Resolve(name)
	if err != nil {
		dir, dirErr := e.root.Resolve(path.Dir(name))
		if dirErr != nil {
			dir = path.Dir(name)
			if err := os.MkdirAll(filepath.Join(e.root.Dir(), dir), 0o755); err != nil {
				return err
			}
		}
		p = path.Join(dir, path.Base(name))
	}
	return os.WriteFile(filepath.Join(e.root.Dir(), p), data, 0o644)
}

func (e *edge) refused(op, name string) error {
	if slices.ContainsFunc(e.readOnly, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
		return &fs.PathError{Op: op, Path: name, Err: syscall.EROFS}
	}
	return nil
}

func (e *edge) WriteFile(name string, data []byte) error {
	if err := e.refused("write", name); err != nil {
		return err
	}
	return e.effect(func() error { return e.write(name, data) })
}

func (e *edge) RemoveFile(name string) error {
	if err := e.refused("remove", name); err != nil {
		return err
	}
	return e.effect(func() error { return e.Edge.RemoveFile(name) })
}

func (e *edge) WriteKernel(name, value string) error {
	return e.effect(func() error { return e.kernel(path.Clean(name), value) })
}

func (e *edge) CanRun(program string) bool {
	_, allowed := host.Programs[program]
	return allowed && (e.root.Exists("/usr/sbin/"+program) || e.root.Exists("/usr/bin/"+program))
}

func (e *edge) Run(_ context.Context, argv ...string) error {
	if !e.CanRun(argv[0]) {
		return fmt.Errorf("run %s: it is not installed", argv[0])
	}
	return e.effect(func() error {
		e.ran = append(e.ran, strings.Join(argv, " "))
		output, fails := e.fails[argv[0]]
		if !fails {
			output, fails = e.fails[argv[0]+" "+argv[len(argv)-1]]
		}
		if fails {
			return &host.CommandError{Argv: argv, Output: output, Err: fmt.Errorf("exit status 1")}
		}
		if e.dieIn == argv[0] {
			e.half(argv)
			panic(Died{})
		}
		if output, ok := e.breaks[argv[0]]; ok {
			e.half(argv)
			return &host.CommandError{Argv: argv, Output: output, Err: fmt.Errorf("signal: killed")}
		}
		return e.program(argv)
	})
}

func (e *edge) RestartUnit(_ context.Context, unit string) error {
	run, ok := e.units[unit]
	if !ok {
		return fmt.Errorf("start %s: not found", unit)
	}
	e.ran = append(e.ran, "systemctl restart "+unit)
	if err := run(); err != nil {
		return &host.UnitFailed{Unit: unit, Result: "exit-code"}
	}
	return nil
}

func (e *edge) StopUnit(_ context.Context, unit string) error {
	return e.effect(func() error {
		e.ran = append(e.ran, "systemctl stop "+unit)
		e.active[unit] = false
		return nil
	})
}

func (e *edge) UnitInstalled(_ context.Context, unit string) bool { return e.units[unit] != nil }

func (e *edge) UnitActive(_ context.Context, unit string) bool { return e.active[unit] }

func (e *edge) FreeBytes(dir string) (uint64, error) {
	if free, ok := e.free[dir]; ok {
		return free, nil
	}
	return 1 << 40, nil
}
