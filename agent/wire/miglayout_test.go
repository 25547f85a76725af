package wire

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// shapes are the seven-slice profiles of the 80 GB boards without +me.
var shapes = []struct{ short, profile string }{
	{"3g", "3g.40gb"}, {"4g", "4g.40gb"}, {"7g", "7g.80gb"}, {"2g", "2g.20gb"}, {"D", "1g.20gb"}, {"1g", "1g.10gb"},
}

// Every multiset within seven compute slices and the profiles' own maxima, and
// the smallest ones that cannot be placed. The numbers were found by brute
// force over the placements of NVIDIA's MIG User Guide.
func TestPlaceableLayouts(t *testing.T) {
	width := map[string]int{"1g": 1, "D": 1, "2g": 2, "3g": 3, "4g": 4, "7g": 7}
	most := map[string]int{"1g": 7, "D": 4, "2g": 3, "3g": 2, "4g": 1, "7g": 1}
	type multiset [6]int
	placeable := make(map[multiset]bool)
	var count func(i, room int, m multiset)
	count = func(i, room int, m multiset) {
		if i == len(shapes) {
			if m != (multiset{}) {
				layout := listOf(m[:])
				placed, err := PlaceLayout("NVIDIA H100 80GB HBM3", 81559, layout)
				placeable[m] = err == nil
				if err == nil {
					checkPlaced(t, layout, placed)
				}
			}
			return
		}
		for n := 0; n <= most[shapes[i].short] && n*width[shapes[i].short] <= room; n++ {
			m[i] = n
			count(i+1, room-n*width[shapes[i].short], m)
		}
	}
	count(0, 7, multiset{})

	yes := 0
	var minimal []string
	for m, ok := range placeable {
		if ok {
			yes++
			continue
		}
		smallest := true
		for i := range m {
			less := m
			less[i]--
			if m[i] > 0 && !placeable[less] {
				smallest = false
			}
		}
		if smallest {
			minimal = append(minimal, shorthand(m[:]))
		}
	}
	if yes != 77 || len(placeable)-yes != 25 {
		t.Errorf("%d layouts can be placed and %d cannot, want 77 and 25", yes, len(placeable)-yes)
	}
	want := strings.Fields(`3g×2+1g 3g×2+D 3g+2g+D×2 3g+2g+D+1g 3g+D×3 3g+D×2+1g 3g+D+1g×3 4g+D×3 4g+D×2+1g
		2g×2+D×3 2g×2+D×2+1g 2g+D×4 2g+D×3+1g 2g+D×2+1g×3 D×4+1g D×3+1g×3 D×2+1g×5`)
	slices.Sort(minimal)
	slices.Sort(want)
	if diff := cmp.Diff(want, minimal); diff != "" {
		t.Errorf("the smallest layouts that cannot be placed (-want +got):\n%s", diff)
	}
}

func listOf(counts []int) string {
	var items []string
	for i, n := range counts {
		if n > 0 {
			items = append(items, fmt.Sprintf("%dx%s", n, shapes[i].profile))
		}
	}
	return strings.Join(items, ",")
}

func shorthand(counts []int) string {
	var items []string
	for i, n := range counts {
		if n > 1 {
			items = append(items, fmt.Sprintf("%s×%d", shapes[i].short, n))
		} else if n == 1 {
			items = append(items, shapes[i].short)
		}
	}
	return strings.Join(items, "+")
}

