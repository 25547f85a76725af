package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is a character device: where it is, and under which name its driver
// stands in /proc/devices with which minor number. Majors are handed out when a
// driver is loaded, and are not the same on the next boot.
type Node struct {
	Path    string   `json:"path"`
	Drivers []string `json:"drivers,omitempty"` // the driver's names over time; none: the node is never made
	Minor   int      `json:"minor"`
	Mode    uint32   `json:"mode,omitempty"` // of a node that is made
}

// MakeNode makes a device node that is not there, as the driver's own tools do
// when a first program asks for it: a slice can allow only nodes that exist. It
// is an error if the driver is not loaded.
func MakeNode(n Node) error {
	info, err := os.Stat(n.Path)
	switch {
	case err == nil && info.Mode()&fs.ModeCharDevice != 0:
		return nil
	case err == nil:
		return fmt.Errorf("%s is no device", n.Path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	table, err := os.ReadFile("/proc/devices")
	if err != nil {
		return err
	}
	major, ok := charMajor(string(table), n.Drivers)
	if !ok {
		return fmt.Errorf("%s is not there and its driver is not loaded", n.Path)
	}
	if err := os.MkdirAll(filepath.Dir(n.Path), 0o755); err != nil {
		return err
	}
	err = unix.Mknod(n.Path, unix.S_IFCHR|n.Mode, int(unix.Mkdev(major, uint32(n.Minor))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "mknod", Path: n.Path, Err: err}
	}
	return os.Chmod(n.Path, fs.FileMode(n.Mode)) // whatever the umask was
}

// charMajor finds a driver's major number among the character devices of
// /proc/devices.
func charMajor(table string, names []string) (uint32, bool) {
	characters, _, _ := strings.Cut(table, "Block devices:")
	for line := range strings.Lines(characters) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		for _, name := range names {
			if f[1] == name {
				major, err := strconv.ParseUint(f[0], 10, 32)
				return uint32(major), err == nil
			}
		}
	}
	return 0, false
}

// Holder is a process that has a device node open.
type Holder struct {
	PID     int
	Command string
	User    string // by the machine's own list, or the number
	Cgroup  string // its path on cgroup v2
	Path    string // of the node
}

// String names a holder for people.
func (h Holder) String() string {
	return fmt.Sprintf("%s is held by %s (pid %d, user %s)", h.Path, h.Command, h.PID, h.User)
}

func holderOf(pid int, path string) Holder {
	return Holder{PID: pid, Command: readTrimmed(procFile(pid, "comm")), User: userOfProcess(pid), Cgroup: cgroupOfProcess(pid), Path: path}
}

// userOfProcess names who runs a process. The name is looked up in /etc/passwd
// alone: a directory service that does not answer must not stop a wall.
func userOfProcess(pid int) string {
	id := ""
	status, _ := os.ReadFile(procFile(pid, "status")) // the folder's owner is root for many
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			id = f[1]
		}
	}
	users, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(users)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == id {
			return f[0]
		}
	}
	return id
}

// Holders lists the processes that have one of some nodes open, by any of its
// names and in any mount namespace: the numbers of the device are compared. A
// process that maps a device and has closed it is found by the node's path.
func Holders(ctx context.Context, nodes []string) ([]Holder, error) {
	numbers := make(map[uint64]string)
	for _, name := range nodes {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			numbers[st.Rdev] = name
		}
	}
	if len(numbers) == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var holders []Holder
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if path := holds(pid, numbers); path != "" {
			holders = append(holders, holderOf(pid, path))
		}
	}
	return holders, nil
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// holds names the first of some devices that a process has open or mapped. One
// that ends meanwhile holds nothing.
func holds(pid int, numbers map[uint64]string) string {
	files, _ := os.ReadDir(procFile(pid, "fd"))
	for _, f := range files {
		// Of a file on a server that does not answer, only what is known is asked.
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, procFile(pid, "fd/"+f.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if path, ok := numbers[unix.Mkdev(st.Rdev_major, st.Rdev_minor)]; ok {
			return path
		}
	}
	maps, _ := os.ReadFile(procFile(pid, "maps"))
	for _, path := range numbers {
		if bytes.Contains(maps, []byte(" "+path+"\n")) {
			return path
		}
	}
	return ""
}

// cgroupOfProcess is the line of cgroup v2 in /proc/PID/cgroup.
func cgroupOfProcess(pid int) string {
	text, err := os.ReadFile(procFile(pid, "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return ""
}
