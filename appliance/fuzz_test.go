package appliance

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseDuration: whatever the text, the answer is within the limits or a
// refusal, and a span that time.Duration prints reads back as itself.
func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"90s", "6h", "7d", "1d12h", "0.5d", "1h30m", "d", "1dd", "-1h", "1e9d", "365d", "366d", "0x1d", "Infd", "NaNd", "1_0d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			if CodeOf(err) != InvalidInput {
				t.Fatalf("%q: %v is not INVALID_INPUT", s, err)
			}
			return
		}
		if d <= 0 || d > MaxDuration {
			t.Fatalf("%q is %v", s, d)
		}
		again, err := ParseDuration(d.String())
		if err != nil || again != d {
			t.Fatalf("%q is %v, which reads back as %v, %v", s, d, again, err)
		}
	})
}

// FuzzQuotaMap: a map that is read and found sound has known resources and
// counts in range, and reads back as itself.
func FuzzQuotaMap(f *testing.F) {
	for _, s := range []string{`{"gpu":32}`, `{"gpu.mig":0,"vcpu":2147483647}`, `{"gpu":2147483648}`, `{"gpu":-1}`, `{"gpu":1.5}`, `{"gpu":1e3}`, `{"gpus":1}`, `{"gpu":null}`, `{"gpu":"1"}`, `{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var q QuotaMap
		if json.Unmarshal(b, &q) != nil {
			return
		}
		if err := q.Validate("quota"); err != nil {
			if CodeOf(err) != InvalidInput {
				t.Fatalf("%s: %v is not INVALID_INPUT", b, err)
			}
			return
		}
		for r, n := range q {
			if !IsResource(r) || n < 0 || n > math.MaxInt32 {
				t.Fatalf("%s passed with %s=%d", b, r, n)
			}
		}
		text, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		var again QuotaMap
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(q, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzSelector: a selector that is read reads back as itself and matches the
// same.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{`{"zone":"a"}`, `{"vramGiB":{"min":40,"max":80}}`, `{"a":{"in":["x",1,true]}}`, `{"a":{}}`, `{"a":null}`, `{"a":{"in":[],"min":1}}`, `{"a":1.50}`, `{"a":{"min":1e400}}`} {
		f.Add([]byte(s), "40")
	}
	f.Fuzz(func(t *testing.T, b []byte, value string) {
		var s Selector
		if json.Unmarshal(b, &s) != nil || s.Validate() != nil {
			return
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again Selector
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%s was written as %s, which does not read back: %v", b, text, err)
		}
		for k, m := range s {
			if m.Matches(value) != again[k].Matches(value) {
				t.Fatalf("%s and %s differ on %q", b, text, value)
			}
		}
	})
}

func TestTimeIsUTCWithMilliseconds(t *testing.T) {
	zone := time.FixedZone("east", 2*3600)
	got, err := json.Marshal(At(time.Date(2026, 1, 31, 10, 0, 0, 120_900_000, zone)))
	if err != nil || string(got) != `"2026-01-31T08:00:00.120Z"` {
		t.Errorf("%s, %v", got, err)
	}
	var back Time
	if err := json.Unmarshal([]byte(`"2026-01-31T10:00:00+02:00"`), &back); err != nil || !back.Equal(time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)) {
		t.Errorf("%v, %v", back, err)
	}
}

func TestDerivedIDs(t *testing.T) {
	a := DeriveID(PoolPrefix, "acme", "key_1", "k")
	if !IsID(PoolPrefix, a) {
		t.Errorf("%s is not a pool id", a)
	}
	if a != DeriveID(PoolPrefix, "acme", "key_1", "k") {
		t.Error("the same three give another id")
	}
	for _, other := range []string{
		DeriveID(PoolPrefix, "acme", "key_2", "k"), DeriveID(PoolPrefix, "beta", "key_1", "k"),
		DeriveID(PoolPrefix, "acme", "key_1", "k2"), DeriveID(PoolPrefix, "acmek", "ey_1", "k"),
	} {
		if a == other {
			t.Error("other parts give the same id")
		}
	}
}
