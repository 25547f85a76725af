package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/go-json-experiment/json"
)

// Client calls a server. It is safe for use by many at once.
type Client struct {
	server string // as given, for messages
	base   string // http://unix or https://host:port
	token  string
	http   *http.Client
}

// Options say how to reach and trust a server. Over a Unix socket only Token
// matters, and that may be empty for the local operator.
type Options struct {
	Token string // the bearer credential

	// CAFile trusts the authorities in a PEM file instead of the system's.
	CAFile string
	// Fingerprint trusts the one authority with this fingerprint, as
	// [Certificates.Fingerprint] writes it. The server's name is then not
	// compared: the authority signs for one server only, so that joining works
	// through port forwarding.
	Fingerprint string
}

// ErrUnreachable is what errors.Is finds in every [UnreachableError].
var ErrUnreachable = errors.New("the server cannot be reached")

// UnreachableError says that no answer came, and what to try.
type UnreachableError struct {
	Server string
	Try    string
	Err    error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot reach the server at %s: %v. %s", e.Server, e.Err, e.Try)
}

// Unwrap lets errors.Is find ErrUnreachable and the cause.
func (e *UnreachableError) Unwrap() []error { return []error{ErrUnreachable, e.Err} }

// Dial makes a client of "unix:PATH" or "https://host:port". It does not
// connect yet; it refuses an address or a file of authorities that it cannot
// use.
func Dial(server string, o Options) (*Client, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 3 * time.Minute}
	c := &Client{server: server, token: o.Token, http: &http.Client{Transport: transport}}
	if path, ok := strings.CutPrefix(server, "unix:"); ok {
		if path == "" {
			return nil, errors.New("server address \"unix:\" lacks the path of the socket")
		}
		c.base = "http://unix"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		return c, nil
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("server address %q is neither unix:PATH nor https://HOST:PORT", server)
	}
	c.base = "https://" + u.Host
	transport.ForceAttemptHTTP2 = true
	transport.Proxy = http.ProxyFromEnvironment
	transport.TLSClientConfig, err = clientTLS(o)
	return c, err
}

func clientTLS(o Options) (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS13}
	switch {
	case o.Fingerprint != "":
		if len(o.Fingerprint) != len("sha256:")+64 || !strings.HasPrefix(o.Fingerprint, "sha256:") {
			return nil, fmt.Errorf("fingerprint %q is not sha256: and 64 hex digits", o.Fingerprint)
		}
		conf.InsecureSkipVerify = true // verified below instead, against the one authority
		conf.VerifyConnection = func(s tls.ConnectionState) error { return verifyPinned(s, strings.ToLower(o.Fingerprint)) }
	case o.CAFile != "":
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities to trust: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no PEM certificate", o.CAFile)
		}
	}
	return conf, nil
}

// verifyPinned accepts a chain that leads to the certificate with the
// fingerprint, or is that certificate.
func verifyPinned(s tls.ConnectionState, want string) error {
	chain := s.PeerCertificates
	for i, cert := range chain {
		if fingerprint(cert.Raw) != want {
			continue
		}
		if i == 0 {
			return nil
		}
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(cert)
		for _, c := range chain[1:i] {
			between.AddCert(c)
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
		return err
	}
	return errFingerprint
}

var errFingerprint = errors.New("the server's certificate does not lead to the pinned fingerprint")

// Call makes one call. In and out are the method's types; out may be nil. A
// refusal is an *[appliance.Error], no answer an *[UnreachableError].
func (c *Client) Call(ctx context.Context, verb string, in, out any) error {
	body := []byte("{}")
	if in != nil {
		b, err := json.Marshal(in, answers)
		if err != nil {
			return fmt.Errorf("write the input of %s: %w", verb, err)
		}
		body = b
	}
	answer, err := c.Raw(ctx, verb, body)
	if err != nil || out == nil {
		return err
	}
	// Fields that a newer server adds are passed over.
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("read the answer of %s: %w", verb, err)
	}
	return nil
}

