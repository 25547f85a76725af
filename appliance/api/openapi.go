package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
)

// document is the OpenAPI 3.1 description, made from the Go types of the
// registered methods. Nothing of it is made before it is asked for: a start
// need not wait for it, and most servers are never asked.
type document struct {
	mu       *sync.Mutex // guards registry and paths
	registry huma.Registry
	paths    map[string]*huma.PathItem
	once     *sync.Once
	json     []byte
	page     *sync.Once
	html     []byte
	pageErr  error
}

const schemaPrefix = "#/components/schemas/"

// listsAreNeverNull sets huma's package variable: an empty list is [].
var listsAreNeverNull = sync.OnceFunc(func() { huma.DefaultArrayNullable = false })

func newDocument() document {
	listsAreNeverNull()
	r := huma.NewMapRegistry(schemaPrefix, schemaName)
	r.RegisterTypeAlias(reflect.TypeFor[appliance.RawPolicy](), reflect.TypeFor[policyField]())
	r.RegisterTypeAlias(reflect.TypeFor[appliance.Match](), reflect.TypeFor[matchField]())
	r.RegisterTypeAlias(reflect.TypeFor[appliance.Time](), reflect.TypeFor[timeField]())
	r.RegisterTypeAlias(reflect.TypeFor[appliance.QuotaMap](), reflect.TypeFor[countsField]())
	r.RegisterTypeAlias(reflect.TypeFor[appliance.Amounts](), reflect.TypeFor[countsField]())
	return document{mu: new(sync.Mutex), registry: r, paths: map[string]*huma.PathItem{}, once: new(sync.Once), page: new(sync.Once)}
}

// schemaName keeps the words of nodes apart from those of people: both have a
// CheckResult.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.PkgPath() == reflect.TypeFor[wire.Hello]().PkgPath() {
		return "Wire" + name
	}
	return name
}

// The stand-ins below give schemas to words that read and write JSON in a way
// of their own.
type (
	policyField struct{}
	matchField  struct{}
	timeField   struct{}
	countsField struct{}
)

// Schema of a policy: its typed reading, open on every level. The document
// tells what is legal; control is who judges, with its own words.
func (policyField) Schema(r huma.Registry) *huma.Schema {
	ref := r.Schema(reflect.TypeFor[appliance.Policy](), true, "Policy")
	if s := r.SchemaFromRef(ref.Ref); s.AdditionalProperties == false {
		s.Description = "A pool's policy. Fields that the server does not know are kept and given back."
		openPolicy(r, s)
	}
	return ref
}

func openPolicy(r huma.Registry, s *huma.Schema) {
	s.AdditionalProperties = true
	for _, p := range s.Properties {
		p.Nullable = false
		for p.Items != nil {
			p = p.Items
		}
		if p.Ref != "" {
			openPolicy(r, r.SchemaFromRef(p.Ref))
		}
	}
}

// Schema of one selector entry: a value, a choice or a range.
func (matchField) Schema(huma.Registry) *huma.Schema {
	scalar := func() *huma.Schema {
		return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeString}, {Type: huma.TypeNumber}, {Type: huma.TypeBoolean}}}
	}
	one := 1
	return &huma.Schema{
		Description: "A value, {in: [...]}, or {min, max}.",
		OneOf: append(scalar().OneOf,
			&huma.Schema{
				Type: huma.TypeObject, AdditionalProperties: false, Required: []string{"in"},
				Properties: map[string]*huma.Schema{"in": {Type: huma.TypeArray, Items: scalar()}},
			},
			&huma.Schema{
				Type: huma.TypeObject, AdditionalProperties: false, MinProperties: &one,
				Properties: map[string]*huma.Schema{"min": {Type: huma.TypeNumber}, "max": {Type: huma.TypeNumber}},
			}),
	}
}

// Schema of an instant.
func (timeField) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Examples: []any{"2026-01-31T08:00:00.000Z"}}
}

// Schema of counts by resource.
func (countsField) Schema(huma.Registry) *huma.Schema {
	zero, most := 0.0, float64(appliance.MaxCount)
	names := append(slices.Clone(appliance.GPUResources), appliance.Scalars...)
	s := &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{},
		Examples: []any{map[string]any{"gpu": 2}},
	}
	for _, name := range names {
		s.Properties[name] = &huma.Schema{Type: huma.TypeInteger, Minimum: &zero, Maximum: &most}
	}
	return s
}

// nothing is the schema's name of struct{}; every other type has a name.
const nothing = "Nothing"

// schema gives the whole schema of a struct type, registering it.
func (d *document) schema(t reflect.Type) *huma.Schema {
	s := d.registry.Schema(t, true, nothing)
	if s.Ref != "" {
		s = d.registry.SchemaFromRef(s.Ref)
	}
	return s
}

// inputs compiles what a method takes.
func (d *document) inputs(m *method, strict bool) *inputs {
	d.mu.Lock()
	defer d.mu.Unlock()
	return newInputs(m.name, m.in, d.schema(m.in), d.registry, strict)
}

