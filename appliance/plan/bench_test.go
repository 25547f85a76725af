package plan

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/appliance"
)

// dgx is a machine like a DGX H100: eight GPUs on an NVLink switch, two sockets
// of 56 cores with two hardware threads, 2 TiB, less the host's reserve.
func dgx(i int, topology *Topology) Node {
	n := Node{
		ID: fmt.Sprintf("node_01k5c%020d", i), PoolID: "pool_01k5c00000000000000000000", Hostname: fmt.Sprintf("gpu-%05d", i),
		Role: appliance.RoleHost, Control: appliance.ControlPlatform, Schedulable: true, Sharing: appliance.SharingExclusive,
		Attributes: map[string]string{
			"gpuProduct": "NVIDIA H100 80GB HBM3", "vramGiB": "80", "gpuCount": "8", "driverVersion": "550.90.07",
			"cudaVersion": "12.4", "numaNodes": "2", "cpuModel": "Intel(R) Xeon(R) Platinum 8480C", "kernel": "6.8.0-45-generic",
			"arch": "amd64", "hostname": fmt.Sprintf("gpu-%05d", i), "rack": fmt.Sprintf("r%02d", i%40),
		},
		Rows: []appliance.ResourceRow{
			{Resource: appliance.ResourceVCPU, Total: 222, Overcommit: 1},
			{Resource: appliance.ResourceMemoryGiB, Total: 2007, Overcommit: 1},
		},
		Topology: topology,
	}
	if i%10 == 0 {
		n.Attributes["driverVersion"] = "535.161.08"
	}
	uuid := func(k int) string { return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, k) }
	for k := range 8 {
		d := Device{UUID: uuid(k), Index: k, Address: fmt.Sprintf("0000:%02x:00.0", 0x1b+16*k), NUMANode: k / 4, Healthy: true}
		for peer := range 8 {
			if peer != k {
				d.NVLinkPeers = append(d.NVLinkPeers, uuid(peer))
			}
		}
		n.Devices = append(n.Devices, d)
	}
	return n
}

func dgxTopology() *Topology {
	t := &Topology{}
	for m := range 2 {
		numa := NUMANode{ID: m, MemoryGiB: 1007}
		for c := range 56 {
			numa.Cores = append(numa.Cores, []int{m*56 + c, 112 + m*56 + c})
		}
		t.NUMA = append(t.NUMA, numa)
	}
	return t
}

func fleet(tb testing.TB, nodes int, change ...func(i int, n *Node)) *Index {
	tb.Helper()
	x := NewIndex()
	topology := dgxTopology()
	for i := range nodes {
		n := dgx(i, topology)
		for _, f := range change {
			f(i, &n)
		}
		if _, err := x.PutNode(n); err != nil {
			tb.Fatal(err)
		}
	}
	return x
}

