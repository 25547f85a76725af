package unit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

const (
	policy0  = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
	node1G   = "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB"
	node0M   = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB"
	dropIn   = "/etc/default/grub.d/zz-better-compute.cfg"
	allUnits = `{"kernel-modules":{"load":["vfio-pci"],"options":{"loop":"max_loop=64"}},` +
		`"hugepages":{"sizeKiB":1048576,"count":8,"perNuma":true},"cpu":{"governor":"performance","isolate":"2-3"},"iommu":{"passthrough":true}}`
)

// one is the status of the only unit.
func one(t *testing.T, statuses []wire.UnitStatus) wire.UnitStatus {
	t.Helper()
	if len(statuses) != 1 {
		t.Fatalf("%d statuses: %+v", len(statuses), statuses)
	}
	return statuses[0]
}

// dying runs do in a process that dies at a moment, if it comes that far.
func (b *bench) dying(moment int, do func()) (died bool) {
	b.DieAt(moment)
	defer b.DieAt(0)
	defer func() {
		switch r := recover().(type) {
		case nil:
		case hosttest.Died:
			died = true
		default:
			panic(r)
		}
	}()
	do()
	return false
}

// The process dies right before and right after each change that it makes to the
// machine, while it applies and while it removes. The next one goes on from
// there: in the end the machine is as if nobody had died.
func TestDyingAtEachChange(t *testing.T) {
	const arguments = `{"cpu":{"isolate":"1,5"},"iommu":{"passthrough":true}}`
	for machine, spec := range map[string]string{"debian-amd": allUnits, "rhel-intel": arguments, "systemd-boot": arguments} {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			want := units(t, spec)
			fragment := func(b *bench) {
				if b.Exists(node1G) {
					b.Fragment(node1G, 3)
				}
			}
			still := newBench(t, machine)
			fragment(still)
			before := still.Files(t)
			statuses := lines(still.sync(want))
			applied := still.Files(t)
			effects := still.Effects()
			still.sync(wire.Units{})
			removed := still.Files(t)
			if effects < 6 || cmp.Equal(before, applied) || cmp.Equal(applied, removed) {
				t.Fatalf("applying makes %d changes", effects)
			}

			for moment := 1; ; moment++ {
				b := newBench(t, machine)
				fragment(b)
				if !b.dying(moment, func() { b.sync(want) }) {
					if moment < 2*effects {
						t.Errorf("the process lived through moment %d of %d", moment, 2*effects)
					}
					break
				}
				b.now = b.now.Add(time.Second)
				if got := lines(b.sync(want)); got != statuses {
					t.Fatalf("died at moment %d: %s", moment, cmp.Diff(statuses, got))
				}
				if diff := cmp.Diff(applied, b.Files(t)); diff != "" {
					t.Fatalf("died at moment %d, the machine (-without +with a death):\n%s", moment, diff)
				}
				b.dying(moment, func() { b.sync(wire.Units{}) })
				b.sync(wire.Units{})
				if diff := cmp.Diff(removed, b.Files(t)); diff != "" {
					t.Fatalf("died at moment %d while removing, the machine (-without +with a death):\n%s", moment, diff)
				}
			}
		})
	}
}

// What someone else changes is put right within one comparison, and the third
// time in ten minutes it is left to them, with the name of who it may be.
func TestDriftThenConflict(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"cpu":{"governor":"performance"}}`)
	b.sync(want)
	flip := func(after time.Duration) wire.UnitStatus {
		b.now = b.now.Add(after)
		b.Put(policy0, "powersave")
		return one(t, b.sync(want))
	}
	governor := func() string { g, _ := b.String(policy0); return g }
	for range 2 {
		if s := flip(time.Minute); s.State != wire.InSync || governor() != "performance" {
			t.Fatalf("%+v, the governor is %s", s, governor())
		}
	}
	b.Active("tuned.service")
	s := flip(time.Minute)
	if s.State != wire.Conflict || !strings.Contains(s.Reason, "Suspected: tuned") || governor() != "powersave" {
		t.Fatalf("%+v, the governor is %s", s, governor())
	}
	since := s.Since
	if s = flip(time.Minute); s.State != wire.Conflict || governor() != "powersave" || !s.Since.Equal(since) {
		t.Fatalf("a minute later: %+v, the governor is %s", s, governor())
	}
	b.now = b.now.Add(10 * time.Minute)
	if s = one(t, b.sync(want)); s.State != wire.InSync || governor() != "performance" {
		t.Fatalf("ten quiet minutes later: %+v, the governor is %s", s, governor())
	}
}

func TestSlowDriftIsMendedForEver(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"cpu":{"governor":"performance"}}`)
	b.sync(want)
	for range 6 {
		b.now = b.now.Add(6 * time.Minute)
		b.Put(policy0, "powersave")
		if s := one(t, b.sync(want)); s.State != wire.InSync {
			t.Fatalf("%+v", s)
		}
	}
}

