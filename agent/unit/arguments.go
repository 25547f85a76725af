package unit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// Kernel arguments have one owner, whichever unit asks for them: the functions
// below, one way for each boot loader (arguments_grub.go, arguments_entries.go).
// An argument is added to what boots normally and never to rescue entries;
// nothing that others set is changed; and what was written is read back from the
// entries that will boot. Where the boot loader can, new ones boot once before
// they are written for good (arguments_trial.go).

// arguments is how the kernel arguments of a unit stand, and what is left to be
// done for them.
type arguments struct {
	steps  []Step
	state  wire.UnitState // InSync, PendingReboot, Failed, Unsupported or Conflict
	reason string
}

const (
	tunedCommandLine = "/etc/tuned/bootcmdline"
	// maxCommandLine is COMMAND_LINE_SIZE of x86-64, the smallest of the
	// architectures that are supported. The kernel cuts off what is longer.
	maxCommandLine = 2048
	bootFree       = 4 << 20 // bytes that a new grub.cfg or new entries need
)

// planArguments compares the kernel arguments that a unit wants with what will
// boot and what has booted. No tokens give up those that the unit keeps.
func planArguments(s Scene, unit string, tokens []string) arguments {
	kept, known := s.Arguments[unit]
	if len(tokens) == 0 && !known {
		return arguments{state: wire.InSync}
	}
	entries := s.Machine.BootEntries()
	ours := keptByAll(s)
	running := words(s, "/proc/cmdline")
	tokens = notByOthers(tokens, entries, running, ours, kept)
	if len(tokens) == 0 && !known {
		return arguments{state: wire.InSync}
	}
	if reason := unsupported(s); reason != "" {
		switch {
		case len(tokens) == 0:
			return arguments{state: wire.InSync, steps: []Step{note(host.KeepArguments{})}}
		case host.HasArguments(running, tokens):
			return arguments{state: wire.InSync}
		}
		return arguments{state: wire.Unsupported, reason: reason + "; to have them, add: " + strings.Join(tokens, " ")}
	}
	if reason := taken(s, tokens, entries, running, ours); reason != "" {
		return arguments{state: wire.Conflict, reason: reason}
	}
	for _, e := range entries {
		if n := len(strings.Join(append(slices.Clone(e.Arguments), tokens...), " ")); n >= maxCommandLine {
			return arguments{state: wire.Failed, reason: fmt.Sprintf("%s would have %d bytes of kernel arguments, and the kernel reads %d", e.File, n, maxCommandLine-1)}
		}
	}
	c := change{Scene: s, unit: unit, tokens: tokens, kept: kept, known: known, entries: entries, running: running}
	c.same = known && slices.Equal(kept.Tokens, tokens)
	c.old = firsts(without(slices.Concat(kept.Old, kept.Standing, kept.Tokens), inOrder(s, unit, tokens, everything)))
	out, decided := c.onTrial()
	if !decided {
		out = c.forGood()
	}
	if slices.ContainsFunc(out.steps, func(step Step) bool { return step.Needs == NeedsReboot }) {
		boot := bootFolder(entries)
		if free, err := s.Machine.FreeBytes(boot); err == nil && free < bootFree {
			out.steps = slices.DeleteFunc(out.steps, func(step Step) bool {
				keep, ok := step.Change.(host.KeepArguments) // that a trial was passed stays true
				return !ok || keep.Trial != host.TrialPassed
			})
			out.state = wire.Failed
			out.reason = fmt.Sprintf("%s has %d KiB left, and a change of kernel arguments needs %d: remove an old kernel", boot, free>>10, bootFree>>10)
		}
	}
	return out
}

// bootFolder is the file system that the boot loader's entries are on.
func bootFolder(entries []host.BootEntry) string {
	if len(entries) > 0 {
		if dir, ok := strings.CutSuffix(path.Dir(entries[0].File), "/loader/entries"); ok {
			return dir
		}
	}
	return "/boot"
}

