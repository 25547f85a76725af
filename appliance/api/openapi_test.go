package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
)

func documented() *Server {
	s := &Server{Version: "1.2.3"}
	addTestVerbs(s, nil)
	s.Example("things.list", "The first page", appliance.TenantList{TenantID: "acme"}, `{"items":[{"kind":"a"}],"nextCursor":"abc"}`)
	s.Example("things.echo", "With a policy", `{"tenantId":"acme","policy":{"cpu":{"governor":"performance"},"big":12345678901234567890}}`,
		`{"in":{"tenantId":"acme"},"caller":{"Kind":"key","ID":"key_1","Tenant":"acme","Role":"member","RequestID":"r","Address":"10.0.0.7"}}`)
	return s
}

func TestTheOpenAPIDocumentIsStable(t *testing.T) {
	got := documented().OpenAPI()
	golden(t, "openapi.json", got)
	if again := documented().OpenAPI(); !bytes.Equal(got, again) {
		t.Error("two servers with the same methods differ")
	}
	s := documented()
	s.Handler(Unix)
	if first := s.OpenAPI(); !bytes.Equal(first, s.OpenAPI()) || !bytes.Equal(first, got) {
		t.Error("the document changes as it is asked for")
	}
}

// What a validator of OpenAPI 3.1 looks for, as far as the generator could get
// it wrong: the version, references that resolve, ids that are unique, legal
// type words, required fields that exist, and responses on every operation.
func TestTheOpenAPIDocumentIsSound(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal(documented().OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["openapi"] != "3.1.0" {
		t.Errorf("version %v", doc["openapi"])
	}
	ids := map[string]bool{}
	for path, item := range doc["paths"].(map[string]any) {
		for verb, op := range item.(map[string]any) {
			op := op.(map[string]any)
			id, _ := op["operationId"].(string)
			if id == "" || ids[id] {
				t.Errorf("%s %s: operationId %q", verb, path, id)
			}
			ids[id] = true
			if responses, _ := op["responses"].(map[string]any); responses["200"] == nil {
				t.Errorf("%s %s describes no answer", verb, path)
			}
			if verb == "post" && strings.HasPrefix(path, "/v1/things") && op["responses"].(map[string]any)["400"] == nil {
				t.Errorf("%s describes no refusal", path)
			}
		}
	}
	if ids["agent.hello"] || !ids["things.echo"] {
		t.Errorf("operations: %v", ids)
	}
	types := []string{"string", "number", "integer", "boolean", "object", "array"}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok && resolve(doc, ref) == nil {
				t.Errorf("%s: %s leads nowhere", at, ref)
			}
			if typ, ok := v["type"].(string); ok && strings.Contains(at, "schema") && !strings.HasSuffix(at, "/properties") && !slices.Contains(types, typ) {
				t.Errorf("%s: type %q", at, typ)
			}
			if required, ok := v["required"].([]any); ok {
				for _, name := range required {
					if properties, _ := v["properties"].(map[string]any); properties[name.(string)] == nil {
						t.Errorf("%s requires %v, which it does not have", at, name)
					}
				}
			}
			for k, sub := range v {
				if k != "example" && k != "examples" {
					walk(at+"/"+k, sub)
				}
			}
		case []any:
			for i, sub := range v {
				walk(fmt.Sprint(at, "/", i), sub)
			}
		}
	}
	walk("", doc)
	policy := resolve(doc, "#/components/schemas/Policy").(map[string]any)
	if policy["additionalProperties"] != true || policy["properties"].(map[string]any)["hugepages"] == nil {
		t.Errorf("a policy's schema is not its typed reading, left open: %v", policy["additionalProperties"])
	}
	if in := resolve(doc, "#/components/schemas/Thing").(map[string]any); in["additionalProperties"] != false {
		t.Error("the schema of an input allows more fields than the reader")
	}
	if out := resolve(doc, "#/components/schemas/Echoed").(map[string]any); out["additionalProperties"] != nil {
		t.Error("the schema of an answer forbids fields that may be added")
	}
	if action := resolve(doc, "#/paths/~1v1~1things.echo/post/x-action"); action != "test:things:echo" {
		t.Errorf("x-action is %v", action)
	}
}

// resolve follows a JSON pointer in a document.
func resolve(doc any, ref string) any {
	for token := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		m, ok := doc.(map[string]any)
		if !ok {
			return nil
		}
		doc = m[strings.ReplaceAll(token, "~1", "/")]
	}
	return doc
}

// Every type with JSON of its own must have a schema of its own: the schema
// judges what the type writes.
func TestSchemasDescribeWhatTheTypesWrite(t *testing.T) {
	low := 1.5
	s := documented()
	for _, v := range []any{
		thing{
			TenantID: "a", Class: "provider", Ratio: 1, Resources: appliance.Amounts{"gpu": 1}, Policy: appliance.RawPolicy(`{"x":1}`),
			Selector: appliance.Selector{"a": {Equals: "x"}, "b": {In: []string{"y"}}, "c": {Min: &low}}, Page: appliance.Page{Limit: 5},
		},
		appliance.Event{Seq: 1, Type: appliance.EventPoolCreated, At: appliance.AtMillis(0), Data: []byte(`{"a":[1]}`)},
		appliance.Pool{Class: appliance.ClassMetalHost, Sharing: appliance.SharingMIG, Agent: appliance.AgentBCD, Quotas: []appliance.Quota{}},
	} {
		b := exampleJSON("a test", v)
		var decoded any
		if err := json.Unmarshal(b, &decoded); err != nil {
			t.Fatal(err)
		}
		var result huma.ValidateResult
		huma.Validate(s.doc.registry, s.doc.schema(reflect.TypeOf(v)), huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, decoded, &result)
		for _, err := range result.Errors {
			t.Errorf("%T: %v\n%s", v, err, b)
		}
	}
}

func TestTheDocsPageStandsAlone(t *testing.T) {
	r := newRig(t, func(s *Server) {
		s.Example("things.list", "The <first> page", appliance.TenantList{TenantID: "acme"}, `{"items":[]}`)
	})
	if resp, doc := send(t, r.tls, "GET", "/openapi.json", ""); resp.StatusCode != 200 || doc != string(r.OpenAPI()) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("/openapi.json: %d", resp.StatusCode)
	}
	resp, page := send(t, r.tls, "GET", "/docs", "")
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	for _, want := range []string{
		`id="things.echo"`, "POST /v1/things.list", "test:things:read", "The &lt;first&gt; page", "INVALID_INPUT", "1 to 500", "one of metal-host", `href="#type-Policy"`, `id="type-Policy"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, outside := range []string{"http://", "https://", "<script", "<link", "<img", "@import", "url("} {
		if strings.Contains(page, outside) {
			t.Errorf("the page needs something from outside: %s", outside)
		}
	}
	if strings.Contains(page, "agent.hello") {
		t.Error("the page shows the agents' calls")
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
		t.Errorf("policy %q", csp)
	}
}