// add describes one method with its examples.
func (d *document) add(m *method) {
	op := &huma.Operation{
		OperationID: m.name, Summary: m.summary, Tags: []string{m.module()},
		Extensions: map[string]any{},
		RequestBody: &huma.RequestBody{
			Required: len(m.inputs().required) > 0,
			Content:  map[string]*huma.MediaType{"application/json": {Schema: d.registry.Schema(m.in, true, nothing)}},
		},
		Responses: map[string]*huma.Response{"200": {
			Description: "OK",
			Headers:     requestIDHeader(),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: d.registry.Schema(m.out, true, nothing)}},
		}},
	}
	if m.action != "" {
		op.Extensions["x-action"] = m.action
	}
	for status := range errorResponses() {
		op.Responses[status] = &huma.Response{Ref: "#/components/responses/" + status}
	}
	for _, e := range m.examples {
		addExample(op, e)
	}
	d.paths[m.path] = &huma.PathItem{Post: op}
}

// addExample adds a worked request to a method's operation.
func addExample(op *huma.Operation, e example) {
	add := func(content map[string]*huma.MediaType, value []byte) {
		media := content["application/json"]
		if media.Examples == nil {
			media.Examples = map[string]*huma.Example{}
		}
		media.Examples[e.Name] = &huma.Example{Value: json.RawMessage(value)}
	}
	add(op.RequestBody.Content, e.Request)
	add(op.Responses["200"].Content, e.Response)
}

func requestIDHeader() map[string]*huma.Header {
	return map[string]*huma.Header{"X-Request-Id": {
		Description: "Names the request in the server's log. One that the caller sends is kept.",
		Schema:      &huma.Schema{Type: huma.TypeString},
	}}
}

// codeDoc says when a code is answered.
var codeDoc = map[appliance.Code]string{
	appliance.InvalidInput:      "the input is malformed, out of range, or holds an unknown field; field names it",
	appliance.Unauthenticated:   "no credential, or one that is not known",
	appliance.SpendLimitReached: "the budget is spent",
	appliance.AccessDenied:      "visible to this caller, but not allowed",
	appliance.NotFound:          "does not exist, or this caller may not know that it does",
	appliance.ConflictCode:      "an idempotency key with other fields, a stale expectedVersion, or a name that is taken",
	appliance.InvalidState:      "the thing is not in a state that allows it",
	appliance.QuotaExceeded:     "details: resource, asked, used, max",
	appliance.RateLimited:       "too many tries; wait as long as Retry-After says",
	appliance.Unavailable:       "shutting down, the disk full, or the store busy past its deadline; try again",
	appliance.Internal:          "a fault of the server; its log has the request id",
}

// errorResponses groups the codes by status.
func errorResponses() map[string]*huma.Response {
	codes := map[int][]appliance.Code{
		http.StatusRequestEntityTooLarge: {appliance.InvalidInput},
		http.StatusUnsupportedMediaType:  {appliance.InvalidInput},
	}
	for _, code := range slices.Sorted(maps.Keys(statuses)) {
		codes[statuses[code]] = append(codes[statuses[code]], code)
	}
	out := map[string]*huma.Response{}
	for status, list := range codes {
		var says []string
		for _, code := range list {
			switch status {
			case http.StatusRequestEntityTooLarge:
				says = append(says, fmt.Sprintf("%s: the body is larger than 1 MiB", code))
			case http.StatusUnsupportedMediaType:
				says = append(says, fmt.Sprintf("%s: the body is not sent as JSON", code))
			default:
				says = append(says, fmt.Sprintf("%s: %s", code, codeDoc[code]))
			}
		}
		r := &huma.Response{
			Description: strings.Join(says, ". ") + ".", Headers: requestIDHeader(),
			Content: map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Ref: schemaPrefix + "Refusal"}}},
		}
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			r.Headers["Retry-After"] = &huma.Header{Description: "Seconds to wait.", Schema: &huma.Schema{Type: huma.TypeInteger}}
		}
		out[strconv.Itoa(status)] = r
	}
	return out
}

// refusalSchema describes the error envelope.
func refusalSchema() *huma.Schema {
	codes := []any{}
	for _, c := range slices.Sorted(maps.Keys(statuses)) {
		codes = append(codes, string(c))
	}
	text := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} }
	return &huma.Schema{
		Type: huma.TypeObject, Required: []string{"error"}, Description: "The one shape of every refusal.",
		Properties: map[string]*huma.Schema{"error": {
			Type: huma.TypeObject, Required: []string{"code", "message"},
			Properties: map[string]*huma.Schema{
				"code":    {Type: huma.TypeString, Enum: codes},
				"message": text("For people."),
				"field":   text("The input field, dotted: policy.cpu.isolate."),
				"reason":  text("A word for programs that must tell cases of one code apart."),
				"details": {Type: huma.TypeObject, AdditionalProperties: true, Description: "Numbers and names that belong to the refusal."},
			},
		}},
	}
}

// OpenAPI is the document of everything that is registered, as JSON. The bytes
// are the same for the same methods.
func (s *Server) OpenAPI() []byte {
	s.init()
	if !s.built.Load() {
		return s.describe()
	}
	s.doc.once.Do(func() { s.doc.json = s.describe() })
	return s.doc.json
}