// fill books GPUs of random sizes until the share of all GPUs is taken, with
// random releases between, so that what is free lies as it would after weeks.
func fill(tb testing.TB, x *Index, share float64) {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	pool := x.pools["pool_01k5c00000000000000000000"]
	var live []string
	for serial := 0; float64(pool.tally.booked[atomRow]) < share*float64(pool.tally.total[atomRow]); serial++ {
		r := Request{PoolID: pool.id, Resources: appliance.Amounts{"gpu": []int{1, 1, 1, 2, 2, 4, 8}[random.IntN(7)]}}
		r.Selector = appliance.Selector{"rack": {Equals: fmt.Sprintf("r%02d", random.IntN(40))}}
		d, ok := x.Place(r)
		if !ok {
			continue
		}
		id := fmt.Sprintf("res_01k5c%021d", serial)
		if err := x.Book(d.Booking(id, "acme", r)); err != nil {
			tb.Fatal(err)
		}
		live = append(live, id)
		if random.IntN(3) == 0 {
			at := random.IntN(len(live))
			x.Release(live[at])
			live[at] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
}

// timing is the median and 99th percentile of a decision, in microseconds: of
// the thread's CPU time, so that a busy machine does not count as the placer's
// time, and of the clock on the wall. Placed is how many requests fit, in
// percent.
type timing struct{ median, p99, wallP99, placed float64 }

func timings(tb testing.TB, x *Index, n int, request func(i int) Request) timing {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu, wall := make([]time.Duration, n), make([]time.Duration, n)
	placed := 0
	for i := range n {
		r := request(i)
		start, startCPU := time.Now(), threadTime(tb)
		_, ok := x.Place(r)
		wall[i], cpu[i] = time.Since(start), threadTime(tb)-startCPU
		if ok {
			placed++
		}
	}
	at := func(d []time.Duration, i int) float64 {
		slices.Sort(d)
		return float64(d[i].Nanoseconds()) / 1000
	}
	return timing{at(cpu, n/2), at(cpu, n*99/100), at(wall, n*99/100), 100 * float64(placed) / float64(n)}
}

// threadTime is the CPU time of the calling thread.
func threadTime(tb testing.TB) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkPlace measures a decision over eight-GPU nodes, 80 % full, with a
// selector and the default host share, at 1,000 and at 10,000 nodes in one run.
// The bars: median at most 100 us, 99th percentile at most 250 us, median at
// 10,000 nodes at most 3 times that at 1,000.
func BenchmarkPlace(b *testing.B) {
	requests := map[string]func(i int) Request{
		"gpus": func(i int) Request {
			return Request{
				Resources: appliance.Amounts{"gpu": []int{1, 2, 4, 8}[i%4]},
				Selector:  appliance.Selector{"driverVersion": {Equals: "550.90.07"}, "gpuProduct": {In: []string{"NVIDIA H100 80GB HBM3"}}},
			}
		},
		"instance": func(i int) Request {
			return Request{
				Resources: appliance.Amounts{"gpu": []int{1, 2}[i%2], "vcpu": 16, "memoryGiB": 100},
				Selector:  appliance.Selector{"rack": {Equals: fmt.Sprintf("r%02d", i%40)}}, Binding: appliance.BindInstance,
			}
		},
		"gang": func(i int) Request {
			return Request{Resources: appliance.Amounts{"gpu": 64}, Nodes: 8}
		},
		"host": func(i int) Request {
			return Request{Resources: appliance.Amounts{"vcpu": 8, "memoryGiB": 32}}
		},
		"misfit": func(i int) Request { // every node with a free GPU is looked at
			return Request{Resources: appliance.Amounts{"gpu": 1}, Selector: appliance.Selector{"gpuProduct": {Equals: "NVIDIA B200"}}}
		},
	}
	requests["labelled"] = requests["instance"]
	labelled := func(i int, n *Node) { n.Attributes["asset"] = fmt.Sprint(i) } // no two nodes are alike
	for _, name := range []string{"gpus", "instance", "gang", "host", "misfit", "labelled"} {
		b.Run(name, func(b *testing.B) {
			small, large := fleet(b, 1000), fleet(b, 10000)
			if name == "labelled" {
				small, large = fleet(b, 1000, labelled), fleet(b, 10000, labelled)
			}
			fill(b, small, 0.8)
			fill(b, large, 0.8)
			request := func(i int) Request {
				r := requests[name](i)
				r.PoolID = "pool_01k5c00000000000000000000"
				return r
			}
			var at1000, at10000 timing
			for b.Loop() {
				at1000, at10000 = timings(b, small, 4000, request), timings(b, large, 4000, request)
			}
			b.ReportMetric(at1000.median, "us-p50-1k")
			b.ReportMetric(at10000.median, "us-p50-10k")
			b.ReportMetric(at10000.p99, "us-p99-10k")
			b.ReportMetric(at10000.wallP99, "us-wall-p99-10k")
			b.ReportMetric(at10000.placed, "%placed-10k")
			b.ReportMetric(at10000.median/at1000.median, "x-10k/1k")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkBook measures Place, Book and Release together at 10,000 nodes.
func BenchmarkBook(b *testing.B) {
	x := fleet(b, 10000)
	fill(b, x, 0.8)
	r := Request{PoolID: "pool_01k5c00000000000000000000", Resources: appliance.Amounts{"gpu": 1}}
	b.ReportAllocs()
	for b.Loop() {
		d, ok := x.Place(r)
		if !ok {
			b.Fatal("nothing fits")
		}
		if err := x.Book(d.Booking("res_bench", "acme", r)); err != nil {
			b.Fatal(err)
		}
		x.Release("res_bench")
	}
}

// BenchmarkMemory measures what 10,000 eight-GPU nodes take on the heap, each
// topology given as a copy of its own, and then what a booking takes. The bar
// is 2.5 KiB a node.
func BenchmarkMemory(b *testing.B) {
	const nodes = 10000
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before := heap()
		x := NewIndex()
		var put time.Duration
		runtime.LockOSThread()
		for i := range nodes {
			n := dgx(i, dgxTopology())
			start := threadTime(b)
			if _, err := x.PutNode(n); err != nil {
				b.Fatal(err)
			}
			put += threadTime(b) - start
		}
		runtime.UnlockOSThread()
		b.ReportMetric(float64(put.Microseconds())/nodes, "us/put")
		empty := heap()
		b.ReportMetric(float64(empty-before)/nodes, "B/node")
		fill(b, x, 0.8)
		b.ReportMetric(float64(heap()-empty)/float64(len(x.bookings)), "B/booking")
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-80%-full")
		b.ReportMetric(0, "ns/op")
		runtime.KeepAlive(x)
	}
}

// BenchmarkExplain measures the answer to a request that fits nowhere, and the
// sums of a pool, at 10,000 nodes.
func BenchmarkExplain(b *testing.B) {
	x := fleet(b, 10000)
	fill(b, x, 0.8)
	r := Request{PoolID: "pool_01k5c00000000000000000000", Resources: appliance.Amounts{"gpu": 9}}
	b.Run("explain", func(b *testing.B) {
		for b.Loop() {
			x.Explain(r)
		}
	})
	b.Run("capacity", func(b *testing.B) {
		for b.Loop() {
			x.Capacity(r.PoolID, nil)
		}
	})
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			if err := x.Check(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
