package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
)

// maxFile bounds what is read of one file. The largest that is read here,
// /proc/cpuinfo of a machine with 8192 CPUs, is 12 MiB.
const maxFile = 16 << 20

var errTooLong = errors.New("the file is too long")

// disk is a directory with a machine's files.
type disk string

func (d disk) path(name string) string { return filepath.Join(string(d), name) }

func (d disk) readlink(name string) (string, error) {
	target, err := os.Readlink(d.path(name))
	if errors.Is(err, syscall.EINVAL) {
		return "", nil
	}
	return target, err
}

func (d disk) isDir(name string) (bool, error) {
	info, err := os.Stat(d.path(name))
	return err == nil && info.IsDir(), err
}

func (d disk) readDir(name string) ([]string, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// read asks the kernel itself: an os.File would be offered to the poller
// first, which doubles the time of the thousand small reads of an inventory.
func (d disk) read(name string, limit int) ([]byte, error) {
	p := d.path(name)
	fd, err := retried(func() (int, error) { return syscall.Open(p, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	defer syscall.Close(fd)
	// Most files of sysfs fit the first read; the size they state is 4096.
	b := make([]byte, 0, min(limit, 512)+1)
	for {
		n, err := retried(func() (int, error) { return syscall.Read(fd, b[len(b):min(cap(b), limit+1)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: p, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		b = b[:len(b)+n]
		if len(b) > limit {
			return b[:limit], fmt.Errorf("%s: %w: more than %d bytes", p, errTooLong, limit)
		}
		if len(b) == cap(b) {
			b = slices.Grow(b, cap(b))
		}
	}
}

// retried repeats a system call that a signal interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// memory is the files of an archive.
type memory struct {
	files map[string][]byte
	links map[string]string
	names map[string]map[string]bool // of each directory
}

func newMemory(a *Archive) *memory {
	m := &memory{
		files: make(map[string][]byte),
		links: make(map[string]string),
		names: map[string]map[string]bool{"": {}},
	}
	for name := range a.dirs {
		m.mkdir(name)
	}
	for _, all := range []map[string][]byte{a.files, a.docs} {
		for name, data := range all {
			m.files[name] = data
			m.mkdir(parent(name))[path.Base(name)] = true
		}
	}
	for name, target := range a.links {
		m.links[name] = target
		m.mkdir(parent(name))[path.Base(name)] = true
	}
	return m
}

func (m *memory) mkdir(dir string) map[string]bool {
	names, ok := m.names[dir]
	if !ok {
		names = make(map[string]bool)
		m.names[dir] = names
		m.mkdir(parent(dir))[path.Base(dir)] = true
	}
	return names
}

func (m *memory) readlink(name string) (string, error) {
	if target, ok := m.links[name]; ok {
		return target, nil
	}
	_, err := m.isDir(name)
	return "", err
}

func (m *memory) isDir(name string) (bool, error) {
	if _, ok := m.names[name]; ok {
		return true, nil
	}
	if _, ok := m.files[name]; ok {
		return false, nil
	}
	return false, &fs.PathError{Op: "open", Path: "/" + name, Err: fs.ErrNotExist}
}

func (m *memory) readDir(name string) ([]string, error) {
	dir, ok := m.names[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: "/" + name, Err: fs.ErrNotExist}
	}
	return keys(dir), nil
}

func (m *memory) read(name string, limit int) ([]byte, error) {
	data, ok := m.files[name]
	if !ok {
		_, err := m.isDir(name)
		if err == nil {
			err = &fs.PathError{Op: "read", Path: "/" + name, Err: syscall.EISDIR}
		}
		return nil, err
	}
	if len(data) > limit {
		return data[:limit:limit], fmt.Errorf("/%s: %w: more than %d bytes", name, errTooLong, limit)
	}
	return data[:len(data):len(data)], nil
}
