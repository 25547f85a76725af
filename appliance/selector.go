package appliance

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Selector narrows the nodes of a pool by their attributes. Every entry must
// match.
type Selector map[string]Match

// Match is what an attribute must be: equal to a value, one of several, or a
// number within a range. Exactly one of the three is set.
type Match struct {
	Equals string
	In     []string
	Min    *float64
	Max    *float64
}

// MIGProfile is the selector key that names the profile of a gpu.mig request.
// It is matched against the instances, not the node.
const MIGProfile = "migProfile"

// Matches tells whether an attribute's value satisfies the match. A value that
// is no number is in no range.
func (m Match) Matches(value string) bool {
	switch {
	case m.In != nil:
		for _, v := range m.In {
			if v == value {
				return true
			}
		}
		return false
	case m.Min != nil || m.Max != nil:
		n, err := strconv.ParseFloat(value, 64)
		return err == nil && (m.Min == nil || n >= *m.Min) && (m.Max == nil || n <= *m.Max)
	default:
		return m.Equals == value
	}
}

// String writes the match for people.
func (m Match) String() string {
	b, _ := m.MarshalJSON()
	return string(b)
}

type matchObject struct {
	In  []scalar `json:"in,omitempty"`
	Min *float64 `json:"min,omitempty"`
	Max *float64 `json:"max,omitempty"`
}

// scalar is a JSON string, number or boolean, kept as text.
type scalar string

func (s *scalar) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		return json.Unmarshal(b, (*string)(s))
	case '{', '[', 'n':
		return Refuse(InvalidInput, "selector", "selector: %s is not a string, number or boolean", b)
	}
	*s = scalar(b)
	return nil
}

// MarshalJSON writes the form that was given.
func (m Match) MarshalJSON() ([]byte, error) {
	if m.In != nil {
		return json.Marshal(map[string][]string{"in": m.In})
	}
	if m.Min != nil || m.Max != nil {
		return json.Marshal(matchObject{Min: m.Min, Max: m.Max})
	}
	return json.Marshal(m.Equals)
}

// UnmarshalJSON reads a value, {in: [...]} or {min, max}.
func (m *Match) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' {
		var s scalar
		if len(b) == 0 {
			return Refuse(InvalidInput, "selector", "selector: an empty value")
		}
		if err := s.UnmarshalJSON(b); err != nil {
			return err
		}
		*m = Match{Equals: string(s)}
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var o matchObject
	if err := d.Decode(&o); err != nil {
		return Refuse(InvalidInput, "selector", "selector: %s is not a value, {\"in\": [...]} or {\"min\": n, \"max\": n}", b).Because(err)
	}
	ranged := o.Min != nil || o.Max != nil
	if (o.In == nil) == !ranged {
		return Refuse(InvalidInput, "selector", "selector: %s must have either in, or min and max", b)
	}
	*m = Match{Min: o.Min, Max: o.Max}
	if o.In != nil { // an empty choice stays one, for Validate to refuse
		m.In = make([]string, len(o.In))
	}
	for i, s := range o.In {
		m.In[i] = string(s)
	}
	return nil
}

// Validate refuses keys that no attribute can have, and empty choices.
func (s Selector) Validate() error {
	if len(s) > 32 {
		return Invalid("selector", "more than 32 entries")
	}
	for k, m := range s {
		if !IsAttributeKey(k) {
			return Invalid("selector", "%q is not an attribute name", k)
		}
		if m.In != nil && (len(m.In) == 0 || len(m.In) > 100) {
			return Invalid("selector."+k, "in holds %d values, not 1 to 100", len(m.In))
		}
		if m.Min != nil && m.Max != nil && *m.Min > *m.Max {
			return Invalid("selector."+k, "min is above max")
		}
	}
	return nil
}
