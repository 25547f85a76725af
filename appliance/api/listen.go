package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Listener is where callers come in, and of which kind they are.
type Listener struct {
	net.Listener
	Transport Transport
	lock      *os.File
}

// String is the address as the command line takes it: unix:PATH, https://host:port.
func (l *Listener) String() string {
	if l.Transport == Unix {
		return "unix:" + l.Addr().String()
	}
	return "https://" + l.Addr().String()
}

// Close stops listening, and removes the socket's file and gives its path up.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	if l.lock != nil {
		_ = l.lock.Close() // gives the lock up
	}
	return err
}

// maxSocketPath is the size of sun_path less its final zero: unix(7).
const maxSocketPath = 107

// ListenUnix opens a Unix socket. Anyone on the machine may connect (mode
// 0666): every peer is authenticated, by its uid or by its credential. A
// socket that a dead process left is removed; one that a process answers on
// is refused with its pid, and so is a file that is no socket. PATH.lock
// beside it keeps two servers that start at once from taking it from each
// other.
func ListenUnix(path string) (*Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long; the kernel takes at most %d: choose a shorter one", path, len(path), maxSocketPath)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: the directory %s does not exist; create it", path, filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := listenLocked(path, lock)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return l, nil
}

func listenLocked(path string, lock *os.File) (*Listener, error) {
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, _ := socketHolder(path)
			return nil, socketTaken(path, pid)
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("open %s to every peer: %w", path, err)
	}
	return &Listener{l, Unix, lock}, nil
}

// removeStale removes the socket of a dead process.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket; move it away or choose another path", path)
	}
	pid, err := socketHolder(path)
	switch {
	case err == nil:
		return socketTaken(path, pid)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the socket that a dead process left: %w", err)
		}
		return nil
	default:
		return fmt.Errorf("find out whether %s is in use: %w", path, err)
	}
}

func socketTaken(path string, pid int) error {
	if pid == 0 {
		return fmt.Errorf("another process holds %s: stop it or choose another path: %w", path, syscall.EADDRINUSE)
	}
	return fmt.Errorf("process %d%s holds %s: stop it or choose another path: %w", pid, commandOf(pid), path, syscall.EADDRINUSE)
}

// socketHolder connects and asks the kernel who listens.
func socketHolder(path string) (int, error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if cred := peerCred(c); cred != nil {
		return int(cred.Pid), nil
	}
	return 0, nil
}

// ListenTLS opens a TCP port for TLS 1.3 with the certificates' current one.
// A port that is taken is refused with the process that holds it, as far as
// this process may see it.
func ListenTLS(addr string, certs *Certificates) (*Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is taken%s: stop it or listen elsewhere: %w", addr, portHolder(addr), syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: ports below 1024 need CAP_NET_BIND_SERVICE; use one above, such as 8443: %w", addr, err)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return &Listener{tls.NewListener(l, certs.TLS()), TLS, nil}, nil
}

// How long a shutdown takes at most: requests get requestGrace to finish, then
// their contexts are cancelled, and after cancelGrace connections are cut.
const (
	requestGrace = 3 * time.Second
	cancelGrace  = time.Second
)

var errServerClosing = errors.New("the server is closing")

// Serve answers on all listeners until ctx ends, then shuts down: streams and
// long polls end at once, other requests may finish, and after 4 seconds
// nothing is left. It closes the listeners. The error tells why serving ended
// before ctx did.
func (s *Server) Serve(ctx context.Context, listeners ...*Listener) error {
	s.init()
	base, cancel := context.WithCancelCause(context.Background())
	defer cancel(errServerClosing)
	serving, ctx := errgroup.WithContext(ctx)
	var servers []*http.Server
	for _, l := range listeners {
		server := s.httpServer(base, l)
		servers = append(servers, server)
		serving.Go(func() error {
			defer l.Close()
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", l, err)
			}
			return nil
		})
	}
	<-ctx.Done()
	s.Stop()
	var closing sync.WaitGroup
	for _, server := range servers {
		closing.Go(func() { s.shutDown(server, cancel) })
	}
	closing.Wait()
	return serving.Wait()
}

func (s *Server) shutDown(server *http.Server, cancel context.CancelCauseFunc) {
	gentle, done := context.WithTimeout(context.Background(), requestGrace)
	defer done()
	if server.Shutdown(gentle) == nil {
		return
	}
	cancel(errServerClosing)
	last, done := context.WithTimeout(context.Background(), cancelGrace)
	defer done()
	if err := server.Shutdown(last); err != nil {
		s.Log.Warn("connections cut at shutdown", "error", err)
		_ = server.Close()
	}
}

// httpServer limits what one connection can hold up. A long poll must answer
// within WriteTimeout; streams push their own deadline ahead.
func (s *Server) httpServer(base context.Context, l *Listener) *http.Server {
	return &http.Server{
		Handler:           s.Handler(l.Transport),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // mostly TLS handshakes that callers broke off
	}
}