// Do is [Client.Call] with the types of the method.
func Do[I, O any](ctx context.Context, c *Client, verb string, in I) (O, error) {
	var out O
	err := c.Call(ctx, verb, in, &out)
	return out, err
}

// Raw sends a body as it is and gives the answer as it came. When the call is
// refused it gives both the answer, which is the error envelope, and the
// refusal in it.
func (c *Client) Raw(ctx context.Context, verb string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/"+url.PathEscape(verb), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", verb, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return answer, nil
	}
	return answer, c.refusal(resp, answer)
}

// Get fetches a path that is no method, such as /readyz or /openapi.json.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", path, err)
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return answer, c.refusal(resp, answer)
	}
	return answer, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Server is the address as it was given.
func (c *Client) Server() string { return c.server }

func (c *Client) send(req *http.Request) (*http.Response, error) {
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(req.Context(), err)
	}
	return resp, nil
}

// refusal reads the envelope. What is no envelope came from something between
// us and the server, or from another program at its address.
func (c *Client) refusal(resp *http.Response, body []byte) error {
	var e envelope
	if json.Unmarshal(body, &e) != nil || e.Error == nil || e.Error.Code == "" {
		return &UnreachableError{c.server, "Check that the address is the server's own and not a proxy's.",
			fmt.Errorf("it answered %s and not as a Better Compute server does", resp.Status)}
	}
	return e.Error
}

// unreachable says what to try, by what went wrong.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		record    tls.RecordHeaderError
		dns       *net.DNSError
	)
	try := "Check the address, and that the server runs: systemctl status better-compute."
	switch {
	case errors.Is(err, syscall.EACCES):
		try = "This user may not open the socket: run as root or as the server's user, or use https:// with a key."
	case errors.Is(err, syscall.ENOENT):
		try = "There is no such socket: start the server (systemctl start better-compute), or name another with --server or BC_SERVER."
	case errors.Is(err, syscall.ECONNREFUSED):
		try = "Nothing listens there: start the server (systemctl start better-compute), or name another with --server or BC_SERVER."
	case errors.Is(err, errFingerprint):
		try = "Compare the fingerprint with the server's own (bc status on the server); if it differs, somebody else answers there."
	case errors.As(err, &authority):
		try = "Trust the server's own authority with its CA file or its fingerprint."
	case errors.As(err, &name):
		try = "Use one of the names in the server's certificate, or trust it by its fingerprint."
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		try = "What listens there does not speak TLS."
	case errors.As(err, &dns):
		try = "Check the host's name."
	}
	return &UnreachableError{c.server, try, err}
}

// Events reads the live stream of a tenant's events behind the sequence number
// after, or only what happens from now on when after is negative. The sequence
// ends with an error when the stream ends; read on from the last event's Seq.
func (c *Client) Events(ctx context.Context, tenantID string, after int64) iter.Seq2[appliance.Event, error] {
	return func(yield func(appliance.Event, error) bool) {
		resp, err := c.openEvents(ctx, tenantID, after)
		if err != nil {
			yield(appliance.Event{}, err)
			return
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(make([]byte, 0, 4<<10), 4*MaxBody)
		for name := ""; lines.Scan(); {
			line := lines.Text()
			if line == "" {
				name = ""
			}
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				name = v
			}
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			if name == "end" {
				yield(appliance.Event{}, c.refusal(resp, []byte(data)))
				return
			}
			var e appliance.Event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				yield(e, fmt.Errorf("read an event: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		err = lines.Err()
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		yield(appliance.Event{}, c.unreachable(ctx, err))
	}
}

func (c *Client) openEvents(ctx context.Context, tenantID string, after int64) (*http.Response, error) {
	query := url.Values{"tenantId": {tenantID}}
	if after >= 0 {
		query.Set("after", strconv.FormatInt(after, 10))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/events?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("open the event stream: %w", err)
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return nil, c.refusal(resp, body)
}
