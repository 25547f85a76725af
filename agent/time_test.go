package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/wire"
)

var testTime = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// wireTap is a transport without a network, so that the clock of a synctest
// bubble runs: a server behind it, or none. It remembers when each request of
// a path was made.
type wireTap struct {
	mu     sync.Mutex
	server http.Handler // nil: unreachable
	times  map[string][]time.Time
}

func (w *wireTap) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.times[r.URL.Path] = append(w.times[r.URL.Path], time.Now())
	server := w.server
	w.mu.Unlock()
	if server == nil {
		return nil, errors.New("connection refused")
	}
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return recorder.Result(), nil
}

func (w *wireTap) listen(server http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
}

func (w *wireTap) calls(path string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.times[path]
}

// bubble runs an agent behind a wireTap, inside the caller's synctest bubble,
// until stop is called.
func bubble(t *testing.T, server string, gpus GPUs, log *bytes.Buffer) (tap *wireTap, stop func()) {
	t.Helper()
	tap = &wireTap{times: map[string][]time.Time{}}
	a := testAgent(t, "/unused", gpus)
	a.Server = server
	a.Log = slog.New(slog.NewTextHandler(log, nil))
	file, err := openLedger(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := a.open(file)
	if err != nil {
		t.Fatal(err)
	}
	n.link.client.Transport = tap
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.serve(ctx, n)
	}()
	return tap, func() {
		cancel()
		<-done
		file.close()
	}
}

// With the server away the tries come ever more slowly, up to the limit, each at
// a time by chance; the log has one line for it, and one when it is over.
func TestBackoffWhileServerIsAway(t *testing.T) {
	for _, c := range []struct {
		server string
		limit  time.Duration
	}{
		{"https://192.0.2.1:8443", 30 * time.Second},
		{"unix:/unused", 2 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			tap, stop := bubble(t, c.server, newTestGPUs(1), &log)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			tries := tap.calls("/agent/v1/hello")
			want := 250 * time.Millisecond
			var spread bool
			for i := 1; i < len(tries); i++ {
				gap := tries[i].Sub(tries[i-1])
				if gap < want/2 || gap > want {
					t.Errorf("%s: try %d came %v after the one before, want %v to %v", c.server, i, gap, want/2, want)
				}
				spread = spread || gap != tries[1].Sub(tries[0]) && want == c.limit
				want = min(2*want, c.limit)
			}
			if atLeast := int(10*time.Minute/c.limit) - 1; len(tries) < atLeast || !spread {
				t.Errorf("%s: %d tries in 10 minutes, want at least %d, at times by chance", c.server, len(tries), atLeast)
			}

			control := newControl()
			tap.listen(control)
			time.Sleep(c.limit)
			synctest.Wait()
			if len(control.beats) == 0 {
				t.Errorf("%s: the server is back, and no heartbeat within %v", c.server, c.limit)
			}
			tap.listen(nil)
			time.Sleep(10 * time.Minute)
			stop()
			if got := strings.Count(log.String(), "no contact with the control plane"); got != 2 {
				t.Errorf("%s: two outages made %d lines in the log", c.server, got)
			}
			if got := strings.Count(log.String(), "msg=joined"); got != 1 {
				t.Errorf("%s: %d lines of joining in the log", c.server, got)
			}
		})
	}
}

// A quiet hour is heartbeats alone, at the interval that the server gave.
func TestQuietHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		gpus := newTestGPUs(2)
		tap, stop := bubble(t, "https://192.0.2.1:8443", gpus, &log)
		control := newControl()
		tap.listen(control)
		time.Sleep(time.Hour)
		synctest.Wait()
		beats := tap.calls("/agent/v1/heartbeat")
		if len(beats) < 330 || len(beats) > 400 {
			t.Errorf("%d heartbeats in an hour at 10 s", len(beats))
		}
		for i := 2; i < len(beats); i++ {
			if gap := beats[i].Sub(beats[i-1]); gap < 9*time.Second || gap > 11*time.Second {
				t.Errorf("heartbeat %d came %v after the one before", i, gap)
			}
		}
		if n := len(tap.calls("/agent/v1/inventory")); n != 0 {
			t.Errorf("an unchanged inventory was sent %d times more", n)
		}
		if n := len(tap.calls("/agent/v1/hello")); n != 1 {
			t.Errorf("%d hellos", n)
		}
		if n := len(tap.calls("/agent/v1/spec")); n < 110 || n > 125 {
			t.Errorf("%d long polls of 30 s in an hour", n)
		}
		stop()
	})
}

// A server that says when to come back is listened to.
func TestServerSetsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tap, stop := bubble(t, "unix:/unused", newTestGPUs(1), &log)
		control := newControl()
		control.onJoin = func(n *fakeNode) { n.retrySeconds = 1 }
		tap.listen(control)
		time.Sleep(time.Minute)
		if n := len(tap.calls("/agent/v1/heartbeat")); n < 55 || n > 65 {
			t.Errorf("%d heartbeats in a minute, asked for one a second", n)
		}
		busy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		})
		tap.listen(busy)
		before := len(tap.calls("/agent/v1/heartbeat"))
		time.Sleep(10 * time.Minute)
		if n := len(tap.calls("/agent/v1/heartbeat")) - before; n < 9 || n > 12 {
			t.Errorf("%d heartbeats in ten minutes, asked to wait a minute each", n)
		}
		stop()
	})
}

