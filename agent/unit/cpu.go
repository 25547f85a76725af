package unit

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// cpu keeps the cpufreq governor ("CPU Performance Scaling", kernel admin
// guide), and CPUs out of the scheduler's hands (isolcpus=, kernel-parameters).
// It never switches a driver's mode (intel_pstate/status, amd_pstate/status): a
// governor that the mode does not offer is reported.
type cpu struct{}

const cpuDir = "/sys/devices/system/cpu"

// minHousekeeping is how many CPUs stay for everything that is not pinned.
const minHousekeeping = 2

func (cpu) Plan(s Scene) Plan {
	want := s.Want.CPU
	governor, isolate := planGovernor(s, want.Governor), planIsolate(s, want.Isolate)
	if want.Governor == "" {
		isolate.Steps = append(governor.Steps, isolate.Steps...) // gives up a governor of before
		return isolate
	}
	if want.Isolate == "" && isolate.State == wire.InSync {
		governor.Steps = append(governor.Steps, isolate.Steps...)
		return governor
	}
	return both(governor, isolate)
}

// urgency orders states by what an operator should hear first.
var urgency = []wire.UnitState{
	wire.InSync, wire.NotApplicable, wire.Partial, wire.Unsupported, wire.PendingReboot, wire.Conflict, wire.Failed,
}

// both is one plan of two parts. A part that does not apply is only said.
func both(a, b Plan) Plan {
	out := Plan{
		Steps:  slices.Concat(a.Steps, b.Steps),
		State:  a.State,
		Wanted: join(a.Wanted, b.Wanted), Got: join(a.Got, b.Got), Reason: join(a.Reason, b.Reason),
	}
	if slices.Index(urgency, b.State) > slices.Index(urgency, a.State) {
		out.State = b.State
	}
	if out.State == wire.NotApplicable && a.State != b.State {
		out.State = wire.InSync
	}
	return out
}

func join(a, b string) string { return strings.Trim(a+"; "+b, "; ") }

// policy is a set of CPUs whose frequency is set together.
type policy struct {
	dir, driver, governor string
	preference            string // energy_performance_preference, "" where there is none
	offered               []string
}

func (q policy) path() string { return q.dir + "/scaling_governor" }

// seePolicies lists the policies with CPUs that are online.
func seePolicies(root *host.Root) []policy {
	var out []policy
	for _, dir := range root.Glob(cpuDir + "/cpufreq/policy[0-9]*") {
		if cpus, _ := root.String(dir + "/affected_cpus"); cpus == "" {
			continue
		}
		q := policy{dir: dir}
		q.driver, _ = root.String(dir + "/scaling_driver")
		q.governor, _ = root.String(q.path())
		q.preference, _ = root.String(preferencePath(number(dir)))
		offered, _ := root.String(dir + "/scaling_available_governors")
		q.offered = strings.Fields(offered)
		out = append(out, q)
	}
	slices.SortStableFunc(out, func(a, b policy) int { return cmp.Compare(number(a.dir), number(b.dir)) })
	return out
}

// number is the number at the end of a name: 12 of policy12.
func number(name string) int {
	base := path.Base(name)
	n, _ := strconv.Atoi(base[len(strings.TrimRight(base, "0123456789")):])
	return n
}

