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
// below, one way for each boot loader. An argument is added to what boots
// normally and never to rescue entries; nothing that others set is changed; and
// what was written is read back from the entries that will boot.

// arguments is how the kernel arguments of a unit stand, and what is left to be
// done for them.
type arguments struct {
	steps  []Step
	state  wire.UnitState // InSync, PendingReboot, Failed, Unsupported or Conflict
	reason string
}

const (
	// grubDropIn sorts behind what cloud images and the installer put there, and
	// appends to what they set ("Simple configuration handling", GRUB manual;
	// Debian's grub-mkconfig sources the folder).
	grubDropIn = "/etc/default/grub.d/zz-better-compute.cfg"
	// kernelCommandLine is what new kernels are installed with (kernel-install(8)).
	kernelCommandLine = "/etc/kernel/cmdline"
	tunedCommandLine  = "/etc/tuned/bootcmdline"
	// maxCommandLine is COMMAND_LINE_SIZE of x86-64, the smallest of the
	// architectures that are supported. The kernel cuts off what is longer.
	maxCommandLine = 2048
	bootFree       = 4 << 20 // bytes that /boot needs for a new grub.cfg or entries
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
		return stand(running, nil)
	}
	if reason := unsupported(s); reason != "" {
		switch {
		case len(tokens) == 0:
			return arguments{state: wire.InSync, steps: note(kept, nil, nil)}
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
	old := without(append(slices.Clone(kept.Old), kept.Tokens...), inPlace(s, unit, tokens))
	same := known && slices.Equal(kept.Tokens, tokens)
	lost := same && kept.BootID != s.BootID && len(tokens) > 0 && !host.HasArguments(running, tokens)
	if lost {
		return arguments{state: wire.Failed, reason: "the machine was booted since and came up without " + strings.Join(tokens, " ") +
			"; see which entry it booted, and take the unit out of the policy and in again to have them written once more"}
	}
	steps, reason, state := loaderSteps(s, unit, tokens, old, entries)
	if reason != "" {
		return arguments{state: state, reason: reason}
	}
	out := stand(running, tokens)
	if len(steps) > 0 {
		if free, err := s.Machine.FreeBytes("/boot"); err == nil && free < bootFree {
			return arguments{state: wire.Failed, reason: fmt.Sprintf("/boot has %d KiB left, and a change of kernel arguments needs %d: remove an old kernel", free>>10, bootFree>>10)}
		}
		out.steps = append(note(kept, tokens, old), steps...)
		return out
	}
	// What boots next is as wanted. Tokens of before are remembered until no
	// running kernel has them.
	left := slices.DeleteFunc(slices.Clone(old), func(t string) bool { return !slices.Contains(running, t) })
	if !same || len(left) < len(kept.Old) {
		out.steps = note(kept, tokens, left)
	}
	if len(left) > 0 && out.state == wire.InSync {
		out.state, out.reason = wire.PendingReboot, "the running kernel still has "+strings.Join(left, " ")
	}
	return out
}

// note is the step that remembers tokens, unless they are remembered already.
func note(kept host.Arguments, tokens, old []string) []Step {
	if slices.Equal(kept.Tokens, tokens) && slices.Equal(kept.Old, old) && len(tokens)+len(old) > 0 {
		return nil
	}
	return []Step{{Change: host.KeepArguments{Tokens: tokens, Old: old}}}
}

// stand tells where arguments are that will boot.
func stand(running, tokens []string) arguments {
	if host.HasArguments(running, tokens) {
		return arguments{state: wire.InSync}
	}
	return arguments{state: wire.PendingReboot, reason: "the next boot brings " + strings.Join(tokens, " ")}
}

// keptByAll lists the arguments that units keep or kept, in any order.
func keptByAll(s Scene) []string {
	var all []string
	for _, a := range s.Arguments {
		all = append(append(all, a.Tokens...), a.Old...)
	}
	return all
}

// inPlace lists the arguments that units keep, those of one unit replaced, in
// the order of application: pairs such as hugepagesz and hugepages only work in
// order.
func inPlace(s Scene, unit string, tokens []string) []string {
	var all []string
	for _, kind := range wire.UnitKinds {
		if name := string(kind); name == unit {
			all = append(all, tokens...)
		} else {
			all = append(all, s.Arguments[name].Tokens...)
		}
	}
	return all
}

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

// loaderSteps are the steps after which what boots has tokens, and has no longer
// what is old. A reason, with its state, says why there can be none.
func loaderSteps(s Scene, unit string, tokens, old []string, entries []host.BootEntry) ([]Step, string, wire.UnitState) {
	if len(entries) == 0 {
		return nil, "the entries of the boot loader are not where they are looked for, so that a change could not be read back", wire.Unsupported
	}
	switch s.Machine.BootLoader() {
	case host.LoaderGRUBDebian:
		return grubSteps(s, unit, tokens, old, entries)
	case host.LoaderGRUBBLS:
		return grubbySteps(s, tokens, old, entries), "", ""
	default:
		return kernelInstallSteps(s, tokens, old, entries), "", ""
	}
}

// lacks reports whether an entry does not have the tokens, or still has old ones.
func lacks(e host.BootEntry, tokens, old []string) bool {
	return !host.HasArguments(e.Arguments, tokens) || slices.ContainsFunc(old, func(t string) bool { return slices.Contains(e.Arguments, t) })
}

// grubSteps appends to GRUB_CMDLINE_LINUX_DEFAULT, which recovery entries do not
// use, and has Debian's tool make grub.cfg, which checks it before it replaces
// the old one.
func grubSteps(s Scene, unit string, tokens, old []string, entries []host.BootEntry) ([]Step, string, wire.UnitState) {
	all := inPlace(s, unit, tokens)
	content := ""
	if len(all) > 0 {
		content = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT " + strings.Join(all, " ") + "\"\n"
	}
	now, err := s.Machine.ReadManaged(grubDropIn)
	if err != nil {
		return nil, err.Error(), wire.Failed
	}
	var steps []Step
	switch {
	case now.Exists && !now.Ours:
		return nil, grubDropIn + " was changed by someone else; move it away to have it written again", wire.Conflict
	case content == "" && now.Exists:
		steps = append(steps, Step{Change: host.RemoveManaged{Path: grubDropIn}, Needs: NeedsReboot})
	case content != "" && now.Content != content:
		steps = append(steps, Step{
			Change: host.WriteManaged{Path: grubDropIn, Content: content}, Needs: NeedsReboot,
			Undo: "the file is removed, or written without these arguments, and update-grub run",
		})
	}
	stale := slices.ContainsFunc(entries, func(e host.BootEntry) bool { return lacks(e, tokens, old) })
	if len(steps) == 0 && !stale {
		return nil, "", ""
	}
	return append(steps, Step{Change: host.Backup{Path: host.GRUBConfig}}, Step{Change: host.Command("update-grub"), Needs: NeedsReboot}), "", ""
}

// grubbySteps changes one entry at a time: for all at once grubby would take the
// rescue entry too. Later kernels get theirs from /etc/kernel/cmdline, where
// that exists.
func grubbySteps(s Scene, tokens, old []string, entries []host.BootEntry) []Step {
	steps := commandLineSteps(s, tokens, old, nil)
	for _, e := range entries {
		if !lacks(e, tokens, old) {
			continue
		}
		argv := []string{"grubby", "--update-kernel=" + bootPath(e.Kernel)}
		if len(old) > 0 {
			argv = append(argv, "--remove-args="+strings.Join(old, " "))
		}
		if len(tokens) > 0 {
			argv = append(argv, "--args="+strings.Join(tokens, " "))
		}
		steps = append(steps, Step{Change: host.Backup{Path: e.File}},
			Step{Change: host.Command(argv...), Needs: NeedsReboot, Undo: "the arguments are taken out of the entry"})
	}
	return steps
}

// bootPath is the path of a kernel for grubby: entries name it from the top of
// the file system that holds it, which is /boot on most machines.
func bootPath(kernel string) string {
	if strings.HasPrefix(kernel, "/boot/") {
		return kernel
	}
	return path.Join("/boot", kernel)
}

// kernelInstallSteps writes the whole line that kernels are installed with, and
// installs the entry of each kernel again.
func kernelInstallSteps(s Scene, tokens, old []string, entries []host.BootEntry) []Step {
	// Without the file kernel-install would take the running kernel's line, so
	// it starts from that of an entry.
	seed := without(entries[0].Arguments, keptByAll(s))
	steps := commandLineSteps(s, tokens, old, seed)
	for _, e := range entries {
		if !lacks(e, tokens, old) || e.Version == "" {
			continue
		}
		image := "/lib/modules/" + e.Version + "/vmlinuz"
		if !s.Machine.Exists(image) {
			image = "/boot/vmlinuz-" + e.Version
		}
		steps = append(steps, Step{Change: host.Backup{Path: e.File}},
			Step{Change: host.Command("kernel-install", "add", e.Version, image), Needs: NeedsReboot, Undo: "the entry is installed again without the arguments"})
	}
	return steps
}

// commandLineSteps edits /etc/kernel/cmdline, which others own too: only tokens
// of the unit come and go. Without the file it is made from a seed, if there is
// one.
func commandLineSteps(s Scene, tokens, old, seed []string) []Step {
	data, err := s.Machine.ReadFile(kernelCommandLine)
	if err != nil && seed == nil {
		return nil
	}
	line := seed
	if err == nil {
		line = strings.Fields(string(data))
	}
	next := without(line, old)
	if !host.HasArguments(next, tokens) {
		next = append(without(next, tokens), tokens...)
	}
	text := strings.Join(next, " ") + "\n"
	if err == nil && slices.Equal(line, next) {
		return nil
	}
	return []Step{{Change: host.Edit{Path: kernelCommandLine, Old: string(data), New: text}, Needs: NeedsReboot, Undo: "the arguments are taken out of the line"}}
}
