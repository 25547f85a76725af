package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
)

// architectures are NVML's NVML_DEVICE_ARCH_* numbers, by the marketing names
// that nvml.h gives them.
var architectures = map[int]string{
	2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing",
	7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin",
}

// computeModes are NVML's NVML_COMPUTEMODE_* numbers.
var computeModes = map[int]string{0: "default", 2: "prohibited", 3: "exclusiveProcess"}

// isDisplay says whether a product is never booked: the board that drives the
// screen of a DGX Station ("DGX Display"), or a GPU integrated in a Tegra
// ("Orin (nvgpu)"). It errs on the side of compute: a small workstation board,
// or one with a screen attached, may be all that a machine has, and GB10 shares
// its CPU's memory but is what a DGX Spark is bought for.
func isDisplay(product string) bool {
	return strings.Contains(product, "DGX Display") || strings.HasSuffix(product, "(nvgpu)")
}

// text cuts a string at its first NUL and trims it: drivers pad.
func text(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return strings.TrimSpace(s)
}

// hashSerial keeps a serial number comparable without printing it: 16 hex
// digits of its SHA-256. It hides the number from readers of an inventory, not
// from someone who tries all serial numbers.
func hashSerial(serial string) string {
	if serial == "" || serial == "0" {
		return ""
	}
	sum := sha256.Sum256([]byte("gpu serial " + serial))
	return hex.EncodeToString(sum[:8])
}

// pciAddress writes an address as the kernel does.
func pciAddress(domain, bus, device uint32) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
}

// pciID splits NVML's combined id: the device in the upper half, the vendor in
// the lower one.
func pciID(combined uint32) string {
	if combined == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x", combined>>16, combined&0xffff)
}

// onlyNode answers the one NUMA node of a node mask, -1 for none or several.
func onlyNode(mask []uint) int {
	node := -1
	for i, word := range mask {
		if word == 0 {
			continue
		}
		if node >= 0 || bits.OnesCount(word) != 1 {
			return -1
		}
		node = i*bits.UintSize + bits.TrailingZeros(word)
	}
	return node
}

// watts rounds NVML's milliwatts.
func watts(milliwatts int) int { return (milliwatts + 500) / 1000 }

// migProfile names a MIG device as the driver does: the profile of its GPU
// instance, and "1c." before it where the compute instance is narrower than
// that. The driver's names come with "MIG " before them, or a product and
// " MIG ".
func migProfile(instanceName, deviceName string, computeSlices, instanceSlices int) string {
	if name, ok := strings.CutPrefix(text(instanceName), "MIG "); ok {
		if computeSlices > 0 && computeSlices < instanceSlices {
			return fmt.Sprintf("%dc.%s", computeSlices, name)
		}
		return name
	}
	_, name, _ := strings.Cut(text(deviceName), " MIG ")
	return name
}

// links are the active NVLinks of one GPU.
type links struct {
	toGPU    map[string]int // by PCI address
	toSwitch int
}

// joinPeers turns links to addresses and to switches into peers. GPUs that
// reach a switch are peers of one another with as many links as the lesser has.
func joinPeers(gpus []wire.GPU, of map[string]links) {
	for i := range gpus {
		mine, ok := of[gpus[i].UUID]
		if !ok {
			continue
		}
		var peers []wire.NVLinkPeer
		for j := range gpus {
			theirs, ok := of[gpus[j].UUID]
			if i == j || !ok {
				continue
			}
			n := mine.toGPU[gpus[j].Address] + min(mine.toSwitch, theirs.toSwitch)
			if n > 0 {
				peers = append(peers, wire.NVLinkPeer{UUID: gpus[j].UUID, Links: n})
			}
		}
		gpus[i].NVLinkPeers = peers
	}
}

// memory keeps the facts of GPUs that answered, for the time when one does
// not: a lost GPU does not even say its UUID.
type memory struct {
	count   int
	byIndex map[int]wire.GPU
}

// recall answers the GPU that stood at an index, given how many GPUs there are
// and the UUIDs of those that answered. It does not guess: with
// another number of GPUs than before, or when that GPU answered from elsewhere,
// the index says nothing.
func (m *memory) recall(index, count int, answered []string) (wire.GPU, bool) {
	g, ok := m.byIndex[index]
	if !ok || count != m.count || slices.Contains(answered, g.UUID) {
		return wire.GPU{}, false
	}
	return g, true
}

// complete gives a GPU that stopped answering half-way the facts it had.
func (m *memory) complete(g wire.GPU) wire.GPU {
	old, ok := m.byIndex[g.Index]
	if !ok || old.UUID != g.UUID {
		return g
	}
	old.Health, old.HealthReason = g.Health, g.HealthReason
	return old
}

func (m *memory) keep(count int, gpus []wire.GPU) {
	m.count, m.byIndex = count, make(map[int]wire.GPU, len(gpus))
	for _, g := range gpus {
		m.byIndex[g.Index] = g
	}
}
