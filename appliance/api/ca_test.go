package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func openCerts(t *testing.T, dir string, o CertificateOptions) *Certificates {
	t.Helper()
	c, err := OpenCertificates(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func leafOf(t *testing.T, c *Certificates) *x509.Certificate {
	t.Helper()
	cert, err := c.Current()
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

func TestTheAuthorityIsMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	first := openCerts(t, dir, CertificateOptions{})
	again := openCerts(t, dir, CertificateOptions{})
	if first.Fingerprint() != again.Fingerprint() || len(first.Fingerprint()) != 71 {
		t.Errorf("%s, after a restart %s", first.Fingerprint(), again.Fingerprint())
	}
	if !leafOf(t, first).Equal(leafOf(t, again)) {
		t.Error("a restart made a new server certificate")
	}
	err := filepath.Walk(filepath.Join(dir, "pki"), func(path string, info os.FileInfo, err error) error {
		if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[info.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if key, ok := first.ca.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("authority's key: %T", first.ca.PublicKey)
	}
	if life := time.Until(first.ca.NotAfter); life < caLife-time.Hour {
		t.Errorf("the authority ends in %v", life)
	}
}

func TestTheServerCertificateIsValidForEveryNameOfTheMachine(t *testing.T) {
	c := openCerts(t, t.TempDir(), CertificateOptions{Names: []string{"gpu.example.com", "192.0.2.7"}})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{host, "localhost", "127.0.0.1", "::1", "gpu.example.com", "192.0.2.7"}
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip := a.(*net.IPNet).IP; ip.IsGlobalUnicast() {
			names = append(names, ip.String())
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA())
	for _, name := range names {
		if _, err := leafOf(t, c).Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if leafOf(t, c).VerifyHostname("elsewhere.example.com") == nil {
		t.Error("valid for any name")
	}
}

func TestTheServerCertificateIsRenewedBeforeItEnds(t *testing.T) {
	dir, at := t.TempDir(), &clock{time.Now()}
	c := openCerts(t, dir, CertificateOptions{Now: at.now})
	first, authority := leafOf(t, c), c.Fingerprint()
	at.t = at.t.Add(serverLife - renewBefore - time.Hour)
	if !leafOf(t, c).Equal(first) {
		t.Error("renewed too early")
	}
	at.t = at.t.Add(2 * time.Hour)
	second := leafOf(t, c)
	if second.Equal(first) || second.NotAfter.Before(at.t.Add(serverLife-time.Hour)) {
		t.Errorf("not renewed: ends %v", second.NotAfter)
	}
	if c.Fingerprint() != authority || second.CheckSignatureFrom(c.ca) != nil {
		t.Error("renewed by another authority")
	}
	if !leafOf(t, openCerts(t, dir, CertificateOptions{Now: at.now})).Equal(second) {
		t.Error("the renewed certificate was not stored")
	}
	// Near the authority's own end nothing is gained by renewing.
	at.t = c.ca.NotAfter.Add(-time.Hour)
	last := leafOf(t, c)
	if last.NotAfter.After(c.ca.NotAfter) || !leafOf(t, c).Equal(last) {
		t.Errorf("ends %v, the authority %v", last.NotAfter, c.ca.NotAfter)
	}
}

func TestANewNameMakesANewCertificateWithinAMinute(t *testing.T) {
	at := &clock{time.Now()}
	c := openCerts(t, t.TempDir(), CertificateOptions{Now: at.now})
	first := leafOf(t, c)
	c.names = func() []string { return []string{"localhost", "new.example.com"} }
	if !leafOf(t, c).Equal(first) {
		t.Error("the names are looked at in every handshake")
	}
	at.t = at.t.Add(namesEvery)
	if err := leafOf(t, c).VerifyHostname("new.example.com"); err != nil {
		t.Error(err)
	}
	second := leafOf(t, c)
	c.names = func() []string { return []string{"localhost"} }
	at.t = at.t.Add(namesEvery)
	if !leafOf(t, c).Equal(second) {
		t.Error("a name that went away made a new certificate")
	}
}

func TestABrokenAuthorityIsNotReplaced(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"key gone":    func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
		"cert torn":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("-----BEGIN"), 0o600) },
		"another key": func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.key"), otherKey(t), 0o600) },
		"no authority": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "ca.pem"), readFile(t, dir, "server.pem"), 0o600)
		},
	} {
		dir := t.TempDir()
		openCerts(t, dir, CertificateOptions{})
		if err := damage(filepath.Join(dir, "pki")); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCertificates(dir, CertificateOptions{}); err == nil || !strings.Contains(err.Error(), "backup") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is only derived is made anew.
	dir := t.TempDir()
	before := openCerts(t, dir, CertificateOptions{}).Fingerprint()
	if err := os.WriteFile(filepath.Join(dir, "pki", "server.pem"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if after := openCerts(t, dir, CertificateOptions{}); after.Fingerprint() != before {
		t.Error("a torn server certificate changed the authority")
	}
}

func readFile(t *testing.T, parts ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func otherKey(t *testing.T) []byte {
	dir := t.TempDir()
	openCerts(t, dir, CertificateOptions{})
	return readFile(t, dir, "pki", "ca.key")
}

// given makes a certificate in files as an operator would bring it.
func given(t *testing.T, dir, name string) (cert, key string, pem []byte) {
	t.Helper()
	made := t.TempDir()
	openCerts(t, made, CertificateOptions{Names: []string{name}})
	pem = readFile(t, made, "pki", "server.pem")
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for _, path := range []string{cert, key} {
		if err := os.WriteFile(path, pem, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pem
}

func TestGivenFilesReplaceTheAuthorityAndAreReloaded(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := given(t, dir, "first.example.com")
	log := new(syncBuffer)
	c := openCerts(t, t.TempDir(), CertificateOptions{CertFile: cert, KeyFile: key, Log: textLog(log)})
	first := leafOf(t, c)
	if first.VerifyHostname("first.example.com") != nil || c.CA() != nil {
		t.Error("the given certificate is not shown")
	}
	later := time.Now().Add(time.Second)
	if err := os.WriteFile(cert, []byte("half a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !leafOf(t, c).Equal(first) || !strings.Contains(log.String(), "not taken") {
		t.Errorf("a torn file was taken, or not logged: %s", log)
	}
	given(t, dir, "second.example.com")
	if err := os.Chtimes(cert, later, later); err != nil {
		t.Fatal(err)
	}
	if err := leafOf(t, c).VerifyHostname("second.example.com"); err != nil {
		t.Error(err)
	}
	for _, o := range []CertificateOptions{{CertFile: cert}, {KeyFile: key}, {CertFile: cert + "x", KeyFile: key}} {
		if _, err := OpenCertificates(t.TempDir(), o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

func TestOnlyTLS13IsSpokenAndAHandshakeShowsTheCurrentCertificate(t *testing.T) {
	at := &clock{time.Now()}
	certs := openCerts(t, t.TempDir(), CertificateOptions{Now: at.now})
	l, err := ListenTLS("127.0.0.1:0", certs)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = c.(*tls.Conn).Handshake(); c.Close() }()
		}
	}()
	shown := func(most uint16) ([]byte, error) {
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: most})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if v := c.ConnectionState().Version; v != tls.VersionTLS13 {
			t.Errorf("version %x", v)
		}
		return c.ConnectionState().PeerCertificates[0].Raw, nil
	}
	if _, err := shown(tls.VersionTLS12); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	before, err := shown(tls.VersionTLS13)
	if err != nil {
		t.Fatal(err)
	}
	at.t = at.t.Add(serverLife)
	after, err := shown(tls.VersionTLS13)
	if err != nil || bytes.Equal(before, after) {
		t.Errorf("the running listener shows the old certificate: %v", err)
	}
}
