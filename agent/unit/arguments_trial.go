package unit

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// A trial boots new kernel arguments once. The entry that boots by default is
// copied, with the arguments of all units that wait for a boot, to a file that
// grub.cfg reads at its end, and GRUB is told to boot the copy next. GRUB forgets
// that before it starts a kernel. So a machine that does not come up with the
// arguments comes up without them at the boot after: until the agent is up and
// confirms, nothing is written that lasts.
//
// grub.cfg itself is not touched by a trial, and a new kernel that is installed
// meanwhile changes nothing: the copy follows the default entry at the next
// comparison, and if its kernel is gone by then, GRUB falls back to its first entry.

// trialID is what GRUB knows the trial's entry by.
const trialID = "better-compute-trial"

// cannotTry says why new arguments cannot be booted just once on this machine.
func (c change) cannotTry() string {
	switch c.Machine.BootLoader() {
	case host.LoaderGRUBDebian:
	case host.LoaderGRUBBLS:
		// A copy of an entry has the kernel of the entry, by which grubby finds what
		// to change, and where no default is saved GRUB would take it for the newest.
		return "with boot loader entries, GRUB has no entry that would boot just once"
	default:
		return "the agent knows no entry of this boot loader that would boot just once"
	}
	if !c.Machine.CanRun("grub-editenv") {
		return "grub-editenv cannot be run here"
	}
	if err := c.Machine.GRUBTries(); err != nil {
		return err.Error()
	}
	if _, err := c.Machine.GRUBDefault(); err != nil {
		return err.Error()
	}
	all := inOrder(c.Scene, c.unit, c.tokens, everything)
	if i := slices.IndexFunc(all, func(t string) bool { return !plainToken.MatchString(t) }); i >= 0 {
		return fmt.Sprintf("%s would have to be quoted in GRUB's file", all[i])
	}
	return ""
}

// plainToken is what a GRUB script takes as it stands.
var plainToken = regexp.MustCompile(`^[A-Za-z0-9_.,:=/+@%-]+$`)

// onTrial is the plan of arguments that are to be tried, or are being tried. It
// reports false for those that are to be written for good, or to be given up.
func (c change) onTrial() (arguments, bool) {
	running := host.HasArguments(c.running, c.tokens)
	trial := c.kept.Trial
	if !c.same {
		trial = ""
	}
	switch {
	case len(c.tokens) == 0:
		return arguments{}, false
	case running && trial == host.TrialWaits:
		return c.confirm()
	case trial == host.TrialArmed && c.kept.BootID != c.BootID, trial == host.TrialFailed:
		if running {
			return c.confirm()
		}
		return c.failed(), true
	case trial == host.TrialArmed, trial == host.TrialWaits:
	case trial == host.TrialPassed, c.same, running, len(without(c.tokens, c.kept.Lasting())) == 0:
		// They have booted here before, or are written already.
		return arguments{}, false
	}
	if c.cannotTry() != "" {
		return arguments{}, false
	}
	if _, reason, state := c.loaderSteps(); reason != "" { // it could not be confirmed
		return arguments{state: state, reason: reason}, true
	}
	return c.arm(), true
}

// confirm writes arguments for good with which the machine has come up. It is
// for the running agent to say so: what a machine does early at boot proves little.
func (c change) confirm() (arguments, bool) {
	if !c.Up {
		return arguments{state: wire.InSync, reason: strings.Join(c.tokens, " ") + " booted on trial; they are written for good once the agent is up"}, true
	}
	c.kept.Trial, c.kept.Old, c.kept.Standing, c.kept.Written = host.TrialPassed, c.old, nil, false
	out := c.forGood()
	passed := host.KeepArguments{Tokens: c.tokens, Old: c.old, Trial: host.TrialPassed}
	out.steps = append([]Step{note(passed)}, out.steps...)
	for i := range out.steps {
		out.steps[i].Again = true // nobody undid anything
	}
	return out, true
}

