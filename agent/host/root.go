package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/bettercompute/bc/agent/wire"
)

// maxLinks is how many symbolic links one path may lead through, as in Linux.
const maxLinks = 40

// Root is the files of a machine: "/" on the real one, and for a recorded one
// a folder or an [Archive]. Paths are absolute on that machine
// ("/proc/cmdline"; a missing first slash is passed over), and no path leads
// out of the root: symbolic links, also absolute ones, are followed as if the
// root were "/", and ".." stops there. It does not defend against someone who
// changes links below the root while a path is being followed.
type Root struct {
	src source
	dir string // absolute, "" of an archive
}

// source is where the files are. Paths have no first slash and no links in
// them; "" is the top.
type source interface {
	// readlink returns the target of a link, or "" of anything else.
	readlink(name string) (string, error)
	// isDir tells directories from files.
	isDir(name string) (bool, error)
	// readDir lists the names in a directory in any order.
	readDir(name string) ([]string, error)
	// read reads a file up to limit bytes, and errTooLong if there are more.
	read(name string, limit int) ([]byte, error)
}

// OpenRoot returns the root at a directory, which has to exist.
func OpenRoot(dir string) (*Root, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("host root %s: %w", dir, err)
	}
	if info, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("host root: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("host root %s is not a directory", abs)
	}
	return &Root{src: disk(abs), dir: abs}, nil
}

// Root returns the root of a recorded machine without unpacking it. Changes
// of the archive afterwards do not show.
func (a *Archive) Root() *Root { return &Root{src: newMemory(a)} }

// Dir is the directory of the root as the calling process sees it, "" of an
// archive's root.
func (r *Root) Dir() string { return r.dir }

// Real reports whether this is the running machine, not a recorded one.
func (r *Root) Real() bool { return r.dir == "/" }

// Resolve follows all links of a path and returns where it leads to, a path
// on the same machine without links. It is an error if there is nothing there.
func (r *Root) Resolve(name string) (string, error) {
	p, err := r.resolve(name, true)
	return "/" + p, err
}

// resolve returns the path, without links and without the first slash, that a
// name leads to. With last unset the last component may itself be a link.
func (r *Root) resolve(name string, last bool) (string, error) {
	rest := strings.TrimRight(name, "/")
	done := ""
	links := 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			done = parent(done)
			continue
		}
		next := path.Join(done, part)
		if rest == "" && !last {
			return next, nil
		}
		target, err := r.src.readlink(next)
		if err != nil {
			return next, err
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return next, &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
		}
		if path.IsAbs(target) {
			done = ""
		}
		rest = target + "/" + rest
	}
	return done, nil
}

func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return ""
}

// at returns the path to ask the source for. On the real machine the kernel
// follows the links.
func (r *Root) at(name string) (string, error) {
	if r.Real() {
		return strings.TrimPrefix(path.Join("/", name), "/"), nil
	}
	return r.resolve(name, true)
}

// ReadFile reads a whole file of at most 16 MiB.
func (r *Root) ReadFile(name string) ([]byte, error) {
	p, err := r.at(name)
	if err != nil {
		return nil, err
	}
	return r.src.read(p, maxFile)
}

// ReadHead reads the first n bytes of a file, or all if it has fewer.
func (r *Root) ReadHead(name string, n int) ([]byte, error) {
	p, err := r.at(name)
	if err != nil {
		return nil, err
	}
	b, err := r.src.read(p, n)
	if errors.Is(err, errTooLong) {
		return b, nil
	}
	return b, err
}

// ReadDir lists the names in a directory, sorted.
func (r *Root) ReadDir(name string) ([]string, error) {
	p, err := r.at(name)
	if err != nil {
		return nil, err
	}
	names, err := r.src.readDir(p)
	slices.Sort(names)
	return names, err
}

// Readlink returns the target of a symbolic link as it is written.
func (r *Root) Readlink(name string) (string, error) {
	p, err := r.resolve(name, false)
	if err != nil {
		return "", err
	}
	target, err := r.src.readlink(p)
	if err == nil && target == "" {
		err = &fs.PathError{Op: "readlink", Path: name, Err: syscall.EINVAL}
	}
	return target, err
}

// Exists reports whether a path leads to something.
func (r *Root) Exists(name string) bool {
	p, err := r.at(name)
	if err != nil {
		return false
	}
	_, err = r.src.isDir(p)
	return err == nil
}

// IsDir reports whether a path leads to a directory.
func (r *Root) IsDir(name string) bool {
	p, err := r.at(name)
	if err != nil {
		return false
	}
	dir, err := r.src.isDir(p)
	return err == nil && dir
}

// Glob lists the paths that match a pattern of path.Match, sorted. Links in
// the fixed and in the matched parts are followed; a path is listed as it was
// matched, not where it leads. It panics on a malformed pattern: patterns are
// written in the program.
func (r *Root) Glob(pattern string) []string {
	found := []string{"/"}
	for part := range strings.SplitSeq(strings.Trim(pattern, "/"), "/") {
		var next []string
		for _, dir := range found {
			next = append(next, r.match(dir, part)...)
		}
		found = next
	}
	return found
}

func (r *Root) match(dir, part string) []string {
	if !strings.ContainsAny(part, `*?[\`) {
		name := path.Join(dir, part)
		if p, err := r.resolve(name, false); err == nil {
			if _, err := r.src.readlink(p); err == nil {
				return []string{name}
			}
		}
		return nil
	}
	names, _ := r.ReadDir(dir) // what cannot be listed matches nothing
	var found []string
	for _, name := range names {
		ok, err := path.Match(part, name)
		if err != nil {
			panic("host: pattern " + part + ": " + err.Error())
		}
		if ok {
			found = append(found, path.Join(dir, name))
		}
	}
	return found
}

// String reads a short file without the white space and padding around its
// content. It reports false if the file cannot be read.
func (r *Root) String(name string) (string, bool) {
	b, err := r.ReadFile(name)
	if err != nil {
		return "", false
	}
	return strings.Trim(string(b), " \t\r\n\x00"), true
}

// Int reads a file that holds one whole number.
func (r *Root) Int(name string) (int64, bool) {
	s, ok := r.String(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// CPUs reads a file that holds a kernel cpulist. A list that some kernels
// print as "(null)" is empty.
func (r *Root) CPUs(name string) (wire.CPUSet, bool) {
	s, ok := r.String(name)
	if !ok {
		return wire.CPUSet{}, false
	}
	if s == "(null)" {
		return wire.CPUSet{}, true
	}
	set, err := wire.ParseCPUList(s)
	return set, err == nil
}

// LinkBase is the last component of a symbolic link's target: the driver that
// /sys/bus/pci/devices/…/driver points to. It is "" without such a link.
func (r *Root) LinkBase(name string) string {
	target, err := r.Readlink(name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}
