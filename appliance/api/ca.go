package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Lives of certificates. A server's is renewed when less than renewBefore of
// it is left. Each begins an hour early, for clocks that are behind.
const (
	caLife      = 10 * 365 * 24 * time.Hour
	serverLife  = 365 * 24 * time.Hour
	renewBefore = 30 * 24 * time.Hour
	clockSlack  = time.Hour

	namesEvery = time.Minute // how often the machine's names are looked at
	maxNames   = 64
)

// Certificates keeps what the TLS listener shows. Without given files it is
// its own authority: pki/ in the state directory holds ca.pem and ca.key, made
// once, and server.pem (certificate and key), made anew before it ends and
// when the machine gets a name or address that it lacks. Nothing needs a
// restart: every handshake shows the current one.
type Certificates struct {
	dir   string
	given *givenFiles
	names func() []string
	now   func() time.Time
	log   *slog.Logger

	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey

	mu      sync.Mutex
	current *tls.Certificate
	checked time.Time // when the names were looked at last
}

// CertificateOptions says what to show. The zero value is the own authority.
type CertificateOptions struct {
	// CertFile and KeyFile replace the own authority's certificate: PEM, the
	// server's certificate first. They are read again when they change; a pair
	// that cannot be used is logged, and the one before stays.
	CertFile, KeyFile string
	Names             []string         // more host names and addresses to be valid for
	Now               func() time.Time // nil: time.Now
	Log               *slog.Logger     // nil: nothing is logged
}

// OpenCertificates reads what the state directory holds, and makes what is
// missing. It refuses to replace a broken authority: clients trust it by its
// fingerprint.
func OpenCertificates(stateDir string, o CertificateOptions) (*Certificates, error) {
	c := &Certificates{dir: filepath.Join(stateDir, "pki"), now: o.Now, log: o.Log}
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.names = func() []string { return machineNames(o.Names) }
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("a TLS certificate and its key come together: set both files or neither")
	}
	if o.CertFile != "" {
		c.given = &givenFiles{cert: o.CertFile, key: o.KeyFile}
		current, err := c.given.load()
		c.current = current
		return c, err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the certificates: %w", err)
	}
	if err := c.openCA(); err != nil {
		return nil, err
	}
	if current, err := readPair(filepath.Join(c.dir, "server.pem")); err == nil && current.Leaf.CheckSignatureFrom(c.ca) == nil {
		current.Certificate = append(current.Certificate, c.ca.Raw)
		c.current = current
	}
	_, err := c.Current()
	return c, err
}

// TLS is the configuration of a listener: TLS 1.3 and nothing older.
func (c *Certificates) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Current() },
	}
}

// Fingerprint names the authority for a client that has nothing else to trust
// it by: "sha256:" and 64 hex digits over the DER of the authority's
// certificate, or of the last certificate in a given file.
func (c *Certificates) Fingerprint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	chain := c.current.Certificate
	return fingerprint(chain[len(chain)-1])
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// CA is the authority's certificate in PEM, for clients to trust; nil with
// given files.
func (c *Certificates) CA() []byte {
	if c.ca == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.ca.Raw})
}

// Current is the certificate to show now, renewed if need be.
func (c *Certificates) Current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.given != nil {
		c.reload()
		return c.current, nil
	}
	now := c.now()
	why := c.renewal(now)
	if why == "" {
		return c.current, nil
	}
	renewed, err := c.issue(now)
	if err != nil && c.current == nil {
		return nil, err
	}
	if err != nil {
		c.log.Error("server certificate not renewed; the one before stays", "why", why, "ends", c.current.Leaf.NotAfter, "error", err)
		return c.current, nil
	}
	c.current = renewed
	c.log.Info("server certificate made", "why", why, "names", slices.Concat(renewed.Leaf.DNSNames, ipTexts(renewed.Leaf.IPAddresses)), "ends", renewed.Leaf.NotAfter)
	return c.current, nil
}

// renewal says why the current certificate will not do, "" if it will.
func (c *Certificates) renewal(now time.Time) string {
	if c.current == nil {
		return "there is none"
	}
	leaf := c.current.Leaf
	if now.Before(leaf.NotBefore) {
		return "it begins in the future"
	}
	if now.Add(renewBefore).After(leaf.NotAfter) && leaf.NotAfter.Before(c.ca.NotAfter) {
		return "it ends soon"
	}
	if since := now.Sub(c.checked); since >= 0 && since < namesEvery {
		return ""
	}
	c.checked = now
	for _, name := range c.names() {
		if leaf.VerifyHostname(name) != nil {
			return "it is not valid for " + name
		}
	}
	return ""
}

