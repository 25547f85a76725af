package unit_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

const (
	machine2M   = "/sys/kernel/mm/hugepages/hugepages-2048kB"
	preference0 = "/sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference"
)

// The count that a refusal shows is taken, one page more is refused, and what
// then is left is enough for the host.
func TestLargestCountShownIsTheLargestThatIsTaken(t *testing.T) {
	most := regexp.MustCompile(`at most (\d+) fit`)
	for _, host := range []string{"debian-amd", "rhel-intel", "arm-server", "amd-epp", "no-numa", "vm"} {
		for _, size := range []int{wire.Hugepage2MiKiB, wire.Hugepage1GiKiB} {
			for _, perNUMA := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d %v", host, size, perNUMA), func(t *testing.T) {
					t.Parallel()
					b := newBench(t, host)
					ask := func(count int) wire.UnitStatus {
						t.Helper()
						return one(t, b.sync(wire.Units{Hugepages: &wire.Hugepages{SizeKiB: size, Count: count, PerNUMA: perNUMA}}))
					}
					if !b.IsDir(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB", size)) {
						return
					}
					before := b.Files(t)
					s := ask(wire.MaxHugepages)
					shown := most.FindStringSubmatch(s.Reason)
					if s.State != wire.Failed || shown == nil {
						t.Fatalf("%+v", s)
					}
					if diff := cmp.Diff(before, b.Files(t)); diff != "" {
						t.Errorf("a refused count changed the machine (-before +after):\n%s", diff)
					}
					count, _ := strconv.Atoi(shown[1])
					if s := ask(count + 1); s.State != wire.Failed {
						t.Errorf("%d pages, one more than shown: %+v", count+1, s)
					}
					if s := ask(count); s.State == wire.Failed {
						t.Errorf("%d pages, as shown: %+v", count, s)
					}
					nr, _ := b.Int(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", size))
					text, _ := b.String("/proc/meminfo")
					total, _ := strconv.Atoi(strings.Fields(text)[1])
					if left := total - int(nr)*size; left < 2<<20 || left > 18<<20+size {
						t.Errorf("%d pages leave %d MiB to the host", nr, left>>10)
					}
				})
			}
		}
	}
}

// Memory that programs use is not theirs to lose: a pool grows into what is
// free, short of a reserve, and on once there is more.
func TestPoolGrowsIntoFreeMemoryOnly(t *testing.T) {
	b := newBench(t, "no-numa")
	b.Available(4<<20 + 512<<10) // of 16 GiB
	want := units(t, `{"hugepages":{"sizeKiB":2048,"count":5120}}`)
	s := one(t, b.sync(want))
	if s.State != wire.Partial || s.Got != "2048 pages of 2Mi" || !strings.Contains(s.Reason, "512 MiB of memory that nothing uses, of which 512 stay free") {
		t.Fatalf("%+v", s)
	}
	for range 5 { // nothing is asked for, and it is no fight
		b.now = b.now.Add(2 * time.Minute)
		b.Available(512<<10 + 40<<10) // 20 pages more are free: not worth it
		if s := one(t, b.sync(want)); s.State != wire.Partial || s.Got != "2048 pages of 2Mi" {
			t.Fatalf("%+v", s)
		}
	}
	b.Available(1 << 20)
	if s := one(t, b.sync(want)); s.State != wire.Partial || s.Got != "2304 pages of 2Mi" {
		t.Fatalf("with half a GiB more: %+v", s)
	}
	b.Available(12 << 20)
	if s := one(t, b.sync(want)); s.State != wire.InSync || s.Got != "5120 pages of 2Mi" {
		t.Errorf("with all that is wanted: %+v", s)
	}
	more := units(t, `{"hugepages":{"sizeKiB":2048,"count":5130}}`)
	if s := one(t, b.sync(more)); s.State != wire.InSync {
		t.Errorf("a few pages more in the policy: %+v", s)
	}
}