// failed says that the machine was booted and came up without the arguments.
// They are not tried again.
func (c change) failed() arguments {
	out := arguments{state: wire.Failed, steps: c.disarm()}
	boot, with := c.BootID, c.kept.With
	if c.kept.Trial == host.TrialFailed {
		boot = c.kept.BootID
	} else {
		with = c.triedTogether()
		out.steps = append(out.steps, note(host.KeepArguments{
			Tokens: c.tokens, Old: c.kept.Old, Trial: host.TrialFailed, Standing: c.kept.Standing, With: with,
		}))
	}
	out.reason = "the machine did not come up with " + strings.Join(c.tokens, " ")
	if len(with) > 0 {
		out.reason += " (tried together with " + strings.Join(with, " ") + ")"
	}
	out.reason += " and was started again with the arguments of before, as boot " + boot +
		"; nothing was written for good. See its console and journalctl --list-boots; to try once more, take the unit out of the policy and in again"
	return out
}

// triedTogether are the arguments of other units that were in the same trial;
// those looked at before this one are noted as failed already.
func (c change) triedTogether() []string {
	var all []string
	for _, kind := range wire.UnitKinds {
		a := c.Arguments[string(kind)]
		if string(kind) != c.unit && (a.Trial == host.TrialArmed && a.BootID == c.kept.BootID || a.Trial == host.TrialFailed && a.BootID == c.BootID) {
			all = append(all, a.Tokens...)
		}
	}
	return all
}

// arm has the next boot try the arguments.
func (c change) arm() arguments {
	out := arguments{state: wire.PendingReboot}
	keep := host.KeepArguments{Tokens: c.tokens, Old: c.old, Trial: host.TrialArmed, Standing: c.kept.Lasting()}
	if c.same {
		keep.Old, keep.Standing = c.kept.Old, c.kept.Standing
	}
	if next := c.Machine.GRUBNext(); next != "" && next != trialID {
		keep.Trial = host.TrialWaits
		out.reason = fmt.Sprintf("GRUB was told by someone else to boot %q next; the boot after that tries %s", next, strings.Join(c.tokens, " "))
	} else {
		out.reason = "the next boot tries " + strings.Join(c.tokens, " ") +
			", for good once the agent is up; if it does not get there, the boot after goes without"
	}
	if !c.noted(keep) {
		if _, others := c.armed(nil); !others && keep.Trial == host.TrialArmed {
			out.steps = append(out.steps, Step{Change: host.CheckWritable{Dir: path.Dir(grubDropIn)}, Again: true})
		}
		out.steps = append(out.steps, note(keep))
	}
	if keep.Trial == host.TrialArmed {
		out.steps = append(out.steps, c.trialSteps(c.tokens)...)
	}
	return out
}

// armed are the arguments that the next boot is to have if it is the trial's,
// with those of this unit, and whether any of them is tried.
func (c change) armed(tokens []string) (all []string, any bool) {
	any = len(tokens) > 0
	lasting := c.kept.Lasting()
	if any || len(c.tokens) == 0 {
		lasting = tokens
	}
	all = inOrder(c.Scene, c.unit, lasting, func(a host.Arguments) []string {
		if a.Trial == host.TrialArmed && a.BootID == c.BootID {
			any = true
			return a.Tokens
		}
		return a.Lasting()
	})
	return all, any
}

// disarm takes the arguments of this unit out of the trial, and takes the trial
// away if no unit is left in it.
func (c change) disarm() []Step {
	if c.Machine.BootLoader() != host.LoaderGRUBDebian {
		return nil
	}
	if _, any := c.armed(nil); any {
		if c.kept.Trial == host.TrialArmed && c.kept.BootID == c.BootID {
			return c.trialSteps(nil)
		}
		return nil // it is of others, who look after it
	}
	var steps []Step
	if c.Machine.GRUBNext() == trialID && c.Machine.CanRun("grub-editenv") {
		steps = append(steps, Step{Change: host.Command("grub-editenv", host.GRUBEnvironment, "unset", "next_entry"), Again: true})
	}
	if now, err := c.Machine.ReadManaged(host.GRUBCustom); err == nil && now.Exists && now.Ours {
		steps = append(steps, Step{Change: host.RemoveManaged{Path: host.GRUBCustom}, Again: true})
	}
	return steps
}