// checkPlaced holds a placement to the catalogue: legal starts, nothing twice.
func checkPlaced(t *testing.T, layout string, placed []MIGPlacement) {
	t.Helper()
	profiles, err := MIGProfiles("H100", 81559)
	if err != nil {
		t.Fatal(err)
	}
	var used [8]bool
	for i, p := range placed {
		shape := profiles[slices.IndexFunc(profiles, func(q MIGProfile) bool { return q.Name == p.Profile })]
		if p.Size != shape.Size || !slices.Contains(shape.Starts, p.Start) {
			t.Errorf("%s: %s cannot be at %d:%d", layout, p.Profile, p.Start, p.Size)
		}
		for at := p.Start; at < p.Start+p.Size; at++ {
			if used[at] {
				t.Errorf("%s: memory slice %d is used twice: %v", layout, at, placed)
			}
			used[at] = true
		}
		if i > 0 && placed[i-1].Size < p.Size {
			t.Errorf("%s: %s is created after smaller instances", layout, p.Profile)
		}
	}
}

func TestPlaceLayoutOrderAndStarts(t *testing.T) {
	for _, c := range []struct {
		product   string
		memoryMiB int
		layout    string
		want      string
	}{
		{"NVIDIA H100 80GB HBM3", 81559, "all-1g.10gb", "1g.10gb@6 1g.10gb@5 1g.10gb@4 1g.10gb@3 1g.10gb@2 1g.10gb@1 1g.10gb@0"},
		{"NVIDIA H100 80GB HBM3", 81559, "4x1g.10gb,3g.40gb", "3g.40gb@4 1g.10gb@3 1g.10gb@2 1g.10gb@1 1g.10gb@0"},
		{"NVIDIA H100 80GB HBM3", 81559, "3g.40gb,4g.40gb", "4g.40gb@0 3g.40gb@4"},
		{"NVIDIA H100 80GB HBM3", 81559, "all-balanced", "3g.40gb@4 2g.20gb@2 1g.10gb@1 1g.10gb@0"},
		{"NVIDIA H100 80GB HBM3", 81559, "3g.40gb,2g.20gb,2x1g.10gb", "3g.40gb@4 2g.20gb@2 1g.10gb@1 1g.10gb@0"},
		{"NVIDIA H100 80GB HBM3", 81559, "all-1g.10gb.me", "1g.10gb+me@6"},
		{"NVIDIA H100 80GB HBM3", 81559, "all-1g.10gb+me", "1g.10gb+me@6"},
		{"NVIDIA H100 NVL", 95830, "2x3g.47gb", "3g.47gb@4 3g.47gb@0"},
		{"NVIDIA GH200 480GB", 97871, "2x3g.48gb", "3g.48gb@4 3g.48gb@0"},
		{"NVIDIA A100-SXM4-40GB", 40536, "all-1g.10gb", "1g.10gb@6 1g.10gb@4 1g.10gb@2 1g.10gb@0"},
		{"NVIDIA A100-SXM4-80GB", 81251, "all-1g.10gb", "1g.10gb@6 1g.10gb@5 1g.10gb@4 1g.10gb@3 1g.10gb@2 1g.10gb@1 1g.10gb@0"},
		{"NVIDIA H200 NVL", 143771, "all-1g.35gb", "1g.35gb@6 1g.35gb@4 1g.35gb@2 1g.35gb@0"},
		{"NVIDIA GB300", 284208, "all-4g.139gb", "4g.139gb@0"},
		{"NVIDIA A30", 24258, "all-balanced", "2g.12gb@2 1g.6gb@1 1g.6gb@0"},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "all-1g.24gb.gfx", "1g.24gb+gfx@3 1g.24gb+gfx@2 1g.24gb+gfx@1 1g.24gb+gfx@0"},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "1g.24gb+me.all,3x1g.24gb-me", "1g.24gb+me.all@3 1g.24gb-me@2 1g.24gb-me@1 1g.24gb-me@0"},
		{"RTX-PRO-4500", 32623, "all-2g.32gb", "2g.32gb@0"},
	} {
		placed, err := PlaceLayout(c.product, c.memoryMiB, c.layout)
		if err != nil {
			t.Errorf("%s: %s: %v", c.product, c.layout, err)
			continue
		}
		var got, order []string
		for _, p := range placed {
			got = append(got, fmt.Sprintf("%s@%d", p.Profile, p.Start))
			order = append(order, p.Profile)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s: %s, want %s", c.product, c.layout, s, c.want)
		}
		if profiles, err := ResolveLayout(c.product, c.memoryMiB, c.layout); err != nil || !slices.Equal(profiles, order) {
			t.Errorf("%s: %s resolves to %v, %v; it is placed as %v", c.product, c.layout, profiles, err, order)
		}
	}
}

