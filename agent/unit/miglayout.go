package unit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// migLayout keeps the GPU instances of every GPU. Each GPU is changed by
// itself, and only while nothing uses it: no booking, no process. Instances are
// lost with every reset and reboot, so they are made again at every boot, also
// those that are booked.
type migLayout struct{ gpus *gpu.Library }

const layoutKey = "mig"

// migRetry is how soon a GPU that was found in use, or that could not be cut,
// is tried again.
const (
	busyRetry = 20 * time.Second
	cutRetry  = 5 * time.Minute
)

// layout is the MIG mode of a GPU and its instances, as it is noted: "off",
// "on", "on 3g.40gb@4:4 1g.10gb@0:1".
type layout struct {
	on        bool
	instances []wire.MIGPlacement
}

func (l layout) String() string {
	text := onOff(l.on)
	for _, i := range l.instances {
		text += fmt.Sprintf(" %s@%d:%d", i.Profile, i.Start, i.Size)
	}
	return text
}

func parseLayout(text string) (layout, error) {
	words := strings.Fields(text)
	if len(words) == 0 || words[0] != "on" && words[0] != "off" {
		return layout{}, fmt.Errorf("%q is no MIG layout", text)
	}
	l := layout{on: words[0] == "on"}
	for _, w := range words[1:] {
		var i wire.MIGPlacement
		profile, place, ok := strings.Cut(w, "@")
		if _, err := fmt.Sscanf(place, "%d:%d", &i.Start, &i.Size); err != nil || !ok {
			return layout{}, fmt.Errorf("%q is no MIG layout", text)
		}
		i.Profile = profile
		l.instances = append(l.instances, i)
	}
	return l, nil
}

// layoutOf is what a GPU has. An instance without its one compute instance is
// marked, so that it equals nothing that is wanted.
func layoutOf(g gpu.State) layout {
	if g.MIG == nil {
		return layout{}
	}
	l := layout{on: g.MIG.Enabled}
	for _, i := range g.MIG.Instances {
		profile := i.Profile
		if !i.Whole {
			profile = fmt.Sprintf("%s(%d-compute-instances)", i.Profile, i.Compute)
		}
		l.instances = append(l.instances, wire.MIGPlacement{Profile: profile, Start: i.Start, Size: i.Size})
	}
	return l
}

// same compares mode and profiles. Where the instances lie makes no difference
// to who books them.
func (l layout) same(other layout) bool {
	return l.on == other.on && slices.Equal(l.profiles(), other.profiles())
}

func (l layout) profiles() []string {
	var out []string
	for _, i := range l.instances {
		out = append(out, i.Profile)
	}
	slices.Sort(out)
	return out
}

// words are the layout for people: "7 x 1g.10gb", "MIG off".
func (l layout) words() string {
	if !l.on {
		return "MIG off"
	}
	var parts []string
	list := l.profiles()
	for n := 0; len(list) > 0; list = list[n:] {
		n = 1
		for n < len(list) && list[n] == list[0] {
			n++
		}
		if n == 1 {
			parts = append(parts, list[0])
		} else {
			parts = append(parts, fmt.Sprintf("%d x %s", n, list[0]))
		}
	}
	if len(parts) == 0 {
		return "MIG without instances"
	}
	return strings.Join(parts, ", ")
}

// What a note after the noted layout says: "on; busy".
const (
	noteBusy    = "busy"
	notePending = "pending"
	noteFailed  = "failed: "
)

// noted takes a noted value apart.
func noted(v host.Value) (got, note string) {
	got, note, _ = strings.Cut(v.Got, "; ")
	return got, note
}

// target is the layout that is wanted of one GPU. The same name is another
// layout on another board.
func target(want *wire.MIGLayout, g gpu.State) (layout, error) {
	text := want.Layout
	if len(want.Profiles) > 0 {
		text = strings.Join(want.Profiles, ",")
	}
	placed, err := wire.PlaceLayout(g.Product, g.MemoryMiB, text)
	if err != nil {
		return layout{}, err
	}
	for _, i := range placed {
		if g.MIG.Profiles != nil && !slices.Contains(g.MIG.Profiles, i.Profile) {
			return layout{}, fmt.Errorf("the board does not offer %s, only %s", i.Profile, strings.Join(g.MIG.Profiles, ", "))
		}
	}
	return layout{on: true, instances: placed}, nil
}

func (u migLayout) Plan(s Scene) Plan {
	want := s.Want.MIGLayout
	s.Held = append(slices.Clone(s.Held), want.Hold...)
	p := Plan{Wanted: want.Layout}
	if s.unanswered(&p) {
		return p
	}
	var all verdicts
	var got []string
	for _, g := range s.compute() {
		got = append(got, layoutOf(g).words())
		u.planGPU(s, g, want, &p, &all)
	}
	s.silent(&all)
	p.Got = tally(got)
	all.sum(&p)
	return p
}

