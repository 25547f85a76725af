package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSelectorsOnTheCommandLine(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"gpuProduct=NVIDIA H100 80GB HBM3", `{"gpuProduct":"NVIDIA H100 80GB HBM3"}`},
		{"rack=a|b", `{"rack":{"in":["a","b"]}}`},
		{"vramGiB=40..80", `{"vramGiB":{"min":40,"max":80}}`},
		{"vramGiB=40..", `{"vramGiB":{"min":40}}`},
		{"vramGiB=..80.5", `{"vramGiB":{"max":80.5}}`},
		{"kernel=", `{"kernel":""}`},
		{"expr=a=b", `{"expr":"a=b"}`},
	} {
		s, err := parseSelector([]string{tc.in})
		if err != nil {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		b, err := json.Marshal(s)
		if err != nil || string(b) != tc.want {
			t.Errorf("%s: %s, %v; want %s", tc.in, b, err, tc.want)
		}
		if got := selectorText(s); got != tc.in {
			t.Errorf("%s is written back as %s", tc.in, got)
		}
	}
}

func TestSelectorsThatMeanNothing(t *testing.T) {
	for in, want := range map[string]string{
		"rack": "is not KEY=VALUE", "=a": "is not KEY=VALUE", "v=..": "has no end", "v=a..b": "is not a range of numbers",
		"v=9..1": "min is above max", "1x=a": "is not an attribute name",
	} {
		if s, err := parseSelector([]string{in}); err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%s: %v, %v; want a usage error with %q", in, s, err, want)
		}
	}
	if _, err := parseSelector([]string{"a=1", "a=2"}); err == nil {
		t.Error("a key given twice is taken")
	}
}
