package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/wire"
)

// checked says what the acceptance checks last ran on.
type checked struct {
	facts [sha256.Size]byte
	at    time.Time
}

// check runs the acceptance checks if they, or the GPUs, differ from the last
// run, or if one failed some time ago. It answers the results, and whether they
// say anything new.
func (n *node) check(now time.Time) (results []wire.CheckResult, news bool) {
	failing := slices.ContainsFunc(n.book.Checks, func(r wire.CheckResult) bool { return !r.Passed })
	facts := acceptanceFacts(n.spec.Acceptance, &n.inv)
	if facts == n.checked.facts && !(failing && now.Sub(n.checked.at) >= recheck) {
		return n.book.Checks, false
	}
	n.checked = checked{facts, now}
	for _, c := range n.spec.Acceptance {
		result := wire.CheckResult{Kind: c.Kind, At: now}
		if err := accept(c, &n.inv, n.readings); err != nil {
			result.Reason = err.Error()
		}
		result.Passed = result.Reason == ""
		results = append(results, result)
	}
	same := func(a, b wire.CheckResult) bool {
		return a.Kind == b.Kind && a.Passed == b.Passed && a.Reason == b.Reason
	}
	return results, !slices.EqualFunc(results, n.book.Checks, same)
}

// acceptanceFacts is a fingerprint of what makes the checks run again: not of
// what moves by itself, such as temperatures, lest a machine be turned away for
// being at work.
func acceptanceFacts(checks []wire.Check, inv *wire.Inventory) [sha256.Size]byte {
	h := sha256.New()
	for _, c := range checks {
		fmt.Fprintf(h, "%q %q\n", c.Kind, []byte(c.With))
	}
	fmt.Fprintf(h, "%q %q\n", inv.GPULibrary.State, inv.GPULibrary.Driver)
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		fmt.Fprintf(h, "%q %q %q %q %d %q\n", g.UUID, g.Address, g.PCIID, g.Product, g.MemoryMiB, g.Health)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// accept runs one check. The error names the device and the reading.
func accept(c wire.Check, inv *wire.Inventory, readings gpu.Readings) error {
	if c.Kind != "diag.nvml" {
		return fmt.Errorf("this agent has no check %q: it is older than its control plane", c.Kind)
	}
	with, err := readDiag(c.With)
	if err != nil {
		return fmt.Errorf("with: %w", err)
	}
	return with.run(inv, readings)
}

// diag is what the check diag.nvml asks for beyond sound GPUs. Nil: nothing.
type diag struct {
	MinDriver       *string  `json:"minDriver"`
	MinDevices      *int     `json:"minDevices"`
	MaxTemperatureC *float64 `json:"maxTemperatureC"`
}

func readDiag(with json.RawMessage) (diag, error) {
	var d diag
	if len(with) == 0 {
		return d, nil
	}
	dec := json.NewDecoder(bytes.NewReader(with))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return d, errors.New("one object is expected")
	}
	if d.MinDriver != nil {
		if _, err := parseDotted(*d.MinDriver); err != nil {
			return d, fmt.Errorf("minDriver: %w", err)
		}
	}
	return d, nil
}

func (d diag) run(inv *wire.Inventory, readings gpu.Readings) error {
	if inv.GPULibrary.State != wire.GPULibraryReady {
		return errors.New(libraryAmiss(inv.GPULibrary))
	}
	if readings.Library.State != wire.GPULibraryReady {
		return errors.New(libraryAmiss(readings.Library))
	}
	if err := d.driver(inv.GPULibrary.Driver); err != nil {
		return err
	}
	for i := range inv.GPUs {
		if err := soundFacts(&inv.GPUs[i]); err != nil {
			return err
		}
	}
	if err := busAgrees(inv); err != nil {
		return err
	}
	for _, r := range readings.GPUs {
		i := slices.IndexFunc(inv.GPUs, func(g wire.GPU) bool { return g.UUID == r.UUID })
		if i < 0 {
			return fmt.Errorf("GPU %d %s answers and is not in the inventory", r.Index, r.UUID)
		}
		if err := d.reading(deviceName(&inv.GPUs[i]), r); err != nil {
			return err
		}
	}
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		if !slices.ContainsFunc(readings.GPUs, func(r gpu.Reading) bool { return r.UUID == g.UUID }) {
			return fmt.Errorf("%s is in the inventory and gives no readings", deviceName(g))
		}
	}
	return d.count(inv.GPUs)
}

