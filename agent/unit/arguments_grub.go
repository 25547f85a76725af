package unit

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// grubDropIn sorts behind what cloud images and the installer put there, and
// appends to what they set ("Simple configuration handling", GRUB manual;
// Debian's grub-mkconfig sources the folder).
const grubDropIn = "/etc/default/grub.d/zz-better-compute.cfg"

// grubSteps appends to GRUB_CMDLINE_LINUX_DEFAULT, which recovery entries do not
// use, and has Debian's tool make grub.cfg.
func (c change) grubSteps() ([]Step, string, wire.UnitState) {
	all := inOrder(c.Scene, c.unit, c.tokens, host.Arguments.Lasting)
	content := ""
	if len(all) > 0 {
		content = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT " + strings.Join(all, " ") + "\"\n"
	}
	now, err := c.Machine.ReadManaged(grubDropIn)
	if err != nil {
		return nil, err.Error(), wire.Failed
	}
	steps := []Step{{Change: host.Guard{Paths: []string{grubDropIn, host.GRUBConfig}}}}
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
	stale := slices.ContainsFunc(c.entries, func(e host.BootEntry) bool { return e.Lacks(c.tokens, c.old) })
	if len(steps) == 1 && !stale {
		return nil, "", ""
	}
	return append(steps, Step{Change: host.Command("update-grub"), Needs: NeedsReboot},
		Step{Change: host.CheckEntries{Tokens: c.tokens, Old: c.old}}), "", ""
}

// grubOnce boots an entry of a file that grub.cfg reads at its end.
func (c change) grubOnce() once {
	return once{
		loader: "GRUB", id: host.TrialEntry, file: host.GRUBCustom, memory: host.GRUBEnvironment, lasts: path.Dir(grubDropIn),
		set:   []string{"grub-editenv", host.GRUBEnvironment, "set", "next_entry=" + host.TrialEntry},
		unset: []string{"grub-editenv", host.GRUBEnvironment, "unset", "next_entry"},
		tries: c.Machine.GRUBTries,
		copy: func(without, with []string) (string, error) {
			if i := slices.IndexFunc(with, func(t string) bool { return !plainToken.MatchString(t) }); i >= 0 {
				return "", fmt.Errorf("%s would have to be quoted in GRUB's file", with[i])
			}
			entry, err := c.Machine.GRUBDefault()
			if err != nil {
				return "", err
			}
			return grubTrial(entry, without, with), nil
		},
	}
}

// plainToken is what a GRUB script takes as it stands.
var plainToken = regexp.MustCompile(`^[A-Za-z0-9_.,:=/+@%-]+$`)

// grubTrial is what GRUB reads: a copy of an entry with other arguments. GRUB
// clears next_entry on disk before it shows the menu. Should it not have been
// able to, the copy boots the arguments of before, not these at every boot.
func grubTrial(entry host.GRUBEntry, kept, tokens []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "if [ \"${default}\" = %q ]; then\n\tset fallback=0\nfi\n", host.TrialEntry)
	fmt.Fprintf(&b, "menuentry 'Kernel arguments on trial (Better Compute)' %s $menuentry_id_option '%s' {\n", strings.Join(entry.Options, " "), host.TrialEntry)
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
				host.TrialEntry, text, command, strings.Join(append(without(words, kept), tokens...), " "))
		default:
			b.WriteString("\t" + text + "\n")
		}
	}
	b.WriteString("}\n")
	return b.String()
}
