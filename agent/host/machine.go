package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Machine is a machine that can be changed: its files, and where it is acted on.
type Machine struct {
	*Root
	Edge
}

// Edge is where a machine is acted on. There are three: the running machine's
// own, that of a folder with a machine's files in it, where nothing runs, and
// the one of hosttest, which imitates a kernel. All paths are the machine's.
type Edge interface {
	// WriteFile replaces a file as a whole, so that after a power cut it is the
	// old one or the new one. It makes missing folders and keeps the mode of a
	// file that is there; a new one is 0644.
	WriteFile(name string, data []byte) error
	// RemoveFile removes a file. One that is not there is no error.
	RemoveFile(name string) error
	// WriteKernel writes a value to a file of /proc or /sys in one write, and
	// never makes a file.
	WriteKernel(name, value string) error
	// Run runs a program of [Programs] to its end. The error has the last lines
	// of what it wrote.
	Run(ctx context.Context, argv ...string) error
	// CanRun reports whether a program of [Programs] is installed here.
	CanRun(program string) bool
	// RestartUnit has systemd run a unit anew, and waits until a oneshot has
	// ended or a service is up.
	RestartUnit(ctx context.Context, unit string) error
	// StopUnit has systemd stop a unit, and waits for its end. One that does not
	// run is no error.
	StopUnit(ctx context.Context, unit string) error
	// UnitInstalled reports whether systemd runs here and has the unit.
	UnitInstalled(ctx context.Context, unit string) bool
	// UnitActive reports whether systemd says that the unit is active.
	UnitActive(ctx context.Context, unit string) bool
	// FreeBytes is what can still be written in a folder.
	FreeBytes(dir string) (uint64, error)
	// WriteSecret makes a file that only root reads.
	WriteSecret(name string, data []byte) error
	// Version asks kubeadm or kubelet for its version: "" without one.
	Version(ctx context.Context, program string) string
	// ClockSynced reports whether the clock is kept by another one.
	ClockSynced() bool
	// CanReboot says why Reboot could do nothing here, nil if it could.
	CanReboot() error
	// Reboot has the machine shut down in order and start anew through its
	// firmware. It answers when that has begun.
	Reboot(ctx context.Context) error
}

// NewMachine gives the machine at a root. A root of an archive cannot be
// changed: every change of it is an error.
func NewMachine(root *Root) *Machine {
	if root.Real() {
		return &Machine{Root: root, Edge: &realEdge{treeEdge: treeEdge{root}}}
	}
	return &Machine{Root: root, Edge: treeEdge{root}}
}

// BootID tells one boot of the machine from another; "" where nothing does.
func (r *Root) BootID() string {
	id, _ := r.String("/proc/sys/kernel/random/boot_id")
	return id
}

// ErrRecorded says that a change needs a running machine and this is only the
// files of one.
var ErrRecorded = errors.New("this is a folder with a machine's files, where nothing can run")

// treeEdge acts on the files below a root.
type treeEdge struct{ root *Root }

// NewTreeEdge gives the edge of a folder with a machine's files: writes to the
// kernel are plain writes of files, and nothing runs.
func NewTreeEdge(root *Root) Edge { return treeEdge{root} }

// path is where a name that may not exist yet is for this process: its folder's
// links are followed, and none leads out of the root.
func (e treeEdge) path(name string) (string, error) {
	if e.root.Dir() == "" {
		return "", &fs.PathError{Op: "write", Path: name, Err: syscall.EROFS}
	}
	if e.root.Real() {
		return path.Join("/", name), nil
	}
	if p, err := e.root.resolve(name, true); err == nil {
		return filepath.Join(e.root.Dir(), p), nil
	}
	dir, base := path.Split(path.Join("/", name))
	for missing := ""; ; {
		p, err := e.root.resolve(dir, true)
		if err == nil {
			return filepath.Join(e.root.Dir(), p, missing, base), nil
		}
		if dir == "/" || dir == "" {
			return "", err
		}
		var last string
		dir, last = path.Split(strings.TrimSuffix(dir, "/"))
		missing = path.Join(last, missing)
	}
}