// The value from before the first write survives every later one, and what
// others set is not touched.
func TestRemoveRestoresWhatWasThere(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.sync(units(t, `{"cpu":{"governor":"performance"}}`))
	b.sync(units(t, `{"cpu":{"governor":"ondemand"}}`))
	theirs := "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor"
	b.Put(theirs, "powersave")
	b.sync(wire.Units{})
	for name, want := range map[string]string{policy0: "schedutil", theirs: "powersave"} {
		if got, _ := b.String(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A pool that is in use when its unit is removed shrinks as far as it can, and
// the rest of the way once its pages are free.
func TestRemovedPoolsShrinkWhenFree(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"hugepages":{"sizeKiB":2048,"count":100,"perNuma":true}}`)
	b.sync(want)
	b.Use(node0M, 30)
	b.sync(wire.Units{})
	if n, _ := b.Int(node0M + "/nr_hugepages"); n != 30 {
		t.Errorf("with 30 pages in use there are %d", n)
	}
	b.Use(node0M, 0)
	b.sync(wire.Units{})
	if n, _ := b.Int(node0M + "/nr_hugepages"); n != 0 {
		t.Errorf("with all pages free there are %d", n)
	}
	if left := b.Ledger.Units(host.Priors); len(left) > 0 {
		t.Errorf("the ledger still knows of %v", left)
	}
}

// A short pool is asked for again after a while, and that is no fight.
func TestShortPoolIsAskedForAgain(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"hugepages":{"sizeKiB":2048,"count":100,"perNuma":true}}`)
	b.Fragment(node0M, 40)
	for range 5 {
		if s := one(t, b.sync(want)); s.State != wire.Partial || !strings.Contains(s.Got, "node 0: 40") {
			t.Fatalf("%+v", s)
		}
		b.now = b.now.Add(2 * time.Minute)
	}
	b.Defragment(node0M)
	b.now = b.now.Add(5 * time.Minute)
	if s := one(t, b.sync(want)); s.State != wire.InSync {
		t.Errorf("once memory is free: %+v", s)
	}
}

func TestForeignPagesAreLeftUntilTheHostStarves(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"hugepages":{"sizeKiB":2048,"count":100,"perNuma":true}}`)
	b.sync(want)
	pages := func(n int) {
		t.Helper()
		if err := b.WriteKernel(node0M+"/nr_hugepages", fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
	}
	pages(150)
	if s := one(t, b.sync(want)); s.State != wire.InSync || !strings.Contains(s.Reason, "added 50 pages on node 0") {
		t.Errorf("%+v", s)
	}
	pages(32600) // of 32768
	if s := one(t, b.sync(want)); s.State != wire.Conflict {
		t.Errorf("%+v", s)
	}
}

// A kernel upgrade that forgot the arguments: the machine boots without them.
// That is a failure, and no second boot is asked for.
func TestArgumentsLostAtBootFail(t *testing.T) {
	b := newBench(t, "rhel-intel")
	want := units(t, `{"iommu":{"passthrough":true}}`)
	if s := one(t, b.sync(want)); s.State != wire.PendingReboot {
		t.Fatalf("%+v", s)
	}
	entry := "/boot/loader/entries/aaa-5.14.0-362.el9.x86_64.conf"
	text, _ := b.String(entry)
	b.Put(entry, strings.ReplaceAll(text, " intel_iommu=on iommu=pt", ""))
	b.Reboot()
	s := one(t, b.sync(want))
	if s.State != wire.Failed || !strings.Contains(s.Reason, "booted since") {
		t.Errorf("%+v", s)
	}
	b.Ran()
	b.now = b.now.Add(time.Hour)
	if again := one(t, b.sync(want)); again.State != wire.Failed || len(b.Ran()) > 0 {
		t.Errorf("an hour later: %+v", again)
	}
}

// A new kernel that lacks the arguments is given them before it boots.
func TestNewKernelGetsTheArguments(t *testing.T) {
	b := newBench(t, "rhel-intel")
	want := units(t, `{"iommu":{"passthrough":true}}`)
	b.sync(want)
	b.Reboot()
	b.Put("/boot/loader/entries/aaa-5.14.0-503.el9.x86_64.conf", "version 5.14.0-503.el9.x86_64\nlinux /vmlinuz-5.14.0-503.el9.x86_64\noptions root=/dev/mapper/rhel-root ro")
	b.Ran()
	if s := one(t, b.sync(want)); s.State != wire.InSync {
		t.Errorf("%+v", s)
	}
	if ran := b.Ran(); !slices.Equal(ran, []string{"grubby --update-kernel=/boot/vmlinuz-5.14.0-503.el9.x86_64 --args=intel_iommu=on iommu=pt"}) {
		t.Errorf("ran %q", ran)
	}
}

// Taken out of the policy after the boot, arguments go with the next one; until
// then the ledger remembers them.
func TestRemovedArgumentsGoWithTheNextBoot(t *testing.T) {
	b := newBench(t, "debian-amd")
	before := b.Files(t)
	b.confirmed(units(t, `{"iommu":{"passthrough":true}}`))
	if !b.Exists(dropIn) {
		t.Fatal("after the boot there is no drop-in")
	}
	b.sync(wire.Units{})
	if b.Exists(dropIn) || !strings.Contains(b.cmdline(), "iommu=pt") {
		t.Fatalf("the drop-in is there: %v; the kernel runs with %s", b.Exists(dropIn), b.cmdline())
	}
	if left := b.Ledger.Units(host.Priors); !slices.Equal(left, []string{"iommu"}) {
		t.Errorf("before the boot the ledger knows of %v", left)
	}
	b.Reboot()
	b.sync(wire.Units{})
	if left := b.Ledger.Units(host.Priors); len(left) > 0 {
		t.Errorf("after the boot the ledger knows of %v", left)
	}
	after := b.Files(t)
	for _, files := range []map[string]string{before, after} {
		delete(files, "/proc/sys/kernel/random/boot_id")
		delete(files, host.GRUBEnvironment) // GRUB cleared next_entry
		files["/proc/cmdline"] = strings.Join(strings.Fields(files["/proc/cmdline"])[1:], " ")
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// confirmed has the machine booted with what is wanted, and the agent up after it.
func (b *bench) confirmed(want wire.Units) []wire.UnitStatus {
	b.sync(want)
	b.Reboot()
	return b.sync(want)
}

func (b *bench) cmdline() string { line, _ := b.String("/proc/cmdline"); return line }

// systemd-boot without a line for new kernels: it is made from the entry's, so
// that root= stays.
func TestSeededCommandLineKeepsRoot(t *testing.T) {
	b := newBench(t, "systemd-boot")
	b.sync(units(t, `{"iommu":{"passthrough":true}}`))
	const root = "root=UUID=00000000-0000-0000-0000-000000000000 rw quiet"
	if line, _ := b.String("/etc/kernel/cmdline"); line != root+" intel_iommu=on iommu=pt" {
		t.Errorf("the line is %q", line)
	}
	b.sync(wire.Units{})
	if line, _ := b.String("/etc/kernel/cmdline"); line != root {
		t.Errorf("removed, the line is %q", line)
	}
}

func TestPagesBeforeNodesCouldBeNamed(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Put("/proc/sys/kernel/osrelease", "5.10.0-28-amd64")
	b.Fragment(node1G, 3)
	b.sync(units(t, `{"hugepages":{"sizeKiB":1048576,"count":8,"perNuma":true}}`))
	if text, _ := b.String(host.GRUBCustom); !strings.Contains(text, "hugepagesz=1G hugepages=16\n") {
		t.Errorf("the trial's entry says %q", text)
	}
}

// A file that someone edited is theirs, when it is to be written again and when
// it is to be removed.
func TestEditedFileIsLeftAlone(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"iommu":{"passthrough":true}}`)
	b.confirmed(want)
	text, _ := b.String(dropIn)
	edited := text + "\nGRUB_TIMEOUT=30"
	b.Put(dropIn, edited)
	for _, u := range []wire.Units{units(t, `{"iommu":{"passthrough":true},"cpu":{"isolate":"2-3"}}`), {}} {
		for _, s := range b.sync(u) {
			if s.State != wire.Conflict {
				t.Errorf("%+v", s)
			}
		}
		if now, _ := b.String(dropIn); now != edited {
			t.Errorf("the file is %q", now)
		}
	}
}

