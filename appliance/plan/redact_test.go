package plan

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

func TestPolicyForOfferedTenant(t *testing.T) {
	for _, c := range []struct{ given, seen string }{
		{`{"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"}`, `{"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"}`},
		{`{"kubernetes": {"apiServer": "https://k", "joinTokenRef": "vault:k8s", "gpuApi": "dra"}}`, `{"kubernetes":{"apiServer":"https://k","gpuApi":"dra"}}`},
		{`{"telemetry": {"headersRef": "vault:otel"}}`, `{"telemetry":{}}`},
		{`{"secretRef": {"deep": ["value"]}, "n": 12345678901234567890, "f": 1.50, "e": 1E+2}`, `{"n":12345678901234567890,"f":1.50,"e":1E+2}`},
		{`{"x": [{"aRef": 1, "b": [{"cRef": null}]}]}`, `{"x":[{"b":[{}]}]}`},
		{`{"x\u0052ef": "hidden", "y": "\u00e9\/"}`, `{"y":"\u00e9\/"}`},
		{`{"Ref": 1, "Reference": 2, "href": 3}`, `{"Reference":2,"href":3}`},
		{`{"a": "Ref", "b": ["xRef"]}`, `{"a":"Ref","b":["xRef"]}`},
		{`{"aRef": 1, "b": 1, "b": 2}`, `{"b":1,"b":2}`},
		{`{"aRef": 1`, ``},
		{`{"aRef": {]}`, ``},
		{``, ``},
	} {
		if got := PolicyFor(false, appliance.RawPolicy(c.given)); string(got) != c.seen {
			t.Errorf("%s\nis seen as %s\n    want    %s", c.given, got, c.seen)
		}
		if got := PolicyFor(true, appliance.RawPolicy(c.given)); string(got) != c.given {
			t.Errorf("its owner sees %s as %s", c.given, got)
		}
	}
}

// Nothing that hangs below a key ending in Ref is seen, and what is seen is
// the rest of the policy.
func FuzzPolicyFor(f *testing.F) {
	f.Add([]byte(`{"kubernetes": {"joinTokenRef": "SECRET"}, "n": 12345678901234567890}`))
	f.Add([]byte(`{"a\u0052ef": ["SECRET"], "b": [{"xRef": {"y": "SECRET"}}]}`))
	f.Add([]byte(`{"aRef": 1, "b": 1, "b": 2}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := ReadPolicy(raw); err != nil {
			return
		}
		seen := PolicyFor(false, raw)
		want := decode(t, raw)
		withoutRefs(want)
		if got := decode(t, seen); !bytes.Equal(encode(t, got), encode(t, want)) {
			t.Fatalf("%s is seen as %s", raw, seen)
		}
	})
}

func decode(t *testing.T, raw []byte) any {
	if len(raw) == 0 {
		raw = []byte("{}")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return v
}

func encode(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func withoutRefs(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.HasSuffix(key, "Ref") {
				delete(v, key)
			} else {
				withoutRefs(value)
			}
		}
	case []any:
		for _, value := range v {
			withoutRefs(value)
		}
	}
}
