package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bettercompute/bc/agent/host"
)

// ErrNoWall says that a reservation has no wall on this machine: it is not
// active here, it is ending, or the machine walls nothing in.
var ErrNoWall = errors.New("it is not walled in on this machine")

// Walled reports whether a reservation has a wall on this machine that can be
// entered.
func Walled(reservation string) bool {
	if !legalID().MatchString(reservation) {
		return false
	}
	_, err := os.Stat(cdiFile(reservation))
	return err == nil
}

// EnterWall moves the calling process, with all that it will start, behind the
// wall that the agent of this machine keeps for a reservation, and answers the
// environment that tells CUDA programs which GPUs to use. It needs root: systemd
// lets no one else put a process into a slice of the system.
func EnterWall(ctx context.Context, reservation string) ([]string, error) {
	if !legalID().MatchString(reservation) {
		return nil, fmt.Errorf("reservation %q: %w", reservation, ErrNoWall)
	}
	text, err := os.ReadFile(cdiFile(reservation))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reservation %s: %w", reservation, ErrNoWall)
	}
	if err != nil {
		return nil, err
	}
	s := &host.Slices{}
	defer s.Close()
	if err := s.Enter(ctx, sliceName(reservation), "Better Compute run in "+reservation); err != nil {
		return nil, err
	}
	return cdiEnvironment(text), nil
}
