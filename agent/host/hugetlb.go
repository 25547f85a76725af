package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

const hugepagesDir = "/sys/kernel/mm/hugepages"

// limitHugepages holds the cgroup of a slice to its huge pages, in the kernel's
// controller itself ("HugeTLB", cgroup v2 admin guide): systemd has no word for
// it, so it neither sets these files nor takes them back on a reload. They end
// with the cgroup. It answers what it could not limit, for people.
func (s Slice) limitHugepages(cgroup string) []string {
	if s.Hugepages2Mi+s.Hugepages1Gi == 0 && !hasHugepages() {
		return nil // there are none to be taken
	}
	dir := filepath.Join(cgroupMount, cgroup)
	err := enableController(cgroupMount, cgroup, "hugetlb")
	var out []string
	for _, size := range []struct {
		name  string
		pages int
		bytes uint64
	}{
		{"2MB", s.Hugepages2Mi, uint64(s.Hugepages2Mi) << 21},
		{"1GB", s.Hugepages1Gi, uint64(s.Hugepages1Gi) << 30},
	} {
		sizeErr := err
		if sizeErr == nil {
			sizeErr = limitSize(dir, size.name, size.bytes)
		}
		if sizeErr != nil && (size.pages > 0 || !errors.Is(sizeErr, fs.ErrNotExist)) {
			out = append(out, fmt.Sprintf("huge pages of %s are booked by number and not limited: %v", size.name, sizeErr))
		}
	}
	return out
}

// limitSize sets the most bytes of one page size. A page is counted when it is
// used and, since Linux 5.7, when it is set aside: by that mmap(2) is refused,
// where otherwise the program would be killed at its first use.
func limitSize(dir, size string, most uint64) error {
	text := strconv.FormatUint(most, 10)
	for _, name := range []string{"hugetlb." + size + ".rsvd.max", "hugetlb." + size + ".max"} {
		file := filepath.Join(dir, name)
		if now, err := os.ReadFile(file); err != nil {
			if errors.Is(err, fs.ErrNotExist) && strings.Contains(name, "rsvd") {
				continue
			}
			return err
		} else if strings.TrimSpace(string(now)) == text {
			continue
		}
		if err := os.WriteFile(file, []byte(text), 0); err != nil {
			return err
		}
		if got := readTrimmed(file); got != text {
			return fmt.Errorf("%s is %s after %s was written", file, got, text)
		}
	}
	return nil
}

// enableController turns a controller on for a cgroup, from the mount on down. It
// is an error that wraps fs.ErrNotExist if the kernel does not have it here.
func enableController(mount, cgroup, controller string) error {
	parent := mount
	for _, name := range strings.Split(strings.Trim(path.Clean("/"+cgroup), "/"), "/") {
		if !has(filepath.Join(parent, "cgroup.controllers"), controller) {
			return fmt.Errorf("cgroup v2 has no %s controller here: %w", controller, fs.ErrNotExist)
		}
		if control := filepath.Join(parent, "cgroup.subtree_control"); !has(control, controller) {
			if err := os.WriteFile(control, []byte("+"+controller), 0); err != nil {
				return err
			}
		}
		parent = filepath.Join(parent, name)
	}
	return nil
}

// has reports whether a file's words have one.
func has(file, word string) bool {
	for _, w := range strings.Fields(readTrimmed(file)) {
		if w == word {
			return true
		}
	}
	return false
}

// hasHugepages reports whether the machine has a huge page, or may get one.
func hasHugepages() bool {
	for _, name := range []string{"nr_hugepages", "nr_overcommit_hugepages"} {
		files, _ := filepath.Glob(filepath.Join(hugepagesDir, "hugepages-*", name))
		for _, file := range files {
			if n := readTrimmed(file); n != "" && n != "0" {
				return true
			}
		}
	}
	return false
}
