package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
)

// schema is what the tests read of a schema of the document.
type schema struct {
	Ref        string `json:"$ref"`
	Type       string
	Format     string
	Properties map[string]schema
	Required   []string
}

// inputs reads the schema and an example of every method's input.
func inputs(t *testing.T, p *person) (schemas map[string]schema, examples map[string]json.RawMessage) {
	t.Helper()
	body, err := p.Get(t.Context(), "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]struct {
			Post *struct {
				RequestBody struct {
					Content map[string]struct{ Schema schema }
				}
			}
		}
		Components struct{ Schemas map[string]schema }
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	resolve := func(s schema) schema {
		if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
			s = doc.Components.Schemas[name]
		}
		return s
	}
	schemas = map[string]schema{}
	for path, item := range doc.Paths {
		if item.Post == nil {
			continue
		}
		in := resolve(item.Post.RequestBody.Content["application/json"].Schema)
		fields := map[string]schema{}
		for name, f := range in.Properties {
			fields[name] = resolve(f)
		}
		in.Properties = fields
		schemas[strings.TrimPrefix(path, "/v1/")] = in
	}
	return schemas, documentedExamples(t, body)
}

// bad is an input that a method must refuse, and what the refusal must name.
type bad struct {
	what   string
	body   string
	status int
	field  string // "" for any
}

// badInputs spoils a good input of a method in every way that has nothing to
// do with what the method is for.
func badInputs(t *testing.T, in schema, example json.RawMessage) []bad {
	t.Helper()
	good := map[string]json.RawMessage{}
	if err := json.Unmarshal(example, &good); err != nil {
		t.Fatal(err)
	}
	with := func(name, value string) string {
		fields := maps.Clone(good)
		fields[name] = json.RawMessage(value)
		var b strings.Builder
		for i, k := range slices.Sorted(maps.Keys(fields)) {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%q:%s", k, fields[k])
		}
		return "{" + b.String() + "}"
	}
	compacted := string(compact(t, example))
	open := strings.TrimSuffix(compacted, "}")
	list := []bad{
		{"nothing", "", 400, ""},
		{"no object", "[]", 400, ""},
		{"a text", `"x"`, 400, ""},
		{"null", "null", 400, ""},
		{"a broken end", open, 400, ""},
		{"something behind it", compacted + "{}", 400, ""},
		{"a comma too many", open + ",}", 400, ""},
		{"a comment", "/* */" + compacted, 400, ""},
		{"an unknown field", with("surprise", "1"), 400, "surprise"},
		{"an unknown field with a hostile name", with("<script>%s%d", "1"), 400, "<script>%s%d"},
		{"nesting without end", with("surprise", strings.Repeat("[", 5000)+strings.Repeat("]", 5000)), 400, ""},
		{"more than a MiB", with("surprise", `"`+strings.Repeat("x", 1<<20)+`"`), 413, ""},
	}
	for _, name := range slices.Sorted(maps.Keys(good)) {
		list = append(list,
			bad{name + " twice", open + fmt.Sprintf(",%q:%s}", name, good[name]), 400, name},
			bad{name + " twice, once escaped", open + fmt.Sprintf(`,"\u%04x%s":%s}`, name[0], name[1:], good[name]), 400, name},
			bad{name + " in another case", with(strings.ToUpper(name), string(good[name])), 400, strings.ToUpper(name)},
			bad{"half a surrogate in " + name, with(name, `"\ud800"`), 400, ""},
			bad{"a control character in " + name, with(name, "\"a\x00b\""), 400, ""},
			bad{"bytes that are no UTF-8 in " + name, with(name, "\"a\xff\xfeb\""), 400, ""})
	}
	for _, f := range slices.Sorted(maps.Keys(in.Properties)) {
		s := in.Properties[f]
		list = append(list, bad{f + " is null", with(f, "null"), 400, f})
		switch s.Type {
		case "integer":
			for _, v := range []string{`"1"`, "1.5", "1e400", "99999999999999999999", "true", "{}", "[1]"} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, f})
			}
		case "number":
			for _, v := range []string{`"1"`, "1e400", "true", "NaN"} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, ""})
			}
		case "string":
			for _, v := range []string{"1", "true", "{}", `["a"]`} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, f})
			}
		case "boolean":
			for _, v := range []string{`"true"`, "1", "{}"} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, f})
			}
		case "array":
			for _, v := range []string{`"a"`, "{}", "1"} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, f})
			}
		case "object":
			for _, v := range []string{`"a"`, "[]", "1", `{"a":{"b":1},"a":2}`} {
				list = append(list, bad{f + " is " + v, with(f, v), 400, ""})
			}
		default:
			t.Errorf("%s has the type %q, which this test has no bad value for", f, s.Type)
		}
	}
	for _, f := range in.Required {
		fields := maps.Clone(good)
		delete(fields, f)
		body, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, bad{f + " is missing", string(body), 400, f})
	}
	return list
}

