package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/wire"
)

const (
	callTimeout = 10 * time.Second // one request, but for the wait of a long poll
	longPoll    = 30 * time.Second // how long the server may hold a request for a NodeSpec
	maxReply    = 4 << 20          // bytes; a NodeSpec with a thousand bindings takes 0.5 MiB
	maxRetry    = 5 * time.Minute  // the longest pause that a server can ask for
)

// link is the HTTP connection to one control plane. Any number of nodes can
// share it.
type link struct {
	base   string // scheme and host
	local  bool   // over a Unix socket
	client *http.Client
}

// dial makes the link to server, unix:PATH or https://HOST[:PORT]. Nothing is
// connected yet. At most conns connections are open at once, 0: any number.
func dial(server string, tlsConfig *tls.Config, conns int) (*link, error) {
	transport := &http.Transport{
		TLSClientConfig:     tlsConfig,
		ForceAttemptHTTP2:   true,
		MaxConnsPerHost:     conns,
		MaxIdleConnsPerHost: max(conns, 4),
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: callTimeout,
		// Without pings, HTTP/2 goes on using the connection of a server that
		// has lost its power.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: callTimeout},
	}
	l := &link{client: &http.Client{
		Transport: transport,
		// A control plane does not move by redirects, and credentials do not follow them.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if path, ok := strings.CutPrefix(server, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("server %q: the socket's path has to be absolute", server)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		l.base, l.local = "http://control-plane", true
		return l, nil
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("server %q: write unix:PATH or https://HOST:PORT", server)
	}
	transport.DialContext = (&net.Dialer{Timeout: callTimeout, KeepAlive: 15 * time.Second}).DialContext
	if transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{}
	} else {
		transport.TLSClientConfig = tlsConfig.Clone()
	}
	transport.TLSClientConfig.MinVersion = tls.VersionTLS13
	l.base = "https://" + u.Host
	return l, nil
}

// close drops the idle connections.
func (l *link) close() { l.client.CloseIdleConnections() }

// refusal is an answer of the control plane other than 2xx.
type refusal struct {
	Status     int
	Code       string
	Message    string
	Reason     string        // a word for programs
	RetryAfter time.Duration // 0: not said
}

func (r *refusal) Error() string {
	if r.Code == "" {
		return fmt.Sprintf("the control plane answered %d %s", r.Status, http.StatusText(r.Status))
	}
	return fmt.Sprintf("the control plane answered %s: %s", r.Code, r.Message)
}

// stranger tells whether err says that the control plane does not know this
// node, or not by this credential.
func stranger(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && (r.Status == http.StatusUnauthorized || r.Status == http.StatusNotFound)
}

// removed tells whether a refusal of a hello with a credential says that the node
// it was given to was removed. A credential that is not known is another thing.
func removed(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.Status == http.StatusNotFound && r.Reason == wire.ReasonNodeRemoved
}

func (l *link) hello(ctx context.Context, credential string, in wire.Hello) (wire.Welcome, error) {
	var out wire.Welcome
	_, err := l.call(ctx, callTimeout, http.MethodPost, "/agent/v1/hello", credential, in, &out)
	return out, err
}

func (l *link) inventory(ctx context.Context, credential string, in wire.InventoryReport) (wire.HeartbeatReply, error) {
	var out wire.HeartbeatReply
	_, err := l.call(ctx, callTimeout, http.MethodPost, "/agent/v1/inventory", credential, in, &out)
	return out, err
}

func (l *link) heartbeat(ctx context.Context, credential string, in wire.Heartbeat) (wire.HeartbeatReply, error) {
	var out wire.HeartbeatReply
	_, err := l.call(ctx, callTimeout, http.MethodPost, "/agent/v1/heartbeat", credential, in, &out)
	return out, err
}

// spec asks for a NodeSpec with a generation above after, and waits up to wait
// for one. It is the JSON as it came, nil when there is none. A wait can also be
// answered by a wire.Asked.
func (l *link) spec(ctx context.Context, credential, node string, after int64, wait time.Duration) (json.RawMessage, error) {
	query := url.Values{
		"node":  {node},
		"after": {strconv.FormatInt(after, 10)},
		"wait":  {strconv.Itoa(int(wait/time.Second)) + "s"},
	}
	if wait > 0 {
		query.Set("plans", "1")
	}
	var out json.RawMessage
	status, err := l.call(ctx, wait+callTimeout, http.MethodGet, "/agent/v1/spec?"+query.Encode(), credential, nil, &out)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	return out, nil
}

func (l *link) plan(ctx context.Context, credential string, in wire.PlanReport) error {
	_, err := l.call(ctx, callTimeout, http.MethodPost, "/agent/v1/plan", credential, in, &struct{}{})
	return err
}

func (l *link) reboot(ctx context.Context, credential string, in wire.RebootReport) (wire.RebootReply, error) {
	var out wire.RebootReply
	_, err := l.call(ctx, callTimeout, http.MethodPost, "/agent/v1/reboot", credential, in, &out)
	return out, err
}

// call does one request within limit. It answers the status, if there was one.
func (l *link) call(ctx context.Context, limit time.Duration, method, path, credential string, in, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, fmt.Errorf("encode %T: %w", in, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, body)
	if err != nil {
		return 0, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	req.Header.Set("User-Agent", "bcd")
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return 0, fmt.Errorf("read the answer to %s: %w", req.URL.Path, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return resp.StatusCode, refused(resp, reply)
	}
	if len(reply) > maxReply {
		return 0, fmt.Errorf("the answer to %s is longer than %d bytes", req.URL.Path, maxReply)
	}
	if resp.StatusCode == http.StatusNoContent {
		return resp.StatusCode, nil
	}
	if err := json.Unmarshal(reply, out); err != nil {
		return 0, fmt.Errorf("the answer to %s: %w", req.URL.Path, err)
	}
	return resp.StatusCode, nil
}

func refused(resp *http.Response, body []byte) *refusal {
	r := &refusal{Status: resp.StatusCode}
	var in struct {
		Error struct{ Code, Message, Reason string }
	}
	if json.Unmarshal(body, &in) == nil {
		r.Code, r.Message, r.Reason = in.Error.Code, in.Error.Message, in.Error.Reason
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		r.RetryAfter = min(time.Duration(min(s, 3600))*time.Second, maxRetry)
	}
	return r
}