func planGovernor(s Scene, want string) Plan {
	policies := seePolicies(s.Machine.Root)
	p := Plan{State: wire.InSync, Wanted: "governor " + want, Got: gotGovernors(policies)}
	set := map[string]bool{} // by path: policies that are to have the governor
	var not []policy
	for _, q := range policies {
		if slices.Contains(q.offered, want) {
			set[q.path()] = true
		} else {
			not = append(not, q)
		}
	}
	p.Steps = undoKernel(s, func(name string) bool { return set[name] })
	if want == "" {
		p.Wanted, p.Steps = "", append(p.Steps, undoPreferences(s)...)
		return p
	}
	if len(policies) == 0 {
		p.State, p.Reason = wire.NotApplicable, "the kernel does not set the frequency of these CPUs: firmware or a hypervisor does"
		return p
	}
	var change []string
	for _, q := range policies {
		if set[q.path()] && q.governor != want {
			change = append(change, q.path())
		}
	}
	if len(change) > 0 {
		p.Steps = append(p.Steps, Step{Change: setGovernor{host.SetEach{Paths: change, Value: want}}, Undo: "back to the governors of before"})
	}
	if want != performance {
		p.Steps = append(p.Steps, undoPreferences(s)...)
	}
	if len(not) > 0 {
		module := "cpufreq_" + want
		if !loaded(s.Machine.Root, module) && findModule(s.Machine.Root, module) == moduleFile {
			p.Steps = append(loadSteps([]string{module}), p.Steps...)
		}
		p.State = wire.Unsupported
		if len(set) > 0 {
			p.State = wire.Partial
		}
		p.Reason = fmt.Sprintf("%s does not offer %s, only %s", not[0].driver, want, strings.Join(not[0].offered, ", "))
		if len(not[0].offered) == 0 {
			p.Reason = fmt.Sprintf("%s offers no governors", cmp.Or(not[0].driver, "the driver"))
		}
		return p
	}
	hasty := slices.IndexFunc(policies, func(q policy) bool { return q.preference == performance })
	_, noted := s.Prior.Values[preferenceNote]
	if want == "powersave" && hasty >= 0 && !noted {
		p.Reason = "energy_performance_preference is performance, so that " + policies[hasty].driver + " favours speed under powersave too"
	}
	if want == "powersave" && !slices.ContainsFunc(policies, func(q policy) bool { return strings.Contains(q.driver, "pstate") }) {
		p.Reason = "with " + policies[0].driver + ", powersave keeps the CPUs at their lowest frequency"
	}
	return p
}

func gotGovernors(policies []policy) string {
	have := map[string]int{}
	for _, q := range policies {
		have[q.governor]++
	}
	var parts []string
	for _, g := range sortedKeys(have) {
		if parts = append(parts, "governor "+g); len(have) > 1 {
			parts[len(parts)-1] += fmt.Sprintf(" on %d", have[g])
		}
	}
	return strings.Join(parts, ", ")
}

func planIsolate(s Scene, want string) Plan {
	root := s.Machine.Root
	isolated, _ := root.CPUs(cpuDir + "/isolated")
	p := Plan{State: wire.InSync, Wanted: "isolated " + want, Got: "isolated " + isolated.String()}
	if isolated.IsEmpty() {
		p.Got = "none isolated"
	}
	var tokens []string
	cpus, err := wire.ParseCPUList(want)
	if err != nil {
		p.State, p.Reason = wire.Failed, err.Error()
		return p
	}
	if want == "" {
		p.Wanted, p.Got = "", ""
	} else {
		if problem := cannotIsolate(root, cpus); problem != "" {
			p.State, p.Reason = wire.Failed, problem
			return p
		}
		tokens = []string{"isolcpus=domain,managed_irq," + cpus.String()}
	}
	_, kept := s.Arguments[string(wire.UnitCPU)]
	if want != "" && !kept && isolated.Equal(cpus) {
		p.Reason = strayInterrupts(s, cpus)
		return p // by other means, such as a cpuset partition
	}
	a := planArguments(s, string(wire.UnitCPU), tokens)
	p.Steps, p.State, p.Reason = a.steps, a.state, a.reason
	if want != "" && (p.State == wire.InSync || p.State == wire.PendingReboot) {
		p.Reason = join(p.Reason, strayInterrupts(s, cpus))
	}
	if p.State != wire.InSync || len(p.Steps) > 0 || want == "" {
		return p
	}
	if online, ok := root.CPUs(cpuDir + "/online"); !isolated.Equal(cpus) && !(ok && cpus.Intersect(online).SubsetOf(isolated)) {
		p.State, p.Reason = wire.Failed, "the kernel was told to isolate these CPUs and did not; see the kernel log for isolcpus"
	}
	return p
}

