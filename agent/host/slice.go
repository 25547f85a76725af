package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/bettercompute/bc/agent/wire"
)

// Slice is a systemd slice that limits all that runs below it: services,
// scopes, and the containers that are given it as their parent. What is empty
// or zero is not limited.
type Slice struct {
	Name        string // bc-ID.slice: a dash is a level, so it is below bc.slice
	Description string
	CPUs        string // a cpulist
	MemoryNodes string // a list like a cpulist
	// MemoryMax is in bytes. Memory that is limited is not swapped either.
	MemoryMax uint64
	// Hugepages2Mi and Hugepages1Gi are how many pages can be had. None is a limit
	// too: whoever took some would take what others have booked.
	Hugepages2Mi, Hugepages1Gi int
	// Devices are the nodes that can be read and written, beside those that
	// systemd calls pseudo devices: null, zero, full, random, urandom, tty, ptmx and
	// pts. No others can be opened, and none can be made.
	Devices []string
}

// Slices makes slices and takes them down, on the running machine. Its methods
// may be called by one goroutine at a time.
type Slices struct{ bus bus }

// jobTimeout is how long systemd may take for a job that starts a slice or a
// scope, which runs no program. runc allows as much.
const jobTimeout = 30 * time.Second

// unlimited is what systemd writes as infinity.
const unlimited = uint64(math.MaxUint64)

// Raise makes a slice, or brings one of that name to what it is to be, and
// reads back what is in force. It answers what of it this machine does not
// enforce, for people; an error says that the slice is not as it is to be.
func (s *Slices) Raise(ctx context.Context, want Slice) (lacks []string, err error) {
	conn, err := s.bus.get()
	if err != nil {
		return nil, err
	}
	now, err := s.state(ctx, conn, want.Name)
	if err != nil {
		return nil, err
	}
	if !now.active {
		_ = os.RemoveAll(controlDir(want.Name)) // what was set of an earlier slice of this name
		err = s.start(ctx, conn, want.Name, want.properties())
		if isBusError(err, "org.freedesktop.systemd1.UnitExists") {
			// It was stopped by someone, and a unit that failed in it keeps it loaded.
			err = s.startLoaded(ctx, conn, want.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", want.Name, err)
		}
		if now, err = s.state(ctx, conn, want.Name); err != nil {
			return nil, err
		}
	}
	if changes := want.changes(now); len(changes) > 0 {
		call, cancel := context.WithTimeout(ctx, busTimeout)
		err = conn.SetUnitPropertiesContext(call, want.Name, true, changes...)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", want.Name, err)
		}
		if now, err = s.state(ctx, conn, want.Name); err != nil {
			return nil, err
		}
	}
	if left := want.changes(now); len(left) > 0 || !now.active {
		return nil, fmt.Errorf("%s: systemd did not take over what was set%s; see systemctl status %s", want.Name, propertyNames(left), want.Name)
	}
	return append(want.lacks(now.cgroup), want.limitHugepages(now.cgroup)...), nil
}