func (e treeEdge) WriteFile(name string, data []byte) error {
	p, err := e.path(name)
	if err != nil {
		return err
	}
	if resolved, err := filepath.EvalSymlinks(p); err == nil {
		p = resolved // the file is replaced, not the link to it
	}
	return replaceFile(p, data)
}

// replaceFile writes beside the file and renames. The folder is synced too, so
// that the new name is safe when it returns.
func replaceFile(p string, data []byte) error {
	dir := filepath.Dir(p)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(p); err == nil {
		mode = info.Mode().Perm()
	}
	// The name begins with a dot and has no suffix that update-grub, modprobe
	// or systemd would read. It is the same each time, so that what a crash
	// left is overwritten by the next try.
	tmp, err := os.OpenFile(filepath.Join(dir, ".better-compute-"+filepath.Base(p)+".new"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), p)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	// Some file systems, FAT of the EFI partition among them, sync no folders.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		d.Close()
		return err
	}
	return d.Close()
}

func (e treeEdge) RemoveFile(name string) error {
	p, err := e.path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(filepath.Dir(p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (e treeEdge) WriteKernel(name, value string) error {
	p, err := e.path(name)
	if err != nil {
		return err
	}
	if !e.root.Real() {
		return e.writeRecorded(name, p, value)
	}
	fd, err := retried(func() (int, error) { return syscall.Open(p, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer syscall.Close(fd)
	if _, err := retried(func() (int, error) { return syscall.Write(fd, []byte(value+"\n")) }); err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// writeRecorded gives a file of a recorded machine a new value. A kernel's file
// is never half written, so neither is this one: what is torn by a kill is a
// file of its own at the root of the tree.
func (e treeEdge) writeRecorded(name, p, value string) error {
	was, _ := e.root.Int(name)
	p, err := filepath.EvalSymlinks(p)
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: fs.ErrNotExist}
	}
	torn := filepath.Join(e.root.Dir(), ".better-compute.new")
	if err := os.WriteFile(torn, []byte(value+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.Rename(torn, p); err != nil {
		return err
	}
	if path.Base(name) == "nr_hugepages" {
		return e.countFree(path.Dir(name), was)
	}
	return nil
}

// countFree has the pages that a pool in a folder gained be free, as a kernel
// would: else they could never be given back.
func (e treeEdge) countFree(pool string, was int64) error {
	now, _ := e.root.Int(pool + "/nr_hugepages")
	free, ok := e.root.Int(pool + "/free_hugepages")
	if !ok {
		return nil
	}
	return e.WriteKernel(pool+"/free_hugepages", strconv.FormatInt(max(0, free+now-was), 10))
}

func (e treeEdge) Run(_ context.Context, argv ...string) error {
	return fmt.Errorf("run %s: %w", strings.Join(argv, " "), ErrRecorded)
}

func (e treeEdge) CanRun(string) bool { return false }

func (e treeEdge) RestartUnit(_ context.Context, unit string) error {
	return fmt.Errorf("start %s: %w", unit, ErrRecorded)
}

func (e treeEdge) StopUnit(_ context.Context, unit string) error {
	return fmt.Errorf("stop %s: %w", unit, ErrRecorded)
}

func (e treeEdge) UnitInstalled(context.Context, string) bool { return false }

func (e treeEdge) UnitActive(context.Context, string) bool { return false }

func (e treeEdge) CanReboot() error { return ErrRecorded }

func (e treeEdge) Reboot(context.Context) error { return fmt.Errorf("reboot: %w", ErrRecorded) }

func (e treeEdge) FreeBytes(dir string) (uint64, error) {
	p, err := e.path(dir)
	if err != nil {
		return 0, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(p, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// machineLock lies beside /run/better-compute: systemd removes that folder when
// the control plane stops.
const machineLock = "/run/better-compute-agent.lock"

// LockMachine keeps every other agent from managing this machine, wherever each
// has its state, until the file is closed. It is an error that names the process
// if another one does.
func (r *Root) LockMachine() (*os.File, error) {
	name, err := treeEdge{r}.path(machineLock)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("who manages this machine: %w", err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("who manages this machine: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("this machine is managed by another agent, %s; stop that one first, or run this one without --manage-host", LockHolder(f))
		}
		return nil, &fs.PathError{Op: "lock", Path: machineLock, Err: err}
	}
	SignLock(f)
	return f, nil
}
