package otlp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	contentType = "application/x-protobuf"
	// metricsPath is what an endpoint without a path gets, as in the
	// specification of OTLP exporters.
	metricsPath = "/v1/metrics"

	maxAnswer = 64 << 10 // bytes of an answer that are read
	maxText   = 200      // characters of the collector's words that are passed on
	// maxRetryAfter is the longest pause that a collector can ask for.
	maxRetryAfter = time.Hour
)

// Client posts to one collector.
type Client struct {
	url   *url.URL
	http  *http.Client
	trans *http.Transport
}

// NewClient names the collector, by an http or https URL. To one without a
// path, /v1/metrics is added; any other path is used as it is. Nothing is
// connected yet. Certificates are checked against the system's roots; the
// environment's proxies are not used, and no redirect is followed: the headers
// are for this collector alone.
func NewClient(endpoint string) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not an http or https URL", endpoint)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = metricsPath
	}
	trans := &http.Transport{
		DialContext:         (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 1,
		IdleConnTimeout:     2 * time.Minute,
		// Without pings, HTTP/2 goes on using the connection of a collector that
		// has lost its power.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	return &Client{url: u, trans: trans, http: &http.Client{
		Transport:     trans,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Address is where the client posts to, without the query, which may hold a key.
func (c *Client) Address() string { return c.url.Scheme + "://" + c.url.Host + c.url.Path }

// Close drops the connection.
func (c *Client) Close() { c.trans.CloseIdleConnections() }

// Refusal is an answer of the collector that is not its thanks.
type Refusal struct {
	Status  int    // of HTTP
	Message string // in the collector's words, cleaned and cut; may be empty
	// Retry says that the same may be taken later, not before After.
	Retry bool
	After time.Duration // 0: not said
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("the collector answered %d %s", r.Status, http.StatusText(r.Status))
	if r.Status/100 == 3 {
		return text + ": redirects are not followed; name the collector itself"
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

// Rejected is what a collector did not take of what it got. It is not to be
// sent again.
type Rejected struct {
	Points  int64
	Message string
}

func (r *Rejected) Error() string {
	text := fmt.Sprintf("the collector rejected %d data points", r.Points)
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

// Send posts a marshalled batch with more headers, once. It answers nil when the
// collector took all of it, a *[Rejected] when it took a part, a *[Refusal] when
// it took nothing, and any other error when it did not answer.
func (c *Client) Send(ctx context.Context, headers http.Header, batch []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(batch))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "bcd")
	for name, values := range headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.http.Do(req)
	if err != nil {
		// The URL, which may hold a key in its query, is the caller's to tell.
		var of *url.Error
		if errors.As(err, &of) {
			err = of.Err
		}
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the collector's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return refused(resp, answer)
	}
	return rejected(resp, answer)
}

// rejected reads a partial success. An answer in another form than was asked
// for, or one that cannot be read, still says that the batch was taken.
func rejected(resp *http.Response, answer []byte) error {
	var out collector.ExportMetricsServiceResponse
	if !isProtobuf(resp) || proto.Unmarshal(answer, &out) != nil {
		return nil
	}
	if p := out.GetPartialSuccess(); p.GetRejectedDataPoints() > 0 {
		return &Rejected{Points: p.GetRejectedDataPoints(), Message: clean(p.GetErrorMessage())}
	}
	return nil
}

// refused reads any other answer. Only these four are to be retried
// ("Failures", OTLP/HTTP in the OpenTelemetry protocol specification).
func refused(resp *http.Response, answer []byte) error {
	r := &Refusal{Status: resp.StatusCode}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.Retry, r.After = true, retryAfter(resp)
	}
	switch kind := resp.Header.Get("Content-Type"); {
	case isProtobuf(resp):
		r.Message = clean(statusMessage(answer))
	case strings.HasPrefix(kind, "text/plain"), strings.HasPrefix(kind, "application/json"):
		r.Message = clean(string(answer))
	}
	return r
}

func isProtobuf(resp *http.Response) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Type"), contentType)
}

// retryAfter reads both forms of the header: seconds, and a date by the
// collector's own clock.
func retryAfter(resp *http.Response) time.Duration {
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(text)
	now, err2 := http.ParseTime(resp.Header.Get("Date"))
	if err != nil || err2 != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// statusMessage is the message of a google.rpc.Status, its second field.
func statusMessage(b []byte) string {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if number == 2 && kind == protowire.BytesType {
			message, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return ""
			}
			return string(message)
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}

// clean makes one short line of printable characters of what a stranger wrote.
func clean(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) {
			return ' '
		}
		if !unicode.IsPrint(c) || c == unicode.ReplacementChar {
			return -1
		}
		return c
	}, text)
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) > maxText {
		return string(runes[:maxText]) + "…"
	}
	return string(runes)
}
