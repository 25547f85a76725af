//go:build e2e

package packaging_test

import (
	"strings"
	"testing"
	"time"
)

const (
	pages2Mi  = "cat /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages"
	pages1Gi  = "cat /sys/devices/system/node/node*/hugepages/hugepages-1048576kB/nr_hugepages"
	isolated  = "cat /sys/devices/system/cpu/isolated"
	groups    = "cat /sys/kernel/iommu_groups/*/type | sort -u"
	governors = "cat /sys/devices/system/cpu/cpufreq/policy*/scaling_governor | sort -u"
)

// One machine goes through all that its owner does with a policy: what is in
// force at once, walls, what a reboot brings, arguments that do not boot, and
// everything undone.
func TestMachineIsHeldToItsPolicy(t *testing.T) {
	m := bootMachine(t, "policy")
	began := time.Now()
	m.sh("dpkg -i /root/bc/*.deb")
	m.servicesRun()
	m.note("install", "%s; in %s", m.sh("bc version"), since(began))

	// As the unit itself says: the lines after its systemctl edit.
	m.sh(`mkdir -p /etc/systemd/system/bcd.service.d
		systemctl cat bcd | sed -n 's/^#   //p' | sed '/^ExecStart=./s|$| --nvml-library /usr/local/lib/nvml/libnvidia-ml.so.1|' >/etc/systemd/system/bcd.service.d/override.conf
		systemctl daemon-reload; systemctl restart bcd`)
	m.within(stepLimit, "bc nodes get "+hostname+` -o json | grep -q '"state": "ready"'`)
	m.sh("sh /root/bc/state >/root/before")
	m.note("fact", "before: `%s`; IOMMU groups `%s`; governor `%s`", m.sh("cat /proc/cmdline"), m.sh(groups), m.sh(governors))

	steps := []struct {
		name string
		run  func(*machine)
	}{
		{"pages of 2 MiB and the governor are there at once", atOnce},
		{"a reservation's programs have what was booked and no more", walled},
		{"one reboot brings pages of 1 GiB, isolated CPUs and the IOMMU", afterOneReboot},
		{"arguments with which the machine does not come up are gone at the next boot", brokenArgument},
		{"an empty policy and one reboot put everything back", putBack},
	}
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) {
			began := time.Now()
			step := *m
			step.t = t
			s.run(&step)
			step.note("step", "%s in all", since(began))
		}) {
			return
		}
	}
}

func atOnce(m *machine) {
	m.policy("hugepages.size=2Mi", "hugepages.count=256", "hugepages.perNuma=true", "cpu.governor=performance", "hostReserve.vcpu=1", "hostReserve.memoryGiB=2", "perGpu.vcpu=1", "perGpu.memoryGiB=1")
	m.units(map[string]string{"hugepages": "InSync", "cpu": "InSync"})
	m.fact("256\n256", pages2Mi)
	m.fact("performance", governors)
	m.is("active\nactive", "systemctl is-active bc-hugepages bc-cpu")
	m.is("", "sh /root/bc/state | diff /root/before - | grep '^[<>]' | grep -v -e nr_hugepages: -e scaling_governor: || true")

	// Someone else's change is found and mended.
	began := time.Now()
	m.sh("echo schedutil >/sys/devices/system/cpu/cpufreq/policy2/scaling_governor")
	m.within(stepLimit, "grep -x performance /sys/devices/system/cpu/cpufreq/policy2/scaling_governor")
	m.note("drift", "mended after %s", since(began))
}