// Every method refuses every input that two readers could read differently, or
// that is not what its fields take, with a message for people and nothing done.
func TestGuideStrictInput(t *testing.T) {
	b := startBox(t)
	op := b.operator(t)
	schemas, examples := inputs(t, op)
	before := lastSeq(t, op, "root")
	calls := 0
	for _, method := range slices.Sorted(maps.Keys(schemas)) {
		if examples[method] == nil {
			continue // reported by TestGuideExamples
		}
		t.Run(method, func(t *testing.T) {
			for _, bad := range badInputs(t, schemas[method], examples[method]) {
				calls++
				if bad.body == "" && len(schemas[method].Required) == 0 {
					continue
				}
				a := op.post(t, method, []byte(bad.body))
				e := a.refusal()
				if a.status != bad.status || e.Code != appliance.InvalidInput || bad.field != "" && e.Field != bad.field {
					t.Errorf("%s: %d %s on %q: %s", bad.what, a.status, e.Code, e.Field, clipped(string(a.body)))
				}
				for _, inner := range []string{"json:", "jsontext", "Go ", "appliance.", "reflect", "%!"} {
					if strings.Contains(e.Message, inner) {
						t.Errorf("%s: the message shows the inside: %s", bad.what, e.Message)
					}
				}
				if e.Message == "" || len(e.Message) > 600 || a.header.Get("X-Request-Id") == "" {
					t.Errorf("%s: %s", bad.what, clipped(string(a.body)))
				}
			}
			for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "garbage"} {
				if a := op.post(t, method, examples[method], "Content-Type", kind); a.status != 415 || a.code() != appliance.InvalidInput {
					t.Errorf("Content-Type %s: %d %s", kind, a.status, a.body)
				}
			}
			if a := op.post(t, method, examples[method], "Content-Encoding", "gzip"); a.status != 415 {
				t.Errorf("Content-Encoding gzip: %d %s", a.status, a.body)
			}
		})
	}
	if calls < 1000 {
		t.Errorf("only %d bad inputs were tried", calls)
	}
	if left := eventsOf(t, op, "root", before); len(left) != 0 {
		t.Errorf("refused inputs left %v", types(left))
	}
}

// What stands in the fields that hold objects is held to the same.
func TestGuideStrictInputWithin(t *testing.T) {
	b := startBox(t)
	op := b.operator(t)
	site := b.site(t, "root", "fra1", "shared")
	p := b.pool(t, site, "strict", nil)
	pool := func(field, value string) string {
		return fmt.Sprintf(`{"tenantId":"root","siteId":%q,"class":"metal-host","gpuModel":"H100",%q:%s}`, site.ID, field, value)
	}
	reserve := func(field, value string) string {
		if field == "resources" {
			return fmt.Sprintf(`{"tenantId":"root","poolId":%q,"resources":%s}`, p.ID, value)
		}
		return fmt.Sprintf(`{"tenantId":"root","poolId":%q,"resources":{"gpu":1},%q:%s}`, p.ID, field, value)
	}
	deep := strings.Repeat(`{"a":`, 90) + "1" + strings.Repeat("}", 90)
	for _, c := range []struct{ method, body, field string }{
		{"pools.create", pool("policy", `{"mine":`+deep+`}`), "policy"},
		{"pools.create", pool("policy", `{"a":1,"a":2}`), "policy.a"},
		{"pools.create", pool("policy", `{"hugepages":{"size":"2Mi","count":"1"}}`), "policy.hugepages.count"},
		{"pools.create", pool("ownerQuota", `{"gpu":1,"gpu":2}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"GPU":1}`), "ownerQuota"},
		{"pools.create", pool("ownerQuota", `{"gpu":"1"}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"gpu":1.5}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"gpu":-1}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"gpu":2147483648}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"gpu":123456789012345678901234567890}`), "ownerQuota.gpu"},
		{"pools.create", pool("ownerQuota", `{"gpu":null}`), "ownerQuota.gpu"},
		{"reservations.create", reserve("resources", `{"gpu":1,"gpu":1}`), "resources.gpu"},
		{"reservations.create", reserve("resources", `{"gpus":1}`), "resources"},
		{"reservations.create", reserve("resources", `{"gpu":"1"}`), "resources.gpu"},
		{"reservations.create", reserve("resources", `{"gpu":-1}`), "resources.gpu"},
		{"reservations.create", reserve("resources", `{"gpu":1e10}`), "resources.gpu"},
		{"reservations.create", reserve("resources", `{"gpu":0}`), "resources"},
		{"reservations.create", reserve("resources", `{}`), "resources"},
		{"reservations.create", reserve("resources", `{"gpu":1,"gpu.mig":1}`), "resources"},
		{"reservations.create", reserve("nodes", `2`), "resources.gpu"},
		{"reservations.create", reserve("selector", `{"vramGiB":{"min":1,"min":2}}`), "selector.vramGiB"},
		{"reservations.create", reserve("selector", `{"vramGiB":{"least":1}}`), "selector.vramGiB"},
		{"reservations.create", reserve("selector", `{"vramGiB":{"min":2,"max":1}}`), "selector.vramGiB"},
		{"reservations.create", reserve("selector", `{"gpuProduct":null}`), "selector.gpuProduct"},
		{"reservations.create", reserve("selector", `{"gpuProduct":["a"]}`), "selector.gpuProduct"},
		{"reservations.create", reserve("selector", `{"gpuProduct":{"in":[]}}`), "selector.gpuProduct"},
		{"reservations.create", reserve("labels", `{"a":1}`), "labels.a"},
		{"reservations.create", reserve("labels", `{"a b":"x"}`), "labels"},
		{"reservations.create", reserve("duration", `"-1h"`), "duration"},
		{"reservations.create", reserve("duration", `"1000d"`), "duration"},
		{"reservations.create", reserve("expiresAt", `"2020-01-01T00:00:00Z"`), "expiresAt"},
		{"reservations.create", reserve("expiresAt", `"tomorrow"`), "expiresAt"},
	} {
		a := op.post(t, c.method, []byte(c.body))
		field := a.refusal().Field
		if a.status != 400 || a.code() != appliance.InvalidInput || field != c.field && !strings.HasPrefix(field, c.field+".") {
			t.Errorf("%s %s: %d on %q, want %q: %s", c.method, clipped(c.body), a.status, field, c.field, clipped(string(a.body)))
		}
		if bytes.Contains(a.body, []byte("json:")) || bytes.Contains(a.body, []byte("appliance.")) {
			t.Errorf("%s: the message shows the inside: %s", clipped(c.body), a.body)
		}
	}
}
