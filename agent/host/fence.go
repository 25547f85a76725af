package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/bettercompute/bc/agent/wire"
)

// Fence keeps what runs in one of the host's own slices, such as system.slice, to
// some CPUs, until the next boot. With none it takes the fence down.
type Fence struct {
	Slices *Slices
	Slice  string
	CPUs   string // a cpulist
}

const (
	effectiveCPUs = "cpuset.cpus.effective"
	possibleCPUs  = "/sys/devices/system/cpu/possible"
)

// Key is where a journal has the CPUs of the slice.
func (f Fence) Key() string { return "slice/" + f.Slice + "/AllowedCPUs" }

func (f Fence) String() string {
	if f.CPUs == "" {
		return "let " + f.Slice + " use every CPU again"
	}
	return "keep " + f.Slice + " to CPUs " + f.CPUs
}

// Apply is an error if systemd or the kernel says other CPUs afterwards.
func (f Fence) Apply(ctx context.Context, _ *Machine, j *Journal) error {
	conn, err := f.Slices.bus.get()
	if err != nil {
		return err
	}
	now, err := f.Slices.AllowedCPUs(ctx, f.Slice)
	if err != nil {
		return err
	}
	if err := j.Before(f.Key(), now, now == "", f.CPUs); err != nil {
		return err
	}
	if f.CPUs == "" {
		if err := f.lift(ctx, conn); err != nil {
			return err
		}
		return j.Forget(f.Key())
	}
	if err := f.set(ctx, conn, mask(f.CPUs)); err != nil {
		return err
	}
	if now, err = f.Slices.AllowedCPUs(ctx, f.Slice); err != nil {
		return err
	}
	if err := j.After(f.Key(), now); err != nil {
		return err
	}
	if now != f.CPUs {
		return fmt.Errorf("%s: systemd was given CPUs %s and says %q", f.Slice, f.CPUs, now)
	}
	return f.inForce()
}

// inForce is an error if the kernel lets the slice use CPUs beyond the fence.
// A slice in which nothing runs has no cgroup.
func (f Fence) inForce() error {
	got, ok := readSet(filepath.Join(cgroupOf(f.Slice), effectiveCPUs))
	want, err := wire.ParseCPUList(f.CPUs)
	if err != nil {
		return err
	}
	if ok && !got.SubsetOf(want) {
		return fmt.Errorf("%s: CPUs %s were set and %s are in force", f.Slice, want, got)
	}
	return nil
}

// Stands reports whether the kernel keeps the slice within the fence.
func (f Fence) Stands() bool { return f.inForce() == nil }

// lift gives every CPU first: an empty mask alone leaves the old one in force
// (systemd #43846). What systemd wrote down until the next boot goes too, or it
// would go before a list that the operator gives the slice in /etc.
func (f Fence) lift(ctx context.Context, conn *dbus.Conn) error {
	// CPUs that come online later too.
	if err := f.set(ctx, conn, mask(readTrimmed(possibleCPUs))); err != nil {
		return err
	}
	if err := f.set(ctx, conn, []byte{}); err != nil {
		return err
	}
	file := filepath.Join(controlDir(f.Slice), "50-AllowedCPUs.conf")
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(file)) // unless it holds what others have set
	all, known := readSet(filepath.Join(cgroupMount, effectiveCPUs))
	if got, ok := readSet(filepath.Join(cgroupOf(f.Slice), effectiveCPUs)); ok && known && !got.Equal(all) {
		return fmt.Errorf("%s: CPUs %s are in force after all of %s were given back", f.Slice, got, all)
	}
	return nil
}

func (f Fence) set(ctx context.Context, conn *dbus.Conn, cpus []byte) error {
	call, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	if err := conn.SetUnitPropertiesContext(call, f.Slice, true, property("AllowedCPUs", cpus)); err != nil {
		return fmt.Errorf("%s: %w", f.Slice, err)
	}
	return nil
}

// AllowedCPUs is the cpulist that a slice was given in systemd, "" if none was.
func (s *Slices) AllowedCPUs(ctx context.Context, name string) (string, error) {
	conn, err := s.bus.get()
	if err != nil {
		return "", err
	}
	now, err := s.state(ctx, conn, name)
	return maskList(now.cpus), err
}

// maskList is the reverse of mask.
func maskList(m []byte) string {
	var cpus []int
	for i, b := range m {
		for bit := range 8 {
			if b&(1<<bit) != 0 {
				cpus = append(cpus, i*8+bit)
			}
		}
	}
	return wire.NewCPUSet(cpus...).String()
}

// FencesCPUs reports whether cgroups can be kept to CPUs here.
func (s *Slices) FencesCPUs() bool {
	return has(filepath.Join(cgroupMount, "cgroup.controllers"), "cpuset")
}

// CPUTopology is what a fence has to know of the machine's CPUs.
type CPUTopology struct {
	Online, Isolated wire.CPUSet
	// Core are the online CPUs that share a core with one, itself too.
	Core func(cpu int) wire.CPUSet
}

// CPUTopology reads which CPUs there are. It reports false where the kernel does
// not say which are online.
func (r *Root) CPUTopology() (CPUTopology, bool) {
	const dir = "/sys/devices/system/cpu/"
	online, ok := r.CPUs(dir + "online")
	isolated, _ := r.CPUs(dir + "isolated") // the file may be empty
	return CPUTopology{Online: online, Isolated: isolated, Core: func(cpu int) wire.CPUSet {
		siblings, _ := r.CPUs(fmt.Sprintf("%scpu%d/topology/thread_siblings_list", dir, cpu))
		return siblings.Union(wire.NewCPUSet(cpu)).Intersect(online)
	}}, ok && !online.IsEmpty()
}
