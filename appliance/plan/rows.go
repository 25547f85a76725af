package plan

import (
	"math"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

const kibPerGiB = 1 << 20

// Rows is what one node has to book of each scalar, in the order of
// [appliance.Scalars]. Dedicated machines and tenant-controlled nodes have
// none. Outside vps-host pools a host keeps its reserve; in them the instance
// volume is bookable. Memory is what is installed less the huge page pools
// that the host has, whoever made them; huge pages are those configured that
// the host really has. A total never goes below what is allocated, and what is
// allocated always has a row.
func Rows(class appliance.Class, control appliance.NodeControl, p appliance.Policy, inv wire.Inventory, allocated map[string]int) []appliance.ResourceRow {
	if class.NodeRole() != appliance.RoleHost || control == appliance.ControlTenantControlled {
		return nil
	}
	memoryGiB := int(min(memoryKiB(inv)/kibPerGiB, appliance.MaxCount))
	have := map[string]int{appliance.ResourceVCPU: inv.CPU.Logical, appliance.ResourceMemoryGiB: memoryGiB}
	if class == appliance.ClassVPSHost {
		have[appliance.ResourceDiskGiB] = instanceVolumeGiB(inv)
	} else {
		have[appliance.ResourceVCPU] -= p.ReserveVCPU()
		have[appliance.ResourceMemoryGiB] -= p.ReserveMemoryGiB()
	}
	if p.Hugepages != nil {
		have[p.Hugepages.Resource()] = hugepages(*p.Hugepages, inv)
	}
	var rows []appliance.ResourceRow
	for _, r := range appliance.Scalars {
		n, ok := have[r]
		if !ok && allocated[r] == 0 {
			continue
		}
		ratio := p.Ratio(r)
		rows = append(rows, appliance.ResourceRow{
			Resource: r, Total: max(overcommitted(n, ratio), allocated[r]), Allocated: allocated[r], Overcommit: ratio,
		})
	}
	return rows
}

// RowChanges compares the rows that a node has with those it should have:
// which to write, and which resources have no row any more. Allocated is the
// booking's to keep and does not count. Both are empty for an unchanged node.
func RowChanges(old, want []appliance.ResourceRow) (write []appliance.ResourceRow, gone []string) {
	had := make(map[string]appliance.ResourceRow, len(old))
	for _, r := range old {
		had[r.Resource] = r
	}
	for _, r := range want {
		if o, ok := had[r.Resource]; !ok || o.Total != r.Total || o.Overcommit != r.Overcommit {
			write = append(write, r)
		}
		delete(had, r.Resource)
	}
	for _, r := range old {
		if _, ok := had[r.Resource]; ok {
			gone = append(gone, r.Resource)
		}
	}
	return write, gone
}

// overcommitted is n times the ratio in whole units, held to a count. What a
// float falls short of a whole number by (100 times 1.15 is 114.99…) is
// rounding, not a missing unit.
func overcommitted(n int, ratio float64) int {
	return int(min(math.Floor(float64(max(n, 0))*ratio+1e-6), appliance.MaxCount))
}

// memoryKiB is the memory outside every huge page pool.
func memoryKiB(inv wire.Inventory) uint64 {
	pools := uint64(0)
	for _, pool := range inv.Hugepages {
		pools += uint64(max(pool.Total, 0)) * uint64(max(pool.SizeKiB, 0))
	}
	return inv.MemoryKiB - min(pools, inv.MemoryKiB)
}

// hugepages counts the configured pages that the host really has: with
// perNuma on each node apart, so that one node's surplus does not stand for
// what another lacks. Surplus pages, which the kernel takes back, do not count.
func hugepages(h appliance.HugepagesPolicy, inv wire.Inventory) int {
	if h.Count == nil {
		return 0
	}
	count, size := *h.Count, pageKiB[h.Size]
	if !h.PerNUMA {
		return min(count, lasting(inv.Hugepages, size))
	}
	total := 0
	for _, node := range inv.NUMA {
		if node.CPUs != "" && node.MemoryKiB > 0 {
			total += min(count, lasting(node.Hugepages, size))
		}
	}
	return min(total, appliance.MaxCount)
}

func lasting(pools []wire.HugepagePool, sizeKiB int) int {
	for _, pool := range pools {
		if pool.SizeKiB == sizeKiB {
			return max(pool.Total-pool.Surplus, 0)
		}
	}
	return 0
}

// instanceVolumeGiB is the size of the volume that instances live on: the
// largest disk, as a volume of instances is one file system.
func instanceVolumeGiB(inv wire.Inventory) int {
	size := 0
	for _, d := range inv.Disks {
		size = max(size, d.SizeGiB)
	}
	return size
}
