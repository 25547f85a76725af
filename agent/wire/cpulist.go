package wire

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// MaxCPU is one above the highest CPU number that is taken: 8192, the largest
// NR_CPUS that a stock x86-64 kernel can be built with.
const MaxCPU = 8192

// maxCPUList bounds the text of a cpulist. Every second CPU below MaxCPU, the
// longest canonical list there is, takes less than 20 KiB.
const maxCPUList = 64 << 10

// CPUSet is a set of CPU numbers, or of NUMA node numbers, from 0 to MaxCPU-1.
// The zero value is the empty set. A CPUSet is a value: no method changes it.
type CPUSet struct {
	words []uint64 // bit i of word w is CPU 64*w+i; no zero word at the end
}

// ParseCPUList reads a list in the kernel's format ("CPU lists" in the
// kernel's admin guide): numbers and ranges with commas between, and ranges
// with a stride, "0-31:2/8", which are the first 2 of each group of 8. White
// space around the whole list is passed over; an empty list is the empty set.
// Order and overlap do not matter; [CPUSet.String] gives the canonical form.
// It refuses numbers of MaxCPU and above, descending ranges, and anything else.
func ParseCPUList(s string) (CPUSet, error) {
	if len(s) > maxCPUList {
		return CPUSet{}, fmt.Errorf("CPU list of %d bytes is too long: at most %d", len(s), maxCPUList)
	}
	s = strings.Trim(s, " \t\r\n\x00")
	if s == "" {
		return CPUSet{}, nil
	}
	var words [MaxCPU / 64]uint64
	for item := range strings.SplitSeq(s, ",") {
		r, err := parseCPURange(item)
		if err != nil {
			return CPUSet{}, fmt.Errorf("CPU list: %q: %w", clip(item, 32), err)
		}
		for group := r.first; group <= r.last; group += r.group {
			for cpu := group; cpu < group+r.used && cpu <= r.last; cpu++ {
				words[cpu/64] |= 1 << (cpu % 64)
			}
		}
	}
	return newCPUSet(words[:]), nil
}

// cpuRange is the first used CPUs of each group of CPUs from first to last.
type cpuRange struct{ first, last, used, group int }

func parseCPURange(item string) (cpuRange, error) {
	span, stride, strided := strings.Cut(item, ":")
	low, high, ranged := strings.Cut(span, "-")
	r := cpuRange{used: 1, group: 1}
	var err error
	if r.first, err = parseCPU(low); err != nil {
		return r, err
	}
	r.last = r.first
	if ranged {
		if r.last, err = parseCPU(high); err != nil {
			return r, err
		}
	}
	if r.last < r.first {
		return r, errors.New("the range descends")
	}
	if !strided {
		return r, nil
	}
	used, group, ok := strings.Cut(stride, "/")
	if !ok || !ranged {
		return r, errors.New("a stride is written FIRST-LAST:USED/GROUP")
	}
	if r.used, err = parseCPU(used); err != nil {
		return r, err
	}
	if r.group, err = parseCPU(group); err != nil {
		return r, err
	}
	if r.used == 0 || r.group == 0 || r.used > r.group {
		return r, errors.New("a stride uses 1 or more CPUs of each group")
	}
	return r, nil
}

func parseCPU(s string) (int, error) {
	if s == "" || len(s) > 5 {
		return 0, errors.New("not a CPU number")
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, errors.New("not a CPU number")
		}
		n = n*10 + int(c-'0')
	}
	if n >= MaxCPU {
		return 0, fmt.Errorf("CPU numbers are below %d", MaxCPU)
	}
	return n, nil
}

// NewCPUSet returns the set of the given CPUs. Numbers outside 0 to MaxCPU-1
// are left out.
func NewCPUSet(cpus ...int) CPUSet {
	var words [MaxCPU / 64]uint64
	for _, cpu := range cpus {
		if cpu >= 0 && cpu < MaxCPU {
			words[cpu/64] |= 1 << (cpu % 64)
		}
	}
	return newCPUSet(words[:])
}

// newCPUSet copies words without the zero words at the end, so that equal
// sets are equal slices.
func newCPUSet(words []uint64) CPUSet {
	n := len(words)
	for n > 0 && words[n-1] == 0 {
		n--
	}
	if n == 0 {
		return CPUSet{}
	}
	return CPUSet{words: slices.Clone(words[:n])}
}

// String gives the canonical list: ascending, runs of two and more as ranges,
// no stride, no newline. The empty set is "".
func (s CPUSet) String() string {
	var b strings.Builder
	for first := s.next(0); first >= 0; {
		last := first
		for s.Contains(last + 1) {
			last++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
		first = s.next(last + 1)
	}
	return b.String()
}

// next returns the lowest member that is at least from, or -1.
func (s CPUSet) next(from int) int {
	for w := from / 64; w < len(s.words); w++ {
		word := s.words[w]
		if w == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return 64*w + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// Count is the number of members.
func (s CPUSet) Count() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether the set has no member.
func (s CPUSet) IsEmpty() bool { return len(s.words) == 0 }

// Min is the lowest member, -1 of the empty set.
func (s CPUSet) Min() int { return s.next(0) }

// Contains reports whether cpu is a member.
func (s CPUSet) Contains(cpu int) bool {
	return cpu >= 0 && cpu/64 < len(s.words) && s.words[cpu/64]&(1<<(cpu%64)) != 0
}

// CPUs lists the members in ascending order.
func (s CPUSet) CPUs() []int {
	cpus := make([]int, 0, s.Count())
	for cpu := s.next(0); cpu >= 0; cpu = s.next(cpu + 1) {
		cpus = append(cpus, cpu)
	}
	return cpus
}

// Words are the members as bits: bit i of word w is 64*w+i. They must not be
// changed.
func (s CPUSet) Words() []uint64 { return s.words }

// Equal reports whether both sets have the same members.
func (s CPUSet) Equal(t CPUSet) bool { return slices.Equal(s.words, t.words) }

// Union is the set of the members of either.
func (s CPUSet) Union(t CPUSet) CPUSet {
	if len(s.words) < len(t.words) {
		s, t = t, s
	}
	words := slices.Clone(s.words)
	for i, w := range t.words {
		words[i] |= w
	}
	return CPUSet{words: words}
}

// Intersect is the set of the members of both.
func (s CPUSet) Intersect(t CPUSet) CPUSet {
	words := slices.Clone(s.words[:min(len(s.words), len(t.words))])
	for i := range words {
		words[i] &= t.words[i]
	}
	return newCPUSet(words)
}

// Minus is the set of the members of s that are not in t.
func (s CPUSet) Minus(t CPUSet) CPUSet {
	words := slices.Clone(s.words)
	for i := range min(len(words), len(t.words)) {
		words[i] &^= t.words[i]
	}
	return newCPUSet(words)
}

// SubsetOf reports whether every member of s is in t.
func (s CPUSet) SubsetOf(t CPUSet) bool { return s.Minus(t).IsEmpty() }

// clip shortens a text that goes into an error.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
