package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

func diffLines(from, to string) string {
	p := &printer{plain: true}
	var out []string
	for _, c := range policyDiff(appliance.RawPolicy(from), appliance.RawPolicy(to)) {
		out = append(out, strings.TrimSpace(changeLine(p, c)))
	}
	return strings.Join(out, "\n")
}

func TestPolicyDiffs(t *testing.T) {
	for _, tc := range []struct{ name, from, to, want string }{
		{"spacing and order are nothing", `{"a":1,"b":{"c":2}}`, `{ "b": {"c":2}, "a":1 }`, ""},
		{"numbers are what they are", `{"a":1.0,"b":0.050}`, `{"a":1,"b":0.05}`, ""},
		{"large numbers keep their digits", `{"a":9007199254740993}`, `{"a":9007199254740992}`, "~ policy.a: 9007199254740993 -> 9007199254740992"},
		{"a field comes", `{}`, `{"cpu":{"governor":"performance"}}`, `+ policy.cpu.governor: "performance"`},
		{"a field goes", `{"hugepages":{"size":"1Gi","count":4}}`, `{}`, "- policy.hugepages.count: 4\n- policy.hugepages.size: \"1Gi\""},
		{"a field changes", `{"cpu":{"governor":"powersave","isolate":"2-5"}}`, `{"cpu":{"governor":"performance","isolate":"2-5"}}`, `~ policy.cpu.governor: "powersave" -> "performance"`},
		{"a list is one value", `{"joinAttestors":["tpm"]}`, `{"joinAttestors":["tpm","x509pop"]}`, `~ policy.joinAttestors: ["tpm"] -> ["tpm","x509pop"]`},
		{"an empty object is a value", `{}`, `{"sharing":{}}`, `+ policy.sharing: {}`},
		{"null is not absence", `{"x":null}`, `{}`, `- policy.x: null`},
	} {
		if diff := cmp.Diff(tc.want, diffLines(tc.from, tc.to)); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

func TestValuesOnTheCommandLine(t *testing.T) {
	for in, want := range map[string]string{
		"performance": `"performance"`, "6h": `"6h"`, "16": "16", "0.10": "0.10", "true": "true", `"16"`: `"16"`, `["a","b"]`: `["a","b"]`,
		`{"size":"1Gi"}`: `{"size":"1Gi"}`, "2-5,8": `"2-5,8"`, "1 2": `"1 2"`, "null": `"null"`, "": `""`,
	} {
		if got := jsonText(fieldValue(in)); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// What a text looks like does not make it a number.
func TestTextsOfThePolicyAreKnown(t *testing.T) {
	for path, want := range map[string]bool{
		"cpu.isolate": true, "kubernetes.kubernetesVersion": true, "kernelModules.options.nvidia": true, "maxPending": true, "migLayout": true,
		"hugepages.count": false, "overcommit.vcpu": false, "iommu.passthrough": false, "kernelModules.load": false, "cpu": false,
		"cpu.isolate.x": false, "x": false, "x.y": false,
	} {
		if got := isText(strings.Split(path, ".")); got != want {
			t.Errorf("%s is a text: %v", path, got)
		}
	}
}

func TestFieldsAreSetAndUnset(t *testing.T) {
	o := map[string]any{}
	for _, path := range []string{"a.b.c", "a.d"} {
		if err := setField(o, strings.Split(path, "."), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if got := jsonText(o); got != `{"a":{"b":{"c":"x"},"d":"x"}}` {
		t.Errorf("after setting: %s", got)
	}
	if err := setField(o, []string{"a", "d", "e"}, "x"); err == nil || !strings.Contains(err.Error(), "is no object") {
		t.Errorf("a field below a text: %v", err)
	}
	if !unsetField(o, []string{"a", "b", "c"}) || jsonText(o) != `{"a":{"d":"x"}}` {
		t.Errorf("after unsetting: %s", jsonText(o))
	}
	if unsetField(o, []string{"a", "b"}) {
		t.Error("what is not there was unset")
	}
}

func TestPoliciesThatTOMLCannotSay(t *testing.T) {
	for policy, want := range map[string]bool{
		`{"a":1,"b":[{"c":true}],"d":0.25}`: true,
		`{"a":null}`:                        false,
		`{"a":9223372036854775808}`:         false,
		`{"a":[1,"x",{"b":[]}]}`:            true,
	} {
		if _, ok := policyTOML(appliance.RawPolicy(policy)); ok != want {
			t.Errorf("%s: %t, want %t", policy, ok, want)
		}
	}
}