func propertyNames(props []dbus.Property) string {
	var names []string
	for _, p := range props {
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(slices.Compact(names), ", ") + ")"
}

// properties are those of a new slice. The device list stands before the
// policy: set the other way round, systemd says that the unit's file differs
// from what is loaded. Nodes are allowed rw without m: none can be made.
func (s Slice) properties() []dbus.Property {
	props := []dbus.Property{dbus.PropDescription(s.Description)}
	if s.CPUs != "" {
		props = append(props, property("AllowedCPUs", mask(s.CPUs)))
	}
	if s.MemoryNodes != "" {
		props = append(props, property("AllowedMemoryNodes", mask(s.MemoryNodes)))
	}
	if s.MemoryMax > 0 {
		props = append(props, property("MemoryMax", s.MemoryMax), property("MemorySwapMax", uint64(0)))
	}
	return append(props, property("DeviceAllow", s.allowed()), property("DevicePolicy", "closed"))
}

// allow is an entry of DeviceAllow: a(ss).
type allow struct{ Path, Access string }

func (s Slice) allowed() []allow {
	list := []allow{}
	for _, d := range s.Devices {
		list = append(list, allow{d, "rw"})
	}
	return list
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// mask is a list of CPUs or memory nodes as systemd takes it: bits in bytes,
// the lowest first. 0-3,8-11 is 0f 0f.
func mask(list string) []byte {
	set, err := wire.ParseCPUList(list)
	if err != nil {
		return nil // the caller has parsed it before
	}
	out := []byte{}
	for _, cpu := range set.CPUs() {
		for len(out) <= cpu/8 {
			out = append(out, 0)
		}
		out[cpu/8] |= 1 << (cpu % 8)
	}
	return out
}

// sliceState is what systemd says of a slice.
type sliceState struct {
	active       bool
	cpus, nodes  []byte
	memory, swap uint64
	policy       string
	devices      []allow
	cgroup       string // its path below the cgroup mount
}

func (s *Slices) state(ctx context.Context, conn *dbus.Conn, name string) (sliceState, error) {
	call, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	props, err := conn.GetAllPropertiesContext(call, name)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, godbus.ErrClosed) {
			s.bus.drop(conn)
		}
		return sliceState{}, fmt.Errorf("%s: systemd does not say how it is: %w", name, err)
	}
	state, _ := props["ActiveState"].(string)
	now := sliceState{active: state == "active"}
	now.cpus, _ = props["AllowedCPUs"].([]byte)
	now.nodes, _ = props["AllowedMemoryNodes"].([]byte)
	now.memory, _ = props["MemoryMax"].(uint64)
	now.swap, _ = props["MemorySwapMax"].(uint64)
	now.policy, _ = props["DevicePolicy"].(string)
	now.cgroup, _ = props["ControlGroup"].(string)
	list, _ := props["DeviceAllow"].([][]any)
	for _, entry := range list {
		if len(entry) == 2 {
			path, _ := entry[0].(string)
			access, _ := entry[1].(string)
			now.devices = append(now.devices, allow{path, access})
		}
	}
	return now, nil
}

// changes are the properties to set of a slice that is there. An empty mask
// would leave the old one in force (systemd #43846), so what is no longer
// limited gets every CPU and node there is.
func (s Slice) changes(now sliceState) []dbus.Property {
	var props []dbus.Property
	for _, m := range []struct {
		name, want, all string
		now             []byte
	}{
		{"AllowedCPUs", s.CPUs, onlineCPUs, now.cpus},
		{"AllowedMemoryNodes", s.MemoryNodes, onlineNodes, now.nodes},
	} {
		if m.want == "" {
			if len(m.now) == 0 {
				continue
			}
			m.want = readTrimmed(m.all)
		}
		if !sameMask(mask(m.want), m.now) {
			props = append(props, property(m.name, mask(m.want)))
		}
	}
	memory, swap := unlimited, unlimited
	if s.MemoryMax > 0 {
		memory, swap = s.MemoryMax, 0
	}
	if now.memory != memory {
		props = append(props, property("MemoryMax", memory))
	}
	if now.swap != swap {
		props = append(props, property("MemorySwapMax", swap))
	}
	if !sameDevices(s.allowed(), now.devices) {
		props = append(props, property("DeviceAllow", []allow{}), property("DeviceAllow", s.allowed()))
	}
	if now.policy != "closed" {
		props = append(props, property("DevicePolicy", "closed"))
	}
	return props
}

const (
	onlineCPUs  = "/sys/devices/system/cpu/online"
	onlineNodes = "/sys/devices/system/node/online"
)

