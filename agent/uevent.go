package agent

import (
	"bytes"
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// uevents delivers when the kernel says that a device, a driver or a module
// came or went. Nothing comes for a recorded machine, nor where the kernel
// gives no such socket: then the channel is nil, and the next regular look finds
// out. The channel is closed when ctx ends.
func (a *Agent) uevents(ctx context.Context) <-chan struct{} {
	if !a.Root.Real() {
		return nil
	}
	socket, err := openUevents()
	if err != nil {
		a.Log.Warn("the kernel's device events cannot be heard; the machine is looked at every 30 s all the same", "err", err)
		return nil
	}
	return a.listen(ctx, socket)
}

func (a *Agent) listen(ctx context.Context, socket *os.File) <-chan struct{} {
	out := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { socket.Close() })
	go func() {
		defer close(out)
		defer socket.Close()
		buf := make([]byte, 16<<10) // an event takes at most 2 KiB (UEVENT_BUFFER_SIZE)
		for {
			n, err := socket.Read(buf)
			if ctx.Err() != nil {
				return
			}
			if err == nil && !telling(buf[:n]) {
				continue
			}
			// ENOBUFS: events were lost, so anything may have changed.
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				a.Log.Warn("the kernel's device events can no longer be heard", "err", err)
				return
			}
			select {
			case out <- struct{}{}:
			default: // one is waiting already
			}
		}
	}()
	return out
}

// openUevents listens to the kernel's own events (NETLINK_KOBJECT_UEVENT,
// multicast group 1).
func openUevents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

// telling picks the events of things that an inventory shows. The rest, such as
// a container's network interfaces, would have the machine read all day.
func telling(event []byte) bool {
	var action, subsystem []byte
	for field := range bytes.SplitSeq(event, []byte{0}) {
		if v, ok := bytes.CutPrefix(field, []byte("SUBSYSTEM=")); ok {
			subsystem = v
		}
		if v, ok := bytes.CutPrefix(field, []byte("ACTION=")); ok {
			action = v
		}
	}
	switch string(subsystem) {
	case "pci", "memory", "cpu", "node":
		return true
	case "module", "drivers", "drm":
		return string(action) == "add" || string(action) == "remove"
	}
	return false
}
