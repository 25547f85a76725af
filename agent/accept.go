package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
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
	if c.Kind != wire.CheckNVML {
		return fmt.Errorf("this agent has no check %q: it is older than its control plane", c.Kind)
	}
	with, err := c.NVML()
	if err != nil {
		return err
	}
	return diag(with).run(inv, readings)
}

// diag is the check diag.nvml, with what it asks for beyond sound GPUs.
type diag wire.NVMLCheck

func (d diag) run(inv *wire.Inventory, readings gpu.Readings) error {
	if inv.GPULibrary.State != wire.GPULibraryReady {
		return errors.New(libraryAmiss(inv.GPULibrary))
	}
	if readings.Library.State != wire.GPULibraryReady {
		return errors.New(libraryAmiss(readings.Library))
	}
	if err := versionsAgree(inv.GPULibrary); err != nil {
		return err
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
		if err := sameBoard(&inv.GPUs[i], r); err != nil {
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

// versionsAgree compares the versions of NVML and the kernel driver. NVML's own
// begins with that of CUDA (nvmlSystemGetNVMLVersion): 12.535.161.08. One of the
// two may leave off the last number. A driver that differs so much that NVML does
// not answer has been found before.
func versionsAgree(lib wire.GPULibrary) error {
	_, version, _ := strings.Cut(lib.Version, ".")
	if version == "" || lib.Driver == "" || strings.HasPrefix(version+".", lib.Driver+".") || strings.HasPrefix(lib.Driver+".", version+".") {
		return nil
	}
	return fmt.Errorf("the NVML library is of driver %s and the kernel driver is %s: reboot the machine, or install the driver's packages of one version", version, lib.Driver)
}

func (d diag) driver(version string) error {
	if d.MinDriver == "" {
		return nil
	}
	have, err := wire.ParseDriverVersion(version)
	if err != nil {
		return fmt.Errorf("the driver's version %q cannot be compared with the wanted %s", version, d.MinDriver)
	}
	want, _ := wire.ParseDriverVersion(d.MinDriver) // NVML did
	if slices.Compare(have, want) < 0 {
		return fmt.Errorf("the driver is %s, at least %s is wanted", version, d.MinDriver)
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
	case g.Address == "":
		return fmt.Errorf("%s does not say its PCI address", g.UUID)
	}
	return nil
}

// sameBoard compares what a GPU says of itself now with the inventory, which was
// made from an earlier answer. A board that shares the host's memory (GB10) has
// none of its own to tell.
func sameBoard(g *wire.GPU, r gpu.Reading) error {
	switch {
	case r.Product != g.Product:
		return fmt.Errorf("%s says that it is a %q, and the inventory has a %q", deviceName(g), r.Product, g.Product)
	case !strings.EqualFold(r.Address, g.Address):
		return fmt.Errorf("%s says that it is at %s", deviceName(g), r.Address)
	case r.MemoryTotalMiB != nil && (g.MemoryMiB <= 0 || *r.MemoryTotalMiB <= 0):
		return fmt.Errorf("%s does not say its memory", deviceName(g))
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
		return fmt.Errorf("%s has no temperature to compare with the %d °C allowed", device, *d.MaxTemperatureC)
	}
	if t := *r.TemperatureCelsius; t > *d.MaxTemperatureC {
		return fmt.Errorf("%s is at %d °C, at most %d °C are allowed", device, t, *d.MaxTemperatureC)
	}
	return nil
}