func (d diag) driver(version string) error {
	if d.MinDriver == nil {
		return nil
	}
	have, err := parseDotted(version)
	if err != nil {
		return fmt.Errorf("the driver's version %q cannot be compared with the wanted %s", version, *d.MinDriver)
	}
	want, _ := parseDotted(*d.MinDriver) // readDiag did
	if slices.Compare(have, want) < 0 {
		return fmt.Errorf("the driver is %s, at least %s is wanted", version, *d.MinDriver)
	}
	return nil
}

// count counts the GPUs that can be booked.
func (d diag) count(gpus []wire.GPU) error {
	n := 0
	for i := range gpus {
		if !gpus[i].Display {
			n++
		}
	}
	if d.MinDevices != nil && n < *d.MinDevices {
		return fmt.Errorf("%d GPUs, at least %d are wanted", n, *d.MinDevices)
	}
	return nil
}

// soundFacts looks at what a GPU said of itself.
func soundFacts(g *wire.GPU) error {
	switch {
	case g.Health != wire.GPUHealthy:
		return fmt.Errorf("%s is %s", deviceName(g), healthText(g))
	case g.Product == "":
		return fmt.Errorf("%s does not say its name", deviceName(g))
	case g.MemoryMiB <= 0:
		return fmt.Errorf("%s does not say its memory", deviceName(g))
	case g.Address == "":
		return fmt.Errorf("%s does not say its PCI address", g.UUID)
	}
	return nil
}

const (
	vendorNVIDIA = "10de"
	driverNVIDIA = "nvidia"
)

// busAgrees compares what NVML lists with what the PCI bus has: the same boards
// at the same addresses, and none that the driver holds but cannot bring up.
func busAgrees(inv *wire.Inventory) error {
	for _, d := range inv.PCI {
		display, accelerator := strings.HasPrefix(d.Class, "03"), strings.HasPrefix(d.Class, "12")
		if d.Vendor != vendorNVIDIA || d.Driver != driverNVIDIA || !display && !accelerator {
			continue
		}
		i := slices.IndexFunc(inv.GPUs, func(g wire.GPU) bool { return strings.EqualFold(g.Address, d.Address) })
		if i < 0 {
			return fmt.Errorf("the GPU at %s (%s:%s) is on the PCI bus and NVML does not list it", d.Address, d.Device, d.Vendor)
		}
		g := &inv.GPUs[i]
		if id := d.Device + ":" + d.Vendor; g.PCIID != "" && !strings.EqualFold(g.PCIID, id) {
			return fmt.Errorf("%s is a %s for NVML, and the PCI bus has a %s there", deviceName(g), g.PCIID, id)
		}
	}
	return nil
}

// questions are those that every device has to answer, as package gpu names
// them. "Not supported" is an answer.
var questions = []string{"handle", "UUID", "name", "PCI address", "memory", "temperature", "ECC errors", "page retirement", "row remapping"}

func (d diag) reading(device string, r gpu.Reading) error {
	if r.Health != wire.GPUHealthy {
		text := string(r.Health)
		if r.HealthReason != "" {
			text += ": " + r.HealthReason
		}
		return fmt.Errorf("%s is %s", device, text)
	}
	for _, f := range r.Failures {
		if what, _, _ := strings.Cut(f, ":"); slices.Contains(questions, what) {
			return fmt.Errorf("%s does not answer for its %s", device, f)
		}
	}
	if r.RetirementPending != nil && *r.RetirementPending {
		return fmt.Errorf("%s has memory pages that wait to be retired: reset it when it is free", device)
	}
	if r.Remap != nil && r.Remap.Failed {
		return fmt.Errorf("%s could not remap a faulty memory row: replace the board", device)
	}
	if r.Remap != nil && r.Remap.Pending {
		return fmt.Errorf("%s has memory rows that wait to be remapped: reset it when it is free", device)
	}
	if d.MaxTemperatureC == nil {
		return nil
	}
	if r.TemperatureCelsius == nil {
		return fmt.Errorf("%s has no temperature to compare with the %g °C allowed", device, *d.MaxTemperatureC)
	}
	if t := *r.TemperatureCelsius; float64(t) > *d.MaxTemperatureC {
		return fmt.Errorf("%s is at %d °C, at most %g °C are allowed", device, t, *d.MaxTemperatureC)
	}
	return nil
}

// parseDotted reads a version such as 535.161.08 for comparison.
func parseDotted(s string) ([]int, error) {
	var parts []int
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q is not a dotted version", s)
		}
		parts = append(parts, int(n))
	}
	return parts, nil
}
