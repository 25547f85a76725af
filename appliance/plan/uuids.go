package plan

import (
	"iter"
	"strings"
)

// uuids are the UUIDs of a node's GPUs, in order, in one string: a fleet has
// many, and a string of each would take half as much memory again. NVML's are
// of one length; shorter ones are followed by NULs.
type uuids struct {
	text string
	n    int
}

func uuidsOf(devices []Device) uuids {
	size := 0
	for _, d := range devices {
		size = max(size, len(d.UUID))
	}
	var all strings.Builder
	all.Grow(size * len(devices))
	for _, d := range devices {
		all.WriteString(d.UUID)
		for range size - len(d.UUID) {
			all.WriteByte(0)
		}
	}
	return uuids{text: all.String(), n: len(devices)}
}

func (u uuids) len() int { return u.n }

// at is the i-th UUID, a part of the string that is kept.
func (u uuids) at(i int) string {
	size := len(u.text) / u.n
	return strings.TrimRight(u.text[i*size:(i+1)*size], "\x00")
}

// index is the place of a UUID, -1 for one that the node does not have.
func (u uuids) index(uuid string) int {
	for i, have := range u.all() {
		if have == uuid {
			return i
		}
	}
	return -1
}

func (u uuids) all() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for i := range u.n {
			if !yield(i, u.at(i)) {
				return
			}
		}
	}
}
