//go:build e2e

package packaging_test

import (
	"strings"
	"testing"
	"time"
)

const (
	loaderEntries = "/boot/efi/loader/entries"
	trialEntry    = loaderEntries + "/better-compute-trial.conf"
	oneShot       = "efivar -l | grep -c LoaderEntryOneShot || true"
	noLoaderTrial = "! test -e " + trialEntry + " && ! efivar -l | grep LoaderEntryOneShot"
)

// A Debian 12 that boots by systemd-boot: new arguments boot once and last when
// the agent is up; those with which the machine does not come up are gone at the
// next boot; and a trial goes with the package.
func TestMachineOfSystemdBootTriesArgumentsOnce(t *testing.T) {
	t.Setenv("BC_VM_FIRMWARE", "uefi")
	t.Setenv("BC_VM_PACKAGES", "systemd-boot efivar")
	m := bootMachine(t, "sdboot")
	m.sh(`mountpoint -q /boot/efi || mount /boot/efi
		bootctl install --make-entry-directory=yes; kernel-install add $(uname -r) /boot/vmlinuz-$(uname -r)`)
	m.reboot()
	m.note("boot", "%s; `/proc/cmdline` says `%s`", m.sh("bootctl --no-pager status 2>/dev/null | sed -n 's/^ *Product: //p' | head -n 1 || true"), m.sh("cat /proc/cmdline"))
	m.sh("dpkg -i /root/bc/*.deb")
	m.servicesRun()
	m.sh(`mkdir -p /etc/systemd/system/bcd.service.d
		systemctl cat bcd | sed -n 's/^#   //p' | sed '/^ExecStart=./s|$| --nvml-library /usr/local/lib/nvml/libnvidia-ml.so.1|' >/etc/systemd/system/bcd.service.d/override.conf
		systemctl daemon-reload; systemctl restart bcd`)
	m.within(stepLimit, "bc nodes get "+hostname+` -o json | grep -q '"state": "ready"'`)

	entries := "cat " + loaderEntries + "/*-amd64.conf"
	before := m.sh(entries)
	m.policy("cpu.isolate=3", "iommu.passthrough=true")
	m.units(map[string]string{"cpu": "PendingReboot", "iommu": "PendingReboot"})
	m.is(before, entries) // nothing that lasts is written before they have booted once
	m.fact("1", oneShot)
	m.note("fact", "the trial's entry is `%s`", strings.ReplaceAll(m.sh("sed 1d "+trialEntry), "\n", "; "))
	m.reboot()
	m.units(map[string]string{"cpu": "InSync", "iommu": "InSync"})
	m.fact("3", isolated)
	m.fact("identity", groups)
	m.within(stepLimit, noLoaderTrial)
	m.within(stepLimit, entries+" | grep '^options .*root=.*isolcpus=domain,managed_irq,3 .*iommu=pt'")

	m.brokenLoaderTrial()

	// The package goes, and the trial with it.
	m.policy("cpu.isolate=1")
	m.units(map[string]string{"cpu": "PendingReboot", "iommu": "InSync"})
	m.fact("1", oneShot)
	m.sh("dpkg -r better-compute")
	m.within(stepLimit, noLoaderTrial)
}

// The kernel panics early at boot when it has the new argument, and somebody cuts
// the power.
func (m *machine) brokenLoaderTrial() {
	m.t.Helper()
	const broken = "isolcpus=domain,managed_irq,2"
	m.sh("cat >/etc/systemd/system/breaks.service <<'E'\n[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\nConditionKernelCommandLine=" + broken +
		"\n[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo c >/proc/sysrq-trigger'\n[Install]\nWantedBy=sysinit.target\nE\nsystemctl enable -q breaks")
	before := m.sh("cat /proc/cmdline")
	m.policy("cpu.isolate=2")
	m.units(map[string]string{"cpu": "PendingReboot", "iommu": "InSync"})
	id := m.sh("cat /proc/sys/kernel/random/boot_id")
	began := time.Now()
	_, _ = m.try("systemctl reboot") // the connection ends with the machine
	for log := ""; !strings.Contains(log, "Kernel panic"); log, _ = m.harness("log") {
		if time.Since(began) > bootLimit {
			m.t.Fatalf("the machine does not panic within %v: was %s booted?", bootLimit, broken)
		}
		time.Sleep(time.Second)
	}
	m.note("fact", "booted with `%s`, the kernel panics, after %s", broken, since(began))
	if out, err := m.harness("monitor", "system_reset"); err != nil {
		m.t.Fatalf("power cut: %v\n%s", err, out)
	}
	if out, err := m.harness("wait", id); err != nil {
		m.t.Fatalf("after the power cut: %v\n%s", err, out)
	}
	cpu := m.units(map[string]string{"cpu": "Failed", "iommu": "InSync"})["cpu"]
	if !strings.Contains(cpu.Reason, "did not come up with "+broken) {
		m.t.Errorf("the unit does not say why: %s", cpu.Reason)
	}
	m.is(before, "cat /proc/cmdline")
	m.fact("3", isolated)
	m.within(stepLimit, noLoaderTrial)
	m.sh("systemctl disable -q breaks")
}
