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
