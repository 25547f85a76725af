package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// RecordedGPUsFile is the document of a recorded machine that holds what its
// GPU library answered. Unpacked, it stands at the top of the machine's root.
const RecordedGPUsFile = "nvml.json"

// Recorded collects the inventory of a recorded machine, an archive in the
// format of [host.Archive]. Its Recorded field is name.
func Recorded(name string, archive []byte) (wire.Inventory, error) {
	a, err := host.ParseArchive(archive)
	if err != nil {
		return wire.Inventory{}, fmt.Errorf("machine %s: %w", name, err)
	}
	root := a.Root()
	gpus, _, err := RecordedGPUs(root)
	if err != nil {
		return wire.Inventory{}, fmt.Errorf("machine %s: %w", name, err)
	}
	inv := Collect(root, gpus)
	inv.Recorded = name
	return inv, nil
}

// RecordedGPUs reads what the GPU library of an unpacked machine answered. It
// reports false for a root without that record, and for the real machine,
// where only the library itself counts.
func RecordedGPUs(root *host.Root) (gpus GPUs, found bool, err error) {
	if root.Real() {
		return GPUs{}, false, nil
	}
	data, err := root.ReadFile("/" + RecordedGPUsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return GPUs{}, false, nil
	}
	if err != nil {
		return GPUs{}, false, err
	}
	if err := json.Unmarshal(data, &gpus); err != nil {
		return GPUs{}, false, fmt.Errorf("%s of the recorded machine: %w", RecordedGPUsFile, err)
	}
	return gpus, true, nil
}

// Personalise returns the inventory of the n-th machine like inv in a group
// of simulated ones: host name, machine id, boot id, and the UUIDs and serial
// hashes of GPUs and MIG instances are its own. Equal arguments give equal
// results, other ones share no identity. It shares no memory with inv that
// either would change.
func Personalise(inv wire.Inventory, group string, n int) wire.Inventory {
	p := persona{fmt.Sprintf("%q %d ", group, n)}
	name := inv.Recorded
	if name == "" {
		name = inv.Hostname
	}
	inv.Hostname = fmt.Sprintf("%s-%04d", name, n)
	inv.MachineID = p.hex("machine", inv.MachineID, 32)
	inv.BootID = p.uuid("", inv.BootID)

	inv.GPUs = slices.Clone(inv.GPUs)
	for i := range inv.GPUs {
		gpu := &inv.GPUs[i]
		gpu.UUID = p.uuid("GPU-", gpu.UUID)
		if gpu.SerialHash != "" {
			gpu.SerialHash = p.hex("serial", gpu.SerialHash, len(gpu.SerialHash))
		}
		gpu.NVLinkPeers = slices.Clone(gpu.NVLinkPeers)
		for j := range gpu.NVLinkPeers {
			gpu.NVLinkPeers[j].UUID = p.uuid("GPU-", gpu.NVLinkPeers[j].UUID)
		}
		if gpu.MIG == nil {
			continue
		}
		mig := *gpu.MIG
		mig.Instances = slices.Clone(mig.Instances)
		for j := range mig.Instances {
			mig.Instances[j].UUID = p.uuid("MIG-", mig.Instances[j].UUID)
		}
		gpu.MIG = &mig
	}
	return inv
}

// persona makes the identities of one simulated machine from the recorded
// ones, so that what pointed at a GPU still does.
type persona struct{ prefix string }

// hex gives n hex digits, at most 64.
func (p persona) hex(kind, old string, n int) string {
	sum := sha256.Sum256([]byte(p.prefix + kind + " " + old))
	digits := hex.EncodeToString(sum[:])
	return digits[:min(n, len(digits))]
}

// uuid gives a UUID of version 8, the one for ids that are made by an
// application's own rule (RFC 9562).
func (p persona) uuid(prefix, old string) string {
	sum := sha256.Sum256([]byte(p.prefix + "uuid " + old))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	d := hex.EncodeToString(sum[:16])
	return prefix + d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:]
}
