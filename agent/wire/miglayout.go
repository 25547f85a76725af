package wire

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MIGProfile is one shape of GPU instance that a GPU can be cut into.
type MIGProfile struct {
	Name   string // as the device names it: 1g.10gb, 1g.10gb+me
	Slices int    // compute slices
	Size   int    // memory slices
	Max    int    // the most instances of it on one GPU
	Starts []int  // memory slices at which an instance can begin
}

// MIGPlacement is one GPU instance with its place.
type MIGPlacement struct {
	Profile string
	Start   int // first memory slice
	Size    int // memory slices
}

// migBoard is how GPUs of one family and memory size can be cut. The profiles,
// their counts and placements are those of NVIDIA's MIG User Guide ("Supported
// MIG Profiles") and of `nvidia-smi mig -lgip` and -lgipp.
type migBoard struct {
	memoryMiB int // what NVML reports, about
	slices    int // compute slices of a whole GPU
	profiles  []MIGProfile
}

// migBoards lists the boards of each family, by memory. A family whose boards
// differ in memory has other profiles on each of them: 1g.10gb is a seventh of
// an A100 with 80 GB, and the 1g with double memory of one with 40 GB.
var migBoards = map[string][]migBoard{
	"A100":         {board40, board80, board96},
	"A100X":        {board80},
	"A800":         {board40, board80},
	"AX800":        {board80},
	"A30":          {boardA30},
	"A30X":         {boardA30},
	"H100":         {board80, board94, board96},
	"H800":         {board80, board94},
	"H20":          {board96},
	"H200":         {sevenSlices(143771, 18, 35, 71, 141)},
	"GH200":        {board96, sevenSlices(147456, 18, 36, 72, 144)},
	"B200":         {sevenSlices(183359, 23, 45, 90, 180)},
	"GB200":        {sevenSlices(189471, 23, 47, 93, 186)},
	"B300":         {sevenSlices(275040, 34, 67, 135, 269)},
	"GB300":        {sevenSlices(284208, 35, 70, 139, 278)},
	"RTX-PRO-6000": {boardPRO6000},
	"RTX-PRO-5000": {twoSlices(48935, 24, 48)},
	"RTX-PRO-4500": {twoSlices(32623, 16, 32)},
}

var (
	board40 = sevenSlices(40960, 5, 10, 20, 40)
	board80 = sevenSlices(81920, 10, 20, 40, 80)
	board94 = sevenSlices(95830, 12, 24, 47, 94)
	board96 = sevenSlices(97871, 12, 24, 48, 96)

	boardA30 = migBoard{24576, 4, []MIGProfile{
		{"1g.6gb", 1, 1, 4, []int{0, 1, 2, 3}},
		{"1g.6gb+me", 1, 1, 1, []int{0, 1, 2, 3}},
		{"2g.12gb", 2, 2, 2, []int{0, 2}},
		{"2g.12gb+me", 2, 2, 1, []int{0, 2}},
		{"4g.24gb", 4, 4, 1, []int{0}},
	}}

	boardPRO6000 = migBoard{97887, 4, []MIGProfile{
		{"1g.24gb", 1, 1, 4, []int{0, 1, 2, 3}},
		{"1g.24gb+me", 1, 1, 1, []int{0, 1, 2, 3}},
		{"1g.24gb+gfx", 1, 1, 4, []int{0, 1, 2, 3}},
		{"1g.24gb+me.all", 1, 1, 1, []int{0, 1, 2, 3}},
		{"1g.24gb-me", 1, 1, 4, []int{0, 1, 2, 3}},
		{"2g.48gb", 2, 2, 2, []int{0, 2}},
		{"2g.48gb+gfx", 2, 2, 2, []int{0, 2}},
		{"2g.48gb+me.all", 2, 2, 1, []int{0, 2}},
		{"2g.48gb-me", 2, 2, 2, []int{0, 2}},
		{"4g.96gb", 4, 4, 1, []int{0}},
		{"4g.96gb+gfx", 4, 4, 1, []int{0}},
	}}
)