// irqbalanceFiles is where distributions keep irqbalance's environment.
var irqbalanceFiles = []string{"/etc/default/irqbalance", "/etc/sysconfig/irqbalance"}

// strayInterrupts says that irqbalance will put interrupts on isolated CPUs. By
// itself it leaves those alone, from 1.1 on; once it is told which CPUs to leave
// alone it leaves no others (irqbalance(1), IRQBALANCE_BANNED_CPULIST and, as a
// mask, IRQBALANCE_BANNED_CPUS).
func strayInterrupts(s Scene, cpus wire.CPUSet) string {
	for _, file := range irqbalanceFiles {
		data, err := s.Machine.ReadHead(file, 64<<10)
		if err != nil {
			continue
		}
		values := host.Assignments(string(data))
		banned, told := wire.CPUSet{}, false
		if mask := values["IRQBALANCE_BANNED_CPUS"]; mask != "" {
			banned, told = cpuMask(mask), true
		}
		if list := values["IRQBALANCE_BANNED_CPULIST"]; list != "" { // goes before the mask
			banned, _ = wire.ParseCPUList(list)
			told = true
		}
		if left := cpus.Minus(banned); told && !left.IsEmpty() && s.Machine.UnitActive(context.Background(), "irqbalance.service") {
			return fmt.Sprintf("irqbalance is told in %s which CPUs to leave alone, and CPU %s is none of them: it will put interrupts there; "+
				"add it, or take the setting out, so that it leaves all isolated CPUs alone", file, left)
		}
	}
	return ""
}

// cpuMask reads a hexadecimal mask of CPUs, in groups of 32 bits from the
// highest on: "ff,00000000".
func cpuMask(text string) wire.CPUSet {
	var cpus []int
	groups := strings.Split(strings.TrimPrefix(strings.ToLower(text), "0x"), ",")
	slices.Reverse(groups)
	for i, group := range groups {
		for j := range len(group) {
			digit, err := strconv.ParseUint(group[len(group)-1-j:len(group)-j], 16, 4)
			if err != nil {
				return wire.CPUSet{}
			}
			for bit := range 4 {
				if digit&(1<<bit) != 0 {
					cpus = append(cpus, 32*i+4*j+bit)
				}
			}
		}
	}
	return wire.NewCPUSet(cpus...)
}

// cannotIsolate says why CPUs must stay with the scheduler.
func cannotIsolate(root *host.Root, cpus wire.CPUSet) string {
	present, ok := root.CPUs(cpuDir + "/present")
	if !ok {
		return "the kernel does not say which CPUs there are"
	}
	if extra := cpus.Minus(present); !extra.IsEmpty() {
		return fmt.Sprintf("this machine has no CPU %s, only %s", extra, present)
	}
	online, ok := root.CPUs(cpuDir + "/online")
	if !ok {
		online = present
	}
	left := online.Minus(cpus)
	if left.Count() < minHousekeeping {
		return fmt.Sprintf("%d of the %d CPUs would be left for the host, and it needs %d", left.Count(), online.Count(), minHousekeeping)
	}
	for _, c := range cpus.CPUs() {
		siblings, ok := root.CPUs(fmt.Sprintf("%s/cpu%d/topology/thread_siblings_list", cpuDir, c))
		if half := siblings.Intersect(online).Minus(cpus); ok && !half.IsEmpty() {
			return fmt.Sprintf("CPU %d shares a core with CPU %s: isolate both or neither", c, half)
		}
	}
	for _, node := range memoryNodes(root) {
		list, _ := root.CPUs(nodesDir + "/node" + strconv.Itoa(node) + "/cpulist")
		if list = list.Intersect(online); !list.IsEmpty() && list.Minus(cpus).IsEmpty() {
			return fmt.Sprintf("no CPU of NUMA node %d would be left for the host", node)
		}
	}
	return ""
}

func (cpu) Remove(s Scene) []Step {
	steps := append(undoKernel(s, func(string) bool { return false }), undoPreferences(s)...)
	return append(steps, planArguments(s, string(wire.UnitCPU), nil).steps...)
}
