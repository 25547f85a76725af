package api

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep objects and lists may stand in one another.
const maxDepth = 100

// inputs reads the bodies of one method. It is JSON v2 with a loop of our own
// over the top-level fields, because that tells which fields were given: a
// missing count and a count of 0 differ.
type inputs struct {
	method   string
	strict   bool
	fields   map[string]*field
	names    []string // in the order of the struct
	required []*field
}

type field struct {
	name string
	bit  uint64
	path []int // of the struct field
	raw  bool  // free-form: nulls within are the reader's own matter
	rule *rule
}

// newInputs compiles the fields of a struct type and the limits that its
// schema states. At most 64 fields.
func newInputs(method string, t reflect.Type, schema *huma.Schema, r huma.Registry, strict bool) *inputs {
	in := &inputs{method: method, strict: strict, fields: map[string]*field{}}
	for _, f := range jsonFields(t) {
		p := &field{name: f.name, bit: 1 << len(in.names), path: f.path, raw: isRaw(f.typ)}
		if strict {
			p.rule = compileRule(r, schema.Properties[f.name], f.typ)
		}
		in.fields[f.name] = p
		in.names = append(in.names, f.name)
		if strict && slices.Contains(schema.Required, f.name) {
			in.required = append(in.required, p)
		}
	}
	if len(in.names) > 64 {
		panic("api: " + method + " has more than 64 input fields")
	}
	return in
}

type jsonField struct {
	name string
	path []int
	typ  reflect.Type
}

// jsonFields lists the fields of a struct as JSON sees them, those of embedded
// structs included.
func jsonFields(t reflect.Type) []jsonField {
	var out []jsonField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			for _, sub := range jsonFields(f.Type) {
				sub.path = append([]int{i}, sub.path...)
				out = append(out, sub)
			}
		case !f.IsExported() || name == "-":
		default:
			if name == "" {
				name = f.Name
			}
			out = append(out, jsonField{name, []int{i}, f.Type})
		}
	}
	return out
}

// rawMessage is the standard library's; this file's json is the strict one.
type rawMessage = stdjson.RawMessage

// isRaw tells whether a field keeps JSON as it is.
func isRaw(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[appliance.RawPolicy](), reflect.TypeFor[jsontext.Value](), reflect.TypeFor[rawMessage]():
		return true
	}
	return t.Kind() == reflect.Interface || t.Kind() == reflect.Map && t.Elem().Kind() == reflect.Interface
}

// decoders are used again with their buffers of names.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

type decoder struct {
	source bytes.Buffer
	json   jsontext.Decoder
}

var (
	strictOptions  = json.JoinOptions(json.RejectUnknownMembers(true))
	lenientOptions = json.JoinOptions(json.RejectUnknownMembers(false))
)

// decode reads a body into a struct. Every error is a refusal with
// INVALID_INPUT that names the field and says in words what is wrong.
func (in *inputs) decode(body []byte, to reflect.Value) error {
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		body = []byte("{}")
	}
	nulls, err := scan(body)
	if err != nil {
		return err
	}
	d := decoders.Get().(*decoder)
	defer decoders.Put(d)
	d.source = *bytes.NewBuffer(body)
	options := lenientOptions
	if in.strict {
		options = strictOptions
	}
	d.json.Reset(&d.source, options)
	if nulls && in.strict {
		if err := in.refuseNulls(body); err != nil {
			return err
		}
	}
	return in.object(&d.json, to)
}

// scan walks over the bytes once, before any parsing: it refuses what is
// nested too deep, and tells whether a null may stand outside strings.
func scan(body []byte) (nulls bool, err error) {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		c := body[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case '{', '[':
			if depth++; depth > maxDepth {
				return false, appliance.Refuse(appliance.InvalidInput, "", "the body is nested deeper than %d objects and lists", maxDepth)
			}
		case '}', ']':
			depth--
		case 'n':
			nulls = true
		}
	}
	return nulls, nil
}

// object reads the body's one object.
func (in *inputs) object(d *jsontext.Decoder, to reflect.Value) error {
	switch kind := d.PeekKind(); kind {
	case 'n', 't', 'f', '"', '0', '[':
		return appliance.Refuse(appliance.InvalidInput, "", "the body is %s, not a JSON object", kindName(kind))
	}
	if _, err := d.ReadToken(); err != nil {
		return in.translate(err)
	}
	var given uint64
	for d.PeekKind() != '}' {
		f, err := in.name(d)
		if err != nil {
			return err
		}
		if f == nil {
			if err := d.SkipValue(); err != nil {
				return in.translate(err)
			}
			continue
		}
		given |= f.bit
		v := to.FieldByIndex(f.path)
		if err := json.UnmarshalDecode(d, v.Addr().Interface()); err != nil {
			return in.translate(err)
		}
		if f.rule != nil {
			if err := f.rule.check(f.name, v); err != nil {
				return err
			}
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return in.translate(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return appliance.Refuse(appliance.InvalidInput, "", "something follows the JSON object, at byte %d", d.InputOffset())
	}
	for _, f := range in.required {
		if given&f.bit == 0 {
			return invalid(f.name, "is required")
		}
	}
	return nil
}

// name reads the name of a top-level field, nil for one to pass over.
func (in *inputs) name(d *jsontext.Decoder) (*field, error) {
	quoted, err := d.ReadValue()
	if err != nil {
		return nil, in.translate(err)
	}
	if f := in.fields[string(quoted[1:len(quoted)-1])]; f != nil {
		return f, nil
	}
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return nil, in.translate(err)
	}
	if f := in.fields[string(text)]; f != nil || !in.strict {
		return f, nil
	}
	return nil, in.unknown(string(text))
}

// unknown refuses a field that the method does not have.
func (in *inputs) unknown(name string) error {
	name = clip(name, 64)
	for _, known := range in.names {
		if strings.EqualFold(known, name) {
			return invalid(name, "no such field of %s; did you mean %s?", in.method, known)
		}
	}
	if len(in.names) == 0 {
		return invalid(name, "no such field: %s takes none", in.method)
	}
	return invalid(name, "no such field of %s; its fields are %s", in.method, strings.Join(in.names, ", "))
}

// refuseNulls refuses null wherever it stands outside free-form values: JSON
// v2 would read it as zero. It leaves anything else that is wrong to decode.
func (in *inputs) refuseNulls(body []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(body))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return nil
		}
		switch tok.Kind() {
		case 'n':
			where := in.place(d.StackPointer())
			if where.field == "" {
				return nil
			}
			return where.refuse("is null; leave the field out instead")
		case '"':
			if kind, length := d.StackIndex(d.StackDepth()); d.StackDepth() != 1 || kind != '{' || length%2 == 0 {
				continue
			}
			if f := in.fields[tok.String()]; f != nil && f.raw && d.PeekKind() != 'n' {
				if d.SkipValue() != nil {
					return nil
				}
			}
		}
	}
}