// Of a node the kernel has no MemAvailable. Its cache counts as free.
func TestPoolOfANodeGrowsIntoItsFreeMemory(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       67108864 kB\nNode 1 MemFree:          524288 kB\n"+
		"Node 1 Active(file):     262144 kB\nNode 1 Inactive(file):   131072 kB\nNode 1 SReclaimable:     131072 kB\nNode 1 Active(anon):   60000000 kB")
	p, err := b.Preview(wire.UnitHugepages, unit.Desired{Units: units(t, `{"hugepages":{"sizeKiB":2048,"count":1024,"perNuma":true}}`)})
	if err != nil {
		t.Fatal(err)
	}
	want := "set " + node0M + "/nr_hugepages = 1024\nset " + strings.ReplaceAll(node0M, "node0", "node1") + "/nr_hugepages = 384\n"
	if diff := cmp.Diff(want, p.Lines()); diff != "" || !strings.Contains(p.Reason, "node 1 has 1024 MiB of memory that nothing uses, of which 256 stay free") {
		t.Errorf("%s\n%s", p.Reason, diff)
	}
}

// Whoever sets the pool's size by sysctl.d is known by the file, in all the ways
// in which a file can do it, and not by one that does not.
func TestConflictNamesTheSysctlFile(t *testing.T) {
	for _, c := range []struct{ file, text string }{
		{"/etc/sysctl.d/90-database.conf", "vm.nr_hugepages = 16"},
		{"/etc/sysctl.d/90-database.conf", "# tuned by hand\nvm/nr_hugepages=16"},
		{"/run/sysctl.d/x.conf", "-vm.nr_hugepages=16"},
		{"/usr/local/lib/sysctl.d/x.conf", "  vm.nr_hugepages_mempolicy = 16"},
		{"/usr/lib/sysctl.d/x.conf", "vm.swappiness=1\nvm.nr_hugepages\t=\t16"},
		{"/etc/sysctl.conf", "vm.nr_hugepages=16"},
	} {
		t.Run(c.file+" "+c.text, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "debian-amd")
			b.Put("/etc/sysctl.d/10-innocent.conf", "# vm.nr_hugepages = 3\n;vm.nr_hugepages = 3\nvm.nr_overcommit_hugepages = 3\nkernel.vm.nr_hugepages = 3")
			want := units(t, `{"hugepages":{"sizeKiB":2048,"count":64}}`)
			if s := one(t, b.sync(want)); s.State != wire.InSync || s.Reason != "" {
				t.Fatalf("%+v", s)
			}
			b.Put(c.file, c.text)
			if s := one(t, b.sync(want)); s.State != wire.InSync || !strings.Contains(s.Reason, c.file+" sets vm.nr_hugepages = 16") {
				t.Errorf("before it fights: %+v", s)
			}
			var s wire.UnitStatus
			for flip := range 3 {
				b.now = b.now.Add(30 * time.Second)
				if err := b.WriteKernel(machine2M+"/nr_hugepages", "16"); err != nil {
					t.Fatal(err)
				}
				s = one(t, b.sync(want))
				n, _ := b.Int(machine2M + "/nr_hugepages")
				if flip < 2 && (s.State != wire.InSync || n != 64) {
					t.Fatalf("flip %d, %d pages: %+v", flip, n, s)
				}
				if flip == 2 && (s.State != wire.Conflict || n != 16) {
					t.Fatalf("flip %d, %d pages: %+v", flip, n, s)
				}
			}
			if _, suspects, _ := strings.Cut(s.Reason, "Suspected: "); suspects != c.file {
				t.Errorf("suspected is %q", suspects)
			}
		})
	}
}

// A file that another of the same name stands before does nothing, and nobody
// is told of it.
func TestMaskedSysctlFileIsInnocent(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/usr/lib/sysctl.d/50-pages.conf", "vm.nr_hugepages = 16")
	b.Put("/etc/sysctl.d/50-pages.conf", "")
	if s := one(t, b.sync(units(t, `{"hugepages":{"sizeKiB":2048,"count":64}}`))); s.Reason != "" {
		t.Errorf("%+v", s)
	}
	b.Put("/etc/sysctl.d/60-pages.conf", "vm.nr_hugepages = 64") // what is wanted
	b.Put("/etc/sysctl.d/55-pages.conf", "vm.nr_hugepages = 9")  // and is set again after
	if s := one(t, b.sync(units(t, `{"hugepages":{"sizeKiB":2048,"count":64}}`))); s.Reason != "" {
		t.Errorf("%+v", s)
	}
	if s := one(t, b.sync(units(t, `{"hugepages":{"sizeKiB":1048576,"count":4}}`))); s.Reason != "" {
		t.Errorf("of a pool that sysctl does not size: %+v", s)
	}
}

