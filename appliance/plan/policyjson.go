package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/bettercompute/bc/appliance"
)

// maxPolicyDepth bounds how deep a policy nests objects and arrays. The fields
// that are read need four.
const maxPolicyDepth = 32

// ReadPolicy reads the fields that the code knows. It is strict on their
// types, at every level, and passes over fields it does not know, at every
// level: those are stored as given. It refuses what two readers could read
// differently: a key given twice, a known key in another case, null, a number
// as text, a fraction where a whole number stands, bytes that are not UTF-8,
// and nesting below maxPolicyDepth. Every refusal is INVALID_INPUT and reads
// "policy: <path>: <what is wrong>". Ranges are for [CheckPolicy].
func ReadPolicy(raw appliance.RawPolicy) (appliance.Policy, error) {
	var p appliance.Policy
	if len(raw) == 0 {
		return p, nil
	}
	if err := readJSON(raw, "", reflect.ValueOf(&p).Elem()); err != nil {
		return appliance.Policy{}, err
	}
	return p, nil
}

// badPolicy refuses the value at a path of the policy, "" being the whole.
func badPolicy(path, format string, args ...any) *appliance.Error {
	field := "policy"
	if path != "" {
		field += "." + path
		format = "policy: " + escapeFormat(path) + ": " + format
	} else {
		format = "policy: " + format
	}
	return appliance.Refuse(appliance.InvalidInput, field, format, args...)
}

func escapeFormat(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// readJSON reads one JSON object, which stands at a path of the policy, into a
// struct with json tags.
func readJSON(raw []byte, path string, into reflect.Value) error {
	r := policyReader{base: path, raw: raw, d: jsontext.NewDecoder(bytes.NewReader(raw))}
	if err := r.read(into); err != nil {
		return err
	}
	if _, err := r.d.ReadToken(); !errors.Is(err, io.EOF) {
		return badPolicy(path, "has something behind its object")
	}
	return nil
}

type policyReader struct {
	base string // the path at which raw stands
	raw  []byte
	d    *jsontext.Decoder
}

// token reads one token.
func (r *policyReader) token() (jsontext.Token, error) {
	t, err := r.d.ReadToken()
	if err == nil {
		if r.d.StackDepth() > maxPolicyDepth {
			return t, r.bad("nests deeper than %d", maxPolicyDepth)
		}
		return t, nil
	}
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return t, badPolicy(r.path(syntax.JSONPointer), "is given twice")
	case !utf8.Valid(r.raw):
		return t, r.bad("holds bytes that are not UTF-8")
	case errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &syntax):
		return t, r.bad("is not valid JSON: it ends too early")
	default:
		return t, r.bad("is not valid JSON: %v at byte %d", syntax.Err, syntax.ByteOffset)
	}
}

// bad refuses the value, or the name, that was read last.
func (r *policyReader) bad(format string, args ...any) error {
	return badPolicy(r.path(r.d.StackPointer()), format, args...)
}

// path writes where a value stands among those that are being read:
// acceptance[0].with.
func (r *policyReader) path(p jsontext.Pointer) string {
	path, level := r.base, 0
	for key := range p.Tokens() {
		level++
		array := false
		if level <= r.d.StackDepth() {
			kind, _ := r.d.StackIndex(level)
			array = kind == '['
		}
		if array {
			path += "[" + key + "]"
		} else {
			path = joinPath(path, key)
		}
	}
	return path
}

// joinPath adds a key to a path, quoted where it would make the path hard to
// read.
func joinPath(path, key string) string {
	plain := key != "" && len(key) <= 64 && !strings.ContainsFunc(key, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-/.", c))
	})
	if !plain {
		key = strconv.Quote(shorten(key, 64))
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func indexPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// shorten cuts a text that goes into a message, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

var (
	rawMessage = reflect.TypeFor[json.RawMessage]()
	duration   = reflect.TypeFor[appliance.Duration]()
)

// read reads the next value into v, whatever its type.
func (r *policyReader) read(v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return r.read(v.Elem())
	}
	if v.Type() == rawMessage {
		return r.readAny(v)
	}
	t, err := r.token()
	if err != nil {
		return err
	}
	switch want := v.Kind(); {
	case want == reflect.Struct && t.Kind() == '{':
		return r.readStruct(v)
	case want == reflect.Map && t.Kind() == '{':
		return r.readMap(v)
	case want == reflect.Slice && t.Kind() == '[':
		return r.readSlice(v)
	case want == reflect.String && t.Kind() == '"':
		return r.setText(v, t.String())
	case want == reflect.Bool && (t.Kind() == 't' || t.Kind() == 'f'):
		v.SetBool(t.Bool())
		return nil
	case want == reflect.Int && t.Kind() == '0':
		return r.setWhole(v, t.String())
	case want == reflect.Float64 && t.Kind() == '0':
		return r.setNumber(v, t.String())
	case t.Kind() == 'n' && r.d.StackDepth() > 0:
		return r.bad("is null; leave the field out instead")
	default:
		return r.bad("is not %s", wantedKind(v.Type()))
	}
}

func wantedKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "a JSON object"
	case reflect.Slice:
		return "an array"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	default:
		return "a text"
	}
}

func (r *policyReader) readStruct(v reflect.Value) error {
	for r.d.PeekKind() != '}' {
		t, err := r.token()
		if err != nil {
			return err
		}
		field, known := fieldNamed(v, t.String())
		switch {
		case field.IsValid():
			err = r.read(field)
		case known != "":
			err = r.bad("is not a field; did you mean %s?", known)
		default:
			err = r.skip()
		}
		if err != nil {
			return err
		}
		if field.Kind() == reflect.String && field.Len() == 0 {
			return r.bad("is empty; leave the field out instead")
		}
	}
	_, err := r.token()
	return err
}

// fieldNamed finds the field with the JSON name, or else the name of the field
// that differs from it only in case.
func fieldNamed(v reflect.Value, name string) (field reflect.Value, alike string) {
	for i := range v.NumField() {
		tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if tag == name {
			return v.Field(i), ""
		}
		if strings.EqualFold(tag, name) {
			alike = tag
		}
	}
	return reflect.Value{}, alike
}

// maxPolicyItems bounds any list or map that is read; what a field takes is
// less.
const maxPolicyItems = 1024

func (r *policyReader) readMap(v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	for r.d.PeekKind() != '}' {
		t, err := r.token()
		if err != nil {
			return err
		}
		if v.Len() == maxPolicyItems {
			return r.bad("is beyond the %d entries that are read", maxPolicyItems)
		}
		key := reflect.ValueOf(t.String())
		value := reflect.New(v.Type().Elem()).Elem()
		if err := r.read(value); err != nil {
			return err
		}
		v.SetMapIndex(key, value)
	}
	_, err := r.token()
	return err
}

func (r *policyReader) readSlice(v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for r.d.PeekKind() != ']' {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := r.read(item); err != nil {
			return err
		}
		if v.Len() == maxPolicyItems {
			return r.bad("is beyond the %d entries that are read", maxPolicyItems)
		}
		v.Set(reflect.Append(v, item))
	}
	_, err := r.token()
	return err
}

// readAny keeps the bytes of the next value.
func (r *policyReader) readAny(v reflect.Value) error {
	start := r.d.InputOffset()
	if r.d.PeekKind() == 'n' {
		return r.bad("is null; leave the field out instead")
	}
	if err := r.skip(); err != nil {
		return err
	}
	value := bytes.TrimLeft(r.raw[start:r.d.InputOffset()], " \t\r\n:,")
	v.SetBytes(bytes.Clone(value))
	return nil
}

// skip passes over the next value, whatever it is, and holds it to the rules
// that all of a policy is held to.
func (r *policyReader) skip() error {
	depth := r.d.StackDepth()
	for first := true; first || r.d.StackDepth() > depth; first = false {
		if _, err := r.token(); err != nil {
			return err
		}
	}
	return nil
}

func (r *policyReader) setText(v reflect.Value, text string) error {
	if v.Type() == duration {
		if _, err := appliance.ParseDuration(text); err != nil {
			return r.bad("%q is not a duration above zero and at most 365d, such as 90s, 6h or 7d", shorten(text, 40))
		}
	}
	v.SetString(text)
	return nil
}

// setWhole takes plain digits, and zeros behind a point: 4 and 4.0.
func (r *policyReader) setWhole(v reflect.Value, text string) error {
	digits := text
	if head, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
		digits = head
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || n > appliance.MaxCount || n < -appliance.MaxCount:
		return r.bad("%s is beyond any count, which is at most %d", shorten(text, 40), appliance.MaxCount)
	case err != nil:
		return r.bad("%s is not a whole number in plain digits", shorten(text, 40))
	}
	v.SetInt(n)
	return nil
}

func (r *policyReader) setNumber(v reflect.Value, text string) error {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return r.bad("%s is too large", shorten(text, 40))
	}
	v.SetFloat(f)
	return nil
}
