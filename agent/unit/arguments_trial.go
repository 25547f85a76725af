package unit

import (
	"context"
	"fmt"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// A trial boots new kernel arguments once. The entry that boots by default is
// copied, with the arguments of all units that wait for a boot, and the boot loader
// is told to boot the copy next. It forgets that before it starts a kernel. So a
// machine that does not come up with the arguments comes up without them at the
// boot after: until the agent is up and confirms, nothing is written that lasts.
//
// Nothing else of the boot loader is touched by a trial, and a new kernel that is
// installed meanwhile changes nothing: the copy follows the default entry at the
// next comparison, and if its kernel is gone by then, the loader takes another.

// once is how a boot loader boots an entry one time, and never again by itself.
type once struct {
	loader     string   // for people
	id         string   // what the loader knows the trial's entry by
	file       string   // with the entry; the agent's own
	memory     string   // a file in which the loader keeps what to boot next; "": the firmware does
	lasts      string   // the folder in which arguments are written for good
	set, unset []string // programs that have the trial's entry boot next, or no longer

	tries func() error // why it cannot be done on this machine, nil if it can
	// copy is the entry that boots by default, without some arguments and with others.
	copy func(without, with []string) (string, error)
}

// once reports false for a boot loader that has no such way.
func (c change) once() (once, bool) {
	switch c.Machine.BootLoader() {
	case host.LoaderGRUBDebian:
		return c.grubOnce(), true
	case host.LoaderSystemdBoot:
		return c.loaderOnce(), true
	}
	return once{}, false
}

// cannotTry says why new arguments cannot be booted just once on this machine.
func (c change) cannotTry() string {
	o, ok := c.once()
	switch {
	case ok:
	case c.Machine.BootLoader() == host.LoaderGRUBBLS:
		// A copy of an entry has the kernel of the entry, by which grubby finds what
		// to change, and where no default is saved GRUB would take it for the newest.
		return "with boot loader entries, GRUB has no entry that would boot just once"
	default:
		return "the agent knows no entry of this boot loader that would boot just once"
	}
	if !c.Machine.CanRun(o.set[0]) {
		return o.set[0] + " cannot be run here"
	}
	if err := o.tries(); err != nil {
		return err.Error()
	}
	if _, err := o.copy(nil, inOrder(c.Scene, c.unit, c.tokens, everything)); err != nil {
		return err.Error()
	}
	return ""
}

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

// arm has the next boot try the arguments. They are noted first as what is to be
// tried, and as armed when the boot loader was seen to know: what was never armed
// cannot have failed.
func (c change) arm() arguments {
	o, _ := c.once()
	out := arguments{state: wire.PendingReboot}
	keep := host.KeepArguments{Tokens: c.tokens, Old: c.old, Trial: host.TrialWaits, Standing: c.kept.Lasting()}
	if c.same {
		keep.Old, keep.Standing = c.kept.Old, c.kept.Standing
	}
	if next := c.Machine.NextBoot(); next != "" && next != o.id {
		out.reason = fmt.Sprintf("%s was told by someone else to boot %q next; the boot after that tries %s", o.loader, next, strings.Join(c.tokens, " "))
		if !c.noted(keep) {
			out.steps = []Step{note(keep)}
		}
		return out
	}
	out.reason = "the next boot tries " + strings.Join(c.tokens, " ") +
		", for good once the agent is up; if it does not get there, the boot after goes without"
	if !c.isArmed() && !c.noted(keep) {
		if _, others := c.armed(nil); !others {
			out.steps = append(out.steps, Step{Change: host.CheckWritable{Dir: o.lasts}, Again: true})
		}
		out.steps = append(out.steps, note(keep))
	}
	out.steps = append(out.steps, c.trialSteps(c.tokens)...)
	return out
}

// isArmed reports whether the next boot tries what this unit wants.
func (c change) isArmed() bool {
	return c.same && c.kept.Trial == host.TrialArmed && c.kept.BootID == c.BootID
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
	o, ok := c.once()
	if !ok {
		return nil
	}
	if _, any := c.armed(nil); any {
		if c.kept.Trial == host.TrialArmed && c.kept.BootID == c.BootID {
			return c.trialSteps(nil)
		}
		return nil // it is of others, who look after it
	}
	var steps []Step
	if c.Machine.NextBoot() == o.id && c.Machine.CanRun(o.unset[0]) {
		steps = append(steps, Step{Change: host.Command(o.unset...), Again: true})
	}
	if now, err := c.Machine.ReadManaged(o.file); err == nil && now.Exists && now.Ours {
		steps = append(steps, Step{Change: host.RemoveManaged{Path: o.file}, Again: true})
	}
	return steps
}

// trialSteps have the next boot be the trial's, with the arguments of this unit
// and of all others that are tried.
func (c change) trialSteps(tokens []string) []Step {
	o, _ := c.once()
	all, _ := c.armed(tokens)
	content, err := o.copy(keptByAll(c.Scene), all)
	if err != nil {
		return nil // cannotTry says so
	}
	now, err := c.Machine.ReadManaged(o.file)
	written, told := err == nil && now.Content == content, c.Machine.NextBoot() == o.id
	check := Step{Change: host.CheckNext{ID: o.id, Arms: len(tokens) > 0}, Again: true}
	switch {
	case written && told && (c.isArmed() || len(tokens) == 0):
		return nil
	case written && told:
		return []Step{check} // a process died before it saw that
	}
	guard := host.Guard{Paths: []string{o.file}}
	if o.memory != "" {
		guard.Paths = append(guard.Paths, o.memory)
	}
	steps := []Step{{Change: guard, Again: true}}
	if !written {
		steps = append(steps, Step{Change: host.WriteManaged{Path: o.file, Content: content}, Again: true, Needs: NeedsReboot, Undo: "the file is removed"})
	}
	return append(steps,
		Step{Change: host.Command(o.set...), Again: true, Needs: NeedsReboot, Undo: o.loader + " boots its default entry"}, check)
}

// Disarm takes a trial of kernel arguments away that nobody will be there to
// confirm, for the removal of the agent, and answers the units that were in it.
// An agent that comes back arms it again.
func (r *Runner) Disarm(ctx context.Context) ([]wire.UnitKind, error) {
	kept := r.Ledger.Units(host.Priors)
	if len(kept) == 0 {
		return nil, nil
	}
	unlock, err := r.Ledger.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := change{Scene: Scene{Machine: r.Machine}} // of no unit: nothing stays armed
	var tried []wire.UnitKind
	for _, name := range kept {
		j, err := host.OpenJournal(r.Ledger, name, 0, r.Machine.BootID(), r.Now)
		if err != nil {
			return tried, err
		}
		a := j.Prior().Arguments
		if a == nil || a.Trial != host.TrialArmed && a.Trial != host.TrialWaits {
			continue
		}
		// One that waits may be armed all the same: a process died before it saw that.
		steps := c.disarm()
		if a.Trial == host.TrialArmed {
			steps = append(steps, note(host.KeepArguments{Tokens: a.Tokens, Old: a.Old, Trial: host.TrialWaits, Standing: a.Standing}))
		}
		if len(steps) == 0 {
			continue
		}
		if err := host.Apply(ctx, r.Machine, j, changes(steps)); err != nil {
			return tried, err
		}
		tried = append(tried, wire.UnitKind(name))
	}
	return tried, nil
}
