//go:build e2e

package packaging_test

import "fmt"

// inside says what a program has: which GPUs' nodes it can open, and the CPUs,
// memory nodes and memory that the kernel lets it use.
const inside = `opens=; for d in /dev/nvidia[0-9]; do if (exec 3<$d) 2>/dev/null; then opens="$opens ${d#/dev/nvidia}"; fi; done
	slice=/sys/fs/cgroup$(sed -n "s|^0::\(/bc.slice/[^/]*\).*|\1|p" /proc/self/cgroup)
	echo "opens$opens; CPUs $(sed -n "s/^Cpus_allowed_list:\t//p" /proc/self/status) of $(nproc); nodes $(sed -n "s/^Mems_allowed_list:\t//p" /proc/self/status); memory $(cat $slice/memory.max 2>/dev/null || echo all)"`

func walled(m *machine) {
	m.sh("cat >/root/inside <<'E'\n" + inside + "\nE\nchmod 755 /root/inside")
	if out := m.sh("bash /root/inside"); out != "opens 0 1; CPUs 0-3 of 4; nodes 0-1; memory all" {
		m.t.Fatalf("without a wall: %s: the stand-ins prove nothing", out)
	}
	for _, name := range []string{"a", "b"} {
		m.sh("bc reservations create --name " + name + " --gpus 1 --for 2h --wait")
	}
	has := func(name string) string {
		m.t.Helper()
		return m.sh("bc run -r " + name + " -- bash /root/inside")
	}
	a, b := has("a"), has("b")
	m.note("fact", "reservation a: %s", a)
	m.note("fact", "reservation b: %s", b)
	var cpus [2]int
	for i, got := range []string{a, b} {
		want := fmt.Sprintf("opens %d; CPUs %%d of 1; nodes %d; memory 1073741824", i, i)
		if n, err := fmt.Sscanf(got, want, &cpus[i]); n != 1 || err != nil || cpus[i]/2 != i {
			m.t.Errorf("reservation %d has %q, want %q with a CPU of node %d", i, got, want, i)
		}
	}

	// Neither a reload of systemd nor another reservation changes what a program
	// has that runs already, or a later one.
	m.sh(`rm -f /run/again /run/said; systemd-run -q --unit=waits bc run -r a -- bash -c 'until test -e /run/again; do sleep 0.2; done; bash /root/inside >/run/said'
		until ls /sys/fs/cgroup/bc.slice/bc-res_*.slice/bc-run-*.scope >/dev/null 2>&1; do sleep 0.2; done
		systemctl daemon-reload; touch /run/again`)
	m.within(stepLimit, "test -s /run/said")
	if got := m.sh("cat /run/said"); got != a {
		m.t.Errorf("a program that ran over daemon-reload has %q, before %q", got, a)
	}
	if got := has("a"); got != a {
		m.t.Errorf("after daemon-reload: %q, before %q", got, a)
	}
	m.note("fact", "the same after `systemctl daemon-reload`, in a program that ran over it and in a later one")

	// Not even root, inside, gets at what is not booked.
	if out, err := m.try("bc run -r a -- bash -c 'mknod /root/other c 10 200'"); err == nil {
		m.t.Errorf("a node of another device can be made: %s", out)
	}
	m.is(a, "bc run -r a -- bash -c 'taskset -pc 0-3 $$ >/dev/null 2>&1 || true; . /root/inside'")
	m.sh(`bc run -r a -- perl -e '$x = "x" x (256 << 20); print length $x' | grep -qx 268435456`)
	out, err := m.try(`bc run -r a -- perl -e '$x = "x" x (1500 << 20); print length $x'`)
	if err == nil {
		m.t.Errorf("1.5 GiB were used in a reservation of 1 GiB: %s", out)
	}
	m.is("0 1", `echo $(grep -h '^oom_kill ' /sys/fs/cgroup/bc.slice/bc-res_*.slice/memory.events | cut -d' ' -f2 | sort)`)
	m.note("fact", "256 MiB fit, 1500 MiB are ended by the kernel")

	m.sh("bc reservations release a; bc reservations release b")
	m.within(stepLimit, "! ls -d /sys/fs/cgroup/bc.slice/bc-res_*.slice /var/run/cdi/better-compute-* 2>/dev/null")
	m.note("fact", "released: no slice and no CDI spec are left")
}
