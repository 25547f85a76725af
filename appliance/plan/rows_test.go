package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

const gib = 1 << 20 // in KiB

// hostOf is a machine of 128 CPUs and 1024 GiB over two nodes, with a third
// node that has memory and no CPUs.
func hostOf(pools ...wire.HugepagePool) wire.Inventory {
	return wire.Inventory{
		CPU: wire.CPUInfo{Logical: 128}, MemoryKiB: 1024*gib - 300, Hugepages: pools,
		Disks: []wire.Disk{{Name: "sda", SizeGiB: 480}, {Name: "nvme0n1", SizeGiB: 7153}, {Name: "nvme1n1", SizeGiB: 3576}},
	}
}

func pages(sizeKiB, total, surplus int) wire.HugepagePool {
	return wire.HugepagePool{SizeKiB: sizeKiB, Total: total, Surplus: surplus}
}

func TestRows(t *testing.T) {
	numa := hostOf(pages(2048, 5120, 0))
	numa.NUMA = []wire.NUMANode{
		{ID: 0, CPUs: "0-63", MemoryKiB: 512 * gib, Hugepages: []wire.HugepagePool{pages(2048, 1000, 0), pages(1048576, 9, 0)}},
		{ID: 1, CPUs: "64-127", MemoryKiB: 500 * gib, Hugepages: []wire.HugepagePool{pages(2048, 4000, 100)}},
		{ID: 2, MemoryKiB: 12 * gib, Hugepages: []wire.HugepagePool{pages(2048, 4000, 0)}},
		{ID: 3, CPUs: "128", Hugepages: []wire.HugepagePool{pages(2048, 4000, 0)}},
	}
	for _, c := range []struct {
		what      string
		class     appliance.Class
		control   appliance.NodeControl
		policy    string
		inv       wire.Inventory
		allocated map[string]int
		want      string
	}{
		// Just under 1024 GiB are installed, so 1023 whole ones.
		{what: "defaults", class: "metal-host", policy: `{}`, inv: hostOf(), want: "vcpu 126x1 memoryGiB 1015x1"},
		{what: "provider pools as others", class: "provider", policy: `{}`, inv: hostOf(), want: "vcpu 126x1 memoryGiB 1015x1"},
		{what: "reserve", class: "metal-host", policy: `{"hostReserve": {"vcpu": 0, "memoryGiB": 24}}`, inv: hostOf(), want: "vcpu 128x1 memoryGiB 999x1"},
		{what: "half a reserve keeps the other default", class: "metal-host", policy: `{"hostReserve": {"vcpu": 10}}`, inv: hostOf(), want: "vcpu 118x1 memoryGiB 1015x1"},
		{what: "reserve above what there is", class: "metal-host", policy: `{"hostReserve": {"vcpu": 2147483647, "memoryGiB": 2147483647}}`, inv: hostOf(), want: "vcpu 0x1 memoryGiB 0x1"},
		{what: "overcommit, outside vps-host never of a disk", class: "metal-host", policy: `{"overcommit": {"vcpu": 4, "memoryGiB": 1.5, "diskGiB": 2}}`, inv: hostOf(), want: "vcpu 504x4 memoryGiB 1522x1.5"},
		{what: "ratios are clamped", class: "metal-host", policy: `{"overcommit": {"vcpu": 1e6, "memoryGiB": 0.01}}`, inv: hostOf(), want: "vcpu 12600x100 memoryGiB 101x0.1"},
		{what: "a ratio is not rounded into a loss", class: "metal-host", policy: `{"overcommit": {"vcpu": 1.15}, "hostReserve": {"vcpu": 28}}`, inv: hostOf(), want: "vcpu 115x1.15 memoryGiB 1015x1"},
		{what: "pages that the host has, less memory", class: "metal-host", policy: `{"hugepages": {"size": "1Gi", "count": 64}}`, inv: hostOf(pages(2048, 512, 0), pages(1048576, 64, 0)), want: "vcpu 126x1 memoryGiB 950x1 hugepages1Gi 64x1"},
		{what: "fewer pages than configured", class: "metal-host", policy: `{"hugepages": {"size": "1Gi", "count": 64}}`, inv: hostOf(pages(1048576, 40, 0)), want: "vcpu 126x1 memoryGiB 975x1 hugepages1Gi 40x1"},
		{what: "more pages than configured: memory is gone all the same", class: "metal-host", policy: `{"hugepages": {"size": "1Gi", "count": 8}}`, inv: hostOf(pages(1048576, 40, 0)), want: "vcpu 126x1 memoryGiB 975x1 hugepages1Gi 8x1"},
		{what: "surplus pages are lent", class: "metal-host", policy: `{"hugepages": {"size": "2Mi", "count": 1000}}`, inv: hostOf(pages(2048, 1024, 512)), want: "vcpu 126x1 memoryGiB 1013x1 hugepages2Mi 512x1"},
		{what: "no pages at all", class: "metal-host", policy: `{"hugepages": {"size": "2Mi", "count": 1000}}`, inv: hostOf(), want: "vcpu 126x1 memoryGiB 1015x1 hugepages2Mi 0x1"},
		{what: "pages that nobody configured are not booked", class: "metal-host", policy: `{}`, inv: hostOf(pages(1048576, 16, 0)), want: "vcpu 126x1 memoryGiB 999x1"},
		{what: "pages are never overcommitted", class: "metal-host", policy: `{"hugepages": {"size": "2Mi", "count": 512}, "overcommit": {"hugepages2Mi": 2}}`, inv: hostOf(pages(2048, 512, 0)), want: "vcpu 126x1 memoryGiB 1014x1 hugepages2Mi 512x1"},
		// Node 0 has 1000 of 2560, node 1 more than enough; the others have no CPUs or no memory.
		{what: "pages of each NUMA node", class: "metal-host", policy: `{"hugepages": {"size": "2Mi", "count": 2560, "perNuma": true}}`, inv: numa, want: "vcpu 126x1 memoryGiB 1005x1 hugepages2Mi 3560x1"},
		{what: "pages larger than the memory", class: "metal-host", policy: `{}`, inv: hostOf(pages(1048576, 4096, 0)), want: "vcpu 126x1 memoryGiB 0x1"},
		{what: "vps-host", class: "vps-host", policy: `{"overcommit": {"vcpu": 4, "diskGiB": 2}, "hostReserve": {"vcpu": 9, "memoryGiB": 9}, "hugepages": {"size": "1Gi", "count": 64}}`,
			inv: hostOf(pages(1048576, 64, 0)), want: "vcpu 512x4 memoryGiB 959x1 hugepages1Gi 64x1 diskGiB 14306x2"},
		{what: "vps-host without disks", class: "vps-host", policy: `{}`, inv: wire.Inventory{CPU: wire.CPUInfo{Logical: 4}, MemoryKiB: 8 * gib}, want: "vcpu 4x1 memoryGiB 8x1 diskGiB 0x1"},
		{what: "tenant-owned", class: "metal-host", control: appliance.ControlTenantOwned, policy: `{}`, inv: hostOf(), want: "vcpu 126x1 memoryGiB 1015x1"},
		{what: "tenant-controlled", class: "metal-host", control: appliance.ControlTenantControlled, policy: `{}`, inv: hostOf(), allocated: map[string]int{"vcpu": 3}, want: ""},
		{what: "dedicated", class: "metal-dedicated", policy: `{}`, inv: hostOf(), want: ""},
		{what: "never below what is allocated", class: "metal-host", policy: `{"hostReserve": {"vcpu": 100}}`, inv: hostOf(),
			allocated: map[string]int{"vcpu": 96, "memoryGiB": 10, "hugepages2Mi": 8, "diskGiB": 5, "gpu": 2},
			want:      "vcpu 96x1-96 memoryGiB 1015x1-10 hugepages2Mi 8x1-8 diskGiB 5x1-5"},
		{what: "no inventory yet", class: "metal-host", policy: `{}`, want: "vcpu 0x1 memoryGiB 0x1"},
	} {
		p, err := ReadPolicy(appliance.RawPolicy(c.policy))
		if err != nil {
			t.Fatal(err)
		}
		control := c.control
		if control == "" {
			control = appliance.ControlPlatform
		}
		if got := rowText(Rows(c.class, control, p, c.inv, c.allocated)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
	}
}

// rowText writes rows as resource totalxratio, and -allocated if there is any.
func rowText(rows []appliance.ResourceRow) string {
	var words []string
	for _, r := range rows {
		w := fmt.Sprintf("%s %dx%v", r.Resource, r.Total, r.Overcommit)
		if r.Allocated > 0 {
			w += fmt.Sprintf("-%d", r.Allocated)
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func TestRowChanges(t *testing.T) {
	vcpu := appliance.ResourceRow{Resource: "vcpu", Total: 126, Allocated: 4, Overcommit: 1}
	memory := appliance.ResourceRow{Resource: "memoryGiB", Total: 1015, Overcommit: 1}
	booked, more, doubled := vcpu, vcpu, vcpu
	booked.Allocated, more.Total, doubled.Overcommit = 60, 128, 2
	rows := func(rows ...appliance.ResourceRow) []appliance.ResourceRow { return rows }
	for _, c := range []struct {
		what      string
		old, want []appliance.ResourceRow
		write     []appliance.ResourceRow
		gone      []string
	}{
		{"unchanged", rows(vcpu, memory), rows(vcpu, memory), nil, nil},
		{"in another order", rows(memory, vcpu), rows(vcpu, memory), nil, nil},
		{"booked meanwhile", rows(vcpu), rows(booked), nil, nil},
		{"first", nil, rows(vcpu, memory), rows(vcpu, memory), nil},
		{"a total", rows(vcpu, memory), rows(more, memory), rows(more), nil},
		{"a ratio alone", rows(vcpu, memory), rows(doubled, memory), rows(doubled), nil},
		{"gone", rows(vcpu, memory), rows(vcpu), nil, []string{"memoryGiB"}},
		{"all gone", rows(vcpu, memory), nil, nil, []string{"vcpu", "memoryGiB"}},
	} {
		write, gone := RowChanges(c.old, c.want)
		if diff := cmp.Diff(c.write, write); diff != "" {
			t.Errorf("%s: rows to write (-want +got)\n%s", c.what, diff)
		}
		if diff := cmp.Diff(c.gone, gone); diff != "" {
			t.Errorf("%s: rows gone (-want +got)\n%s", c.what, diff)
		}
	}
}
