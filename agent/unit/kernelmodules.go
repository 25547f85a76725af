package unit

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// kernelModules loads modules by modprobe, each by itself, so that one that is
// refused holds up no other, and keeps options in a file of modprobe.d. It never
// unloads one.
type kernelModules struct{}

const (
	moduleOptions = "/etc/modprobe.d/zz-better-compute.conf"
	// initramfsFree is what /boot needs for one more initramfs of every kernel:
	// twice what a large one has today, a hundred MiB.
	initramfsFree = 200 << 20
	initramfsNote = "initramfs" // the options that the initramfs was made with
)

type moduleKind int

const (
	moduleUnknown moduleKind = iota // nothing tells
	moduleMissing
	moduleFile
	moduleBuiltin
)

// findModule looks a module up where modprobe does.
func findModule(root *host.Root, name string) moduleKind {
	release, _ := root.String("/proc/sys/kernel/osrelease")
	dir := "/lib/modules/" + release
	name = wire.ModuleKey(name)
	listed := func(file string) (found, readable bool) {
		data, err := root.ReadFile(path.Join(dir, file))
		for line := range strings.Lines(string(data)) {
			p, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			base, _, _ := strings.Cut(path.Base(p), ".ko")
			if base != "" && wire.ModuleKey(base) == name {
				return true, true
			}
		}
		return false, err == nil
	}
	if found, _ := listed("modules.builtin"); found {
		return moduleBuiltin
	}
	found, readable := listed("modules.dep")
	switch {
	case found:
		return moduleFile
	case !readable:
		return moduleUnknown
	}
	return moduleMissing
}

// loaded reports whether a module is in the running kernel.
func loaded(root *host.Root, name string) bool {
	name = wire.ModuleKey(name)
	data, _ := root.ReadFile("/proc/modules")
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == name {
			return true
		}
	}
	return false
}

func (kernelModules) Plan(s Scene) Plan {
	root, want := s.Machine.Root, s.Want.KernelModules
	p := Plan{State: wire.InSync, Wanted: wantedModules(want)}
	if root.Exists("/run/systemd/container") || root.Exists("/run/.containerenv") || root.Exists("/.dockerenv") {
		p.State, p.Reason = wire.NotApplicable, "in a container the kernel is not the machine's own"
		return p
	}
	var have, missing []string
	for _, name := range want.Load {
		kind := findModule(root, name)
		switch {
		case loaded(root, name) || kind == moduleBuiltin:
			have = append(have, name)
		case kind == moduleMissing && !alias(root, name):
			missing = append(missing, name)
		}
	}
	p.Got = strings.TrimSpace("loaded " + strings.Join(have, " "))
	if len(have) == 0 {
		p.Got = "none of them loaded"
	}
	if len(want.Load) == 0 {
		p.Got = ""
	}
	if problem := optionsRefused(root, want); problem != "" {
		p.State, p.Reason = wire.Failed, problem
		return p
	}
	planOptions(s, want, &p)
	if p.State == wire.Conflict || p.State == wire.Failed {
		return p
	}
	var load []string
	for _, name := range want.Load {
		if !slices.Contains(have, name) && !slices.Contains(missing, name) {
			load = append(load, name)
		}
	}
	p.Steps = append(p.Steps, loadSteps(load)...)
	if len(missing) > 0 {
		release, _ := root.String("/proc/sys/kernel/osrelease")
		p.State, p.Reason = wire.Failed, fmt.Sprintf("kernel %s has no module %s", release, strings.Join(missing, ", "))
	}
	return p
}

// optionsRefused says which options this machine must not have.
func optionsRefused(root *host.Root, want *wire.KernelModules) string {
	if len(want.Options) == 0 {
		return ""
	}
	life := findLifelines(root)
	for _, name := range sortedKeys(want.Options) {
		if problem := life.refuse(root, name, want.Options[name]); problem != "" {
			return problem
		}
	}
	return ""
}

// loadSteps loads modules, if there are any.
func loadSteps(names []string) []Step {
	if len(names) == 0 {
		return nil
	}
	return []Step{{Change: loadModules{names}, Undo: "what is loaded stays until the next boot"}}
}

// loadModules has modprobe load modules, one after the other.
type loadModules struct{ names []string }

func (c loadModules) String() string {
	return "run modprobe -- " + strings.Join(c.names, "; modprobe -- ")
}

