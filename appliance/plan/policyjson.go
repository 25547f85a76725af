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
	r := policyReader{raw: raw, d: jsontext.NewDecoder(bytes.NewReader(raw))}
	if err := r.read(path, into); err != nil {
		return err
	}
	if _, err := r.d.ReadToken(); !errors.Is(err, io.EOF) {
		return badPolicy(path, "has something behind its object")
	}
	return nil
}

type policyReader struct {
	raw []byte
	d   *jsontext.Decoder
}

// token reads one token. At a name, path is that of the object.
func (r *policyReader) token(path string) (jsontext.Token, error) {
	t, err := r.d.ReadToken()
	if err == nil {
		if r.d.StackDepth() > maxPolicyDepth {
			return t, badPolicy(path, "nests deeper than %d", maxPolicyDepth)
		}
		return t, nil
	}
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return t, badPolicy(joinPath(path, syntax.JSONPointer.LastToken()), "is given twice")
	case !utf8.Valid(r.raw):
		return t, badPolicy(path, "holds bytes that are not UTF-8")
	case errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &syntax):
		return t, badPolicy(path, "is not valid JSON: it ends too early")
	default:
		return t, badPolicy(path, "is not valid JSON: %v at byte %d", syntax.Err, syntax.ByteOffset)
	}
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
func (r *policyReader) read(path string, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return r.read(path, v.Elem())
	}
	if v.Type() == rawMessage {
		return r.readAny(path, v)
	}
	t, err := r.token(path)
	if err != nil {
		return err
	}
	switch want := v.Kind(); {
	case want == reflect.Struct && t.Kind() == '{':
		return r.readStruct(path, v)
	case want == reflect.Map && t.Kind() == '{':
		return r.readMap(path, v)
	case want == reflect.Slice && t.Kind() == '[':
		return r.readSlice(path, v)
	case want == reflect.String && t.Kind() == '"':
		return setText(path, v, t.String())
	case want == reflect.Bool && (t.Kind() == 't' || t.Kind() == 'f'):
		v.SetBool(t.Bool())
		return nil
	case want == reflect.Int && t.Kind() == '0':
		return setWhole(path, v, t.String())
	case want == reflect.Float64 && t.Kind() == '0':
		return setNumber(path, v, t.String())
	case t.Kind() == 'n' && path != "":
		return badPolicy(path, "is null; leave the field out instead")
	default:
		return badPolicy(path, "is not %s", wantedKind(v.Type()))
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

func (r *policyReader) readStruct(path string, v reflect.Value) error {
	for r.d.PeekKind() != '}' {
		t, err := r.token(path)
		if err != nil {
			return err
		}
		name := t.String()
		at := joinPath(path, name)
		field, known := fieldNamed(v, name)
		switch {
		case field.IsValid():
			err = r.read(at, field)
		case known != "":
			return badPolicy(at, "is not a field; did you mean %s?", known)
		default:
			err = r.skip(at)
		}
		if err != nil {
			return err
		}
		if field.Kind() == reflect.String && field.Len() == 0 {
			return badPolicy(at, "is empty; leave the field out instead")
		}
	}
	_, err := r.token(path)
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

func (r *policyReader) readMap(path string, v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	for r.d.PeekKind() != '}' {
		t, err := r.token(path)
		if err != nil {
			return err
		}
		name := t.String()
		value := reflect.New(v.Type().Elem()).Elem()
		if err := r.read(joinPath(path, name), value); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(name), value)
	}
	_, err := r.token(path)
	return err
}

// maxPolicyItems bounds any array that is read; what a field takes is less.
const maxPolicyItems = 1024

func (r *policyReader) readSlice(path string, v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for r.d.PeekKind() != ']' {
		if v.Len() == maxPolicyItems {
			return badPolicy(path, "holds more than %d entries", maxPolicyItems)
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := r.read(indexPath(path, v.Len()), item); err != nil {
			return err
		}
		v.Set(reflect.Append(v, item))
	}
	_, err := r.token(path)
	return err
}

// readAny keeps the bytes of the next value.
func (r *policyReader) readAny(path string, v reflect.Value) error {
	start := r.d.InputOffset()
	if r.d.PeekKind() == 'n' {
		return badPolicy(path, "is null; leave the field out instead")
	}
	if err := r.skip(path); err != nil {
		return err
	}
	value := bytes.TrimLeft(r.raw[start:r.d.InputOffset()], " \t\r\n:,")
	v.SetBytes(bytes.Clone(value))
	return nil
}

// skip passes over the next value, whatever it is.
func (r *policyReader) skip(path string) error {
	t, err := r.token(path)
	if err != nil {
		return err
	}
	switch t.Kind() {
	case '{':
		for r.d.PeekKind() != '}' {
			name, err := r.token(path)
			if err != nil {
				return err
			}
			if err := r.skip(joinPath(path, name.String())); err != nil {
				return err
			}
		}
	case '[':
		for i := 0; r.d.PeekKind() != ']'; i++ {
			if err := r.skip(indexPath(path, i)); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = r.token(path)
	return err
}

func setText(path string, v reflect.Value, text string) error {
	if v.Type() == duration {
		if _, err := appliance.ParseDuration(text); err != nil {
			return badPolicy(path, "%q is not a duration above zero and at most 365d, such as 90s, 6h or 7d", shorten(text, 40))
		}
	}
	v.SetString(text)
	return nil
}

// setWhole takes plain digits, and zeros behind a point: 4 and 4.0.
func setWhole(path string, v reflect.Value, text string) error {
	digits := text
	if head, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
		digits = head
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && max(n, -n) > appliance.MaxCount:
		return badPolicy(path, "%s is beyond any count, which is at most %d", shorten(text, 40), appliance.MaxCount)
	case err != nil:
		return badPolicy(path, "%s is not a whole number in plain digits", shorten(text, 40))
	}
	v.SetInt(n)
	return nil
}

func setNumber(path string, v reflect.Value, text string) error {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return badPolicy(path, "%s is too large", shorten(text, 40))
	}
	v.SetFloat(f)
	return nil
}