// place is where in a body something stands: the field for programs, and the
// words that begin the message. Below a policy these are "policy: cpu.isolate".
type place struct{ field, says string }

func (p place) refuse(format string, args ...any) *appliance.Error {
	if p.field == "" {
		return appliance.Refuse(appliance.InvalidInput, "", "the body "+format, args...)
	}
	return appliance.Refuse(appliance.InvalidInput, p.field, escapePercent(p.says)+": "+format, args...)
}

// invalid refuses one input field, whose path may hold what a caller wrote.
func invalid(path, format string, args ...any) *appliance.Error {
	return place{path, path}.refuse(format, args...)
}

func escapePercent(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// place reads a JSON pointer as a dotted path, with list indexes in brackets.
func (in *inputs) place(p jsontext.Pointer) place {
	var b strings.Builder
	var top, rest string
	for token := range p.Tokens() {
		token = clip(token, 64)
		if top == "" {
			top = token
			continue
		}
		if _, err := strconv.ParseUint(token, 10, 32); err == nil {
			b.WriteString("[" + token + "]")
		} else {
			b.WriteString("." + token)
		}
	}
	rest = b.String()
	if f := in.fields[top]; f != nil && f.raw && rest != "" {
		return place{top + rest, top + ": " + strings.TrimPrefix(rest, ".")}
	}
	return place{top + rest, top + rest}
}

// translate turns an error of the JSON library into a refusal in our words.
// Nothing of Go's types reaches the caller.
func (in *inputs) translate(err error) error {
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		return in.semantic(semantic)
	}
	var syntactic *jsontext.SyntacticError
	if !errors.As(err, &syntactic) {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return appliance.Refuse(appliance.InvalidInput, "", "the body ends in the middle of its JSON")
		}
		return appliance.Refuse(appliance.InvalidInput, "", "the body is not JSON").Because(err)
	}
	switch {
	case errors.Is(syntactic.Err, jsontext.ErrDuplicateName):
		return in.place(syntactic.JSONPointer).refuse("is given twice")
	case errors.Is(syntactic.Err, io.ErrUnexpectedEOF):
		return appliance.Refuse(appliance.InvalidInput, "", "the body ends in the middle of its JSON, after byte %d", syntactic.ByteOffset)
	case strings.Contains(syntactic.Err.Error(), "UTF-8"):
		return appliance.Refuse(appliance.InvalidInput, in.place(syntactic.JSONPointer).field, "the body is not UTF-8 at byte %d", syntactic.ByteOffset)
	}
	return appliance.Refuse(appliance.InvalidInput, in.place(syntactic.JSONPointer).field, "the body is not JSON at byte %d: %s",
		syntactic.ByteOffset, strings.TrimPrefix(syntactic.Err.Error(), "jsontext: "))
}

// semantic translates a JSON value that is not what its field takes.
func (in *inputs) semantic(e *json.SemanticError) error {
	at := in.place(e.JSONPointer)
	var ours *appliance.Error
	if errors.As(e.Err, &ours) {
		// A type of ours refused its own value. It does not know in which field
		// it stands: put that in place of the name it gave itself.
		says := strings.TrimPrefix(ours.Message, ours.Field+": ")
		return at.refuse("%s", says).WithReason(ours.Reason).Because(e.Err)
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(e.Err, &syntactic) {
		return in.translate(syntactic)
	}
	if errors.Is(e.Err, json.ErrUnknownName) {
		return at.refuse("no such field")
	}
	want := wanted(e.GoType)
	if e.JSONKind == '0' && numeric(e.GoType) {
		value := clip(string(e.JSONValue), 40)
		if value == "" {
			return at.refuse("is not %s", want)
		}
		if errors.Is(e.Err, strconv.ErrRange) {
			return at.refuse("%s is out of range", value)
		}
		if f, err := strconv.ParseFloat(value, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return at.refuse("%s is not written as a whole number; write %.0f", value, f)
		}
		return at.refuse("%s is not %s", value, want)
	}
	if e.JSONKind == 0 || want == "" {
		return at.refuse("is not a value that this field takes").Because(e)
	}
	return at.refuse("is %s, not %s", kindName(e.JSONKind), want)
}

// kindName is a JSON value's kind in words.
func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "text"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "a list"
	default:
		return "something else"
	}
}

// wanted is what a Go type takes, in words.
func wanted(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	if numeric(t) {
		return "a whole number"
	}
	return ""
}

func numeric(t reflect.Type) bool {
	return t != nil && t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
}
