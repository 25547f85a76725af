package gpu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
)

func TestDisplayIsNeverABoardThatSomeoneComputesOn(t *testing.T) {
	for product, want := range map[string]bool{
		"NVIDIA DGX Display": true, "DGX Display": true, "Orin (nvgpu)": true,
		"NVIDIA T400 4GB": false, "NVIDIA RTX A400": false, "Quadro RTX 4000": false, "NVIDIA GB10": false,
		"NVIDIA H100 80GB HBM3": false, "": false,
	} {
		if isDisplay(product) != want {
			t.Errorf("%q: display is %v", product, !want)
		}
	}
}

func TestTextEndsAtTheFirstNUL(t *testing.T) {
	for raw, want := range map[string]string{
		"NVIDIA H100\x00\x00\x00": "NVIDIA H100", "NVIDIA H100\x00rest": "NVIDIA H100", " T4 ": "T4", "\x00": "", "": "",
	} {
		if got := text(raw); got != want {
			t.Errorf("%q reads %q", raw, got)
		}
	}
}

func TestNUMANodeIsOneOrUnknown(t *testing.T) {
	for _, c := range []struct {
		mask []uint
		want int
	}{
		{nil, -1}, {[]uint{0, 0}, -1}, {[]uint{1}, 0}, {[]uint{8}, 3}, {[]uint{3}, -1}, {[]uint{0, 2}, 65}, {[]uint{1, 1}, -1},
	} {
		if got := onlyNode(c.mask); got != c.want {
			t.Errorf("%b: node %d, want %d", c.mask, got, c.want)
		}
	}
}

func TestMIGProfileIsExactlyTheDevicesName(t *testing.T) {
	for _, c := range []struct {
		instance, device string
		compute, slices  int
		want             string
	}{
		{"MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 1, "1g.10gb"},
		{"MIG 1g.10gb+me\x00\x00", "", 1, 1, "1g.10gb+me"},
		{"MIG 3g.40gb", "", 1, 3, "1c.3g.40gb"},
		{"MIG 3g.40gb", "", 0, 3, "3g.40gb"}, // the device does not tell its width
		{"", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 3, 3, "3g.20gb"},
		{"", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", 1, 3, "1c.3g.20gb"},
		{"", "NVIDIA A100-SXM4-40GB", 1, 1, ""},
	} {
		if got := migProfile(c.instance, c.device, c.compute, c.slices); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestPeersOnASwitchHaveTheLesserNumberOfLinks(t *testing.T) {
	gpus := []wire.GPU{{UUID: "a", Address: "1"}, {UUID: "b", Address: "2"}, {UUID: "c", Address: "3"}, {UUID: "d", Address: "4"}}
	joinPeers(gpus, map[string]links{
		"a": {toSwitch: 18}, "b": {toSwitch: 17}, "c": {toGPU: map[string]int{"4": 4, "9": 2}}, "d": {toGPU: map[string]int{"3": 4}},
	})
	for i, want := range [][]wire.NVLinkPeer{{{UUID: "b", Links: 17}}, {{UUID: "a", Links: 17}}, {{UUID: "d", Links: 4}}, {{UUID: "c", Links: 4}}} {
		if diff := cmp.Diff(want, gpus[i].NVLinkPeers); diff != "" {
			t.Errorf("%s: %s", gpus[i].UUID, diff)
		}
	}
}

func TestSerialNumberIsHashedAndNothingIsNotASerial(t *testing.T) {
	a, b := hashSerial("1654922006536"), hashSerial("1654922006537")
	if a == b || len(a) != 16 || strings.Contains(a, "1654922006536") {
		t.Errorf("%q and %q", a, b)
	}
	if got := hashSerial("") + hashSerial("0"); got != "" {
		t.Errorf("a board without a serial number has %q", got)
	}
}

func TestHealthTakesTheWorstFailure(t *testing.T) {
	for _, c := range []struct {
		failures []failure
		remap    *Remap
		want     wire.GPUHealth
	}{
		{nil, nil, wire.GPUHealthy},
		{nil, &Remap{Pending: true}, wire.GPUHealthy},
		{nil, &Remap{Failed: true}, wire.GPUUnhealthy},
		{[]failure{{"x", noPermission, false}}, nil, wire.GPUHealthy},
		{[]failure{{"x", noPermission, true}}, nil, wire.GPUUnhealthy},
		{[]failure{{"x", unknownError, false}}, nil, wire.GPUUnhealthy},
		{[]failure{{"x", unknownError, false}, {"y", resetRequired, false}, {"z", gpuIsLost, false}}, nil, wire.GPULost},
	} {
		got, reason := healthOf(c.failures, c.remap)
		if got != c.want || (reason == "") != (c.want == wire.GPUHealthy) {
			t.Errorf("%v, %+v: %s %q, want %s", c.failures, c.remap, got, reason, c.want)
		}
	}
}

func TestEveryReturnCodeHasWordsAndAState(t *testing.T) {
	for c := range code(1001) {
		if s := c.String(); !strings.Contains(s, "NVML") {
			t.Errorf("code %d: %q", c, s)
		}
		if c == success {
			continue
		}
		lib := c.ofLibrary()
		if lib.Reason == "" || lib.State == wire.GPULibraryReady || lib.State == "" {
			t.Errorf("code %d of the library: %+v", c, lib)
		}
		if c.absent() && c.serious() {
			t.Errorf("code %d is both absent and serious", c)
		}
	}
}