// Of the services known to set the governor those that run are named, and no
// others.
func TestConflictNamesWhoRunsTheGovernor(t *testing.T) {
	for _, rivals := range [][]string{
		{"tuned"}, {"power-profiles-daemon"}, {"tuned", "tuned-ppd"}, {"tlp"}, {"auto-cpufreq"}, {"cpupower"}, {"thermald"}, {"cpufrequtils"}, nil,
	} {
		t.Run(strings.Join(rivals, " "), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "amd-epp")
			b.Active("ssh.service", "irqbalance.service")
			for _, r := range rivals {
				b.Active(r + ".service")
			}
			want := units(t, `{"cpu":{"governor":"performance"}}`)
			b.sync(want)
			var s wire.UnitStatus
			for range 3 {
				b.now = b.now.Add(30 * time.Second)
				if err := b.WriteKernel(policy0, "powersave"); err != nil {
					t.Fatal(err)
				}
				s = one(t, b.sync(want))
			}
			who := "Suspected: " + strings.Join(rivals, ", ")
			if rivals == nil {
				who = "None of the services known to do that runs here"
			}
			if s.State != wire.Conflict || !strings.HasSuffix(s.Reason, who) {
				t.Errorf("%+v, want %s", s, who)
			}
		})
	}
}

func preferencesOf(b *bench) (out []string) {
	for _, file := range b.Glob("/sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference") {
		value, _ := b.String(file)
		out = append(out, value)
	}
	return out
}

// The governor takes the energy-performance preference with it. What was there
// before comes back after it, by the driver's doing or the agent's, and what
// someone else chose since stays.
func TestPreferenceComesBackAfterTheGovernor(t *testing.T) {
	fast := []string{"performance", "performance", "performance", "performance"}
	for _, driver := range []string{"intel_pstate", "amd-pstate-epp"} {
		t.Run(driver, func(t *testing.T) {
			b := newBench(t, "amd-epp")
			for _, file := range b.Glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_driver") {
				b.Put(file, driver)
			}
			b.Put(strings.ReplaceAll(preference0, "policy0", "policy3"), "128") // a number is one, too
			before := preferencesOf(b)
			for _, file := range b.Glob("/sys/devices/system/cpu/cpufreq/policy*/energy_performance_available_preferences") {
				b.Machine.Remove(file)
			}
			b.sync(units(t, `{"cpu":{"governor":"performance"}}`))
			if got := preferencesOf(b); !slices.Equal(got, fast) {
				t.Fatalf("under performance the preferences are %q", got)
			}
			b.sync(units(t, `{"cpu":{"governor":"powersave"}}`))
			if got := preferencesOf(b); !slices.Equal(got, before) {
				t.Errorf("under powersave the preferences are %q, before they were %q", got, before)
			}
			b.sync(units(t, `{"cpu":{"governor":"performance"}}`))
			b.Reboot()
			b.sync(units(t, `{"cpu":{"governor":"performance"}}`))
			b.sync(wire.Units{})
			if got := preferencesOf(b); !slices.Equal(got, before) {
				t.Errorf("removed, the preferences are %q, before they were %q", got, before)
			}
			b.sync(units(t, `{"cpu":{"governor":"performance"}}`))
			for name, value := range map[string]string{policy0: "powersave", preference0: "power"} { // theirs
				b.Put(name, value)
			}
			b.sync(wire.Units{})
			if got := preferencesOf(b); got[0] != "power" || !slices.Equal(got[1:], before[1:]) {
				t.Errorf("with one set by someone else they are %q", got)
			}
			if left := b.Ledger.Units("prior"); len(left) > 0 {
				t.Errorf("the ledger still knows of %v", left)
			}
		})
	}
}

