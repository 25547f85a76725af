package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/big"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/appliance"
)

// changedPolicy is the policy that --policy, --set and --unset ask for, over
// the present one; nil if none of the flags is given.
func changedPolicy(c *cli.Context, now appliance.RawPolicy) (appliance.RawPolicy, error) {
	if !c.IsSet("policy") && !c.IsSet("set") && !c.IsSet("unset") {
		return nil, nil
	}
	base := now
	if c.IsSet("policy") {
		var err error
		if base, err = readPolicyFile(c.String("policy")); err != nil {
			return nil, err
		}
	}
	if !c.IsSet("set") && !c.IsSet("unset") {
		return base, nil // byte for byte as it is in the file
	}
	policy, err := policyObject(base)
	if err != nil {
		return nil, err
	}
	for _, path := range c.StringSlice("unset") {
		if !unsetField(policy, strings.Split(path, ".")) {
			return nil, usagef("--unset: the policy has no %s", path)
		}
	}
	for _, word := range c.StringSlice("set") {
		path, value, ok := strings.Cut(word, "=")
		if !ok || path == "" {
			return nil, usagef("--set: %q is not FIELD=VALUE, such as cpu.governor=performance", word)
		}
		keys := strings.Split(path, ".")
		v := fieldValue(value)
		if isText(keys) && !strings.HasPrefix(value, `"`) {
			v = value // a CPU list of 3 and a version of 1.30 are texts
		}
		if err := setField(policy, keys, v); err != nil {
			return nil, usagef("--set: %s: %w", path, err)
		}
	}
	b, err := json.Marshal(policy)
	return b, err
}

// readPolicyFile reads a policy in JSON, which is kept as it is written, or in
// TOML. A file's ending decides, else its first character.
func readPolicyFile(path string) (appliance.RawPolicy, error) {
	text, err := readInput(path)
	if err != nil {
		return nil, err
	}
	isJSON := bytes.HasPrefix(bytes.TrimSpace(text), []byte("{"))
	switch filepath.Ext(path) {
	case ".json":
		isJSON = true
	case ".toml":
		isJSON = false
	}
	if isJSON {
		if _, err := policyObject(text); err != nil {
			return nil, usagef("%s: %w", path, err)
		}
		return bytes.TrimSpace(text), nil
	}
	object := map[string]any{}
	if err := parseTOML(path, string(text), &object, func(toml.Key) bool { return true }); err != nil {
		return nil, usage{err}
	}
	b, err := json.Marshal(object)
	return b, err
}

// policyObject reads a policy with its numbers as they are written.
func policyObject(p appliance.RawPolicy) (map[string]any, error) {
	if len(p) == 0 {
		return map[string]any{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber()
	object := map[string]any{}
	if err := d.Decode(&object); err != nil {
		return nil, fmt.Errorf("is not a JSON object: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("has something behind its JSON object")
	}
	return object, nil
}

// fieldValue reads a value on the command line: what is JSON counts as that,
// so that numbers and booleans are such; the rest is text.
func fieldValue(s string) any {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || v == nil {
		return s
	}
	if _, err := d.Token(); err != io.EOF {
		return s
	}
	return v
}

// isText tells whether a field of a policy is a text.
func isText(path []string) bool {
	t := reflect.TypeFor[appliance.Policy]()
	for _, key := range path {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Map:
			t = t.Elem()
		case reflect.Struct:
			fields := reflect.VisibleFields(t)
			i := slices.IndexFunc(fields, func(f reflect.StructField) bool {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				return name == key
			})
			if i < 0 {
				return false
			}
			t = fields[i].Type
		default:
			return false
		}
	}
	return t.Kind() == reflect.String
}

func setField(object map[string]any, path []string, v any) error {
	key := path[0]
	if key == "" {
		return fmt.Errorf("has an empty part")
	}
	if len(path) == 1 {
		object[key] = v
		return nil
	}
	next, there := object[key]
	if !there {
		next = map[string]any{}
		object[key] = next
	}
	inner, ok := next.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is no object but %s; set it as a whole", key, jsonText(next))
	}
	return setField(inner, path[1:], v)
}

// unsetField removes a field, and the objects that are empty without it.
func unsetField(object map[string]any, path []string) bool {
	key := path[0]
	if len(path) == 1 {
		_, there := object[key]
		delete(object, key)
		return there
	}
	inner, ok := object[key].(map[string]any)
	if !ok || !unsetField(inner, path[1:]) {
		return false
	}
	if len(inner) == 0 {
		delete(object, key)
	}
	return true
}

// policyDiff lists the fields in which two policies differ, deep in objects and
// whole in lists.
func policyDiff(from, to appliance.RawPolicy) []change {
	a, errA := policyObject(from)
	b, errB := policyObject(to)
	if errA != nil || errB != nil {
		return []change{{Field: "policy", From: string(from), To: string(to)}}
	}
	return diffObjects("policy", a, b, nil)
}

func diffObjects(path string, a, b map[string]any, out []change) []change {
	keys := slices.Collect(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		x, inA := a[k]
		y, inB := b[k]
		if inA && inB && sameValue(x, y) {
			continue
		}
		at := path + "." + k
		xo, xIs := x.(map[string]any)
		yo, yIs := y.(map[string]any)
		switch {
		case xIs && yIs, xIs && !inB && len(xo) > 0, yIs && !inA && len(yo) > 0:
			out = diffObjects(at, xo, yo, out)
		default:
			out = append(out, change{Field: at, From: orNull(x, inA), To: orNull(y, inB)})
		}
	}
	return out
}

// orNull tells a null that is there from an absent value.
func orNull(v any, there bool) any {
	if there && v == nil {
		return json.RawMessage("null")
	}
	return v
}

// sameValue compares JSON values; numbers by what they are, so that 1 is 1.0.
func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameValue)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameValue)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && (a == b || sameNumber(a, b))
	}
	return a == b
}

func sameNumber(a, b json.Number) bool {
	x, okX := new(big.Float).SetPrec(200).SetString(string(a))
	y, okY := new(big.Float).SetPrec(200).SetString(string(b))
	return okX && okY && x.Cmp(y) == 0
}

// policyLines writes a policy for people, a line for each field.
func policyLines(p appliance.RawPolicy) []string {
	object, err := policyObject(p)
	if err != nil {
		return []string{string(p)}
	}
	var out []string
	for _, c := range diffObjects("", nil, object, nil) {
		out = append(out, strings.TrimPrefix(c.Field, ".")+": "+plainText(c.To))
	}
	return out
}

func jsonText(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}

// plainText is jsonText without the quotes of a text.
func plainText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return jsonText(v)
}

// policyTOML gives a policy as TOML can hold it, false if it cannot: TOML has
// no null, and whole numbers of 64 bits.
func policyTOML(p appliance.RawPolicy) (map[string]any, bool) {
	object, err := policyObject(p)
	if err != nil {
		return nil, false
	}
	v, ok := tomlValue(object)
	if !ok {
		return nil, false
	}
	var b bytes.Buffer
	if err := toml.NewEncoder(&b).Encode(v); err != nil {
		return nil, false
	}
	return v.(map[string]any), true
}

func tomlValue(v any) (any, bool) {
	switch v := v.(type) {
	case nil:
		return nil, false
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, true
		}
		f, err := v.Float64()
		return f, err == nil && sameNumber(v, json.Number(jsonText(f)))
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			y, ok := tomlValue(x)
			if !ok {
				return nil, false
			}
			out[k] = y
		}
		return out, true
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			y, ok := tomlValue(x)
			if !ok {
				return nil, false
			}
			out[i] = y
		}
		return out, true
	}
	return v, true
}