// change is a comparison of what one unit wants with a machine whose kernel
// arguments can be kept.
type change struct {
	Scene
	unit        string
	tokens, old []string // wanted, and those of before that nobody wants any more
	kept        host.Arguments
	known, same bool // the unit keeps arguments; these
	entries     []host.BootEntry
	running     []string
}

// forGood has the boot entries hold what is wanted.
func (c change) forGood() arguments {
	running := host.HasArguments(c.running, c.tokens)
	stale := slices.ContainsFunc(c.entries, func(e host.BootEntry) bool { return e.Lacks(c.tokens, c.old) })
	if c.same && len(c.tokens) > 0 && !running && c.kept.BootID != c.BootID && (c.kept.Written || !stale) {
		return arguments{state: wire.Failed, reason: "the machine was booted since and came up without " + strings.Join(c.tokens, " ") +
			"; see which entry it booted, and take the unit out of the policy and in again to have them written once more"}
	}
	trial := c.kept.Trial
	if trial != host.TrialPassed || !c.same {
		trial = ""
	}
	steps, reason, state := c.loaderSteps()
	if reason != "" {
		return arguments{state: state, reason: reason}
	}
	out := arguments{state: wire.InSync}
	if !running {
		out = arguments{state: wire.PendingReboot, reason: "the next boot brings " + strings.Join(c.tokens, " ")}
		if trial == "" {
			out.reason += "; should the machine not come up with them, they have to be taken out at its console"
			if why := c.cannotTry(); why != "" {
				out.reason += ": " + why
			}
		}
	}
	out.steps = c.disarm()
	if len(steps) > 0 {
		if keep := (host.KeepArguments{Tokens: c.tokens, Old: c.old, Trial: trial}); !c.noted(keep) {
			out.steps = append(out.steps, note(keep))
		}
		out.steps = append(out.steps, steps...)
		return out
	}
	// What boots next is as wanted. Tokens of before are remembered until no
	// running kernel has them.
	left := slices.DeleteFunc(slices.Clone(c.old), func(t string) bool { return !slices.Contains(c.running, t) })
	if keep := (host.KeepArguments{Tokens: c.tokens, Old: left, Trial: trial, Written: len(c.tokens) > 0}); !c.noted(keep) {
		out.steps = append(out.steps, note(keep))
	}
	if len(left) > 0 && out.state == wire.InSync {
		out.state, out.reason = wire.PendingReboot, "the running kernel still has "+strings.Join(left, " ")
	}
	return out
}

// noted reports whether the ledger says so already.
func (c change) noted(keep host.KeepArguments) bool {
	k := c.kept
	return c.known && len(keep.Tokens)+len(keep.Old) > 0 && slices.Equal(k.Tokens, keep.Tokens) && slices.Equal(k.Old, keep.Old) &&
		k.Trial == keep.Trial && slices.Equal(k.Standing, keep.Standing) && (k.Written || !keep.Written)
}

// note is a step that changes the ledger alone: it undoes nobody's work.
func note(keep host.KeepArguments) Step { return Step{Change: keep, Again: true} }

// keptByAll lists the arguments that units keep or kept, in any order.
func keptByAll(s Scene) []string {
	var all []string
	for _, a := range s.Arguments {
		all = slices.Concat(all, a.Tokens, a.Standing, a.Old)
	}
	return all
}

// inOrder lists the arguments of all units, those of one replaced, in the order
// of application: pairs such as hugepagesz and hugepages only work in order.
func inOrder(s Scene, unit string, tokens []string, of func(host.Arguments) []string) []string {
	var all []string
	for _, kind := range wire.UnitKinds {
		if name := string(kind); name == unit {
			all = append(all, tokens...)
		} else {
			all = append(all, of(s.Arguments[name])...)
		}
	}
	return all
}

// everything is what a unit keeps, be it for good or on trial.
func everything(a host.Arguments) []string { return slices.Concat(a.Tokens, a.Standing) }