// sevenSlices is the board of A100, H100 and their kind: seven compute slices
// over eight memory slices. The arguments are the gigabytes in the names of
// the profiles with one, two, four and eight memory slices.
func sevenSlices(memoryMiB, one, two, four, eight int) migBoard {
	name := func(slices, gb int) string { return fmt.Sprintf("%dg.%dgb", slices, gb) }
	return migBoard{memoryMiB, 7, []MIGProfile{
		{name(1, one), 1, 1, 7, []int{0, 1, 2, 3, 4, 5, 6}},
		{name(1, one) + "+me", 1, 1, 1, []int{0, 1, 2, 3, 4, 5, 6}},
		{name(1, two), 1, 2, 4, []int{0, 2, 4, 6}},
		{name(2, two), 2, 2, 3, []int{0, 2, 4}},
		{name(3, four), 3, 4, 2, []int{0, 4}},
		{name(4, four), 4, 4, 1, []int{0}},
		{name(7, eight), 7, 8, 1, []int{0}},
	}}
}

func twoSlices(memoryMiB, one, two int) migBoard {
	small, whole := fmt.Sprintf("1g.%dgb", one), fmt.Sprintf("2g.%dgb", two)
	profiles := []MIGProfile{
		{small, 1, 1, 2, []int{0, 1}},
		{small + "+gfx", 1, 1, 2, []int{0, 1}},
		{small + "+me.all", 1, 1, 1, []int{0, 1}},
		{small + "-me", 1, 1, 2, []int{0, 1}},
		{whole, 2, 2, 1, []int{0}},
		{whole + "+gfx", 2, 2, 1, []int{0}},
	}
	if one == 24 { // of the two boards only the PRO 5000 lists it
		profiles = slices.Insert(profiles, 1, MIGProfile{small + "+me", 1, 1, 1, []int{0, 1}})
	}
	return migBoard{memoryMiB, 2, profiles}
}

// maxLayout bounds the text of a layout. Seven profiles of the longest name
// take 104 bytes.
const maxLayout = 128

// CheckLayout refuses a layout that no GPU of the family, a pool's gpuModel,
// can have whatever its memory: unknown names and profiles, and lists that
// cannot be placed on one GPU. A layout says which instances every GPU gets,
// in one of three ways:
//
//	all-1g.10gb                  as many of one profile as fit; +me may be written .me
//	all-balanced                 2 x 1g, 1 x 2g and, with seven slices, 1 x 3g
//	3g.40gb,2g.20gb,2x1g.10gb    the instances themselves, in any order
//
// The names are those of NVIDIA's mig-parted. Its all-disabled and all-enabled
// leave no instance and are refused.
func CheckLayout(family, layout string) error {
	boards := migBoards[family]
	if len(boards) == 0 {
		return fmt.Errorf("no MIG profiles are known of %s; GPUs with MIG: %s", clip(family, maxFamily), strings.Join(migFamilies(), ", "))
	}
	var refusal layoutError
	for _, b := range boards {
		_, err := b.place(layout)
		if err == (layoutError{}) {
			return nil
		}
		if refusal.misfit == "" { // a misfit says more than an unknown name
			refusal = err
		}
	}
	return refusal.of(family, boards)
}

// ResolveLayout gives the profiles of a layout on one GPU, an entry for each
// instance, in an order in which they can be created. The product is the GPU's
// name or its family, and the memory is what NVML reports, within the 7 % by
// which drivers and ECC move it.
func ResolveLayout(product string, memoryMiB int, layout string) ([]string, error) {
	placed, err := PlaceLayout(product, memoryMiB, layout)
	if err != nil {
		return nil, err
	}
	profiles := make([]string, len(placed))
	for i, p := range placed {
		profiles[i] = p.Profile
	}
	return profiles, nil
}

