//go:build cgo

package gpu

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// slice is how long one call waits for an event: so long can Release and the
// end of Events take. Tests shorten it.
var slice = 500 * time.Millisecond

// watch reports Xids until ctx ends. It waits in short calls, because
// nvmlShutdown must not run beside one.
func (l *Library) watch(ctx context.Context, out chan<- Xid) {
	for ctx.Err() == nil {
		l.use.RLock()
		changed := l.changed
		var w *watcher
		if l.opened {
			w = l.register()
		}
		l.use.RUnlock()
		if w == nil {
			// No library, or no GPU that reports: until it is opened anew, or
			// a GPU answers again.
			rest(ctx, changed, 30*time.Second)
			continue
		}
		for w.wait(ctx, l, changed, out) {
		}
		l.use.RLock()
		if changed == l.changed { // else nvmlShutdown took the set with it
			_ = w.set.Free()
		}
		l.use.RUnlock()
		rest(ctx, changed, time.Second)
	}
}

// rest returns when ctx or the time ends, or the library was opened or dropped.
func rest(ctx context.Context, changed <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-timer.C:
	}
}

// watcher is an event set and the names of the GPUs in it: a GPU that has just
// fallen off the bus no longer says its UUID.
type watcher struct {
	set   nvml.EventSet
	uuids map[nvml.Device]string
}

// register makes an event set of every GPU that reports Xids, nil if none does.
// The caller holds use.
func (l *Library) register() *watcher {
	for _, s := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"} {
		if l.file.Lookup(s) != nil {
			return nil
		}
	}
	set, ret := l.nvml.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil
	}
	w := &watcher{set, map[nvml.Device]string{}}
	n, _ := l.nvml.DeviceGetCount()
	for i := range n {
		d, ret := l.nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := d.GetUUID()
		if ret == nvml.SUCCESS && d.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			w.uuids[d] = text(uuid)
		}
	}
	if len(w.uuids) == 0 {
		_ = set.Free()
		return nil
	}
	return w
}

// wait reports one Xid, or none within slice. It answers false when the
// set is of no more use.
func (w *watcher) wait(ctx context.Context, l *Library, changed <-chan struct{}, out chan<- Xid) bool {
	l.use.RLock()
	if ctx.Err() != nil || changed != l.changed {
		l.use.RUnlock()
		return false
	}
	e, ret := w.set.Wait(uint32(slice.Milliseconds()))
	l.use.RUnlock()
	if code(ret) == timedOut {
		return true
	}
	if ret != nvml.SUCCESS {
		return false
	}
	x := Xid{UUID: w.uuids[e.Device], Code: int(e.EventData), GPUInstance: -1, At: time.Now()}
	if e.GpuInstanceId != ^uint32(0) {
		x.GPUInstance = int(e.GpuInstanceId)
	}
	select {
	case out <- x:
		return true
	case <-ctx.Done():
		return false
	}
}