// Apply tries every module, and says of each that is refused why that may be.
func (c loadModules) Apply(ctx context.Context, m *host.Machine, _ *host.Journal) error {
	var all error
	for _, name := range c.names {
		err := m.Run(ctx, "modprobe", "--", name)
		switch {
		case err == nil:
		case all == nil:
			all = fmt.Errorf("%w%s", err, whyNotLoaded(m, err.Error()))
		default:
			all = fmt.Errorf("%w; %w%s", all, err, whyNotLoaded(m, err.Error()))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

// whyNotLoaded adds to what modprobe said what it means here. The texts are
// those of the kernel's error numbers (errno(3)), in which it answers
// finit_module(2): EKEYREJECTED, ENOKEY, EKEYREVOKED, EKEYEXPIRED, EPERM, ENOEXEC.
func whyNotLoaded(m *host.Machine, said string) string {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(said, w) })
	}
	guard := signatureGuard(m)
	if disabled, _ := m.String("/proc/sys/kernel/modules_disabled"); disabled == "1" && has("Operation not permitted") {
		return ". Loading is switched off until the next boot (kernel.modules_disabled): take that out of sysctl.d to have the module"
	}
	switch {
	case has("Key was rejected by service", "Required key not available", "Key has been revoked", "Key has expired"),
		has("Operation not permitted") && guard != "":
		if guard == "" {
			guard = "this kernel checks signatures"
		}
		return ". " + strings.ToUpper(guard[:1]) + guard[1:] + ", and no key that this machine trusts has signed the module: " +
			"sign it, and enrol the key with mokutil --import"
	case has("Exec format error", "Invalid module format", "disagrees about version"):
		release, _ := m.String("/proc/sys/kernel/osrelease")
		return ". The module was built for another kernel: install the one for " + release
	}
	return ""
}

// signatureGuard is what has the kernel refuse modules that nobody it trusts has
// signed, "" if nothing is known to.
func signatureGuard(m *host.Machine) string {
	if on, _ := m.SecureBoot(); on {
		return "Secure Boot is on"
	}
	if enforced, _ := m.String("/sys/module/module/parameters/sig_enforce"); enforced == "Y" {
		return "this kernel takes signed modules only (module.sig_enforce)"
	}
	modes, _ := m.String("/sys/kernel/security/lockdown") // none [integrity] confidentiality
	_, mode, _ := strings.Cut(modes, "[")
	if mode, _, _ = strings.Cut(mode, "]"); mode != "" && mode != "none" {
		return "the kernel is locked down (" + mode + ")"
	}
	return ""
}

// alias reports whether a name that is no module's may be one's alias, which
// modprobe knows to resolve.
func alias(root *host.Root, name string) bool {
	release, _ := root.String("/proc/sys/kernel/osrelease")
	data, _ := root.ReadFile("/lib/modules/" + release + "/modules.alias")
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "alias" && wire.ModuleKey(f[1]) == wire.ModuleKey(name) {
			return true
		}
	}
	return false
}

func wantedModules(want *wire.KernelModules) string {
	var parts []string
	if len(want.Load) > 0 {
		parts = append(parts, "loaded "+strings.Join(want.Load, " "))
	}
	for _, name := range sortedKeys(want.Options) {
		parts = append(parts, name+" "+want.Options[name])
	}
	return strings.Join(parts, "; ")
}

// planOptions keeps the options: in modprobe.d for modules that are files, as
// kernel arguments for those that are part of the kernel.
func planOptions(s Scene, want *wire.KernelModules, p *Plan) {
	root := s.Machine.Root
	file, tokens := "", []string(nil)
	var early, stale []string // modules that an initramfs may have loaded; that run with other options
	for _, name := range slices.Sorted(maps.Keys(want.Options)) {
		options := want.Options[name]
		if findModule(root, name) == moduleBuiltin {
			for option := range strings.FieldsSeq(options) {
				tokens = append(tokens, wire.ModuleKey(name)+"."+option)
			}
			continue
		}
		file += "options " + wire.ModuleKey(name) + " " + options + "\n"
		running := loaded(root, name)
		if running || slices.ContainsFunc(want.Load, func(l string) bool { return wire.ModuleKey(l) == wire.ModuleKey(name) }) {
			early = append(early, name)
		}
		if running && !runsWith(root, name, options) {
			stale = append(stale, name)
		}
	}
	steps, problem := fileSteps(root, file)
	if problem != "" {
		p.State, p.Reason = wire.Conflict, problem
		return
	}
	p.Steps = append(p.Steps, steps...)
	if !planInitramfs(s, file, early, p) {
		return
	}
	a := planArguments(s, string(wire.UnitKernelModules), tokens)
	p.Steps = append(p.Steps, a.steps...)
	if a.state != wire.InSync {
		p.State, p.Reason = a.state, a.reason
	}
	if len(stale) > 0 && p.State == wire.InSync {
		p.State, p.Reason = wire.PendingReboot, strings.Join(stale, ", ")+" runs with other options, which take effect when it is loaded anew"
	}
}