// trialSteps have the next boot be the trial's, with the arguments of this unit
// and of all others that are tried.
func (c change) trialSteps(tokens []string) []Step {
	entry, err := c.Machine.GRUBDefault()
	if err != nil {
		return nil // cannotTry says so
	}
	all, _ := c.armed(tokens)
	content := trialFile(entry, keptByAll(c.Scene), all)
	now, err := c.Machine.ReadManaged(host.GRUBCustom)
	written := err == nil && now.Content == content
	if written && c.Machine.GRUBNext() == trialID {
		return nil
	}
	steps := []Step{{Change: host.Guard{Paths: []string{host.GRUBCustom, host.GRUBEnvironment}}, Again: true}}
	if !written {
		steps = append(steps, Step{Change: host.WriteManaged{Path: host.GRUBCustom, Content: content}, Again: true, Needs: NeedsReboot, Undo: "the file is removed"})
	}
	return append(steps,
		Step{Change: host.Command("grub-editenv", host.GRUBEnvironment, "set", "next_entry="+trialID), Again: true, Needs: NeedsReboot, Undo: "GRUB boots its default entry"},
		Step{Change: host.CheckNext{ID: trialID}, Again: true})
}

// trialFile is what GRUB reads: a copy of an entry with other arguments. GRUB
// clears next_entry on disk before it shows the menu. Should it not have been
// able to, the copy boots the arguments of before, not these at every boot.
func trialFile(entry host.GRUBEntry, kept, tokens []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "if [ \"${default}\" = %q ]; then\n\tset fallback=0\nfi\n", trialID)
	fmt.Fprintf(&b, "menuentry 'Kernel arguments on trial (Better Compute)' %s $menuentry_id_option '%s' {\n", strings.Join(entry.Options, " "), trialID)
	for _, line := range entry.Body {
		text := strings.TrimSpace(line)
		command, rest, _ := strings.Cut(strings.ReplaceAll(text, "\t", " "), " ")
		switch command {
		case "savedefault", "initrdfail":
			// The one makes the entry the default. The other, of Ubuntu's images that
			// boot without an initrd, has GRUB boot it once more if it did not come up.
		case "linux", "linuxefi":
			words := strings.Fields(rest)
			fmt.Fprintf(&b, "\tload_env next_entry\n\tif [ \"${next_entry}\" = %q ]; then\n\t\t%s\n\telse\n\t\t%s %s\n\tfi\n",
				trialID, text, command, strings.Join(append(without(words, kept), tokens...), " "))
		default:
			b.WriteString("\t" + text + "\n")
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// Disarm takes a trial of kernel arguments away that nobody will be there to
// confirm, for the removal of the agent, and answers the units that were in it.
// An agent that comes back arms it again.
func (r *Runner) Disarm(ctx context.Context) ([]wire.UnitKind, error) {
	var tried []wire.UnitKind
	for _, name := range r.Ledger.Units(host.Priors) {
		var p host.Prior
		if _, err := r.Ledger.Load(host.Priors, name, &p); err != nil {
			return nil, err
		}
		if p.Arguments != nil && p.Arguments.Trial == host.TrialArmed {
			tried = append(tried, wire.UnitKind(name))
		}
	}
	if len(tried) == 0 {
		return nil, nil
	}
	unlock, err := r.Ledger.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, kind := range tried {
		j, err := host.OpenJournal(r.Ledger, string(kind), 0, r.Machine.BootID(), r.Now)
		if err != nil {
			return nil, err
		}
		a := j.Prior().Arguments
		if a == nil || a.Trial != host.TrialArmed {
			continue
		}
		c := change{Scene: Scene{Machine: r.Machine}} // of no unit: nothing stays armed
		steps := append(c.disarm(), note(host.KeepArguments{Tokens: a.Tokens, Old: a.Old, Trial: host.TrialWaits, Standing: a.Standing}))
		if err := host.Apply(ctx, r.Machine, j, changes(steps)); err != nil {
			return nil, err
		}
	}
	return tried, nil
}