// Dying at any moment between governors and preferences loses neither.
func TestPreferenceSurvivesADeathAtEachChange(t *testing.T) {
	still := newBench(t, "amd-epp")
	want := units(t, `{"cpu":{"governor":"performance"}}`)
	before := still.Files(t)
	still.sync(want)
	applied := still.Files(t)
	died := 0
	for moment := 1; ; moment++ {
		b := newBench(t, "amd-epp")
		if !b.dying(moment, func() { b.sync(want) }) {
			break
		}
		died++
		b.sync(want)
		if diff := cmp.Diff(applied, b.Files(t)); diff != "" {
			t.Fatalf("died at moment %d (-without +with a death):\n%s", moment, diff)
		}
	}
	for moment := 1; ; moment++ {
		b := newBench(t, "amd-epp")
		b.sync(want)
		if !b.dying(moment, func() { b.sync(wire.Units{}) }) {
			break
		}
		died++
		b.sync(wire.Units{})
		if diff := cmp.Diff(before, b.Files(t)); diff != "" {
			t.Fatalf("died at moment %d while removing (-before +after):\n%s", moment, diff)
		}
	}
	if died < 2*4+2*8 { // four governors, then four of both
		t.Errorf("it died %d times", died)
	}
}

// irqbalance leaves isolated CPUs alone until it is told which to leave alone.
func TestInterruptsOnIsolatedCPUsAreSaid(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		idle             bool
		want             string
	}{
		{"untold", "/etc/default/irqbalance", "ENABLED=1\n#IRQBALANCE_BANNED_CPULIST=1", false, ""},
		{"told of others", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=\"1-2\"", false, "CPU 3 is none of them"},
		{"told of others as a mask", "/etc/sysconfig/irqbalance", "IRQBALANCE_BANNED_CPUS=00000000,00000004", false, "/etc/sysconfig/irqbalance which CPUs to leave alone, and CPU 3 is none"},
		{"told of all", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=2-7", false, ""},
		{"told of all as a mask", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPUS=0xC", false, ""},
		{"the list goes before the mask", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPUS=c\nIRQBALANCE_BANNED_CPULIST=2", false, "CPU 3 is none of them"},
		{"not running", "/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=1", true, ""},
	} {
		b := newBench(t, "debian-amd")
		b.Put(c.file, c.text)
		if !c.idle {
			b.Active("irqbalance.service")
		}
		s := one(t, b.sync(units(t, `{"cpu":{"isolate":"2-3"}}`)))
		if s.State != wire.PendingReboot || strings.Contains(s.Reason, "irqbalance") != (c.want != "") || !strings.Contains(s.Reason, c.want) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

// A crash kernel that is given hugepages= too has no memory left to dump with.
func TestPagesOfACrashKernelAreSaid(t *testing.T) {
	const debian, rhel = "/etc/default/kdump-tools", "/etc/sysconfig/kdump"
	for _, c := range []struct{ name, file, text, reserve, want string }{
		{"Debian passes them on", debian, "USE_KDUMP=1\nKDUMP_CMDLINE_APPEND=\"reset_devices nr_cpus=1\"", "268435456", "add hugepages=0 to KDUMP_CMDLINE_APPEND"},
		{"Debian was told", debian, "USE_KDUMP=1\nKDUMP_CMDLINE_APPEND=\"reset_devices hugepages=0\"", "268435456", ""},
		{"a line of its own", debian, "USE_KDUMP=1\nKDUMP_CMDLINE=\"root=/dev/sda1 ro\"", "268435456", ""},
		{"kdump off", debian, "USE_KDUMP=0", "268435456", ""},
		{"nothing reserved", debian, "USE_KDUMP=1", "0", ""},
		{"RHEL strips them", rhel, `KDUMP_COMMANDLINE_REMOVE="hugepages hugepagesz quiet"`, "268435456", ""},
		{"RHEL was told otherwise", rhel, `KDUMP_COMMANDLINE_REMOVE="quiet"`, "268435456", "add hugepages and hugepagesz to KDUMP_COMMANDLINE_REMOVE"},
		{"no kdump", "/etc/default/other", "", "268435456", ""},
	} {
		b := newBench(t, "debian-amd")
		b.Put(c.file, c.text)
		b.Put("/sys/kernel/kexec_crash_size", c.reserve)
		b.Fragment(node1G, 3)
		s := one(t, b.sync(units(t, `{"hugepages":{"sizeKiB":1048576,"count":8,"perNuma":true}}`)))
		if s.State != wire.PendingReboot || strings.Contains(s.Reason, "crash kernel") != (c.want != "") || !strings.Contains(s.Reason, c.want) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}
