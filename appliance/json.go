package appliance

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A create writes its reservation twice, in the row and in the answer, and what
// its events say of it: as much work by reflection as finding it a place. And a
// list is nothing but writing. So these write themselves. A test of package api
// holds them to what the library writes of any value.

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

// AppendJSON appends the pool as it is shown.
func (p *Pool) AppendJSON(b []byte) []byte {
	b = AppendQuoted(append(b, `{"id":`...), p.ID)
	b = appendText(b, `,"name":`, p.Name)
	b = AppendQuoted(append(b, `,"ownerTenantId":`...), p.OwnerTenantID)
	b = AppendQuoted(append(b, `,"siteId":`...), p.SiteID)
	b = AppendQuoted(append(b, `,"class":`...), string(p.Class))
	b = AppendQuoted(append(b, `,"gpuModel":`...), p.GPUModel)
	b = AppendQuoted(append(b, `,"sharing":`...), string(p.Sharing))
	b = AppendQuoted(append(b, `,"agent":`...), string(p.Agent))
	b = appendText(b, `,"providerAccountId":`, p.ProviderAccountID)
	b = p.Policy.appendJSON(append(b, `,"policy":`...))
	b = strconv.AppendInt(append(b, `,"version":`...), int64(p.Version), 10)
	b = strconv.AppendBool(append(b, `,"owned":`...), p.Owned)
	b = strconv.AppendBool(append(b, `,"archived":`...), p.Archived)
	b = append(b, `,"quotas":[`...)
	for i := range p.Quotas {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.Quotas[i].appendJSON(b)
	}
	b = p.CreatedAt.AppendJSON(append(b, `],"createdAt":`...))
	if p.Rollout != nil { // of one pool alone
		text, err := json.Marshal(p.Rollout, jsontext.AllowInvalidUTF8(true))
		if err != nil {
			panic("appliance: a rollout that JSON cannot hold: " + err.Error())
		}
		b = append(append(b, `,"rollout":`...), text...)
	}
	return append(b, '}')
}

// appendJSON appends the policy as it was given, but for white space.
func (p RawPolicy) appendJSON(b []byte) []byte {
	if len(p) == 0 {
		return append(b, "{}"...)
	}
	b, err := jsontext.AppendFormat(b, p, jsontext.PreserveRawStrings(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic("appliance: a policy that is no JSON: " + err.Error()) // it was read when it came
	}
	return b
}

func (q *Quota) appendJSON(b []byte) []byte {
	b = AppendQuoted(append(b, `{"tenantId":`...), q.TenantID)
	b = AppendQuoted(append(b, `,"poolId":`...), q.PoolID)
	b = AppendQuoted(append(b, `,"resource":`...), q.Resource)
	b = strconv.AppendInt(append(b, `,"max":`...), int64(q.Max), 10)
	b = strconv.AppendInt(append(b, `,"used":`...), int64(q.Used), 10)
	b = strconv.AppendInt(append(b, `,"available":`...), int64(q.Available), 10)
	return append(b, '}')
}

// AppendPage appends the page as JSON if its items write themselves, and tells
// whether they do.
func (l *List[T]) AppendPage(b []byte) ([]byte, bool) {
	if _, ok := any(new(T)).(JSONAppender); !ok {
		return b, false
	}
	b = append(b, `{"items":[`...)
	for i := range l.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = any(&l.Items[i]).(JSONAppender).AppendJSON(b)
	}
	b = appendText(append(b, ']'), `,"nextCursor":`, l.NextCursor)
	return append(b, '}'), true
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
