package api

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsHTML string

var docsPage = sync.OnceValue(func() *template.Template { return template.Must(template.New("docs").Parse(docsHTML)) })

// docsView is what the page shows.
type docsView struct {
	Version string
	Modules []docsModule
	Types   []docsType
	Codes   []docsCode
}

type docsModule struct {
	Name    string
	Methods []docsMethod
}

type docsMethod struct {
	Name, Path, Summary, Action string
	Input, Output               docsType
	Examples                    []docsExample
}

type docsExample struct{ Name, Request, Response string }

type docsType struct {
	Name   string
	Doc    string
	Fields []docsField
}

type docsField struct {
	Name, Doc string
	Type      string
	Link      string // the named type that it holds
	Limits    string
	Example   string
	Required  bool
}

// inputName is the caption of a method's input; only there, a field that is
// required says so.
const inputName = "Input"

type docsCode struct {
	Code   appliance.Code
	Status int
	Doc    string
}

// serveDocs renders the page from what is registered. It is one file: no
// script, nothing to fetch, so it is readable without the internet and under
// the strictest policy.
func (s *Server) serveDocs(x *exchange) error {
	s.doc.page.Do(func() {
		var page bytes.Buffer
		if s.doc.pageErr = docsPage().Execute(&page, s.docsView()); s.doc.pageErr == nil {
			s.doc.html = page.Bytes()
		}
	})
	if s.doc.pageErr != nil {
		return fmt.Errorf("render the docs: %w", s.doc.pageErr)
	}
	h := x.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", strconv.Itoa(len(s.doc.html)))
	_, _ = x.Write(s.doc.html)
	return nil
}

func (s *Server) docsView() docsView {
	s.OpenAPI() // describes the methods
	s.doc.mu.Lock()
	defer s.doc.mu.Unlock()
	view := docsView{Version: s.Version}
	modules := map[string]*docsModule{}
	for _, m := range s.methods {
		if m.hidden {
			continue
		}
		module := modules[m.module()]
		if module == nil {
			module = &docsModule{Name: m.module()}
			modules[m.module()] = module
		}
		d := docsMethod{
			Name: m.name, Path: m.path, Summary: m.summary, Action: m.action,
			Input: s.docsType(inputName, s.doc.schema(m.in), m.inputs().names), Output: s.docsType("Output", s.doc.schema(m.out), nil),
		}
		for _, e := range m.examples {
			d.Examples = append(d.Examples, docsExample{e.Name, indented(e.Request), indented(e.Response)})
		}
		module.Methods = append(module.Methods, d)
	}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		view.Modules = append(view.Modules, *modules[name])
	}
	schemas := s.doc.registry.Map()
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		view.Types = append(view.Types, s.docsType(name, schemas[name], nil))
	}
	for _, code := range slices.Sorted(maps.Keys(statuses)) {
		view.Codes = append(view.Codes, docsCode{code, statuses[code], codeDoc[code]})
	}
	slices.SortStableFunc(view.Codes, func(a, b docsCode) int { return a.Status - b.Status })
	return view
}

func indented(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// docsType describes an object's fields, in the given order or by name with
// the required ones first.
func (s *Server) docsType(name string, schema *huma.Schema, order []string) docsType {
	out := docsType{Name: name, Doc: schema.Description}
	if order == nil {
		order = slices.Sorted(maps.Keys(schema.Properties))
		slices.SortStableFunc(order, func(a, b string) int {
			return rank(schema, a) - rank(schema, b)
		})
	}
	for _, field := range order {
		p := schema.Properties[field]
		if p == nil {
			continue
		}
		f := docsField{Name: field, Doc: p.Description, Required: name == inputName && slices.Contains(schema.Required, field), Limits: limits(p)}
		f.Type, f.Link = typeText(p)
		if len(p.Examples) > 0 {
			if b, err := json.Marshal(p.Examples[0]); err == nil {
				f.Example = string(b)
			}
		}
		out.Fields = append(out.Fields, f)
	}
	return out
}

func rank(s *huma.Schema, field string) int {
	if slices.Contains(s.Required, field) {
		return 0
	}
	return 1
}

// typeText is a schema's type in words, with the named type to link to.
func typeText(s *huma.Schema) (text, link string) {
	switch {
	case s.Ref != "":
		name := strings.TrimPrefix(s.Ref, schemaPrefix)
		return name, name
	case len(s.OneOf) > 0:
		return "value, choice or range", ""
	case s.Type == huma.TypeArray && s.Items != nil:
		of, link := typeText(s.Items)
		return "list of " + of, link
	case s.Type == huma.TypeObject:
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
			of, link := typeText(values)
			return "map to " + of, link
		}
		return "object", ""
	case s.Format == "date-time":
		return "time", ""
	case s.Type == "":
		return "any", ""
	}
	return s.Type, ""
}

// limits puts a field's constraints in words.
func limits(s *huma.Schema) string {
	var out []string
	if s.Type == huma.TypeArray && s.Items != nil && s.Items.Enum != nil {
		out = append(out, limits(s.Items))
	}
	if s.Enum != nil {
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprint(v))
		}
		out = append(out, "one of "+strings.Join(values, ", "))
	}
	between := func(low, high, unit string) {
		switch {
		case low != "" && high != "":
			out = append(out, low+" to "+high+unit)
		case low != "":
			out = append(out, "at least "+low+unit)
		case high != "":
			out = append(out, "at most "+high+unit)
		}
	}
	between(floatText(s.Minimum), floatText(s.Maximum), "")
	between(intText(s.MinLength), intText(s.MaxLength), " characters")
	between(intText(s.MinItems), intText(s.MaxItems), " items")
	if s.Pattern != "" {
		out = append(out, "matches "+s.Pattern)
	}
	return strings.Join(out, "; ")
}

func floatText(f *float64) string {
	if f == nil {
		return ""
	}
	return number(*f)
}

func intText(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}