// PlaceLayout is ResolveLayout with the place of each instance: larger ones
// first, each as far to the end as leaves room for the rest. Created at other
// places, or in another order, a layout that fits may run out of room: 3g and
// four 1g fit only with the 3g at 4.
func PlaceLayout(product string, memoryMiB int, layout string) ([]MIGPlacement, error) {
	b, err := findBoard(product, memoryMiB)
	if err != nil {
		return nil, err
	}
	placed, refusal := b.place(layout)
	if refusal != (layoutError{}) {
		return nil, refusal.of(fmt.Sprintf("%s (%d MiB)", GPUFamily(product), memoryMiB), []migBoard{b})
	}
	return placed, nil
}

// MIGProfiles lists the profiles of a GPU, smallest first. It refuses GPUs
// without MIG and those whose profiles are not known.
func MIGProfiles(product string, memoryMiB int) ([]MIGProfile, error) {
	b, err := findBoard(product, memoryMiB)
	return b.profiles, err
}

// MIGLayouts lists the named layouts of a family over all of its memory sizes.
// It is empty for GPUs without MIG.
func MIGLayouts(family string) []string {
	return layoutNames(migBoards[family])
}

func layoutNames(boards []migBoard) []string {
	var names []string
	for _, b := range boards {
		if b.balanced() != nil {
			names = append(names, "all-balanced")
		}
		for _, p := range b.profiles {
			names = append(names, "all-"+strings.ReplaceAll(p.Name, "+", "."))
		}
	}
	return distinct(names)
}

func profileNames(boards []migBoard) []string {
	var names []string
	for _, b := range boards {
		for _, p := range b.profiles {
			names = append(names, p.Name)
		}
	}
	return distinct(names)
}

// distinct keeps the first of equal names.
func distinct(names []string) []string {
	seen := make(map[string]bool)
	return slices.DeleteFunc(names, func(n string) bool {
		again := seen[n]
		seen[n] = true
		return again
	})
}

func migFamilies() []string {
	return slices.Sorted(maps.Keys(migBoards))
}

// findBoard picks the family's board whose memory is nearest.
func findBoard(product string, memoryMiB int) (migBoard, error) {
	family := GPUFamily(product)
	boards := migBoards[family]
	if len(boards) == 0 {
		return migBoard{}, fmt.Errorf("no MIG profiles are known of %s", clip(product, 80))
	}
	off := func(b migBoard) int { return max(b.memoryMiB-memoryMiB, memoryMiB-b.memoryMiB) }
	b := slices.MinFunc(boards, func(a, b migBoard) int { return cmp.Compare(off(a), off(b)) })
	if off(b) > b.memoryMiB*7/100 {
		return migBoard{}, fmt.Errorf("no MIG profiles are known of %s with %d MiB", clip(product, 80), memoryMiB)
	}
	return b, nil
}

// layoutError is why a board cannot have a layout; the zero value is that it
// can. The names of the board and of what it has instead are filled in by of,
// since a family is refused only when all of its boards do.
type layoutError struct {
	text    string // why, of a layout that is wrong on any board
	misfit  string // why, of a layout whose instances do not fit together
	unknown string // the profile or layout that the board does not have
}

func misfit(format string, args ...any) layoutError {
	return layoutError{misfit: fmt.Sprintf(format, args...)}
}

// of makes the refusal whole: of whose GPUs it is true.
func (e layoutError) of(whose string, boards []migBoard) error {
	profiles, layouts := profileNames(boards), layoutNames(boards)
	switch {
	case e.text != "":
		return errors.New(e.text)
	case e.misfit != "":
		return fmt.Errorf("does not fit on one %s: %s", whose, e.misfit)
	case slices.Contains(profiles, e.unknown):
		return fmt.Errorf("no %s has all of these profiles: they are of boards with different memory", whose)
	case strings.HasPrefix(e.unknown, "all-"):
		return fmt.Errorf("%q is no layout of %s; layouts are %s, or a list of profiles", e.unknown, whose, strings.Join(layouts, ", "))
	default:
		return fmt.Errorf("%q is no MIG profile of %s; profiles are %s", e.unknown, whose, strings.Join(profiles, ", "))
	}
}