// openCA reads the authority, or makes it at the first start.
func (c *Certificates) openCA() error {
	certPath, keyPath := filepath.Join(c.dir, "ca.pem"), filepath.Join(c.dir, "ca.key")
	certPEM, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		return c.makeCA(certPath, keyPath)
	}
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return fmt.Errorf("read the certificate authority's key; restore it from a backup, or move %s away to start a new authority that every client must trust anew: %w", c.dir, err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("the certificate authority in %s is broken; restore it from a backup: %w", c.dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return fmt.Errorf("%s is not a certificate authority with an ECDSA key; restore it from a backup", certPath)
	}
	c.ca, c.caKey = pair.Leaf, key
	return nil
}

// makeCA writes the key before the certificate: an authority without a
// certificate was never shown to anyone, and is made anew.
func (c *Certificates) makeCA(certPath, keyPath string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the certificate authority: %w", err)
	}
	now := c.now()
	host, _ := os.Hostname()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Better Compute authority of " + host},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make the certificate authority: %w", err)
	}
	keyPEM, err := keyToPEM(key)
	if err != nil {
		return err
	}
	if err := writeFile(keyPath, keyPEM); err != nil {
		return err
	}
	if err := writeFile(certPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		return err
	}
	ca, err := x509.ParseCertificate(der)
	c.ca, c.caKey = ca, key
	return err
}

// issue makes and stores a server certificate for the machine's names.
func (c *Certificates) issue(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a server certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), NotBefore: now.Add(-clockSlack), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(c.ca.NotAfter) {
		template.NotAfter = c.ca.NotAfter
	}
	for _, name := range c.names() {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	template.Subject.CommonName = template.DNSNames[0]
	c.checked = now
	der, err := x509.CreateCertificate(rand.Reader, template, c.ca, key.Public(), c.caKey)
	if err != nil {
		return nil, fmt.Errorf("make a server certificate: %w", err)
	}
	keyPEM, err := keyToPEM(key)
	if err != nil {
		return nil, err
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM...)
	if err := writeFile(filepath.Join(c.dir, "server.pem"), both); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(both, both)
	if err != nil {
		return nil, fmt.Errorf("make a server certificate: %w", err)
	}
	pair.Certificate = append(pair.Certificate, c.ca.Raw) // so that a client can pin the authority
	return &pair, nil
}

// machineNames is what the server is called: its host name first, localhost,
// every address of its interfaces but link-local ones, and what was asked for.
func machineNames(more []string) []string {
	var out []string
	add := func(name string) {
		self := x509.Certificate{DNSNames: []string{name}}
		valid := net.ParseIP(name) != nil || self.VerifyHostname(name) == nil
		if valid && len(out) < maxNames && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if host, err := os.Hostname(); err == nil {
		add(host)
	}
	add("localhost")
	for _, name := range more {
		add(name)
	}
	add("127.0.0.1")
	add("::1")
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			add(ip.IP.String())
		}
	}
	return out
}

func ipTexts(ips []net.IP) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic("api: no randomness: " + err.Error()) // crypto/rand itself never returns an error
	}
	return n
}

func keyToPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// readPair reads certificate and key from one file.
func readPair(path string) (*tls.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(b, b)
	return &pair, err
}

// writeFile writes a file that only the owner can read, whole or not at all.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b) // CreateTemp makes the file with mode 0600
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// givenFiles is a certificate that the operator provides.
type givenFiles struct {
	cert, key string
	seen      [2]fileStamp
}

type fileStamp struct {
	size     int64
	modified time.Time
}

func (g *givenFiles) stamps() [2]fileStamp {
	var out [2]fileStamp
	for i, path := range []string{g.cert, g.key} {
		if info, err := os.Stat(path); err == nil {
			out[i] = fileStamp{info.Size(), info.ModTime()}
		}
	}
	return out
}

func (g *givenFiles) load() (*tls.Certificate, error) {
	g.seen = g.stamps()
	cert, err := os.ReadFile(g.cert)
	if err != nil {
		return nil, fmt.Errorf("read the TLS certificate: %w", err)
	}
	key, err := os.ReadFile(g.key)
	if err != nil {
		return nil, fmt.Errorf("read the TLS key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate %s and key %s: %w", g.cert, g.key, err)
	}
	return &pair, nil
}

// reload takes changed files up. A half-copied pair does not fit together: it
// is tried again when the files change again.
func (c *Certificates) reload() {
	if c.given.stamps() == c.given.seen {
		return
	}
	pair, err := c.given.load()
	if err != nil {
		c.log.Error("changed TLS certificate not taken; the one before stays", "error", err)
		return
	}
	if !bytes.Equal(pair.Certificate[0], c.current.Certificate[0]) {
		c.log.Info("TLS certificate changed", "file", c.given.cert, "ends", pair.Leaf.NotAfter)
	}
	c.current = pair
}
