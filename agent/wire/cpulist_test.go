package wire

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseCPUList(t *testing.T) {
	for in, want := range map[string]string{
		"0-3,8-11\n":   "0-3,8-11",
		"":             "",
		"\n":           "",
		" 5 ":          "5",
		"7,5,6":        "5-7",
		"0-3,2-5":      "0-5",
		"0,1":          "0-1",
		"0-10:2/4":     "0-1,4-5,8-9",
		"0-31:1/8":     "0,8,16,24",
		"0-10:1/2":     "0,2,4,6,8,10",
		"0-3:4/4":      "0-3",
		"8191":         "8191",
		"0-8191":       "0-8191",
		"63-64,127":    "63-64,127",
		"0-55,112-167": "0-55,112-167",
	} {
		set, err := ParseCPUList(in)
		if err != nil {
			t.Errorf("ParseCPUList(%q): %v", in, err)
			continue
		}
		if got := set.String(); got != want {
			t.Errorf("ParseCPUList(%q) = %q, want %q", in, got, want)
		}
		if got := len(set.CPUs()); got != set.Count() {
			t.Errorf("%q: %d CPUs listed, %d counted", in, got, set.Count())
		}
	}
}

func TestParseCPUListRefuses(t *testing.T) {
	for _, in := range []string{
		"3-1", "8192", "0-8192", "99999999999999999999", "-1", "1-", "-", ",", "1,", ",1", "1,,2", "a", "0x3", "1 2", "1, 2",
		"0-10:2", "0-10:0/2", "0-10:3/2", "0-10:1/0", "3:1/2", "0-10:/", "+1", "1-2-3", "(null)", "１",
		strings.Repeat("1,", maxCPUList) + "1",
	} {
		if set, err := ParseCPUList(in); err == nil {
			t.Errorf("ParseCPUList(%.40q) = %q, want a refusal", in, set)
		}
	}
}

func TestCPUSetOperations(t *testing.T) {
	a, b := NewCPUSet(0, 1, 2, 64, 200, -1, MaxCPU), NewCPUSet(2, 3, 200)
	for _, c := range []struct {
		what string
		got  CPUSet
		want string
	}{
		{"a", a, "0-2,64,200"},
		{"union", a.Union(b), "0-3,64,200"},
		{"union, the other way", b.Union(a), "0-3,64,200"},
		{"intersection", a.Intersect(b), "2,200"},
		{"difference", a.Minus(b), "0-1,64"},
		{"difference, the other way", b.Minus(a), "3"},
		{"with nothing", CPUSet{}.Union(CPUSet{}), ""},
	} {
		if c.got.String() != c.want {
			t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
		}
	}
	if !a.Intersect(b).SubsetOf(a) || a.SubsetOf(b) || !(CPUSet{}).SubsetOf(a) {
		t.Error("SubsetOf disagrees with the members")
	}
	if a.Min() != 0 || b.Min() != 2 || (CPUSet{}).Min() != -1 {
		t.Errorf("Min: %d, %d, %d", a.Min(), b.Min(), CPUSet{}.Min())
	}
	if !a.Minus(a).IsEmpty() || !a.Minus(a).Equal(CPUSet{}) || !a.Minus(NewCPUSet(200)).Equal(NewCPUSet(0, 1, 2, 64)) {
		t.Error("a set without its highest members is not the plain set")
	}
}

// A set behaves as the list of its members, whatever operation made it.
func TestCPUSetAgreesWithLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lists := rapid.SliceOfN(rapid.SliceOf(rapid.IntRange(0, 300)), 2, 2).Draw(t, "lists")
		a, b := NewCPUSet(lists[0]...), NewCPUSet(lists[1]...)
		for cpu := range 301 {
			inA, inB := slices.Contains(lists[0], cpu), slices.Contains(lists[1], cpu)
			if a.Contains(cpu) != inA || a.Union(b).Contains(cpu) != (inA || inB) ||
				a.Intersect(b).Contains(cpu) != (inA && inB) || a.Minus(b).Contains(cpu) != (inA && !inB) {
				t.Fatalf("CPU %d: a %v, b %v", cpu, a, b)
			}
		}
		again, err := ParseCPUList(a.String())
		if err != nil || !again.Equal(a) {
			t.Fatalf("%q reads as %q, %v", a, again, err)
		}
	})
}

func FuzzParseCPUList(f *testing.F) {
	for _, s := range []string{"0-3,8-11\n", "", "0-31:2/8", "3-1", "8191", "0,2,4", "1,,2", "0-8191:1/2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseCPUList(s)
		if err != nil {
			return
		}
		again, err := ParseCPUList(set.String())
		if err != nil {
			t.Fatalf("%q reads, its canonical form %q does not: %v", s, set, err)
		}
		if !again.Equal(set) || again.String() != set.String() {
			t.Fatalf("%q is %q, then %q", s, set, again)
		}
		if cpus := set.CPUs(); !slices.IsSorted(cpus) || !NewCPUSet(cpus...).Equal(set) {
			t.Fatalf("%q lists as %v", s, cpus)
		}
	})
}