func readTrimmed(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func sameMask(a, b []byte) bool {
	trim := func(m []byte) []byte {
		for len(m) > 0 && m[len(m)-1] == 0 {
			m = m[:len(m)-1]
		}
		return m
	}
	return slices.Equal(trim(a), trim(b))
}

func sameDevices(a, b []allow) bool {
	order := func(list []allow) []allow {
		list = slices.Clone(list)
		slices.SortFunc(list, func(x, y allow) int { return strings.Compare(x.Path, y.Path) })
		return list
	}
	return slices.Equal(order(a), order(b))
}

// start starts a transient unit and waits for its job.
func (s *Slices) start(ctx context.Context, conn *dbus.Conn, name string, props []dbus.Property) error {
	// Before a unit that failed is forgotten, none of its name can be started.
	// It is an error for one that did not fail.
	call, cancel := context.WithTimeout(ctx, busTimeout)
	_ = conn.ResetFailedUnitContext(call, name)
	cancel()
	return s.job(ctx, conn, func(call context.Context, done chan<- string) error {
		_, err := conn.StartTransientUnitContext(call, name, "replace", props, done)
		return err
	})
}

// startLoaded starts a unit that systemd knows, as it was or with nothing set.
func (s *Slices) startLoaded(ctx context.Context, conn *dbus.Conn, name string) error {
	return s.job(ctx, conn, func(call context.Context, done chan<- string) error {
		_, err := conn.StartUnitContext(call, name, "replace", done)
		return err
	})
}

// job asks for a job and waits for its end.
func (s *Slices) job(ctx context.Context, conn *dbus.Conn, ask func(context.Context, chan<- string) error) error {
	done := make(chan string, 1) // see RestartUnit
	call, cancel := context.WithTimeout(ctx, busTimeout)
	err := ask(call, done)
	cancel()
	if err != nil {
		return err
	}
	timer := time.NewTimer(jobTimeout)
	defer timer.Stop()
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd did not start it: the job was %s", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		s.bus.drop(conn)
		return fmt.Errorf("systemd did not start it within %v", jobTimeout)
	}
}

func isBusError(err error, name string) bool {
	var refused godbus.Error
	return errors.As(err, &refused) && refused.Name == name
}

// List names the slices whose names fit a pattern as of a shell, and that are
// active or on the way.
func (s *Slices) List(ctx context.Context, pattern string) ([]string, error) {
	conn, err := s.bus.get()
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	units, err := conn.ListUnitsByPatternsContext(call, nil, []string{pattern})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	var names []string
	for _, u := range units {
		if u.ActiveState != "inactive" && u.ActiveState != "failed" {
			names = append(names, u.Name)
		}
	}
	return names, nil
}

// Stop has systemd stop a slice with all that runs in it, and does not wait:
// see [Slices.Populated]. SIGTERM comes first, SIGKILL when a unit's own time to
// stop is over. Again, it changes nothing.
func (s *Slices) Stop(ctx context.Context, name string) error {
	conn, err := s.bus.get()
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	_, err = conn.StopUnitContext(call, name, "replace", nil)
	if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// Forget removes what systemd keeps of a slice that was changed after it was
// made: it would come back with the next slice of that name.
func (s *Slices) Forget(name string) error { return os.RemoveAll(controlDir(name)) }

// controlDir is where SetUnitProperties keeps what it set until the next boot.
func controlDir(name string) string { return "/run/systemd/system.control/" + name + ".d" }

// Enter moves the calling process, with all that it will start, into a scope of
// its own below a slice that is walled in. It stays there when it executes
// another program.
func (s *Slices) Enter(ctx context.Context, slice, description string) error {
	conn, err := s.bus.get()
	if err != nil {
		return err
	}
	if err := s.walled(ctx, conn, slice); err != nil {
		return err
	}
	pid := uint32(os.Getpid())
	scope := fmt.Sprintf("bc-run-%d.scope", pid)
	err = s.start(ctx, conn, scope, []dbus.Property{
		dbus.PropDescription(description), dbus.PropSlice(slice), dbus.PropPids(pid),
		property("CollectMode", "inactive-or-failed"),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", scope, err)
	}
	// Had the slice been stopped between the two, systemd would have made one
	// of that name without any limit.
	return s.walled(ctx, conn, slice)
}

func (s *Slices) walled(ctx context.Context, conn *dbus.Conn, slice string) error {
	now, err := s.state(ctx, conn, slice)
	if err != nil {
		return err
	}
	if !now.active || now.policy != "closed" {
		return fmt.Errorf("%s is not there, or no longer walled in", slice)
	}
	return nil
}

// Close ends the connection to systemd. Slices stay.
func (s *Slices) Close() {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	if s.bus.conn != nil {
		s.bus.conn.Close()
		s.bus.conn = nil
	}
}