func TestFailingUnitStopsNoOther(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Fails("modprobe", "modprobe: ERROR: could not insert 'vfio_pci': Key was rejected by service")
	want := units(t, `{"kernel-modules":{"load":["vfio_pci"]},"cpu":{"governor":"performance"}}`)
	statuses := b.sync(want)
	if statuses[0].State != wire.Failed || statuses[1].State != wire.InSync {
		t.Errorf("%+v", statuses)
	}
	// What cannot work is not tried at each comparison.
	for range 20 {
		b.now = b.now.Add(30 * time.Second)
		b.sync(want)
	}
	if ran := b.Ran(); len(ran) < 3 || len(ran) > 6 {
		t.Errorf("modprobe ran %d times in ten minutes", len(ran))
	}
	b.Works("modprobe")
	b.now = b.now.Add(time.Hour)
	if s := b.sync(want)[0]; s.State != wire.InSync {
		t.Errorf("once it works: %+v", s)
	}
}

func TestWithoutManageHostNothingChanges(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Manage = false
	before := b.Files(t)
	for _, s := range b.sync(units(t, allUnits)) {
		if s.State != wire.Unsupported || !strings.Contains(s.Reason, "--manage-host") || !strings.Contains(s.Reason, "It would: ") || s.Wanted == "" {
			t.Errorf("%+v", s)
		}
		if len(s.Reason) > 900 {
			t.Errorf("%s says %d bytes in each heartbeat", s.Kind, len(s.Reason))
		}
	}
	if diff := cmp.Diff(before, b.Files(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if n := len(b.Ledger.Units(host.Desired)); n > 0 {
		t.Errorf("the ledger has %d units", n)
	}
}

// systemd runs the units that are installed; the result is what its process
// wrote down. The others are applied by the agent.
func TestInstalledServicesApplyTheirUnits(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Services = true
	b.Install("bc-cpu.service", func() error {
		status, any, err := (&unit.Runner{Machine: b.Machine.Machine, Ledger: b.Ledger, Manage: true, Now: b.Now, Log: b.Log}).Apply(context.Background(), wire.UnitCPU)
		if err != nil || !any || status.State != wire.InSync {
			t.Errorf("%v %v %v", status, any, err)
		}
		return err
	})
	want := units(t, `{"cpu":{"governor":"performance"},"hugepages":{"sizeKiB":2048,"count":8}}`)
	for range 2 {
		for _, s := range b.sync(want) {
			if s.State != wire.InSync {
				t.Errorf("%+v", s)
			}
		}
	}
	if ran := b.Ran(); !slices.Equal(ran, []string{"systemctl restart bc-cpu.service"}) {
		t.Errorf("ran %q", ran)
	}
}

// Each booking makes a new generation. It runs no unit again that has nothing to
// do, and what the unit must know of bookings at the next boot is noted.
func TestBookingsRunNoSettledUnitAgain(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Services = true
	b.Install("bc-cpu.service", func() error {
		_, _, err := (&unit.Runner{Machine: b.Machine.Machine, Ledger: b.Ledger, Manage: true, Now: b.Now, Log: b.Log}).Apply(context.Background(), wire.UnitCPU)
		return err
	})
	want := units(t, `{"cpu":{"governor":"performance"}}`)
	b.sync(want)
	b.Ran()
	booked := wire.NodeSpec{Generation: 8, Units: want, Bindings: []wire.Binding{{ReservationID: "res_1", Devices: []wire.Device{{UUID: "GPU-1"}}}}}
	if s := one(t, b.Sync(context.Background(), booked)); s.State != wire.InSync {
		t.Errorf("%+v", s)
	}
	if ran := b.Ran(); len(ran) > 0 {
		t.Errorf("a booking ran %q", ran)
	}
	var d unit.Desired
	if _, err := b.Ledger.Load(host.Desired, "cpu", &d); err != nil || !slices.Equal(d.Held, []string{"GPU-1"}) {
		t.Errorf("a boot would know of %v as booked: %v", d.Held, err)
	}
	booked.Generation, booked.Units = 9, units(t, `{"cpu":{"governor":"schedutil"}}`)
	b.Sync(context.Background(), booked)
	if ran := b.Ran(); !slices.Equal(ran, []string{"systemctl restart bc-cpu.service"}) {
		t.Errorf("another policy ran %q", ran)
	}
}

func TestServiceThatFailsWithoutAResultIsReported(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.Services = true
	b.Install("bc-cpu.service", func() error { return fmt.Errorf("exit status 203") })
	s := one(t, b.sync(units(t, `{"cpu":{"governor":"performance"}}`)))
	if s.State != wire.Failed || !strings.Contains(s.Reason, "journalctl -u bc-cpu.service") {
		t.Errorf("%+v", s)
	}
}

// Two agents on one ledger take turns: what was there before is still known.
func TestTwoAgentsOnOneLedger(t *testing.T) {
	b := newBench(t, "debian-amd")
	before := b.Files(t)
	want := units(t, `{"cpu":{"governor":"performance"},"hugepages":{"sizeKiB":2048,"count":8,"perNuma":true},"iommu":{"passthrough":true}}`)
	var both sync.WaitGroup
	for range 2 {
		r := *b.Runner
		both.Go(func() {
			for _, s := range r.Sync(context.Background(), wire.NodeSpec{Generation: 7, Units: want}) {
				if s.State != wire.InSync && s.State != wire.PendingReboot {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	both.Wait()
	b.sync(wire.Units{})
	if diff := cmp.Diff(before, b.Files(t)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestDamagedLedgerIsAFailureNotALoss(t *testing.T) {
	b := newBench(t, "debian-amd")
	want := units(t, `{"cpu":{"governor":"performance"}}`)
	b.sync(want)
	if err := b.Ledger.Save(host.Priors, "cpu", "{"); err != nil {
		t.Fatal(err)
	}
	b.Put(policy0, "powersave")
	if s := one(t, b.sync(want)); s.State != wire.Failed || !strings.Contains(s.Reason, "prior/cpu.json is damaged") {
		t.Errorf("%+v", s)
	}
	if g, _ := b.String(policy0); g != "powersave" {
		t.Error("the machine was changed with nothing known of before")
	}
}

func TestHistoryTellsWhatWasChanged(t *testing.T) {
	b := newBench(t, "debian-amd")
	b.sync(units(t, `{"hugepages":{"sizeKiB":2048,"count":8}}`))
	b.sync(wire.Units{})
	events, err := b.Ledger.History()
	if err != nil {
		t.Fatal(err)
	}
	const pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	want := []host.Event{
		{At: b.now, Unit: "hugepages", Generation: 7, Change: "set " + pool + " = 8", Old: "0", New: "8"},
		{At: b.now, Unit: "hugepages", Generation: 7, Change: "restore " + pool + " = 0", Old: "8", New: "0"},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
