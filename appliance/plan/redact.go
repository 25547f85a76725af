package plan

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/bettercompute/bc/appliance"
)

// PolicyFor is a pool's policy as a tenant may see it. Its owner sees every
// byte as given. An offered tenant sees it without the members, at any level,
// whose key ends in Ref: they tell where the owner keeps secrets. What is left
// keeps its order, and its numbers and texts as they were written. A policy
// that cannot be read is shown to nobody but its owner.
func PolicyFor(viewerOwned bool, raw appliance.RawPolicy) appliance.RawPolicy {
	if viewerOwned || !bytes.Contains(raw, []byte("Ref")) && !bytes.Contains(raw, []byte(`\u`)) {
		return raw
	}
	var out bytes.Buffer
	d := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true))
	e := jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true))
	for first := true; first || d.StackDepth() > 0; first = false {
		if kind, n := d.StackIndex(d.StackDepth()); kind == '{' && n%2 == 0 && d.PeekKind() == '"' {
			name, err := d.ReadValue()
			if err != nil {
				return nil
			}
			key, err := jsontext.AppendUnquote(nil, name)
			if err != nil {
				return nil
			}
			if strings.HasSuffix(string(key), "Ref") {
				err = d.SkipValue()
			} else {
				err = e.WriteValue(name)
			}
			if err != nil {
				return nil
			}
			continue
		}
		token, err := d.ReadToken()
		if err == nil {
			err = e.WriteToken(token)
		}
		if err != nil {
			return nil
		}
	}
	return bytes.TrimSpace(out.Bytes())
}
