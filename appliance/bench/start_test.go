package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// program is the program of the packages, made by make package, and copied as
// they install it: the kernel maps a file that a linker wrote through its memory
// in pieces of 2 MiB, used or not, and one that was copied by what is used.
func program(t *testing.T) string {
	t.Helper()
	built, err := os.ReadFile("../../dist/stage/better-compute")
	if err != nil {
		t.Fatalf("%v; make bench builds it", err)
	}
	path := filepath.Join(t.TempDir(), "bc")
	if err := os.WriteFile(path, built, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// started is the program over a state directory: how long it took until it
// answered /readyz, and what it held after it had come to rest.
type started struct {
	ready       time.Duration
	residentMiB float64
	cpuShare    float64
}

func startProgram(t *testing.T, program, dir string) started {
	t.Helper()
	config := filepath.Join(dir, "bars.toml")
	if err := os.WriteFile(config, []byte("[reconcile]\nunreachable_after = \"1h\"\n[log]\nlevel = \"error\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve", "--state-dir", dir, "--listen", "none", "--config", config)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the program ended before it listened")
	}
	c := dialWire(t, filepath.Join(dir, "api.sock"))
	if _, err := fmt.Fprint(c.conn, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if status, _, err := c.read(); err != nil || status != 200 {
		t.Fatalf("readyz answered %d, %v", status, err)
	}
	s := started{ready: time.Since(begin)}
	time.Sleep(3 * time.Second) // to come to rest: the collector gives memory back in its own time
	cpu := cpuTime(t, cmd.Process.Pid)
	time.Sleep(5 * time.Second)
	s.cpuShare = (cpuTime(t, cmd.Process.Pid) - cpu).Seconds() / 5
	s.residentMiB = residentMiB(t, cmd.Process.Pid)
	return s
}

func residentMiB(t *testing.T, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return float64(kib) / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// cpuTime is what a process has used, in the kernel's ticks of 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// TestStart times the program's start and weighs it at rest: with nothing, and
// with 10,000 nodes and 100,000 reservations. Of these 20,000 are live and hold
// 50,000 of the 80,000 GPUs; 80,000 have ended.
func TestStart(t *testing.T) {
	needBars(t)
	bc := program(t)
	info, err := os.Stat(bc)
	if err != nil {
		t.Fatal(err)
	}
	report(t, "binary", "%.1f MiB", float64(info.Size())/(1<<20))
	empty := makeFleet(t, 0, nil)
	full := makeFleet(t, 10_000, func(s *server, f *fleet) {
		parallel(t, 64, 100_000, func(i int) error {
			ctx := context.Background()
			r, err := s.control.CreateReservation(ctx, fleetOperator, appliance.CreateReservation{TenantID: "local", PoolID: f.pool, Resources: appliance.Amounts{"gpu": 1 + i%4}})
			if err != nil || i%5 == 0 {
				return err
			}
			_, err = s.control.ReleaseReservation(ctx, fleetOperator, appliance.ReservationRef{TenantID: "local", ReservationID: r.ID})
			return err
		})
	})
	for _, of := range []struct {
		what string
		f    *fleet
	}{{"empty", empty}, {"10,000 nodes, 100,000 reservations, 20,000 live", full}} {
		var ready, resident, cpu []float64
		for range *rounds {
			s := startProgram(t, bc, of.f.dir)
			ready, resident, cpu = append(ready, float64(s.ready.Milliseconds())), append(resident, s.residentMiB), append(cpu, 100*s.cpuShare)
		}
		report(t, "start and rest, "+of.what, "ready in %.0f ms; %.1f MiB resident; %.2f %% of a CPU", median(ready), median(resident), median(cpu))
	}
}
