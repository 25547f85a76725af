package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/google/go-cmp/cmp"
)

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func TestAValueComesBackAsItWasSentOverBothTransports(t *testing.T) {
	r := newRig(t, nil)
	at, low := appliance.AtMillis(1769846400123), 40.0
	policy := appliance.RawPolicy(`{"big":12345678901234567890}`)
	in := thing{
		TenantID: "acme", Class: "provider", Max: 3, Ratio: 0.75, DryRun: true, ExpiresAt: &at,
		Resources: appliance.Amounts{"gpu": 2}, Selector: appliance.Selector{"vramGiB": {Min: &low}, "a": {In: []string{"x"}}, "b": {Equals: "y"}},
		Parts: []part{{Kind: "a", Count: 1}}, Policy: policy, Page: appliance.Page{Limit: 7},
	}
	for name, client := range map[string]*Client{"unix": r.unix, "tls": r.tls} {
		out, err := Do[thing, echoed](t.Context(), client, "things.echo", in)
		if err != nil {
			t.Fatal(err)
		}
		// An absent policy is answered as {}: the answer always has one.
		want := in
		if d := cmp.Diff(want, out.In); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestARefusalComesBackWhole(t *testing.T) {
	r := newRig(t, nil)
	err := r.tls.Call(t.Context(), "things.refuse", thing{TenantID: "a", Labels: map[string]string{"code": "QUOTA_EXCEEDED", "field": "f"}}, nil)
	want := appliance.Refuse(appliance.QuotaExceeded, "f", "as asked").WithReason("r").With("resource", "gpu").With("retryAfterSeconds", 2.5)
	var refused *appliance.Error
	if !errors.As(err, &refused) || refused.Error() != want.Error() || refused.Field != "f" || refused.Reason != "r" || cmp.Diff(want.Details, refused.Details) != "" {
		t.Errorf("%#v", err)
	}
	body, err := r.unix.Raw(t.Context(), "things.echo", []byte(`{"tenantId":5}`))
	if appliance.CodeOf(err) != appliance.InvalidInput || string(body) != `{"error":{"code":"INVALID_INPUT","message":"tenantId: is a number, not text","field":"tenantId"}}` {
		t.Errorf("%s %v", body, err)
	}
	if body, err := r.unix.Raw(t.Context(), "things.list", []byte(`{"tenantId":"a"}`)); err != nil || string(body) != `{"items":[]}` {
		t.Errorf("%s %v", body, err)
	}
}

func TestATrustedServerIsKnownByItsAuthority(t *testing.T) {
	r := newRig(t, nil)
	dir := t.TempDir()
	ours, others := filepath.Join(dir, "ours.pem"), filepath.Join(dir, "others.pem")
	other := openCerts(t, t.TempDir(), CertificateOptions{})
	for path, ca := range map[string][]byte{ours: r.certs.CA(), others: other.CA()} {
		if err := os.WriteFile(path, ca, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := "https://" + r.tlsAddress
	for _, c := range []struct {
		name    string
		options Options
		hint    string
	}{
		{"authority's file", Options{CAFile: ours}, ""},
		{"fingerprint", Options{Fingerprint: strings.ToUpper(r.certs.Fingerprint()[:7]) + r.certs.Fingerprint()[7:]}, "?"},
		{"fingerprint, upper case digits", Options{Fingerprint: "sha256:" + strings.ToUpper(r.certs.Fingerprint()[7:])}, ""},
		{"nothing", Options{}, "Trust the server's own authority"},
		{"another authority", Options{CAFile: others}, "Trust the server's own authority"},
		{"another fingerprint", Options{Fingerprint: other.Fingerprint()}, "Compare the fingerprint"},
	} {
		c.options.Token = goodKey
		client, err := Dial(server, c.options)
		if c.hint == "?" {
			if err == nil {
				t.Errorf("%s: taken", c.name)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		err = client.Call(t.Context(), "things.list", appliance.TenantList{TenantID: "a"}, nil)
		client.Close()
		if c.hint == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.hint != "" && (!errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), c.hint)) {
			t.Errorf("%s: %v, want the hint %q", c.name, err, c.hint)
		}
	}
}

// The leaf must be the authority's own: a server that only shows the
// authority's certificate beside a leaf of its own is no one we know.
func TestAPinnedAuthorityMustHaveSignedTheServer(t *testing.T) {
	trusted := openCerts(t, t.TempDir(), CertificateOptions{})
	impostor := openCerts(t, t.TempDir(), CertificateOptions{})
	impostor.current.Certificate = [][]byte{impostor.current.Certificate[0], trusted.ca.Raw}
	l, err := ListenTLS("127.0.0.1:0", impostor)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go server.Serve(l)
	defer server.Close()
	client := dial(t, l.String(), Options{Fingerprint: trusted.Fingerprint()})
	if _, err := client.Get(t.Context(), "/healthz"); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

func TestNoAnswerSaysWhatToTry(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	for server, hint := range map[string]string{
		"unix:" + filepath.Join(dir, "none"):                  "There is no such socket: start the server",
		"unix:" + dead:                                        "Nothing listens there",
		"https://" + free.Addr().String():                     "Nothing listens there",
		"https://" + strings.TrimPrefix(plain.URL, "http://"): "does not speak TLS",
		"https://no-such-host.invalid:8443":                   "host's name",
	} {
		err := dial(t, server, Options{}).Call(t.Context(), "things.list", nil, nil)
		var lost *UnreachableError
		if !errors.As(err, &lost) || !errors.Is(err, ErrUnreachable) || lost.Server != server || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v, want the hint %q", server, err, hint)
		}
	}
	for _, server := range []string{"", "unix:", "http://x", "https://", "https://x/path", "https://u@x", "ftp://x", "localhost:80"} {
		if _, err := Dial(server, Options{}); err == nil {
			t.Errorf("%q is taken", server)
		}
	}
}

func TestAnotherProgramsAnswerIsNotARefusal(t *testing.T) {
	proxy := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(502)
		io.WriteString(w, "<html>Bad gateway</html>")
	}))
	defer proxy.Close()
	c := dial(t, proxy.URL, Options{Fingerprint: fingerprint(proxy.Certificate().Raw)})
	err := c.Call(t.Context(), "things.list", nil, nil)
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "502 Bad Gateway and not as a Better Compute server") {
		t.Errorf("%v", err)
	}
}

func TestACancelledCallIsTheCallersOwnDoing(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-r.entered; cancel() }()
	if err := r.unix.Call(ctx, "things.wait", nil, nil); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) {
		t.Errorf("%v", err)
	}
}