// planGPU adds to the plan what one GPU lacks.
func (u migLayout) planGPU(s Scene, g gpu.State, want *wire.MIGLayout, p *Plan, all *verdicts) {
	if g.MIG == nil {
		all.add(wire.NotApplicable, g.Product+" cannot be cut into instances")
		return
	}
	to, err := target(want, g)
	if err != nil {
		all.add(wire.Failed, err.Error()) // the same of every GPU of a model
		return
	}
	if why := unread(g, "GPU instances"); why != "" {
		all.add(wire.Failed, why)
		return
	}
	now := layoutOf(g)
	v, tried := s.Prior.Values[gpuKey(g.UUID, layoutKey)]
	got, note := noted(v)
	had, err := parseLayout(got)
	known := tried && err == nil && had.same(to)
	if now.same(to) {
		all.add(wire.InSync, "")
		if !known {
			p.Steps = append(p.Steps, Step{Change: noteLayout{gpu: g, has: now}, Undo: "forget it"})
		}
		return
	}
	if known && len(now.instances) == 0 {
		// A reboot or a reset took the instances. Who booked them has nothing left
		// to lose, and gets them back under the same UUIDs at the same places.
		to, s.Held = had, nil
	}
	step := Step{Change: cutGPU{gpus: u.gpus, gpu: g, to: to}, Needs: NeedsIdleGPU, Undo: "back to " + now.words() + " when the GPU is free"}
	if who := s.users(g, nil); who != "" {
		p.Later = append(p.Later, step)
		all.add(wire.PendingIdle, fmt.Sprintf("%s is used by %s", gpuName(g), who))
		return
	}
	here := tried && v.BootID == s.BootID && v.Wrote == to.String()
	ago := s.Now.Sub(v.At)
	switch {
	case tried && note == notePending && !g.MIG.Enabled && g.MIG.Pending && !here:
		all.add(wire.Failed, gpuName(g)+" did not take its MIG mode up at the reboot: reset it with \"nvidia-smi --gpu-reset\" when it is free")
	case here && note == notePending && g.MIG.Pending && !g.MIG.Enabled:
		p.Later = append(p.Later, step)
		all.add(wire.PendingReboot, "MIG mode takes effect when the GPU is reset or the machine rebooted")
	case here && note == noteBusy && ago < busyRetry:
		p.Later = append(p.Later, step)
		all.add(wire.PendingIdle, gpuName(g)+" was in use when it was to be cut"+openedText(s.Machine.Root, g))
	case here && strings.HasPrefix(note, noteFailed) && ago < cutRetry:
		p.Later = append(p.Later, step)
		all.add(wire.Failed, fmt.Sprintf("%s: %s; it was left without instances and is tried again every %v", gpuName(g), strings.TrimPrefix(note, noteFailed), cutRetry))
	default:
		step.Again = here && note != ""
		p.Steps = append(p.Steps, step)
		all.add(wire.Partial, fmt.Sprintf("%s has %s", gpuName(g), now.words()))
	}
}

func openedText(root *host.Root, g gpu.State) string {
	who := opened(root, fmt.Sprintf("/dev/nvidia%d", g.Minor))
	if g.Minor < 0 || len(who) == 0 {
		return ""
	}
	return "; its device is open in " + strings.Join(who, ", ")
}

// Remove restores mode and instances of each GPU once nothing uses it. What a
// reboot took away counts as the unit's.
func (u migLayout) Remove(s Scene) []Step {
	all := func(string) bool { return false }
	s.Prior.Values = maps.Clone(s.Prior.Values)
	for key, v := range s.Prior.Values {
		uuid, _, _ := ofGPU(key)
		i := slices.IndexFunc(s.GPUs.GPUs, func(g gpu.State) bool { return g.UUID == uuid })
		if i < 0 {
			continue
		}
		g, note := s.GPUs.GPUs[i], ""
		v.Got, note = noted(v) // the note is not part of a layout
		lost := v.BootID != s.BootID && len(layoutOf(g).instances) == 0
		if lost || note == notePending || note == noteBusy {
			v.Got = layoutToCome(g)
		}
		s.Prior.Values[key] = v
	}
	read := func(g gpu.State, _ string) string { return layoutToCome(g) }
	return s.undoGPUs(all, read, func(g gpu.State, _ string, v host.Value, _ string) (Step, bool) {
		to, err := parseLayout(v.Before)
		if err != nil || s.users(g, nil) != "" {
			return Step{}, false
		}
		return Step{Change: cutGPU{gpus: u.gpus, gpu: g, to: to, restore: true}, Needs: NeedsIdleGPU}, true
	})
}