func TestPlaceLayoutRefuses(t *testing.T) {
	for _, c := range []struct {
		product   string
		memoryMiB int
		layout    string
		want      string
	}{
		{"NVIDIA A100-SXM4-40GB", 40960, "7x1g.10gb", "does not fit on one A100 (40960 MiB): at most 4 of 1g.10gb"},
		{"NVIDIA A100-SXM4-40GB", 40960, "all-1g.20gb", `"all-1g.20gb" is no layout of A100 (40960 MiB); layouts are all-balanced, all-1g.5gb, all-1g.5gb.me, all-1g.10gb, all-2g.10gb, all-3g.20gb, all-4g.20gb, all-7g.40gb, or a list of profiles`},
		{"NVIDIA A100-SXM-64GB", 65536, "all-1g.10gb", "no MIG profiles are known of NVIDIA A100-SXM-64GB with 65536 MiB"},
		{"NVIDIA H20-3e", 143771, "all-1g.12gb", "no MIG profiles are known of NVIDIA H20-3e with 143771 MiB"},
		{"NVIDIA RTX PRO 5000 72GB Blackwell", 73728, "all-1g.24gb", "no MIG profiles are known of NVIDIA RTX PRO 5000 72GB Blackwell with 73728 MiB"},
		{"NVIDIA L40S", 46068, "all-1g.10gb", "no MIG profiles are known of NVIDIA L40S"},
	} {
		_, err := ResolveLayout(c.product, c.memoryMiB, c.layout)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %s:\n got %v\nwant %s", c.product, c.layout, err, c.want)
		}
	}
}

func TestCheckLayout(t *testing.T) {
	const h100 = "all-balanced, all-1g.10gb, all-1g.10gb.me, all-1g.20gb, all-2g.20gb, all-3g.40gb, all-4g.40gb, all-7g.80gb, " +
		"all-1g.12gb, all-1g.12gb.me, all-1g.24gb, all-2g.24gb, all-3g.47gb, all-4g.47gb, all-7g.94gb, all-3g.48gb, all-4g.48gb, all-7g.96gb"
	for _, c := range []struct{ family, layout, want string }{
		{"H100", "all-1g.10gb", ""},
		{"H100", "all-1g.12gb", ""},
		{"H100", "all-3g.48gb", ""},
		{"H100", "3g.47gb,3g.47gb", ""},
		{"A100", "all-1g.5gb", ""},
		{"A100", "all-1g.10gb", ""},
		{"A100", "7x1g.10gb", ""}, // of the 80 GB board, not of the 40 GB one
		{"H100", "all-1g.5gb", `"all-1g.5gb" is no layout of H100; layouts are ` + h100 + ", or a list of profiles"},
		{"H200", "all-1g.10gb", `"all-1g.10gb" is no layout of H200; layouts are all-balanced, all-1g.18gb, all-1g.18gb.me, all-1g.35gb, all-2g.35gb, all-3g.71gb, all-4g.71gb, all-7g.141gb, or a list of profiles`},
		{"H200", "1g.10gb", `"1g.10gb" is no MIG profile of H200; profiles are 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb`},
		{"H200", "3g.71gb,,1g.18gb", "has an entry without a profile"},
		{"H200", "0x3g.71gb", `"0x3g.71gb" is no MIG profile of H200; profiles are 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb`},
		{"H100", "3g.40gb,3g.40gb,1g.10gb", "does not fit on one H100: no arrangement leaves a place for each instance"},
		{"H100", "8x1g.10gb", "does not fit on one H100: at most 7 of 1g.10gb"},
		{"H100", "7g.80gb,1g.10gb", "does not fit on one H100: it takes 8 compute slices of 7"},
		{"H100", "2x1g.10gb+me", "does not fit on one H100: at most 1 of 1g.10gb+me"},
		{"RTX-PRO-6000", "1g.24gb+me,1g.24gb+me.all", "does not fit on one RTX-PRO-6000: at most one instance with +me"},
		{"A100", "3g.20gb,1g.20gb", "no A100 has all of these profiles: they are of boards with different memory"},
		{"RTX-PRO-5000", "all-balanced", `"all-balanced" is no layout of RTX-PRO-5000; layouts are all-1g.24gb, all-1g.24gb.me, all-1g.24gb.gfx, all-1g.24gb.me.all, all-1g.24gb-me, all-2g.48gb, all-2g.48gb.gfx, or a list of profiles`},
		{"H100", "all-disabled", "all-disabled would leave the pool without instances"},
		{"H100", "all-enabled", "all-enabled would leave the pool without instances"},
		{"H100", "", "has 0 characters, not 1 to 128"},
		{"H100", strings.Repeat("1g.10gb,", 20), "has 160 characters, not 1 to 128"},
		{"L40S", "all-1g.10gb", "no MIG profiles are known of L40S; GPUs with MIG: A100, A100X, A30, A30X, A800, AX800, B200, B300, GB200, GB300, GH200, H100, H20, H200, H800, RTX-PRO-4500, RTX-PRO-5000, RTX-PRO-6000"},
	} {
		got := ""
		if err := CheckLayout(c.family, c.layout); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s:\n got %s\nwant %s", c.family, c.layout, got, c.want)
		}
	}
}

