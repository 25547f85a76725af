package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/bettercompute/bc/appliance"
	"github.com/go-json-experiment/json"
)

// statuses gives each code its HTTP status.
var statuses = map[appliance.Code]int{
	appliance.InvalidInput:      http.StatusBadRequest,
	appliance.Unauthenticated:   http.StatusUnauthorized,
	appliance.SpendLimitReached: http.StatusPaymentRequired,
	appliance.AccessDenied:      http.StatusForbidden,
	appliance.NotFound:          http.StatusNotFound,
	appliance.ConflictCode:      http.StatusConflict,
	appliance.InvalidState:      http.StatusConflict,
	appliance.QuotaExceeded:     http.StatusConflict,
	appliance.RateLimited:       http.StatusTooManyRequests,
	appliance.Unavailable:       http.StatusServiceUnavailable,
	appliance.Internal:          http.StatusInternalServerError,
}

// Status is the HTTP status of a code, 0 for one that the table lacks.
func Status(c appliance.Code) int { return statuses[c] }

// gone is the code under which requests are counted whose caller hung up.
const gone appliance.Code = "gone"

type envelope struct {
	Error *appliance.Error `json:"error"`
}

func errStopping() *appliance.Error {
	return appliance.Refuse(appliance.Unavailable, "", "the server is shutting down; try again in a moment").With("retryAfterSeconds", 1)
}

// refuse answers an error: a refusal as it is, anything else as INTERNAL with
// the request id, logged here and nowhere else.
func (x *exchange) refuse(err error) {
	e := x.refusal(err)
	if e == nil {
		x.code = gone
		return
	}
	x.code = e.Code
	if x.wrote {
		return
	}
	x.send(e)
}

// refusal finds what to tell the caller, nil when the caller has gone.
func (x *exchange) refusal(err error) *appliance.Error {
	ctx := x.r.Context()
	var e *appliance.Error
	if errors.As(err, &e) && e.Code != appliance.Internal && statuses[e.Code] != 0 {
		if e.Code == appliance.Unavailable && e.Unwrap() != nil {
			x.log(slog.LevelWarn, "request refused for now", "error", e.Message, "cause", e.Unwrap())
		}
		return e
	}
	switch {
	case errors.Is(context.Cause(ctx), errServerClosing):
		return errStopping()
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		x.log(slog.LevelWarn, "request past its deadline", "error", err)
		return appliance.Refuse(appliance.Unavailable, "", "not done within the time for a request; try again").With("retryAfterSeconds", 1)
	}
	x.log(slog.LevelError, "request failed", "error", err)
	return x.internal()
}

func (x *exchange) internal() *appliance.Error {
	return appliance.Refuse(appliance.Internal, "", "internal error; see the log under request id %s", x.id)
}

// recovered answers a panic like any other fault of ours. A panic with
// [http.ErrAbortHandler] is how a handler drops its connection on purpose.
func (x *exchange) recovered(p any) {
	x.code = appliance.Internal
	if p == http.ErrAbortHandler {
		x.code = gone
		panic(p)
	}
	x.log(slog.LevelError, "request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	if !x.wrote {
		x.status = 0
		x.send(x.internal())
	}
}

func (x *exchange) log(level slog.Level, msg string, args ...any) {
	x.s.Log.Log(context.WithoutCancel(x.r.Context()), level, msg,
		append([]any{"request", x.id, "path", clip(x.r.URL.Path, 100)}, args...)...)
}

// send writes the envelope.
func (x *exchange) send(e *appliance.Error) {
	if x.status == 0 {
		x.status = Status(e.Code)
	}
	h := x.Header()
	switch e.Code {
	case appliance.Unauthenticated:
		h.Set("WWW-Authenticate", "Bearer")
	case appliance.RateLimited, appliance.Unavailable:
		if s := retryAfter(e); s > 0 {
			h.Set("Retry-After", strconv.Itoa(s))
		}
	}
	buf := getBuffer()
	defer buf.free()
	if err := json.MarshalWrite(buf, envelope{e}, answers); err != nil {
		x.log(slog.LevelError, "details of a refusal are not JSON", "code", e.Code, "error", err)
		buf.b = buf.b[:0]
		bare := &appliance.Error{Code: e.Code, Message: e.Message, Field: e.Field, Reason: e.Reason}
		_ = json.MarshalWrite(buf, envelope{bare}, answers)
	}
	x.write(buf.b)
}

// write sends a whole JSON answer.
func (x *exchange) write(b []byte) {
	h := x.Header()
	h["Content-Type"] = jsonType
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	if x.status == 0 {
		x.status = http.StatusOK
	}
	x.WriteHeader(x.status)
	_, _ = x.ResponseWriter.Write(b)
}

// retryAfter reads details.retryAfterSeconds, rounded up; RATE_LIMITED always
// says at least one second.
func retryAfter(e *appliance.Error) int {
	seconds := 0
	switch v := e.Details["retryAfterSeconds"].(type) {
	case int:
		seconds = v
	case int64:
		seconds = int(v)
	case float64:
		seconds = int(math.Ceil(v))
	}
	if e.Code == appliance.RateLimited {
		return max(seconds, 1)
	}
	return seconds
}
