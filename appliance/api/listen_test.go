package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestASocketThatADeadProcessLeftIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as after kill -9
	dead.Close()
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v %v, want mode 0666: every peer is authenticated", info, err)
	}
}

func TestALiveSocketIsRefusedWithItsPid(t *testing.T) {
	dir := t.TempDir()
	me := fmt.Sprintf("process %d (", os.Getpid())
	ours, err := ListenUnix(filepath.Join(dir, "ours"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	other, err := net.Listen("unix", filepath.Join(dir, "other")) // a program that knows of no lock
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, path := range []string{"ours", "other"} {
		_, err := ListenUnix(filepath.Join(dir, path))
		if err == nil || !strings.Contains(err.Error(), me) || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: %v, want it to name %s", path, err, me)
		}
		if c, err := net.Dial("unix", filepath.Join(dir, path)); err != nil {
			t.Errorf("%s no longer answers: %v", path, err)
		} else {
			c.Close()
		}
	}
	ours.Close()
	again, err := ListenUnix(filepath.Join(dir, "ours"))
	if err != nil {
		t.Fatalf("after it was closed: %v", err)
	}
	again.Close()
}

func TestWhatIsNoSocketIsNeverRemoved(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "precious")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("the file is damaged: %q %v", b, err)
	}
	if _, err := ListenUnix(filepath.Join(dir, "none", "s")); err == nil || !strings.Contains(err.Error(), "does not exist; create it") {
		t.Errorf("missing directory: %v", err)
	}
	if _, err := ListenUnix(filepath.Join(dir, strings.Repeat("x", 120))); err == nil || !strings.Contains(err.Error(), "at most 107") {
		t.Errorf("long path: %v", err)
	}
}

func TestATakenPortNamesItsProcess(t *testing.T) {
	certs, err := OpenCertificates(t.TempDir(), CertificateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, err = ListenTLS(l.Addr().String(), certs)
		comm, _ := os.ReadFile("/proc/self/comm")
		want := fmt.Sprintf("%s is taken by process %d (%s)", l.Addr(), os.Getpid(), strings.TrimSpace(string(comm)))
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v, want it to hold %q", err, want)
		}
	}
}

// What belongs to another user cannot be seen: the error says who can ask.
func TestAPortWhoseProcessCannotBeSeenSaysHowToFindIt(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:20FB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0\n" +
		"   1: 0100007F:20FB 0100007F:A1B2 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0\n"
	if err := os.WriteFile(filepath.Join(proc, "net/tcp"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	inodes := listeningInodes(proc, 8443)
	if len(inodes) != 1 || !inodes["4242"] {
		t.Errorf("inodes %v, want the listening one", inodes)
	}
	if pid := inodeHolder(proc, "4242"); pid != 0 {
		t.Errorf("pid %d from an empty tree", pid)
	}
	if got := portHolder("127.0.0.1:1"); !strings.Contains(got, "ss -ltnp 'sport = :1'") {
		t.Errorf("%q", got)
	}
}

func TestClosingAListenerRemovesItsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.String(); got != "unix:"+path {
		t.Errorf("called %s", got)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