// Failing checks run again every two minutes; passing ones stay passed, however
// hot the GPUs get at work.
func TestFailingChecksRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		gpus := newTestGPUs(2)
		heat := func(celsius int) {
			gpus.mu.Lock()
			defer gpus.mu.Unlock()
			gpus.readings.GPUs[1].TemperatureCelsius = &celsius
		}
		heat(90)
		tap, stop := bubble(t, "unix:/unused", gpus, &log)
		control := newControl()
		control.onJoin = func(n *fakeNode) {
			n.want(wire.NodeSpec{Acceptance: []wire.Check{{Kind: "diag.nvml", With: json.RawMessage(`{"maxTemperatureC":85}`)}}})
		}
		tap.listen(control)
		time.Sleep(time.Minute)
		checks := func() (r wire.CheckResult) {
			control.look(func() {
				if got := control.only().checks; len(got) == 1 {
					r = got[0]
				}
			})
			return r
		}
		if got := checks(); got.Passed || got.Reason != "GPU-b (0000:11:00.0) is at 90 °C, at most 85 °C are allowed" {
			t.Fatalf("hot: %+v", got)
		}
		heat(60)
		time.Sleep(recheck + lookEvery + time.Second)
		cooled := checks()
		if !cooled.Passed {
			t.Fatalf("cooled down: %+v", cooled)
		}
		heat(90)
		time.Sleep(10 * time.Minute)
		if got := checks(); got != cooled {
			t.Errorf("hot at work: %+v", got)
		}
		gpus.change(func(s *gpu.Snapshot) { s.GPUs = s.GPUs[:1] })
		time.Sleep(time.Minute)
		if got := checks(); got.Passed || !strings.Contains(got.Reason, "GPU-b") {
			t.Errorf("a GPU is missing: %+v", got)
		}
		stop()
	})
}

// A control plane that was restored from a backup wants an older generation, and
// gets it.
func TestOlderGenerationOfARestoredServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tap, stop := bubble(t, "unix:/unused", newTestGPUs(1), &log)
		control := newControl()
		control.onJoin = func(n *fakeNode) {
			n.want(wire.NodeSpec{Generation: 7, Bindings: []wire.Binding{{ReservationID: "res_new"}}})
		}
		tap.listen(control)
		time.Sleep(time.Minute)
		control.want(wire.NodeSpec{Generation: 5, Bindings: []wire.Binding{{ReservationID: "res_old"}}})
		time.Sleep(time.Minute)
		control.look(func() {
			if n := control.only(); n.taken != 5 || len(n.bindings) != 1 || n.bindings[0].ReservationID != "res_old" {
				t.Errorf("generation %d with %+v is in force", n.taken, n.bindings)
			}
		})
		stop()
	})
}

// An answer that was on its way while a newer NodeSpec was taken up does not
// bring the older one back.
func TestOvertakenSpecIsNotTakenUp(t *testing.T) {
	n := newNode(nil, slog.New(slog.DiscardHandler), ledger{NodeID: "node_1"}, time.Second)
	for _, step := range []struct {
		latest     int64 // as a heartbeat's answer said
		spec, want int64
	}{
		{2, 2, 2}, {3, 3, 3}, {3, 2, 3}, {3, 4, 4}, {1, 3, 4}, {1, 1, 1}, {1, 2, 2},
	} {
		n.latest = step.latest
		raw, err := json.Marshal(wire.NodeSpec{NodeID: "node_1", Generation: step.spec})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.take(raw); err != nil {
			t.Fatal(err)
		}
		if n.spec.Generation != step.want {
			t.Errorf("after %+v generation %d is in force", step, n.spec.Generation)
		}
	}
}

// What is meant for another node, or is no NodeSpec at all, is not taken up and
// does not make the agent poll without a pause.
func TestForeignSpecIsNotTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tap, stop := bubble(t, "unix:/unused", newTestGPUs(1), &log)
		control := newControl()
		tap.listen(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/agent/v1/spec" {
				json.NewEncoder(w).Encode(wire.NodeSpec{NodeID: "node_other", Generation: 9, Bindings: []wire.Binding{{ReservationID: "res_x"}}})
				return
			}
			control.ServeHTTP(w, r)
		}))
		time.Sleep(10 * time.Minute)
		control.look(func() {
			if n := control.only(); n.taken != 0 || len(n.bindings) != 0 {
				t.Errorf("taken: %d, bindings %+v", n.taken, n.bindings)
			}
		})
		if n := len(tap.calls("/agent/v1/spec")); n > 700 {
			t.Errorf("%d polls in ten minutes", n)
		}
		stop()
	})
}
