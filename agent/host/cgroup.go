package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/agent/wire"
)

const cgroupMount = "/sys/fs/cgroup"

// minSystemd is the first version with AllowedCPUs and AllowedMemoryNodes.
const minSystemd = 244

// Refusal says, for people, why slices cannot wall anything in on this
// machine, "" if they can.
func (s *Slices) Refusal() string {
	if os.Geteuid() != 0 {
		return "the agent does not run as root"
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(cgroupMount, &fsys); err != nil || fsys.Type != unix.CGROUP2_SUPER_MAGIC {
		return cgroupMount + " is not cgroup v2 alone; boot with systemd.unified_cgroup_hierarchy=1"
	}
	conn, err := s.bus.get()
	if err != nil {
		return err.Error()
	}
	text, err := conn.GetManagerProperty("Version")
	if err != nil {
		return "systemd does not say its version: " + err.Error()
	}
	if v, ok := systemdVersion(text); ok && v < minSystemd {
		return fmt.Sprintf("systemd %d is older than %d, the first that can limit CPUs by cgroup", v, minSystemd)
	}
	return ""
}

// systemdVersion reads the number of "252.39-1~deb12u1", quoted or not.
func systemdVersion(text string) (int, bool) {
	text = strings.TrimLeft(text, `"v`)
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		text = text[:end]
	}
	v, err := strconv.Atoi(text)
	return v, err == nil
}

// lacks compares what the kernel enforces in a slice's cgroup with what the
// slice is to be. Where a controller is not there, systemd says nothing.
func (s Slice) lacks(cgroup string) []string {
	dir := filepath.Join(cgroupMount, cgroup)
	var out []string
	for _, set := range []struct{ what, want, file string }{
		{"CPUs", s.CPUs, "cpuset.cpus.effective"},
		{"memory nodes", s.MemoryNodes, "cpuset.mems.effective"},
	} {
		if set.want == "" {
			continue
		}
		if got, ok := readSet(filepath.Join(dir, set.file)); !ok {
			out = append(out, set.what+" are not limited: cgroup v2 has no cpuset here")
		} else if want, err := wire.ParseCPUList(set.want); err != nil || !got.Equal(want) {
			out = append(out, fmt.Sprintf("%s %s are booked, and %s are in force", set.what, set.want, got))
		}
	}
	if s.MemoryMax > 0 {
		out = append(out, s.memoryLacks(dir)...)
	}
	switch n, err := deviceFilters(dir); {
	case err != nil:
		out = append(out, "whether devices are walled off cannot be told: "+err.Error())
	case n == 0:
		out = append(out, "devices are not walled off: the kernel has no device filter (BPF) on the cgroup")
	}
	return out
}

func (s Slice) memoryLacks(dir string) []string {
	max, err := os.ReadFile(filepath.Join(dir, "memory.max"))
	if err != nil {
		return []string{"memory is not limited: cgroup v2 has no memory controller here"}
	}
	page := uint64(os.Getpagesize())
	if got := strings.TrimSpace(string(max)); got != strconv.FormatUint(s.MemoryMax/page*page, 10) {
		return []string{fmt.Sprintf("%d bytes of memory are booked, and %s are in force", s.MemoryMax, got)}
	}
	swap, err := os.ReadFile(filepath.Join(dir, "memory.swap.max"))
	if err == nil && strings.TrimSpace(string(swap)) != "0" || err != nil && !withoutSwap() {
		return []string{"memory can be swapped: memory.swap.max is not in force"}
	}
	return nil
}

func withoutSwap() bool {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "SwapTotal:" {
			return f[1] == "0"
		}
	}
	return true
}

func readSet(name string) (wire.CPUSet, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return wire.CPUSet{}, false
	}
	set, err := wire.ParseCPUList(strings.TrimSpace(string(b)))
	return set, err == nil
}

// deviceFilters counts the device programs on a cgroup, as BPF_PROG_QUERY of
// bpf(2) answers. systemd enforces DevicePolicy with one, and says nothing
// where it could not.
func deviceFilters(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	attr := struct { // of union bpf_attr, linux/bpf.h
		target, attachType, queryFlags, attachFlags uint32
		ids                                         uint64
		count, _                                    uint32
	}{target: uint32(fd), attachType: unix.BPF_CGROUP_DEVICE}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(&attr)
	if errno != 0 && errno != unix.ENOSPC { // no room for ids: there are some
		return 0, fmt.Errorf("bpf: %w", errno)
	}
	return int(attr.count), nil
}

// cgroupOf is the cgroup of a slice: each dash of its name is a level.
func cgroupOf(slice string) string {
	parts := strings.Split(strings.TrimSuffix(slice, ".slice"), "-")
	dir := cgroupMount
	for i := range parts {
		dir = filepath.Join(dir, strings.Join(parts[:i+1], "-")+".slice")
	}
	return dir
}

// Populated reports whether a process runs in a slice or below it. A slice that
// is not there has none.
func (s *Slices) Populated(slice string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(cgroupOf(slice), "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return bytes.Contains(b, []byte("populated 1")), nil
}

// Processes lists those that run in a slice or below it, a bounded number.
func (s *Slices) Processes(slice string, most int) (out []Holder) {
	_ = filepath.WalkDir(cgroupOf(slice), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil // a cgroup that has gone has none
		}
		pids, _ := os.ReadFile(p)
		for _, word := range strings.Fields(string(pids)) {
			if pid, err := strconv.Atoi(word); err == nil && len(out) < most {
				out = append(out, holderOf(pid, ""))
			}
		}
		return nil
	})
	return out
}

// Kill sends SIGKILL to every process in a slice and below it.
func (s *Slices) Kill(slice string) error {
	dir := cgroupOf(slice)
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A kernel before 5.14. A process that starts another meanwhile may escape
	// one round, not all: the caller comes again.
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil // a cgroup that has gone has nothing to kill
		}
		pids, _ := os.ReadFile(p)
		for _, word := range strings.Fields(string(pids)) {
			if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return nil
	})
}
