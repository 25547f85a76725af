package unit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// iommu keeps the IOMMU on, with the host's own devices passed through: what a
// device can be given to a guest by. Without passthrough it asks for nothing.
type iommu struct{}

const groupsDir = "/sys/kernel/iommu_groups"

// seenIOMMU is what the running kernel does with the IOMMU.
type seenIOMMU struct {
	groups, identity int // how many, and of them passed through
}

func (i seenIOMMU) String() string {
	switch {
	case i.groups == 0:
		return "no IOMMU groups"
	case i.identity == i.groups:
		return count(i.groups, "group") + ", passed through"
	}
	return fmt.Sprintf("%s, %d of them passed through", count(i.groups, "group"), i.identity)
}

// through reports whether the default domain is passed through. A group that
// differs has a device that the kernel does not trust, or is with a guest.
func (i seenIOMMU) through() bool { return i.groups > 0 && 2*i.identity > i.groups }

func seeIOMMU(root *host.Root) seenIOMMU {
	var seen seenIOMMU
	for _, group := range root.Glob(groupsDir + "/[0-9]*") {
		seen.groups++
		if kind, _ := root.String(group + "/type"); kind == "identity" {
			seen.identity++
		}
	}
	return seen
}

// iommuArguments are of the kernel's own list (kernel-parameters.txt): Intel's
// IOMMU is off by default in some kernels, AMD's has no argument to switch it
// on, and Arm's is asked in another word.
func iommuArguments(root *host.Root) []string {
	cpuinfo, _ := root.ReadHead("/proc/cpuinfo", 16<<10)
	switch text := string(cpuinfo); {
	case strings.Contains(text, "GenuineIntel"):
		return []string{"intel_iommu=on", "iommu=pt"}
	case strings.Contains(text, "AuthenticAMD"), strings.Contains(text, "HygonGenuine"):
		return []string{"iommu=pt"}
	case strings.Contains(text, "CPU implementer"):
		return []string{"iommu.passthrough=1"}
	}
	return nil
}

func (iommu) Plan(s Scene) Plan {
	root := s.Machine.Root
	seen := seeIOMMU(root)
	p := Plan{State: wire.InSync, Wanted: "passed through", Got: seen.String()}
	_, kept := s.Arguments[string(wire.UnitIOMMU)]
	tokens := iommuArguments(root)
	switch {
	case !s.Want.IOMMU.Passthrough:
		p.Wanted, tokens = "as the kernel has it", nil
	case seen.through() && !kept:
		return p
	case len(tokens) == 0:
		p.State, p.Reason = wire.NotApplicable, "the agent knows no IOMMU of this kind of processor"
		return p
	case !kept && seen.groups == 0 && noIOMMU(root):
		p.State, p.Reason = wire.Failed, "the firmware has the IOMMU off: turn on VT-d, AMD-Vi or SMMU in its setup"
		if virtual(root) {
			p.State, p.Reason = wire.NotApplicable, "this virtual machine has no IOMMU"
		}
		return p
	}
	if snp, _ := root.String("/sys/module/kvm_amd/parameters/sev_snp"); snp == "Y" && len(tokens) > 0 {
		p.State, p.Reason = wire.Unsupported, "this host runs confidential guests (SEV-SNP), which need the IOMMU not to be passed through"
		return p
	}
	a := planArguments(s, string(wire.UnitIOMMU), tokens)
	p.Steps, p.State, p.Reason = a.steps, a.state, a.reason
	if p.State != wire.InSync || len(p.Steps) > 0 || len(tokens) == 0 {
		return p
	}
	switch { // the arguments are in force: did they help?
	case seen.groups == 0:
		p.State, p.Reason = wire.Failed, "the kernel was told to use the IOMMU and has none: turn on VT-d, AMD-Vi or SMMU in the firmware's setup; no further boot will help"
	case !seen.through():
		p.State, p.Reason = wire.Failed, "the kernel was told to pass devices through and still translates; see the kernel log for iommu"
	}
	return p
}

func (iommu) Remove(s Scene) []Step { return planArguments(s, string(wire.UnitIOMMU), nil).steps }

// noIOMMU reports whether the firmware's tables are there to be looked at and
// describe no IOMMU: DMAR is Intel's, IVRS AMD's, IORT Arm's.
func noIOMMU(root *host.Root) bool {
	const tables = "/sys/firmware/acpi/tables"
	if !root.IsDir(tables) {
		return false
	}
	for _, table := range []string{"DMAR", "IVRS", "IORT"} {
		if root.Exists(tables + "/" + table) {
			return false
		}
	}
	return true
}

func virtual(root *host.Root) bool {
	cpuinfo, _ := root.ReadHead("/proc/cpuinfo", 16<<10)
	for line := range strings.Lines(string(cpuinfo)) {
		if name, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor")
		}
	}
	return false
}