// notByOthers leaves out the tokens that someone else sets already, everywhere.
// Of a pair none is left out.
func notByOthers(tokens []string, entries []host.BootEntry, running, ours []string, kept host.Arguments) []string {
	return slices.DeleteFunc(slices.Clone(tokens), func(t string) bool {
		if paired(t) || slices.Contains(kept.Tokens, t) || slices.Contains(ours, t) {
			return false
		}
		for _, e := range entries {
			if !slices.Contains(e.Arguments, t) {
				return false
			}
		}
		return slices.Contains(running, t)
	})
}

func paired(token string) bool {
	k := key(token)
	return k == "hugepagesz" || k == "hugepages"
}

func key(token string) string {
	k, _, _ := strings.Cut(token, "=")
	return strings.ReplaceAll(k, "-", "_") // the kernel takes both for the same
}

// taken says who else sets an argument of the same name to something else. Two
// of one name are undefined for isolcpus, and positional for huge pages.
func taken(s Scene, tokens []string, entries []host.BootEntry, running, ours []string) string {
	conflict := func(args []string, where string) string {
		for _, a := range without(args, ours) {
			for _, t := range tokens {
				if key(a) == key(t) && (a != t || paired(t)) {
					return fmt.Sprintf("%s has %s, which is not the agent's, and %s is wanted; take it out there, or out of the policy", where, a, t)
				}
			}
		}
		return ""
	}
	for _, e := range entries {
		if problem := conflict(e.Arguments, e.File); problem != "" {
			return problem
		}
	}
	if data, err := s.Machine.ReadHead(tunedCommandLine, 64<<10); err == nil {
		tuned := host.Assignments(string(data))["TUNED_BOOT_CMDLINE"]
		if problem := conflict(strings.Fields(tuned), "TuneD's "+tunedCommandLine); problem != "" {
			return problem
		}
	}
	if len(entries) == 0 {
		return conflict(running, "the running kernel")
	}
	return ""
}

// without takes each of the tokens out of args.
func without(args, tokens []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(a string) bool { return slices.Contains(tokens, a) })
}

// firsts leaves out what repeats: a token on trial may stand already.
func firsts(tokens []string) []string {
	var out []string
	for _, t := range tokens {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

func words(s Scene, name string) []string {
	text, _ := s.Machine.String(name)
	return strings.Fields(text)
}

// unsupported says why kernel arguments cannot be kept on this machine.
func unsupported(s Scene) string {
	m := s.Machine
	need := func(program string) string {
		if m.CanRun(program) {
			return ""
		}
		return program + " cannot be run here, and the boot loader needs it to be told of kernel arguments"
	}
	if m.Exists("/usr/bin/kernelstub") {
		return "kernelstub keeps the kernel arguments of this machine"
	}
	switch loader := m.BootLoader(); loader {
	case host.LoaderGRUBDebian:
		return need("update-grub")
	case host.LoaderGRUBBLS:
		return need("grubby")
	case host.LoaderSystemdBoot:
		return need("kernel-install")
	case host.LoaderUKI:
		if on, _ := m.SecureBoot(); on {
			return "this machine boots a unified kernel image under Secure Boot, and only what is signed into the image counts"
		}
		return "this machine boots a unified kernel image, which carries its own kernel arguments"
	case host.LoaderRPMOSTree:
		return "rpm-ostree keeps the kernel arguments of this machine"
	}
	return "the boot loader of this machine is not known to the agent"
}

// loaderSteps are the steps after which what boots has the tokens for good, and
// has no longer what is old. A reason, with its state, says why there can be none.
func (c change) loaderSteps() ([]Step, string, wire.UnitState) {
	if len(c.entries) == 0 {
		return nil, "the entries of the boot loader are not where they are looked for, so that a change could not be read back", wire.Unsupported
	}
	switch c.Machine.BootLoader() {
	case host.LoaderGRUBDebian:
		return c.grubSteps()
	case host.LoaderGRUBBLS:
		return c.grubbySteps(), "", ""
	default:
		return c.kernelInstallSteps(), "", ""
	}
}
