package host

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
)

// realEdge acts on the running machine.
type realEdge struct {
	treeEdge
	bus bus
}

func (e *realEdge) Run(ctx context.Context, argv ...string) error { return run(ctx, argv) }

func (e *realEdge) CanRun(program string) bool { return programPath(program) != "" }

const (
	busTimeout = 5 * time.Second
	// unitTimeout is above every TimeoutStartSec of the units that are shipped.
	unitTimeout = 11 * time.Minute
)

// RestartUnit restarts, for a oneshot unit that stays active would otherwise
// not run again.
func (e *realEdge) RestartUnit(ctx context.Context, unit string) error {
	conn, err := e.bus.get()
	if err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	// A unit that failed too often is not started again before this. It is an
	// error for one that did not fail.
	call, cancel := context.WithTimeout(ctx, busTimeout)
	_ = conn.ResetFailedUnitContext(call, unit)
	cancel()

	result, err := e.job(ctx, conn, "start", unit, conn.RestartUnitContext)
	if err != nil {
		return err
	}
	return e.ended(ctx, conn, unit, result)
}

// StopUnit is an error if systemd did not stop the unit.
func (e *realEdge) StopUnit(ctx context.Context, unit string) error {
	conn, err := e.bus.get()
	if err != nil {
		return fmt.Errorf("stop %s: %w", unit, err)
	}
	result, err := e.job(ctx, conn, "stop", unit, conn.StopUnitContext)
	if err == nil && result != "done" {
		err = fmt.Errorf("stop %s: the job was %s; see systemctl status %s", unit, result, unit)
	}
	return err
}

// job has systemd do one job and waits for its result.
func (e *realEdge) job(ctx context.Context, conn *dbus.Conn, verb, unit string,
	begin func(ctx context.Context, name, mode string, done chan<- string) (int, error),
) (string, error) {
	// The result is delivered while the connection is locked: a channel that
	// nobody reads would stop it for good.
	done := make(chan string, 1)
	call, cancel := context.WithTimeout(ctx, busTimeout)
	_, err := begin(call, unit, "replace", done)
	cancel()
	if err != nil {
		e.bus.drop(conn)
		return "", fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	timer := time.NewTimer(unitTimeout)
	defer timer.Stop()
	select {
	case result := <-done:
		return result, nil
	case <-ctx.Done():
		return "", fmt.Errorf("%s %s: %w", verb, unit, ctx.Err())
	case <-timer.C:
		e.bus.drop(conn)
		return "", fmt.Errorf("%s %s: systemd did not say within %v how it ended; see systemctl status %s", verb, unit, unitTimeout, unit)
	}
}

// ended tells how a job ended: one that is done may have been skipped by a
// condition, and a unit can fail after its job is done.
func (e *realEdge) ended(ctx context.Context, conn *dbus.Conn, unit, result string) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	if result != "done" && result != "failed" {
		return fmt.Errorf("start %s: the job was %s; see systemctl status %s", unit, result, unit)
	}
	if p, err := conn.GetUnitPropertyContext(ctx, unit, "ConditionResult"); err == nil {
		if met, ok := p.Value.Value().(bool); ok && !met {
			return fmt.Errorf("start %s: a condition of the unit is not met; see systemctl status %s", unit, unit)
		}
	}
	if p, err := conn.GetServicePropertyContext(ctx, unit, "Result"); err == nil {
		if why, ok := p.Value.Value().(string); ok && why != "success" {
			return &UnitFailed{Unit: unit, Result: why}
		}
	}
	return nil
}

// UnitFailed is a systemd unit that ran and failed.
type UnitFailed struct{ Unit, Result string }

func (e *UnitFailed) Error() string {
	return fmt.Sprintf("%s failed (%s); see journalctl -u %s", e.Unit, e.Result, e.Unit)
}

func (e *realEdge) UnitInstalled(ctx context.Context, unit string) bool {
	state, ok := e.unitState(ctx, unit, "LoadState")
	return ok && state == "loaded"
}

func (e *realEdge) UnitActive(ctx context.Context, unit string) bool {
	state, ok := e.unitState(ctx, unit, "ActiveState")
	return ok && state == "active"
}

func (e *realEdge) unitState(ctx context.Context, unit, property string) (string, bool) {
	conn, err := e.bus.get()
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	p, err := conn.GetUnitPropertyContext(ctx, unit, property)
	if err != nil {
		return "", false
	}
	state, ok := p.Value.Value().(string)
	return state, ok
}

// bus is the one connection to systemd, made when it is first needed and again
// after it broke.
type bus struct {
	mu   sync.Mutex
	conn *dbus.Conn
}

func (b *bus) get() (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return nil, fmt.Errorf("systemd does not run here")
	}
	// The context is the connection's: ending it would close the connection.
	conn, err := dbus.NewWithContext(context.Background())
	if err != nil {
		return nil, fmt.Errorf("no connection to systemd: %w", err)
	}
	b.conn = conn
	return conn, nil
}

func (b *bus) drop(conn *dbus.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == conn {
		b.conn = nil
		conn.Close()
	}
}