// noteLayout notes that a GPU has the wanted layout already, so that it gets
// the same instances again after a reboot.
type noteLayout struct {
	gpu gpu.State
	has layout
}

func (c noteLayout) String() string {
	return gpuName(c.gpu) + ": note that it has " + c.has.words()
}

// Apply changes the ledger only.
func (c noteLayout) Apply(_ context.Context, _ *host.Machine, j *host.Journal) error {
	key, text := gpuKey(c.gpu.UUID, layoutKey), c.has.String()
	if err := j.Before(key, text, false, text); err != nil {
		return err
	}
	return j.After(key, text)
}

// layoutToCome is a GPU's layout, or the mode that it takes up at its next
// reset, which has no instances yet.
func layoutToCome(g gpu.State) string {
	if g.MIG != nil && g.MIG.Enabled != g.MIG.Pending {
		return onOff(g.MIG.Pending)
	}
	return layoutOf(g).String()
}

// cutGPU gives one GPU a layout. Whatever fails, the GPU ends with the layout
// or without instances, never with half of it. Only an instance that came into
// use meanwhile stays, and what the end of this process or of the driver leaves
// is cleared by the next try.
type cutGPU struct {
	gpus    *gpu.Library
	gpu     gpu.State
	to      layout
	restore bool
}

func (c cutGPU) String() string {
	verb := "cut into"
	if c.restore {
		verb = "restore"
	}
	text := fmt.Sprintf("%s: %s %s", gpuName(c.gpu), verb, c.to.words())
	var places []string
	for _, i := range c.to.instances {
		places = append(places, fmt.Sprintf("%s at %d", i.Profile, i.Start))
	}
	if len(places) > 0 {
		text += " (" + strings.Join(places, ", ") + ")"
	}
	return text
}

// Apply notes a GPU that is in use, waits for a reset or cannot be cut, instead
// of failing: other GPUs are cut all the same, and the plan that follows says
// how each stands.
func (c cutGPU) Apply(ctx context.Context, m *host.Machine, j *host.Journal) error {
	key := gpuKey(c.gpu.UUID, layoutKey)
	ctx, cancel := context.WithTimeout(ctx, 2*gpuTimeout)
	defer cancel()
	before, err := stateOfGPU(ctx, c.gpus, c.gpu.UUID)
	if err != nil {
		return err
	}
	if err := j.Before(key, layoutOf(before).String(), false, c.to.String()); err != nil {
		return err
	}
	var set error
	if who := (Scene{Machine: m}).users(before, nil); who != "" {
		set = gpu.ErrInUse // since it was looked at
	} else {
		set = c.cut(ctx, before)
	}
	after, err := stateOfGPU(ctx, c.gpus, c.gpu.UUID)
	if err != nil {
		return errors.Join(set, err)
	}
	got := layoutOf(after)
	if set == nil && !got.same(c.to) {
		set = fmt.Errorf("%s: it says that it has %s", gpuName(c.gpu), got.words())
	}
	text := got.String()
	switch {
	case set == nil && c.restore:
		return j.Forget(key)
	case errors.Is(set, gpu.ErrResetRequired) && c.restore && len(got.instances) == 0:
		return j.Forget(key) // the mode from before comes back with the next reset
	case set == nil:
	case errors.Is(set, gpu.ErrLibrary):
		return errors.Join(set, j.After(key, text))
	case errors.Is(set, gpu.ErrResetRequired):
		text += "; " + notePending
	case errors.Is(set, gpu.ErrInUse):
		text += "; " + noteBusy
	default:
		text += "; " + noteFailed + set.Error()
	}
	return j.After(key, text)
}

// cut clears the GPU, switches its mode and makes the instances. The mode can be
// switched only without instances.
func (c cutGPU) cut(ctx context.Context, now gpu.State) error {
	uuid := c.gpu.UUID
	if len(now.MIG.Instances) > 0 {
		if err := c.gpus.DestroyMIG(ctx, uuid); err != nil {
			return err
		}
	}
	if now.MIG.Enabled != c.to.on || now.MIG.Pending != c.to.on {
		if err := c.gpus.SetMIGMode(ctx, uuid, c.to.on); err != nil {
			return err
		}
	}
	for _, i := range c.to.instances {
		err := c.gpus.CreateMIG(ctx, uuid, i)
		if err == nil {
			continue
		}
		if clear := c.gpus.DestroyMIG(ctx, uuid); clear != nil {
			err = fmt.Errorf("%w; and it could not be cleared: %w", err, clear)
		}
		return err
	}
	return nil
}