// Every name that a family lists is a layout of it, and every family of the
// catalogue is one that product names give.
func TestMIGLayoutsAreLayouts(t *testing.T) {
	for family, boards := range migBoards {
		if got := GPUFamily(family); got != family {
			t.Errorf("%s is the family %s", family, got)
		}
		names := MIGLayouts(family)
		for _, name := range names {
			if err := CheckLayout(family, name); err != nil {
				t.Errorf("%s: %v", family, err)
			}
		}
		for _, b := range boards {
			for _, p := range b.profiles {
				placed, err := PlaceLayout(family, b.memoryMiB, "all-"+p.Name)
				if err != nil || len(placed) != p.Max {
					t.Errorf("%s (%d MiB): all-%s gives %d instances, %v; want %d", family, b.memoryMiB, p.Name, len(placed), err, p.Max)
				}
			}
		}
		if len(names) == 0 {
			t.Errorf("%s has no layouts", family)
		}
	}
}

func FuzzCheckLayout(f *testing.F) {
	for _, layout := range []string{"all-1g.10gb", "all-balanced", "3g.40gb,2g.20gb,2x1g.10gb", "all-1g.10gb.me", "3g.40gb,3g.40gb,1g.10gb", "9x1g.10gb", ",", "all-", "2x", "x1g.10gb", "1g.20gb,3g.47gb"} {
		f.Add("H100", layout)
		f.Add("A30", layout)
	}
	f.Fuzz(func(t *testing.T, family, layout string) {
		err := CheckLayout(family, layout)
		fits := false
		for _, b := range migBoards[family] {
			placed, err := PlaceLayout(family, b.memoryMiB, layout)
			if err != nil {
				continue
			}
			fits = true
			var used uint16
			for _, p := range placed {
				mask := uint16(1<<p.Size-1) << p.Start
				if used&mask != 0 || p.Start+p.Size > 8 {
					t.Fatalf("%s: %q is placed as %v", family, layout, placed)
				}
				used |= mask
			}
		}
		if fits != (err == nil) {
			t.Fatalf("%s: %q fits a board: %t, CheckLayout says %v", family, layout, fits, err)
		}
	})
}
