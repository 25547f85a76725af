package appliance

import (
	"errors"
	"fmt"
)

// Code says to a program what kind of refusal it met.
type Code string

// The codes of refusals. The API's table of HTTP statuses covers each.
const (
	InvalidInput      Code = "INVALID_INPUT"
	Unauthenticated   Code = "UNAUTHENTICATED"
	SpendLimitReached Code = "SPEND_LIMIT_REACHED"
	AccessDenied      Code = "ACCESS_DENIED"
	NotFound          Code = "NOT_FOUND"
	ConflictCode      Code = "CONFLICT"
	InvalidState      Code = "INVALID_STATE"
	QuotaExceeded     Code = "QUOTA_EXCEEDED"
	RateLimited       Code = "RATE_LIMITED"
	Unavailable       Code = "UNAVAILABLE"
	Internal          Code = "INTERNAL"
)

// Error is a refusal: something the caller can act on. Its text is for the
// caller to read, so nothing internal belongs in it; the cause is for the log.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`
	Field   string         `json:"field,omitempty"`  // the input field, dotted: policy.cpu.isolate
	Reason  string         `json:"reason,omitempty"` // a word for programs that must tell cases of one code apart
	Details map[string]any `json:"details,omitempty"`

	cause error
}

// Refuse makes a refusal. It takes no error among its arguments, so that
// nothing internal slips into the message; attach a cause with Because.
func Refuse(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Invalid refuses one input field.
func Invalid(field, format string, args ...any) *Error {
	return Refuse(InvalidInput, field, "%s: "+format, append([]any{field}, args...)...) // a field may hold a %
}

// NoSuch is the one answer for what does not exist and for what the caller may
// not know of: the same words for both, whatever the id.
func NoSuch(thing string) *Error {
	return Refuse(NotFound, "", "no such %s, or it is not visible to this caller", thing)
}

// Because attaches what the log should know and the caller should not.
func (e *Error) Because(cause error) *Error { e.cause = cause; return e }

// WithReason sets the word for programs.
func (e *Error) WithReason(reason string) *Error { e.Reason = reason; return e }

// With adds one detail.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }
func (e *Error) Unwrap() error { return e.cause }

// CodeOf gives the code of a refusal, Internal for any other error, and "" for
// nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
