package unit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// Drivers that choose frequencies by themselves (intel_pstate and amd-pstate-epp
// in active mode) also turn the energy-performance preference of a policy to
// performance when that becomes its governor, and refuse another as long as it
// is (EBUSY; "intel_pstate CPU Performance Scaling Driver", kernel admin guide).
// When the governor goes, not all of them bring the preference back. So it is
// noted beside the governor, and put back after it.

const (
	performance    = "performance"
	preferenceNote = "energy_performance_preference" // the preferences from before, by policy
)

func preferencePath(policy int) string {
	return fmt.Sprintf("%s/cpufreq/policy%d/energy_performance_preference", cpuDir, policy)
}

// preferences are the numbers of policies by their preference.
type preferences map[string]wire.CPUSet

// String is the note: "balance_performance 0-7; power 8".
func (p preferences) String() string {
	var parts []string
	for _, value := range sortedKeys(p) {
		parts = append(parts, value+" "+p[value].String())
	}
	return strings.Join(parts, "; ")
}

func parsePreferences(note string) preferences {
	p := preferences{}
	for part := range strings.SplitSeq(note, "; ") {
		value, list, _ := strings.Cut(part, " ")
		if set, err := wire.ParseCPUList(list); err == nil && value != "" {
			p[value] = set
		}
	}
	return p
}

// setGovernor is a SetEach of governors that notes the preferences which go with
// the governor.
type setGovernor struct{ host.SetEach }

// Apply notes the preferences before the first governor is written.
func (c setGovernor) Apply(ctx context.Context, m *host.Machine, j *host.Journal) error {
	if c.Value != performance {
		return c.SetEach.Apply(ctx, m, j)
	}
	now := map[string][]int{}
	for _, q := range seePolicies(m.Root) {
		if q.preference != "" && q.governor != performance && slices.Contains(c.Paths, q.path()) {
			now[q.preference] = append(now[q.preference], number(q.dir))
		}
	}
	if len(now) > 0 {
		all := preferences{}
		for value, policies := range now {
			all[value] = wire.NewCPUSet(policies...)
		}
		if err := j.Before(preferenceNote, all.String(), false, performance); err != nil {
			return err
		}
	}
	return c.SetEach.Apply(ctx, m, j)
}

// undoPreferences puts back the preferences from before, if any are noted.
func undoPreferences(s Scene) []Step {
	v, noted := s.Prior.Values[preferenceNote]
	if !noted {
		return nil
	}
	return []Step{{Change: restorePreferences{v.Before}}}
}

// restorePreferences puts preferences back and forgets them.
type restorePreferences struct{ before string }

func (c restorePreferences) String() string {
	return "restore energy_performance_preference = " + c.before
}

// Apply leaves alone what someone else has set since: a preference that is no
// longer performance, and a policy whose governor is.
func (c restorePreferences) Apply(_ context.Context, m *host.Machine, j *host.Journal) error {
	before := parsePreferences(c.before)
	j.Changed(performance, c.before)
	for _, q := range seePolicies(m.Root) {
		if q.preference != performance || q.governor == performance {
			continue
		}
		for _, value := range sortedKeys(before) {
			if id := number(q.dir); value != performance && before[value].Contains(id) {
				if err := m.WriteKernel(preferencePath(id), value); err != nil {
					return err
				}
			}
		}
	}
	return j.Forget(preferenceNote)
}
