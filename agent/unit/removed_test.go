package unit_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// What is left of a unit that was taken out of the policy is said until it is
// gone, by each comparison alike and by what the ledger shows: here kernel
// arguments, which the kernel keeps until the next boot.
func TestRemovedArgumentsAreSaidUntilTheNextBoot(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.confirmed(units(t, `{"iommu":{"passthrough":true}}`))
	first := one(t, b.sync(wire.Units{}))
	if first.Kind != wire.UnitIOMMU || first.State != wire.PendingReboot || strings.Count(first.Reason, "iommu=pt") != 1 ||
		!strings.HasPrefix(first.Reason, "taken out of the policy; the next boot goes without iommu=pt") {
		t.Errorf("before the boot: %+v", first)
	}
	for range 4 { // waiting is no fight
		b.now = b.now.Add(30 * time.Second)
		b.Ran()
		if s := one(t, b.sync(wire.Units{})); s != first {
			t.Errorf("a later comparison says %+v, the first said %+v", s, first)
		}
		if ran := b.Ran(); len(ran) > 0 {
			t.Errorf("waiting ran %q", ran)
		}
	}
	var r unit.Result
	if _, err := b.Ledger.Load(host.Results, "iommu", &r); err != nil || r.Status != first {
		t.Errorf("the ledger has %+v, %v", r.Status, err)
	}
	if plans := b.Plans(wire.Units{}, nil); len(plans) != 1 || !plans[0].Gone || plans[0].State != wire.PendingReboot || plans[0].Reason != first.Reason {
		t.Errorf("planned as %+v", plans)
	}
	b.Reboot()
	if got := b.sync(wire.Units{}); len(got) > 0 {
		t.Errorf("after the boot: %+v", got)
	}
	if left := b.Ledger.Units(host.Results); len(left) > 0 {
		t.Errorf("after the boot the ledger has results of %v", left)
	}
}

// Pages that are in use cannot be given back, and neither this nor their going in
// the end is a failure.
func TestRemovedPagesInUseAreSaid(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.sync(units(t, `{"hugepages":{"sizeKiB":2048,"count":100,"perNuma":true}}`))
	b.Use(node0M, 30)
	for range 4 {
		s := one(t, b.sync(wire.Units{}))
		if s.State != wire.PendingIdle || s.Reason != "taken out of the policy; 30 pages of 2Mi in "+node0M+" are in use; they go when they are free" {
			t.Errorf("%+v", s)
		}
	}
	b.Use(node0M, 0)
	if got := b.sync(wire.Units{}); len(got) > 0 {
		t.Errorf("once they are free: %+v", got)
	}
}

// A unit that cannot be undone has failed, and no older status hides that.
func TestRemovalThatFailsIsSaid(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.confirmed(units(t, `{"iommu":{"passthrough":true}}`))
	b.Fails("update-grub", "no space for a menu")
	s := one(t, b.sync(wire.Units{}))
	if s.State != wire.Failed || !strings.HasPrefix(s.Reason, "taken out of the policy; ") || !strings.Contains(s.Reason, "no space for a menu") {
		t.Errorf("%+v", s)
	}
	b.Works("update-grub")
	if s := one(t, b.sync(wire.Units{})); s.State != wire.PendingReboot {
		t.Errorf("once it works: %+v", s)
	}
}

// Where the static systemd units are installed, what is left is read from what
// they wrote, and nothing is run while it only waits.
func TestServiceSaysWhatIsLeftOfAUnit(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.confirmed(units(t, `{"iommu":{"passthrough":true}}`))
	b.Services = true
	b.Install("bc-iommu.service", func() error {
		_, _, err := (&unit.Runner{Machine: b.Machine.Machine, Ledger: b.Ledger, Manage: true, Now: b.Now, Log: b.Log}).Apply(context.Background(), wire.UnitIOMMU)
		return err
	})
	for i := range 2 {
		b.Ran()
		if s := one(t, b.sync(wire.Units{})); s.State != wire.PendingReboot || !strings.HasPrefix(s.Reason, "taken out of the policy; the next boot") {
			t.Errorf("%+v", s)
		}
		if ran := slices.Contains(b.Ran(), "systemctl restart bc-iommu.service"); ran != (i == 0) {
			t.Errorf("comparison %d ran the service: %v", i, ran)
		}
	}
	b.Reboot()
	if got := b.sync(wire.Units{}); len(got) > 0 {
		t.Errorf("after the boot: %+v", got)
	}
}

// Each unit is told when it is done, before the next one begins, and one of which
// nothing is left with an empty state.
func TestEachUnitIsToldWhenItIsDone(t *testing.T) {
	b := newBench(t, "debian-amd")
	told := map[wire.UnitKind]wire.UnitState{}
	b.Tell = func(s wire.UnitStatus) {
		told[s.Kind] = s.State
		if g, _ := b.String(policy0); s.Kind == wire.UnitHugepages && s.State == wire.InSync && g == "performance" {
			t.Error("hugepages was told after the governor was set")
		}
	}
	b.sync(units(t, `{"hugepages":{"sizeKiB":2048,"count":8},"cpu":{"governor":"performance"}}`))
	if told[wire.UnitHugepages] != wire.InSync || told[wire.UnitCPU] != wire.InSync || told[wire.UnitIOMMU] != "" {
		t.Errorf("told %v", told)
	}
	b.sync(wire.Units{})
	if s, known := told[wire.UnitCPU]; !known || s != "" {
		t.Errorf("undone, told %v", told)
	}
}