func afterOneReboot(m *machine) {
	// Node 0 is in use, so that its pages do not all fit before a boot. After it
	// they do: of 6 GiB it has two places of 1 GiB wherever the kernel lies.
	m.sh("mkdir -p /mnt/used; mount -t tmpfs -o size=5G,mpol=bind:0 used /mnt/used; dd if=/dev/zero of=/mnt/used/it bs=1M count=4200 status=none")
	m.policy("hugepages.size=1Gi", "hugepages.count=2", "cpu.isolate=3", "iommu.passthrough=true")
	m.units(map[string]string{"hugepages": "PendingReboot", "cpu": "PendingReboot", "iommu": "PendingReboot"})
	m.fact("0\n0", pages2Mi)
	m.fact("", isolated)
	m.fact("DMA-FQ", groups)
	m.is("", "ls "+dropIn+" 2>/dev/null || true") // nothing that lasts is written before they have booted once
	m.reboot()
	m.units(map[string]string{"hugepages": "InSync", "cpu": "InSync", "iommu": "InSync"})
	cmdline := m.sh("cat /proc/cmdline")
	m.note("fact", "`/proc/cmdline` says `%s`", cmdline)
	for _, words := range []string{"hugepagesz=1G hugepages=0:2,1:2", "isolcpus=domain,managed_irq,3", "iommu=pt"} {
		if !strings.Contains(cmdline, words) {
			m.t.Errorf("the kernel was booted without %s: %s", words, cmdline)
		}
		m.within(stepLimit, "grep -q '"+words+"' /boot/grub/grub.cfg")
	}
	m.within(stepLimit, noTrial)
	m.fact("2\n2", pages1Gi)
	m.fact("3", isolated)
	m.fact("identity", groups)
	m.fact("performance", governors)
	m.is("running", "systemctl is-system-running")
}

const (
	dropIn  = "/etc/default/grub.d/zz-better-compute.cfg"
	noTrial = "! test -e /boot/grub/custom.cfg && ! grub-editenv list | grep next_entry=."
)

// The kernel of this machine panics early at boot when it has the new argument,
// and does not restart by itself: a stand-in for hardware that cannot take it.
func brokenArgument(m *machine) {
	const broken = "isolcpus=domain,managed_irq,2"
	m.sh("cat >/etc/systemd/system/breaks.service <<'E'\n[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\nConditionKernelCommandLine=" + broken +
		"\n[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo c >/proc/sysrq-trigger'\n[Install]\nWantedBy=sysinit.target\nE\nsystemctl enable -q breaks")
	before := m.sh("cat /proc/cmdline; sha256sum /boot/grub/grub.cfg " + dropIn)
	m.policy("cpu.isolate=2")
	m.units(map[string]string{"hugepages": "InSync", "cpu": "PendingReboot", "iommu": "InSync"})

	id := m.sh("cat /proc/sys/kernel/random/boot_id")
	panics := func() int {
		log, _ := m.harness("log")
		return strings.Count(log, "Kernel panic")
	}
	had, began := panics(), time.Now()
	_, _ = m.try("systemctl reboot") // the connection ends with the machine
	for panics() == had {
		if time.Since(began) > bootLimit {
			m.t.Fatalf("the machine does not panic within %v: was %s booted?", bootLimit, broken)
		}
		time.Sleep(time.Second)
	}
	m.note("fact", "booted with `%s`, the kernel panics, after %s", broken, since(began))
	began = time.Now()
	if out, err := m.harness("monitor", "system_reset"); err != nil {
		m.t.Fatalf("power cut: %v\n%s", err, out)
	}
	if out, err := m.harness("wait", id); err != nil {
		m.t.Fatalf("after the power cut: %v\n%s", err, out)
	}
	m.note("reboot", "after a power cut, %s", since(began))
	cpu := m.units(map[string]string{"hugepages": "InSync", "cpu": "Failed", "iommu": "InSync"})["cpu"]
	if !strings.Contains(cpu.Reason, "did not come up with "+broken) {
		m.t.Errorf("the unit does not say why: %s", cpu.Reason)
	}
	m.within(stepLimit, noTrial)
	m.is(before, "cat /proc/cmdline; sha256sum /boot/grub/grub.cfg "+dropIn)
	m.fact("3", isolated)
	m.sh("systemctl disable -q breaks; rm /etc/systemd/system/breaks.service")
}

func putBack(m *machine) {
	m.policy("hugepages", "cpu", "iommu", "hostReserve", "perGpu")
	// The boot loader no longer has the arguments once the agent is done.
	m.within(stepLimit, "! test -e "+dropIn+" && ! grep -e isolcpus -e iommu= -e hugepages /boot/grub/grub.cfg && "+noTrial)
	m.reboot()
	m.units(map[string]string{})
	m.is("", "sh /root/bc/state | diff /root/before - || true")
	m.note("fact", "after: nothing differs from before: /etc, /boot, `/proc/cmdline`, CPUs, pages, governors, IOMMU groups, cgroups")
	m.is("", "bc host units -o json | grep '\"kind\"' || true")
}
