package host

import (
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/google/go-cmp/cmp"
)

func printed(props []dbus.Property) (out []string) {
	for _, p := range props {
		out = append(out, p.Name+" "+p.Value.Signature().String()+" "+fmt.Sprint(p.Value.Value()))
	}
	return out
}

// The device list stands before the policy, and lists have the encodings that
// systemd takes: bytes with the lowest CPU first, pairs of path and access.
func TestPropertiesOfANewSlice(t *testing.T) {
	for _, c := range []struct {
		name  string
		slice Slice
		want  []string
	}{
		{"everything", Slice{Description: "D", CPUs: "0-3,8-11", MemoryNodes: "0", MemoryMax: 1 << 30, Devices: []string{"/dev/nvidia0", "/dev/nvidiactl"}}, []string{
			"Description s D", "AllowedCPUs ay [15 15]", "AllowedMemoryNodes ay [1]", "MemoryMax t 1073741824", "MemorySwapMax t 0",
			"DeviceAllow a(ss) [{/dev/nvidia0 rw} {/dev/nvidiactl rw}]", "DevicePolicy s closed",
		}},
		{"a high CPU alone", Slice{CPUs: "17"}, []string{"Description s ", "AllowedCPUs ay [0 0 2]", "DeviceAllow a(ss) []", "DevicePolicy s closed"}},
		{"no devices", Slice{}, []string{"Description s ", "DeviceAllow a(ss) []", "DevicePolicy s closed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, printed(c.slice.properties())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Only what differs is set. A limit that is lifted gets every CPU there is,
// for an empty mask would leave the old one in force; a device list is emptied
// before it is filled, for entries add up.
func TestChangesOfASlice(t *testing.T) {
	all := fmt.Sprint(mask(readTrimmed(onlineCPUs)))
	up := sliceState{active: true, cpus: []byte{15, 0}, memory: 1 << 30, policy: "closed", devices: []allow{{"/dev/b", "rw"}, {"/dev/a", "rw"}}}
	for _, c := range []struct {
		name  string
		slice Slice
		want  []string
	}{
		{"the same", Slice{CPUs: "0-3", MemoryMax: 1 << 30, Devices: []string{"/dev/a", "/dev/b"}}, nil},
		{"other CPUs", Slice{CPUs: "4", MemoryMax: 1 << 30, Devices: []string{"/dev/a", "/dev/b"}}, []string{"AllowedCPUs ay [16]"}},
		{"nothing limited", Slice{Devices: []string{"/dev/a", "/dev/b"}}, []string{
			"AllowedCPUs ay " + all, fmt.Sprint("MemoryMax t ", uint64(math.MaxUint64)), fmt.Sprint("MemorySwapMax t ", uint64(math.MaxUint64)),
		}},
		{"one device less", Slice{CPUs: "0-3", MemoryMax: 1 << 30, Devices: []string{"/dev/a"}}, []string{"DeviceAllow a(ss) []", "DeviceAllow a(ss) [{/dev/a rw}]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, printed(c.slice.changes(up))); diff != "" {
				t.Error(diff)
			}
		})
	}
	open := up
	open.policy = "auto"
	open.devices = append([]allow{{"char-nvidia", "rw"}}, up.devices...)
	want := []string{"DeviceAllow a(ss) []", "DeviceAllow a(ss) [{/dev/a rw} {/dev/b rw}]", "DevicePolicy s closed"}
	if diff := cmp.Diff(want, printed(Slice{CPUs: "0-3", MemoryMax: 1 << 30, Devices: []string{"/dev/a", "/dev/b"}}.changes(open))); diff != "" {
		t.Error("a wall that someone opened is closed again:", diff)
	}
}

func TestCgroupOfASlice(t *testing.T) {
	if got, want := cgroupOf("bc-res_1.slice"), "/sys/fs/cgroup/bc.slice/bc-res_1.slice"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSystemdVersion(t *testing.T) {
	for text, want := range map[string]int{`"252.39-1~deb12u1"`: 252, "v255.4": 255, "239 (239-82.el8)": 239, "249": 249} {
		if got, ok := systemdVersion(text); !ok || got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
	if _, ok := systemdVersion("unknown"); ok {
		t.Error("a text without a number is a version")
	}
}

// Block devices have the same numbers as others' character devices.
func TestMajorOfADriver(t *testing.T) {
	const table = "Character devices:\n  1 mem\n195 nvidia-frontend\n234 nvidia-caps\n235 nvidia-uvm\n\nBlock devices:\n  8 sd\n250 nvidia\n"
	if got, ok := charMajor(table, []string{"nvidia", "nvidia-frontend"}); !ok || got != 195 {
		t.Errorf("nvidia: %d, %v", got, ok)
	}
	if _, ok := charMajor(table, []string{"nvidia-nvswitch"}); ok {
		t.Error("a driver that is not loaded has a major")
	}
}

// Whoever has a device open is found by its number, whatever the path.
func TestHoldersOfADevice(t *testing.T) {
	f, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	holders, err := Holders(t.Context(), []string{"/dev/full", "/dev/none-such"})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, h := range holders {
		found = found || h.PID == os.Getpid() && h.Path == "/dev/full" && h.Command != ""
	}
	if !found {
		t.Errorf("this process holds /dev/full, and is not among %v", holders)
	}
}

// What systemd says of a slice's CPUs is read back as the list that it was given.
func TestMaskAndListAreTheSame(t *testing.T) {
	for _, list := range []string{"", "0", "0-3,8-11", "17", "0-127,255"} {
		if got := maskList(mask(list)); got != list {
			t.Errorf("%q comes back as %q", list, got)
		}
	}
	if got := maskList([]byte{1, 0, 0}); got != "0" {
		t.Errorf("bytes without a bit at the end: %q", got)
	}
}
