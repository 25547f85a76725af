package api

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// rule is what a schema says of a value beyond its type, compiled so that a
// decoded value is checked without being looked at as JSON again.
type rule struct {
	min, max           *float64
	minLength          *int
	maxLength          *int
	minItems, maxItems *int
	enum               []string
	pattern            *regexp.Regexp
	element            *rule
	keys               map[string]*rule // of a map that takes these keys only
	fields             []fieldRule
}

type fieldRule struct {
	name     string
	path     []int
	required bool
	rule     *rule
}

// compileRule gives nil when there is nothing to check.
func compileRule(r huma.Registry, s *huma.Schema, t reflect.Type) *rule {
	if s == nil || isRaw(t) {
		return nil
	}
	if s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	out := &rule{
		min: s.Minimum, max: s.Maximum, minLength: s.MinLength, maxLength: s.MaxLength,
		minItems: s.MinItems, maxItems: s.MaxItems,
	}
	for _, v := range s.Enum {
		out.enum = append(out.enum, fmt.Sprint(v))
	}
	if s.Pattern != "" {
		out.pattern = regexp.MustCompile(s.Pattern)
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		out.element = compileRule(r, s.Items, t.Elem())
	case reflect.Map:
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
			out.element = compileRule(r, values, t.Elem())
		}
		if s.AdditionalProperties == false {
			out.keys = map[string]*rule{}
			for name, p := range s.Properties {
				out.keys[name] = compileRule(r, p, t.Elem())
			}
			out.enum = slices.Sorted(maps.Keys(out.keys))
		}
	case reflect.Struct:
		out.fields = compileFields(r, s, t)
	}
	if out.empty() {
		return nil
	}
	return out
}

func compileFields(r huma.Registry, s *huma.Schema, t reflect.Type) []fieldRule {
	var out []fieldRule
	if s.Type != huma.TypeObject {
		return nil
	}
	for _, f := range jsonFields(t) {
		required := slices.Contains(s.Required, f.name)
		sub := compileRule(r, s.Properties[f.name], f.typ)
		if sub != nil || required && f.typ.Kind() == reflect.String {
			out = append(out, fieldRule{f.name, f.path, required, sub})
		}
	}
	return out
}

func (r *rule) empty() bool {
	return r.min == nil && r.max == nil && r.minLength == nil && r.maxLength == nil && r.minItems == nil && r.maxItems == nil &&
		r.enum == nil && r.pattern == nil && r.element == nil && r.keys == nil && r.fields == nil
}

// check refuses a value out of its limits, naming the path to it.
func (r *rule) check(path string, v reflect.Value) error {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return r.checkNumber(path, float64(v.Int()), strconv.FormatInt(v.Int(), 10))
	case reflect.Float32, reflect.Float64:
		return r.checkNumber(path, v.Float(), strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case reflect.String:
		return r.checkText(path, v.String())
	case reflect.Slice, reflect.Array:
		return r.checkList(path, v)
	case reflect.Map:
		return r.checkMap(path, v)
	case reflect.Struct:
		return r.checkFields(path, v)
	}
	return nil
}

func (r *rule) checkNumber(path string, n float64, text string) error {
	if (r.min == nil || n >= *r.min) && (r.max == nil || n <= *r.max) {
		return nil
	}
	switch {
	case r.min != nil && r.max != nil:
		return invalid(path, "%s is not %s to %s", text, number(*r.min), number(*r.max))
	case r.min != nil:
		return invalid(path, "%s is below %s", text, number(*r.min))
	default:
		return invalid(path, "%s is above %s", text, number(*r.max))
	}
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func (r *rule) checkText(path, s string) error {
	if r.enum != nil && !slices.Contains(r.enum, s) {
		return invalid(path, "%q is not %s", clip(s, 64), choices(r.enum))
	}
	if r.minLength != nil && utf8.RuneCountInString(s) < *r.minLength {
		if s == "" {
			return invalid(path, "is empty")
		}
		return invalid(path, "shorter than %d characters", *r.minLength)
	}
	if r.maxLength != nil && len(s) > *r.maxLength && utf8.RuneCountInString(s) > *r.maxLength {
		return invalid(path, "longer than %d characters", *r.maxLength)
	}
	if r.pattern != nil && !r.pattern.MatchString(s) {
		return invalid(path, "%q does not match %s", clip(s, 64), r.pattern)
	}
	return nil
}

func (r *rule) checkList(path string, v reflect.Value) error {
	if r.minItems != nil && v.Len() < *r.minItems {
		return invalid(path, "holds %d items, fewer than %d", v.Len(), *r.minItems)
	}
	if r.maxItems != nil && v.Len() > *r.maxItems {
		return invalid(path, "holds %d items, more than %d", v.Len(), *r.maxItems)
	}
	if r.element == nil {
		return nil
	}
	for i := range v.Len() {
		if err := r.element.check(path+"["+strconv.Itoa(i)+"]", v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rule) checkMap(path string, v reflect.Value) error {
	if r.element == nil && r.keys == nil {
		return nil
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		element := r.element
		if r.keys != nil {
			known, ok := r.keys[k.String()]
			if !ok {
				return invalid(path, "%q is not %s", clip(k.String(), 64), choices(r.enum))
			}
			element = known
		}
		if element == nil {
			continue
		}
		if err := element.check(path+"."+clip(k.String(), 64), v.MapIndex(k)); err != nil {
			return err
		}
	}
	return nil
}

func (r *rule) checkFields(path string, v reflect.Value) error {
	for _, f := range r.fields {
		sub := v.FieldByIndex(f.path)
		if sub.IsZero() {
			if f.required && sub.Kind() == reflect.String {
				return invalid(path+"."+f.name, "is required")
			}
			if !f.required {
				continue
			}
		}
		if f.rule == nil {
			continue
		}
		if err := f.rule.check(path+"."+f.name, sub); err != nil {
			return err
		}
	}
	return nil
}

// choices lists the legal values: a, b or c.
func choices(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
