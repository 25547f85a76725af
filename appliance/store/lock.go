package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lock is held by the server whose state a folder is. The kernel drops it with
// the process, however that ends, so the file that stays behind means nothing.
type lock struct{ f *os.File }

// takeLock takes the lock of a folder, or says who has it.
func takeLock(folder string) (*lock, error) {
	path := filepath.Join(folder, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text, _ := io.ReadAll(io.LimitReader(f, 32)) // without it the refusal is only less exact
		f.Close()
		holder := "another server"
		if pid := strings.TrimSpace(string(text)); pid != "" {
			holder = "the server with pid " + pid
		}
		return nil, fmt.Errorf("the state in %s is held by %s: stop it first, or name another state folder", folder, holder)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &lock{f}, nil
}

// release gives the lock back. The file stays, for removing it could remove the
// one that the next server has just locked.
func (l *lock) release() { l.f.Close() }