// describe makes the document of every method as it is registered now.
func (s *Server) describe() []byte {
	if s.addExamples != nil {
		s.addExamples()
	}
	for _, m := range s.methods {
		m.inputs() // their types belong to the document, also those of hidden methods
	}
	s.doc.mu.Lock()
	defer s.doc.mu.Unlock()
	for _, m := range s.methods {
		if !m.hidden {
			s.doc.add(m)
		}
	}
	return s.doc.render(s.Version)
}

// render writes the document, indented.
func (d *document) render(version string) []byte {
	d.openAnswers()
	schemas := d.registry.Map()
	if schemas["Refusal"] == nil {
		schemas["Refusal"] = refusalSchema()
	}
	paths := maps.Clone(d.paths)
	d.addPlain(paths)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Better Compute", Version: version,
			Description: "One call, one method: POST /v1/<module>.<verb> with a JSON object. Over the Unix socket the local operator needs no credential; " +
				"over TLS every call carries Authorization: Bearer with an API key.",
		},
		Paths: paths,
		Tags:  d.tags(),
		Components: &huma.Components{
			Schemas:   d.registry,
			Responses: errorResponses(),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"key": {Type: "http", Scheme: "bearer", Description: "An API key, bck_…, from iam.keys.create."},
			},
		},
		Security: []map[string][]string{{"key": {}}},
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		panic("api: the OpenAPI document is not JSON: " + err.Error())
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		panic("api: the OpenAPI document is not JSON: " + err.Error())
	}
	out, _ := json.MarshalIndent(v, "", "  ")
	return append(out, '\n')
}

// openAnswers lets fields be added to answers: additionalProperties false
// stays only where inputs are described, for there it is enforced.
func (d *document) openAnswers() {
	inputs := map[string]bool{}
	var visit func(s *huma.Schema)
	visit = func(s *huma.Schema) {
		if s == nil {
			return
		}
		if name, ok := strings.CutPrefix(s.Ref, schemaPrefix); ok && !inputs[name] {
			inputs[name] = true
			visit(d.registry.Map()[name])
		}
		visit(s.Items)
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
			visit(values)
		}
		for _, p := range s.Properties {
			visit(p)
		}
	}
	for _, item := range d.paths {
		visit(item.Post.RequestBody.Content["application/json"].Schema)
	}
	for name, s := range d.registry.Map() {
		if s.AdditionalProperties == false && !inputs[name] {
			s.AdditionalProperties = nil
		}
	}
}

func (d *document) tags() []*huma.Tag {
	modules := map[string]bool{}
	for _, item := range d.paths {
		modules[item.Post.Tags[0]] = true
	}
	var out []*huma.Tag
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		out = append(out, &huma.Tag{Name: name})
	}
	return append(out, &huma.Tag{Name: "server"})
}

// addPlain describes the paths that are no methods.
func (d *document) addPlain(paths map[string]*huma.PathItem) {
	open := []map[string][]string{{}}
	get := func(id, summary, media string, security []map[string][]string) *huma.PathItem {
		op := &huma.Operation{
			OperationID: id, Summary: summary, Tags: []string{"server"}, Security: security,
			Responses: map[string]*huma.Response{"200": {
				Description: "OK", Headers: requestIDHeader(),
				Content: map[string]*huma.MediaType{media: {Schema: &huma.Schema{Type: huma.TypeString}}},
			}},
		}
		return &huma.PathItem{Get: op}
	}
	paths["/healthz"] = get("healthz", "The process is up.", "text/plain", open)
	paths["/readyz"] = get("readyz", "The store is writable and its schema current; 503 says why not.", "text/plain", open)
	paths["/readyz"].Get.Responses["503"] = &huma.Response{Ref: "#/components/responses/503"}
	paths["/metrics"] = get("metrics", "Prometheus metrics. Over TLS with a key of tenant root, any role.", "text/plain", nil)
	for _, status := range []string{"401", "403"} {
		paths["/metrics"].Get.Responses[status] = &huma.Response{Ref: "#/components/responses/" + status}
	}
	events := get("events.stream", "Events as they happen, as server-sent events. Each has its sequence number as id: "+
		"with Last-Event-ID the stream goes on behind it without a gap.", "text/event-stream", nil)
	zero := 0.0
	events.Get.Parameters = []*huma.Param{
		{Name: "tenantId", In: "query", Description: "Whose events. Default: the caller's tenant.", Schema: &huma.Schema{Type: huma.TypeString}},
		{Name: "after", In: "query", Description: "Begin behind this sequence number; 0 gives everything. Default: only what happens from now on.",
			Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: &zero}},
		{Name: "Last-Event-ID", In: "header", Description: "As after, and before it.", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: &zero}},
	}
	for _, status := range []string{"400", "401", "403", "404", "429", "503"} {
		events.Get.Responses[status] = &huma.Response{Ref: "#/components/responses/" + status}
	}
	paths["/v1/events"] = events
}

func (s *Server) serveOpenAPI(x *exchange) error {
	x.write(s.OpenAPI())
	return nil
}