// place reads a layout and finds a place for each of its instances.
func (b migBoard) place(layout string) ([]MIGPlacement, layoutError) {
	counts, refusal := b.read(layout)
	if refusal != (layoutError{}) {
		return nil, refusal
	}
	var todo []MIGProfile
	taken, media := 0, 0
	for i, p := range b.profiles {
		n := counts[i]
		if n > p.Max {
			return nil, misfit("at most %d of %s", p.Max, p.Name)
		}
		taken += n * p.Slices
		if strings.Contains(p.Name, "+me") {
			media += n
		}
		for range n {
			todo = append(todo, p)
		}
	}
	if taken > b.slices {
		return nil, misfit("it takes %d compute slices of %d", taken, b.slices)
	}
	if media > 1 {
		return nil, misfit("at most one instance with +me")
	}
	slices.SortStableFunc(todo, func(p, q MIGProfile) int {
		return cmp.Or(cmp.Compare(q.Size, p.Size), cmp.Compare(q.Slices, p.Slices))
	})
	placed := make([]MIGPlacement, 0, len(todo))
	if !search(todo, 0, &placed) {
		return nil, misfit("no arrangement leaves a place for each instance")
	}
	return placed, layoutError{}
}

// search places the rest of the instances, given the memory slices in use as
// bits. At most seven instances at seven places, so it ends at once.
func search(rest []MIGProfile, used uint16, placed *[]MIGPlacement) bool {
	if len(rest) == 0 {
		return true
	}
	p := rest[0]
	for _, start := range slices.Backward(p.Starts) {
		mask := uint16(1<<p.Size-1) << start
		if used&mask != 0 {
			continue
		}
		*placed = append(*placed, MIGPlacement{Profile: p.Name, Start: start, Size: p.Size})
		if search(rest[1:], used|mask, placed) {
			return true
		}
		*placed = (*placed)[:len(*placed)-1]
	}
	return false
}

// read counts the instances that a layout asks of each of the board's profiles.
func (b migBoard) read(layout string) ([]int, layoutError) {
	if layout == "" || len(layout) > maxLayout {
		return nil, layoutError{text: fmt.Sprintf("has %d characters, not 1 to %d", len(layout), maxLayout)}
	}
	name, named := strings.CutPrefix(layout, "all-")
	if !named {
		return b.readList(layout)
	}
	switch name {
	case "disabled", "enabled":
		return nil, layoutError{text: layout + " would leave the pool without instances"}
	case "balanced":
		if counts := b.balanced(); counts != nil {
			return counts, layoutError{}
		}
	}
	for i, p := range b.profiles {
		if name == p.Name || name == strings.ReplaceAll(p.Name, "+", ".") {
			counts := make([]int, len(b.profiles))
			counts[i] = p.Max
			return counts, layoutError{}
		}
	}
	return nil, layoutError{unknown: layout}
}

func (b migBoard) readList(layout string) ([]int, layoutError) {
	counts := make([]int, len(b.profiles))
	for item := range strings.SplitSeq(layout, ",") {
		n, profile := 1, item
		if digit, rest, ok := strings.Cut(item, "x"); ok && len(digit) == 1 && digit >= "1" && digit <= "9" {
			n, profile = int(digit[0]-'0'), rest
		}
		if profile == "" {
			return nil, layoutError{text: "has an entry without a profile"}
		}
		i := slices.IndexFunc(b.profiles, func(p MIGProfile) bool { return p.Name == profile })
		if i < 0 {
			return nil, layoutError{unknown: profile}
		}
		counts[i] += n
	}
	return counts, layoutError{}
}

// balanced counts the instances of mig-parted's all-balanced; boards of two
// slices have none. The first profile of a width is the plain one.
func (b migBoard) balanced() []int {
	want := map[int]int{1: 2, 2: 1, 3: 1} // compute slices -> instances
	if b.slices < 4 {
		return nil
	}
	counts := make([]int, len(b.profiles))
	for i, p := range b.profiles {
		counts[i] = want[p.Slices]
		delete(want, p.Slices)
	}
	return counts
}
