package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// poolFor finds the pool that a machine fits which names none. Only the local
// machine is looked after: it becomes the first node of the first start's site
// once a pool fits it, and with auto_pool its first pool is made. Without a
// pool the reason says what to do.
func (c *Control) poolFor(ctx context.Context, h wire.Hello) (poolID, reason string, err error) {
	if !h.Local {
		return "", "name the pool to join with --pool", nil
	}
	owner, site, err := c.Home(ctx)
	if err != nil {
		return "", "", err
	}
	families := c.families(h.Inventory)
	if len(families) == 0 {
		return "", noGPUs(h.Inventory, owner, site), nil
	}
	if len(families) > 1 {
		return "", fmt.Sprintf("this machine has GPUs of several models (%s), and a pool holds one: take some out, or give them one family with [gpu.aliases]", strings.Join(families, ", ")), nil
	}
	var fits []string
	empty, removed := true, false
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		if removed, err = tx.WasRemoved(h.MachineID); err != nil || removed {
			return err
		}
		pools, err := tx.OwnedPools(owner)
		for _, p := range pools {
			if p.SiteID != site.ID {
				continue
			}
			empty = false
			if !p.Archived && p.Class != appliance.ClassProvider && p.GPUModel == families[0] {
				fits = append(fits, p.ID)
			}
		}
		return err
	})
	switch {
	case err != nil:
		return "", "", err
	case removed:
		return "", "this machine was removed from its pool; bcd run --pool POOL joins it again", nil
	case len(fits) == 1:
		return fits[0], "", nil
	case len(fits) > 1:
		return "", fmt.Sprintf("several pools fit this machine (%s): name one with --pool", strings.Join(fits, ", ")), nil
	case !empty || !c.Settings.AutoPool:
		return "", fmt.Sprintf("no pool of %s holds %s: make one with: bc pools create --tenant %s --site %s --class metal-host --gpu-model %s", site.Name, families[0], owner, site.Name, families[0]), nil
	}
	p, err := c.CreatePool(ctx, appliance.System("auto-pool"), appliance.CreatePool{
		TenantID: owner, SiteID: site.ID, Class: appliance.ClassMetalHost, GPUModel: families[0], Name: strings.ToLower(families[0]),
		Policy: appliance.RawPolicy(`{"acceptance":[{"kind":"diag.nvml"}]}`), IdempotencyKey: "auto-pool",
	})
	return p.ID, "", err
}

// families lists the models of a machine's compute GPUs.
func (c *Control) families(inv wire.Inventory) []string {
	var out []string
	for _, g := range inv.GPUs {
		f := wire.GPUFamilyAliased(g.Product, c.Settings.Aliases)
		if !g.Display && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

// noGPUs says why a machine without GPUs has not joined, and how it could.
func noGPUs(inv wire.Inventory, owner string, site appliance.Site) string {
	why := "no GPU was found"
	if inv.GPULibrary.State != wire.GPULibraryReady && inv.GPULibrary.Reason != "" {
		why += " (" + inv.GPULibrary.Reason + ")"
	}
	return fmt.Sprintf("%s, so no pool was made. A pool can be made for machines that join later: bc pools create --tenant %s --site %s --class metal-host --gpu-model H100. To look around on a recorded 8-GPU machine: bc up --demo", why, owner, site.Name)
}

// Unjoined says why the local machine is in no pool, as it was told last;
// empty if it is in one or has not asked yet.
func (c *Control) Unjoined() string {
	c.local.Lock()
	defer c.local.Unlock()
	return c.local.reason
}

// UnjoinedChanged is closed when the answer of Unjoined changes.
func (c *Control) UnjoinedChanged() <-chan struct{} {
	c.local.Lock()
	defer c.local.Unlock()
	if c.local.changed == nil {
		c.local.changed = make(chan struct{})
	}
	return c.local.changed
}

// localMachine is what the machine of the control plane was told last.
type localMachine struct {
	sync.Mutex
	reason  string
	changed chan struct{}
}

func (l *localMachine) set(reason string) {
	l.Lock()
	defer l.Unlock()
	if l.reason == reason {
		return
	}
	l.reason = reason
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
