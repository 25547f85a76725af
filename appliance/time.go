package appliance

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// timeLayout is RFC 3339 in UTC with milliseconds, always three digits.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Time is an instant as the API shows it: UTC, milliseconds.
type Time struct{ time.Time }

// At rounds an instant down to the milliseconds that are kept of it.
func At(t time.Time) Time { return Time{t.UTC().Truncate(time.Millisecond)} }

// AtMillis is the instant ms milliseconds after 1970.
func AtMillis(ms int64) Time { return Time{time.UnixMilli(ms).UTC()} }

// MarshalText writes the instant with three digits of milliseconds.
func (t Time) MarshalText() ([]byte, error) {
	return []byte(t.UTC().Format(timeLayout)), nil
}

// MarshalJSON keeps time.Time's own form from being promoted.
func (t Time) MarshalJSON() ([]byte, error) {
	return t.AppendJSON(make([]byte, 0, len(timeLayout)+2)), nil
}

// AppendJSON appends the instant as a JSON string.
func (t Time) AppendJSON(b []byte) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), timeLayout), '"')
}

// UnmarshalText reads RFC 3339 with any offset.
func (t *Time) UnmarshalText(b []byte) error {
	p, err := time.Parse(time.RFC3339, string(b))
	if err != nil {
		return Invalid("time", "%q is not an RFC 3339 time such as 2026-01-31T08:00:00Z", b)
	}
	*t = At(p)
	return nil
}

// UnmarshalJSON reads a JSON string in RFC 3339.
func (t *Time) UnmarshalJSON(b []byte) error {
	s, err := strconv.Unquote(string(b))
	if err != nil {
		return Invalid("time", "%s is not a JSON string with an RFC 3339 time", b)
	}
	return t.UnmarshalText([]byte(s))
}

// MaxDuration is the longest span that any timer takes: 365 days.
const MaxDuration = 365 * 24 * time.Hour

// ParseDuration reads spans such as 90s, 6h, 1h30m, 7d, 1d12h; a day is 24
// hours. It refuses anything that is not above zero and at most 365 days.
func ParseDuration(s string) (time.Duration, error) {
	bad := func() (time.Duration, error) {
		return 0, Refuse(InvalidInput, "", "%q is not a duration such as 90s, 6h or 7d", s)
	}
	rest, days := s, 0.0
	if head, tail, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseFloat(head, 64)
		if err != nil || strings.ContainsAny(head, "eExXpP_+-nN") {
			return bad()
		}
		days, rest = n, tail
	}
	var d time.Duration
	if rest != "" || days == 0 && !strings.Contains(s, "d") {
		p, err := time.ParseDuration(rest)
		if err != nil || strings.ContainsAny(rest, "+-") {
			return bad()
		}
		d = p
	}
	total := days*24*float64(time.Hour) + float64(d)
	if math.IsNaN(total) || total <= 0 || total > float64(MaxDuration) {
		return 0, Refuse(InvalidInput, "", "%q is not above zero and at most 365d", s)
	}
	return time.Duration(total), nil
}
