package unit

import (
	"path"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
)

// kernelCommandLine is what new kernels are installed with (kernel-install(8)).
const kernelCommandLine = "/etc/kernel/cmdline"

// grubbySteps changes one entry at a time: for all at once grubby would take the
// rescue entry too. Later kernels get theirs from /etc/kernel/cmdline, where
// that exists.
func (c change) grubbySteps() []Step {
	steps := c.commandLineSteps(nil)
	var files []string
	for _, e := range c.entries {
		if !e.Lacks(c.tokens, c.old) {
			continue
		}
		argv := []string{"grubby", "--update-kernel=" + bootPath(e.Kernel)}
		if len(c.old) > 0 {
			argv = append(argv, "--remove-args="+strings.Join(c.old, " "))
		}
		if len(c.tokens) > 0 {
			argv = append(argv, "--args="+strings.Join(c.tokens, " "))
		}
		files = append(files, e.File)
		steps = append(steps, Step{Change: host.Command(argv...), Needs: NeedsReboot, Undo: "the arguments are taken out of the entry"})
	}
	return c.guarded(steps, files)
}

// guarded keeps copies of what steps change, and checks what came out.
func (c change) guarded(steps []Step, files []string) []Step {
	if len(steps) == 0 {
		return nil
	}
	paths := files
	if slices.ContainsFunc(steps, func(s Step) bool { _, edit := s.Change.(host.Edit); return edit }) {
		paths = append([]string{kernelCommandLine}, files...)
	}
	return slices.Concat([]Step{{Change: host.Guard{Paths: paths}}}, steps,
		[]Step{{Change: host.CheckEntries{Files: append([]string{}, files...), Tokens: c.tokens, Old: c.old}}})
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
func (c change) kernelInstallSteps() []Step {
	stale := slices.ContainsFunc(c.entries, func(e host.BootEntry) bool { return e.Lacks(c.tokens, c.old) })
	if len(c.tokens) == 0 && !stale && !c.Machine.Exists(kernelCommandLine) {
		return nil // nothing was ever written
	}
	// Without the file kernel-install would take the running kernel's line, so
	// it starts from that of an entry.
	steps := c.commandLineSteps(without(c.entries[0].Arguments, keptByAll(c.Scene)))
	var files []string
	for _, e := range c.entries {
		if !e.Lacks(c.tokens, c.old) || e.Version == "" {
			continue
		}
		image := "/lib/modules/" + e.Version + "/vmlinuz"
		if !c.Machine.Exists(image) {
			image = "/boot/vmlinuz-" + e.Version
		}
		files = append(files, e.File)
		steps = append(steps, Step{Change: host.Command("kernel-install", "add", e.Version, image), Needs: NeedsReboot, Undo: "the entry is installed again without the arguments"})
	}
	return c.guarded(steps, files)
}

// commandLineSteps edits /etc/kernel/cmdline, which others own too: only tokens
// of the unit come and go. Without the file it is made from a seed, if there is
// one.
func (c change) commandLineSteps(seed []string) []Step {
	data, err := c.Machine.ReadFile(kernelCommandLine)
	if err != nil && seed == nil {
		return nil
	}
	line := seed
	if err == nil {
		line = strings.Fields(string(data))
	}
	next := without(line, c.old)
	if !host.HasArguments(next, c.tokens) {
		next = append(without(next, c.tokens), c.tokens...)
	}
	text := strings.Join(next, " ") + "\n"
	if err == nil && slices.Equal(line, next) {
		return nil
	}
	return []Step{{Change: host.Edit{Path: kernelCommandLine, Old: string(data), New: text}, Needs: NeedsReboot, Undo: "the arguments are taken out of the line"}}
}

// loaderOnce boots a copy of the default entry by systemd-boot's one-shot variable,
// which it deletes before it starts a kernel. Boot counting would do less: systemd
// takes the counter away once the machine is up, and does not ask the agent.
func (c change) loaderOnce() once {
	return once{
		loader: "systemd-boot", id: host.LoaderTrial, file: c.Machine.LoaderTrialFile(), lasts: path.Dir(kernelCommandLine),
		set:   []string{"bootctl", "set-oneshot", host.LoaderTrial},
		unset: []string{"bootctl", "set-oneshot", ""},
		tries: c.Machine.LoaderTries,
		copy: func(without, with []string) (string, error) {
			lines, err := c.Machine.LoaderDefault()
			if err != nil {
				return "", err
			}
			return loaderTrial(lines, without, with), nil
		},
	}
}

// loaderTrial is an entry with other arguments. It has no sort-key, and so comes
// behind the entry that it is a copy of, which has one.
func loaderTrial(lines []host.LoaderLine, kept, tokens []string) string {
	text := "title Kernel arguments on trial (Better Compute)\n"
	var options []string
	for _, l := range lines {
		switch l.Key {
		case "title", "sort-key":
		case "options":
			options = append(options, strings.Fields(l.Value)...)
		default:
			text += l.Key + " " + l.Value + "\n"
		}
	}
	return text + "options " + strings.Join(append(without(options, kept), tokens...), " ") + "\n"
}
