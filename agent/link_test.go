package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

func TestDialRefusesWhatIsNoServer(t *testing.T) {
	for _, server := range []string{
		"", "unix:", "unix:api.sock", "http://control:8443", "https://", "control:8443", "https://control/api",
		"https://user:secret@control", "https://control?x=1",
	} {
		if l, err := dial(server, nil, 0); err == nil {
			t.Errorf("dial(%q) answers %+v, want a refusal", server, l)
		}
	}
	for _, server := range []string{"unix:/run/bc/api.sock", "https://control", "https://control:8443/", "https://[2001:db8::1]:8443"} {
		if _, err := dial(server, nil, 0); err != nil {
			t.Errorf("dial(%q): %v", server, err)
		}
	}
}

// Join over TLS shows a refusal to who asked, keeps the identity once it has one,
// and later runs need no server's name.
func TestJoinOverTLS(t *testing.T) {
	c := newControl()
	server := httptest.NewTLSServer(c)
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())

	a := testAgent(t, "", newTestGPUs(1))
	a.Server, a.JoinToken, a.Local = server.URL, "bcj_1", false
	if _, err := a.Join(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("with a certificate that nobody vouches for: %v", err)
	}
	a.TLS = &tls.Config{RootCAs: roots}
	c.noPool = "no pool takes H100"
	if _, err := a.Join(t.Context()); err == nil || err.Error() != "no pool takes H100" {
		t.Fatalf("without a pool: %v", err)
	}
	c.noPool = ""
	id, err := a.Join(t.Context())
	if err != nil || id != "node_1" {
		t.Fatalf("Join: %q, %v", id, err)
	}
	a.Server, a.JoinToken = "", ""
	start(t, a)
	c.await(t, "a heartbeat of the node that joined", func() bool { return len(c.beats) > 0 })
	c.look(func() {
		if last := c.hellos[len(c.hellos)-1]; last.NodeID != "node_1" || last.JoinToken != "" {
			t.Errorf("the run said hello as %q with token %q", last.NodeID, last.JoinToken)
		}
	})
}

func TestRunWithoutServer(t *testing.T) {
	a := testAgent(t, "", newTestGPUs(1))
	a.Server = ""
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "join one first") {
		t.Errorf("Run: %v", err)
	}
}

// A redirect is not followed: the credential stays with the server it is of.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
	}{
		{"a refusal with a code", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, &refusal{Status: 403, Code: "ACCESS_DENIED", Message: "this pool admits by x509pop"})
		}, "the control plane answered ACCESS_DENIED: this pool admits by x509pop"},
		{"a refusal without", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, "the control plane answered 502 Bad Gateway"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://192.0.2.1/", http.StatusTemporaryRedirect)
		}, "the control plane answered 307"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) }, "the answer to /agent/v1/heartbeat: invalid character"},
		{"without end", func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte(`"`))
			for b := make([]byte, 64<<10); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}, "the answer to /agent/v1/heartbeat is longer than 4194304 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewTLSServer(c.answer)
			defer server.Close()
			roots := x509.NewCertPool()
			roots.AddCert(server.Certificate())
			l, err := dial(server.URL, &tls.Config{RootCAs: roots}, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			_, err = l.heartbeat(t.Context(), "bcn_1", wire.Heartbeat{})
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got:  %v\nwant: %s", err, c.want)
			}
		})
	}
}

// The request is what the server's side is written to.
func TestSpecRequest(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(r.Method + " " + r.URL.RequestURI() + " " + r.Header.Get("Authorization"))
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	l, err := dial(server.URL, &tls.Config{RootCAs: roots}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	raw, err := l.spec(t.Context(), "bcn_1", "node_1", 7, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if want := "GET /agent/v1/spec?after=7&node=node_1&plans=1&wait=30s Bearer bcn_1"; got != want {
		t.Errorf("got:  %s\nwant: %s", got, want)
	}
}

func TestUeventsThatTell(t *testing.T) {
	for event, want := range map[string]bool{
		"add@/devices/pci0000:16/0000:17:00.0\x00ACTION=add\x00SUBSYSTEM=pci\x00":        true,
		"bind@/devices/pci0000:16/0000:17:00.0\x00ACTION=bind\x00SUBSYSTEM=pci\x00":      true,
		"add@/module/nvidia\x00ACTION=add\x00DEVPATH=/module/nvidia\x00SUBSYSTEM=module": true,
		"change@/devices/drm\x00ACTION=change\x00SUBSYSTEM=drm\x00":                      false,
		"add@/devices/virtual/net/veth1\x00ACTION=add\x00SUBSYSTEM=net\x00":              false,
		"": false,
	} {
		if got := telling([]byte(event)); got != want {
			t.Errorf("%q: %v", event, got)
		}
	}
}

// Ending closes the socket that a read is waiting on.
func TestUeventsEnd(t *testing.T) {
	a := testAgent(t, "", newTestGPUs(1))
	socket, err := openUevents()
	if err != nil {
		t.Skipf("the kernel gives no device events here: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := a.listen(ctx, socket)
	cancel()
	for range events {
	}
}
