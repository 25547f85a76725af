package host

import (
	"context"
	"errors"
	"fmt"
	"os"

	godbus "github.com/godbus/dbus/v5"
)

// logind is asked for a reboot, systemd itself where logind does not run.
const (
	logindName   = "org.freedesktop.login1"
	logindPath   = godbus.ObjectPath("/org/freedesktop/login1")
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = godbus.ObjectPath("/org/freedesktop/systemd1")
	rebootTarget = "reboot.target"
)

// CanReboot says why this process cannot have its machine rebooted, nil if it
// can try.
func (e *realEdge) CanReboot() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // sd_booted(3)
		return errors.New("systemd does not run here")
	}
	if os.Geteuid() != 0 {
		return errors.New("the agent does not run as root")
	}
	return nil
}

// Reboot asks for a reboot as systemctl reboot does, which goes through the
// firmware: the calls for a kexec or a soft reboot are others.
func (e *realEdge) Reboot(ctx context.Context) error {
	if err := e.CanReboot(); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	conn, err := godbus.ConnectSystemBus(godbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("reboot: no connection to the system bus: %w", err)
	}
	defer conn.Close()
	return reboot(ctx, conn)
}

// reboot waits until the reboot has been taken up, not until it is done. An
// inhibitor that somebody holds is a refusal of logind's, and is not gone round.
func reboot(ctx context.Context, bus *godbus.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	err := bus.Object(logindName, logindPath).CallWithContext(ctx, logindName+".Manager.Reboot", 0, false).Err
	if err == nil {
		return nil
	}
	if !noService(err) {
		return fmt.Errorf("reboot: logind refuses: %w", err)
	}
	// The job is the one of systemctl reboot: it stops services in order, and
	// no other job cancels it.
	err = bus.Object(systemdName, systemdPath).
		CallWithContext(ctx, systemdName+".Manager.StartUnit", 0, rebootTarget, "replace-irreversibly").Err
	if err != nil {
		return fmt.Errorf("reboot: logind does not run, and systemd refuses: %w", err)
	}
	return nil
}

// noService reports whether nobody has the name, or can be started to have it.
func noService(err error) bool {
	for _, name := range []string{"ServiceUnknown", "NameHasNoOwner", "Spawn.ServiceNotFound"} {
		if isBusError(err, "org.freedesktop.DBus.Error."+name) {
			return true
		}
	}
	return isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") || isBusError(err, "org.freedesktop.systemd1.UnitMasked")
}
