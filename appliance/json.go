package appliance

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// A create writes its reservation twice, in the row and in the answer, and what
// its events say of it: as much work by reflection as finding it a place. So
// these write themselves. A test of package api holds them to what the library
// writes of any value.

// JSONAppender is a value that writes itself.
type JSONAppender interface {
	// AppendJSON appends the value as JSON to b, which may hold something already.
	AppendJSON(b []byte) []byte
}

// AppendJSON appends the reservation as it is shown and kept.
func (r *Reservation) AppendJSON(b []byte) []byte {
	b = AppendQuoted(append(b, `{"id":`...), r.ID)
	b = AppendQuoted(append(b, `,"tenantId":`...), r.TenantID)
	b = AppendQuoted(append(b, `,"poolId":`...), r.PoolID)
	b = appendText(b, `,"name":`, r.Name)
	if len(r.Labels) > 0 {
		b = append(b, `,"labels":`...)
		b = appendObject(b, r.Labels, AppendQuoted)
	}
	b = AppendQuoted(append(b, `,"state":`...), string(r.State))
	b = appendText(b, `,"reason":`, r.Reason)
	b = appendText(b, `,"message":`, r.Message)
	b = r.Resources.AppendJSON(append(b, `,"resources":`...))
	b = strconv.AppendInt(append(b, `,"nodes":`...), int64(r.Nodes), 10)
	if len(r.Selector) > 0 {
		b = append(b, `,"selector":`...)
		b = appendObject(b, r.Selector, appendMatch)
	}
	b = AppendQuoted(append(b, `,"binding":`...), string(r.Binding))
	b = appendText(b, `,"migProfile":`, r.MIGProfile)
	b = r.Booked.AppendJSON(append(b, `,"booked":`...))
	b = append(b, `,"placements":[`...)
	for i := range r.Placements {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.Placements[i].appendJSON(b)
	}
	b = AppendQuoted(append(b, `],"createdBy":`...), r.CreatedBy)
	b = appendTime(b, `,"createdAt":`, &r.CreatedAt)
	b = appendTime(b, `,"placedAt":`, r.PlacedAt)
	b = appendTime(b, `,"activeAt":`, r.ActiveAt)
	b = appendTime(b, `,"expiresAt":`, r.ExpiresAt)
	b = appendTime(b, `,"endedAt":`, r.EndedAt)
	return append(b, '}')
}

func (p *Placement) appendJSON(b []byte) []byte {
	b = AppendQuoted(append(b, `{"nodeId":`...), p.NodeID)
	b = AppendQuotedList(append(b, `,"devices":`...), p.Devices)
	b = AppendQuotedList(append(b, `,"atoms":`...), p.Atoms)
	b = appendText(b, `,"cpus":`, p.CPUs)
	b = appendText(b, `,"numaNodes":`, p.NUMANodes)
	b = p.Amounts.AppendJSON(append(b, `,"amounts":`...))
	b = strconv.AppendBool(append(b, `,"confirmed":`...), p.Confirmed)
	return append(b, '}')
}

// AppendJSON appends the amounts as an object, in order of name.
func (a Amounts) AppendJSON(b []byte) []byte {
	return appendObject(b, a, func(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) })
}

// AppendQuoted appends a JSON string. Bytes that are no UTF-8 become U+FFFD.
func AppendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			b, _ = jsontext.AppendQuote(b, s) // its error tells of replaced bytes alone
			return b
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// AppendQuotedList appends a JSON array of strings; none is [].
func AppendQuotedList(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendQuoted(b, s)
	}
	return append(b, ']')
}

// appendText appends a member that is left out when empty.
func appendText(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	return AppendQuoted(append(b, name...), s)
}

// appendTime appends a member that is left out when nil.
func appendTime(b []byte, name string, t *Time) []byte {
	if t == nil {
		return b
	}
	return t.AppendJSON(append(b, name...))
}

func appendMatch(b []byte, m Match) []byte {
	text, _ := m.MarshalJSON() // it has no error
	return append(b, text...)
}

// appendObject appends a map with its keys in order.
func appendObject[M ~map[string]V, V any](b []byte, m M, value func([]byte, V) []byte) []byte {
	var few [8]string // on the stack
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = value(append(AppendQuoted(b, k), ':'), m[k])
	}
	return append(b, '}')
}
