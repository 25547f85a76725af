package api

import (
	"errors"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/bettercompute/bc/appliance"
	"github.com/go-json-experiment/json"
)

// MaxBody is the largest request body, in bytes.
const MaxBody = 1 << 20

// Header values are shared slices: net/http only reads them.
var (
	jsonType = []string{"application/json"}
	textType = []string{"text/plain; charset=utf-8"}
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
)

// requestID takes the caller's X-Request-Id when it is 1 to 64 letters,
// digits, dots, underscores and hyphens, and makes one otherwise. An id is for
// finding a log line and no secret.
func requestID(r *http.Request) string {
	if given := r.Header["X-Request-Id"]; len(given) == 1 && isRequestID(given[0]) {
		return given[0]
	}
	const digits = "0123456789abcdefghjkmnpqrstvwxyz"
	var b [16]byte
	hi := rand.Uint64()
	lo := rand.Uint64()
	for i := range 8 {
		b[i] = digits[hi>>(5*i)&31]
		b[8+i] = digits[lo>>(5*i)&31]
	}
	return string(b[:])
}

func isRequestID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// buffer holds one body. Buffers are used again unless they grew large.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 4<<10)} }}

const keptBuffer = 256 << 10

func getBuffer() *buffer { return buffers.Get().(*buffer) }

func (b *buffer) free() {
	if cap(b.b) <= keptBuffer {
		b.b = b.b[:0]
		buffers.Put(b)
	}
}

// Write appends, for encoders.
func (b *buffer) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}

// put appends what v points to as JSON.
func (b *buffer) put(v any) error {
	switch v := v.(type) {
	case appliance.JSONAppender:
		b.b = v.AppendJSON(b.b)
		return nil
	case interface{ AppendPage([]byte) ([]byte, bool) }:
		if text, ok := v.AppendPage(b.b); ok {
			b.b = text
			return nil
		}
	}
	return json.MarshalWrite(b, v, answers)
}

// body reads the request's body into buf, refusing what is no JSON by its
// header or larger than MaxBody.
func (x *exchange) body(buf *buffer) error {
	if err := x.contentType(); err != nil {
		return err
	}
	if x.r.ContentLength > MaxBody {
		return x.tooLarge()
	}
	for {
		if len(buf.b) == cap(buf.b) {
			buf.b = append(buf.b, 0)[:len(buf.b)]
		}
		n, err := x.r.Body.Read(buf.b[len(buf.b):cap(buf.b)])
		buf.b = buf.b[:len(buf.b)+n]
		if len(buf.b) > MaxBody {
			return x.tooLarge()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return appliance.Refuse(appliance.InvalidInput, "", "the request's body ended early; send it again").Because(err)
		}
	}
}

// tooLarge also closes the connection, so that the rest need not be read.
func (x *exchange) tooLarge() error {
	x.Header().Set("Connection", "close")
	x.status = http.StatusRequestEntityTooLarge
	return appliance.Refuse(appliance.InvalidInput, "", "the body is larger than 1 MiB").With("maxBytes", MaxBody)
}

// contentType takes JSON, and a request that does not say what it sends.
func (x *exchange) contentType() error {
	refuse := func(format string, args ...any) error {
		x.status = http.StatusUnsupportedMediaType
		return appliance.Refuse(appliance.InvalidInput, "", format, args...)
	}
	if enc := x.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return refuse("the body's Content-Encoding is %s; send it unpacked", strconv.Quote(clip(enc, 40)))
	}
	given := x.r.Header.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return refuse("the body's Content-Type is %s; send JSON with Content-Type: application/json", strconv.Quote(clip(given, 80)))
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return refuse("the body's charset is %s; JSON is UTF-8", strconv.Quote(clip(charset, 40)))
	}
	return nil
}

// clip shortens what a caller sent before it goes into a message, at a rune's
// edge.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
