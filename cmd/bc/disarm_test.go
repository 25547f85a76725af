package main

import (
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// What the scripts of the packages run when the package goes: the trial's entry is
// gone, a boot is the one of before, and a second run has nothing to do.
func TestUnitDisarmTakesATrialAway(t *testing.T) {
	for _, loader := range []string{"grub", "systemd-boot"} {
		t.Run(loader, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile("../../agent/unit/testdata/hosts/debian-amd.txtar")
			if err != nil {
				t.Fatal(err)
			}
			a, err := host.ParseArchive(text)
			if err != nil {
				t.Fatal(err)
			}
			m, state := hosttest.New(t, a), hosttest.Dir(t)
			entry := host.GRUBCustom
			if loader == "systemd-boot" {
				m.StartedBySystemdBoot()
				entry = m.LoaderTrialFile()
			}
			r := &unit.Runner{Machine: m.Machine, Ledger: host.OpenLedger(state), Manage: true, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
			r.Sync(t.Context(), wire.NodeSpec{Generation: 1, Units: wire.Units{IOMMU: &wire.IOMMU{Passthrough: true}}})
			if !m.Exists(entry) {
				t.Fatalf("no trial is armed: there is no %s", entry)
			}
			disarm := func(want string) {
				t.Helper()
				out, err := exec.Command("bcd", "unit", "disarm", "--host-root", m.Dir(), "--state-dir", state).CombinedOutput()
				if err != nil || string(out) != want {
					t.Errorf("%v: %s", err, out)
				}
			}
			disarm("iommu: its kernel arguments are not tried by the next boot\n")
			if m.Exists(entry) {
				t.Errorf("%s is still there", entry)
			}
			disarm("")
			before, _ := m.String("/proc/cmdline")
			m.Reboot()
			if now, _ := m.String("/proc/cmdline"); now != before {
				t.Errorf("the next boot has %s", now)
			}
		})
	}
}
