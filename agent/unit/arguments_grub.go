package unit

import (
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
