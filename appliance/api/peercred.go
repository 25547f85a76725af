package api

import (
	"context"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

type peerKey struct{}

// withPeer keeps a Unix connection's peer credentials in its context: uid and
// pid as the kernel noted them when the peer connected.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if cred := peerCred(c); cred != nil {
		return context.WithValue(ctx, peerKey{}, *cred)
	}
	return ctx
}

func peerOf(ctx context.Context) (unix.Ucred, bool) {
	cred, ok := ctx.Value(peerKey{}).(unix.Ucred)
	return cred, ok
}

// isOperator tells whether the peer's uid is 0 or the server's own.
func isOperator(ctx context.Context) bool {
	peer, ok := peerOf(ctx)
	return ok && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

// peerCred asks the kernel (SO_PEERCRED, unix(7)). Nil for another kind of
// connection.
func peerCred(c net.Conn) *unix.Ucred {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil
	}
	return cred
}