// fileSteps are what is left to have the options in their file, or no file
// without options.
func fileSteps(root *host.Root, content string) ([]Step, string) {
	now, err := root.ReadManaged(moduleOptions)
	switch {
	case err != nil:
		return nil, err.Error()
	case now.Exists && !now.Ours:
		return nil, moduleOptions + " was changed by someone else; move it away to have it written again"
	case content == "" && now.Exists:
		return []Step{{Change: host.RemoveManaged{Path: moduleOptions}}}, ""
	case content != "" && (!now.Exists || now.Content != content):
		return []Step{{Change: host.WriteManaged{Path: moduleOptions, Content: content}, Undo: "the file is removed"}}, ""
	}
	return nil, ""
}

// planInitramfs has the initramfs made again where it may hold a module that
// has options: it has a copy of modprobe.d. It reports false if there is no
// room for one.
func planInitramfs(s Scene, file string, early []string, p *Plan) bool {
	made, known := s.Prior.Values[initramfsNote]
	wanted := ""
	if len(early) > 0 {
		wanted = strings.TrimSpace(strings.ReplaceAll(file, "\n", "; "))
	}
	if known && made.Wrote == wanted || !known && wanted == "" {
		return true
	}
	command := initramfsCommand(s.Machine)
	if command == nil {
		return true
	}
	if free, err := s.Machine.FreeBytes("/boot"); err == nil && free < initramfsFree {
		p.Steps = nil
		p.State, p.Reason = wire.Failed, fmt.Sprintf("/boot has %d MiB left, and a new initramfs needs %d: remove an old kernel", free>>20, initramfsFree>>20)
		return false
	}
	p.Steps = append(p.Steps, Step{Change: host.Command(command...), Needs: NeedsReboot, Undo: "it is made again without the options"})
	if wanted == "" {
		p.Steps = append(p.Steps, Step{Change: host.Forget{Key: initramfsNote, Why: "it was made without options"}})
	} else {
		p.Steps = append(p.Steps, Step{Change: host.Note{Key: initramfsNote, Value: wanted}})
	}
	return true
}

func initramfsCommand(m *host.Machine) []string {
	switch {
	case m.CanRun("update-initramfs"):
		return []string{"update-initramfs", "-u", "-k", "all"}
	case m.CanRun("dracut"):
		return []string{"dracut", "-f", "--regenerate-all"}
	}
	return nil
}

// runsWith reports whether a loaded module has the options. One that it does
// not show counts as had.
func runsWith(root *host.Root, name, options string) bool {
	for option := range strings.FieldsSeq(options) {
		k, v, _ := strings.Cut(option, "=")
		now, ok := root.String("/sys/module/" + wire.ModuleKey(name) + "/parameters/" + wire.ModuleKey(k))
		if ok && boolean(now) != boolean(v) {
			return false
		}
	}
	return true
}

// boolean gives the kernel's two spellings of a switch one.
func boolean(v string) string {
	switch v {
	case "Y", "y", "1":
		return "1"
	case "N", "n", "0":
		return "0"
	}
	return v
}

func (kernelModules) Remove(s Scene) []Step {
	steps, problem := fileSteps(s.Machine.Root, "")
	if problem != "" {
		steps = nil // someone else's file
	}
	p := Plan{Steps: steps}
	planInitramfs(s, "", nil, &p)
	return append(p.Steps, planArguments(s, string(wire.UnitKernelModules), nil).steps...)
}

// explain adds to what a program said what it means, where that is known.
func explain(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "read-only file system"):
		return text + ". This system keeps its configuration elsewhere; set it there, or take the unit out of the policy"
	case strings.Contains(text, "no space left on device"):
		return text + ". Make room there: nothing was changed half"
	}
	return text
}
