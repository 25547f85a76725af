package api

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"

	"github.com/bettercompute/bc/appliance"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// answers is how everything is written: omitempty means what it means in
// encoding/json, empty lists are [] and never null, keys are in order, and a
// policy's strings and numbers come back as they were written.
var answers = json.JoinOptions(
	json.Deterministic(true),
	jsonv1.OmitEmptyWithLegacySemantics(true),
	jsontext.PreserveRawStrings(true),
	jsontext.AllowDuplicateNames(true), // what we write holds none: do not look for them
	jsontext.AllowInvalidUTF8(true),    // a host's broken bytes become U+FFFD, not a failure
)

// method is one registered verb.
type method struct {
	name, path      string
	action, summary string
	hidden          bool           // not in the OpenAPI document
	anonymous       bool           // served without a credential, as the zero Caller
	inputs          func() *inputs // compiled when they are first needed
	in, out         reflect.Type
	examples        []example
	serve           func(*exchange) error
}

// Module is the part of the name before the dot.
func (m *method) module() string {
	module, _, _ := strings.Cut(m.name, ".")
	return module
}

// RPC registers POST /v1/<name>. The input is read strictly by the JSON names,
// and by the limits that the tags of I's fields state (see package huma's
// documentation of tags): what the OpenAPI document says is what is enforced.
// Policies are the exception: their bytes arrive untouched for control to
// judge. The handler's refusals reach the caller; any other error is INTERNAL.
//
// It panics if the name is taken or not module.verb, or after
// [Server.Handler]: both are mistakes in the wiring.
func RPC[I, O any](s *Server, name, action, summary string, h func(context.Context, appliance.Caller, I) (O, error)) {
	module, verb, ok := strings.Cut(name, ".")
	if !ok || module == "" || verb == "" {
		panic(fmt.Sprintf("api: method name %q is not module.verb", name))
	}
	register(s, &method{name: name, path: "/v1/" + name, action: action, summary: summary}, true, h)
}

// OpenRPC is RPC for a verb that needs no credential, such as signing in. A
// request without one reaches the handler as a Caller without a Kind; a refusal
// with UNAUTHENTICATED counts against the address like any bad credential.
func OpenRPC[I, O any](s *Server, name, summary string, h func(context.Context, appliance.Caller, I) (O, error)) {
	register(s, &method{name: name, path: "/v1/" + name, action: "none", summary: summary, anonymous: true}, true, h)
}

// AgentRPC registers POST /agent/v1/<name> for nodes. It is in no OpenAPI
// document, and by the rules of package wire input fields that it does not
// know are passed over. A request without a credential reaches the handler as
// a Caller without a Kind, for it to join or refuse; a refusal with
// UNAUTHENTICATED counts against the address like any bad credential.
func AgentRPC[I, O any](s *Server, name string, h func(context.Context, appliance.Caller, I) (O, error)) {
	register(s, &method{name: "agent." + name, path: "/agent/v1/" + name, hidden: true, anonymous: true}, false, h)
}

func register[I, O any](s *Server, m *method, strict bool, h func(context.Context, appliance.Caller, I) (O, error)) {
	s.init()
	if s.built.Load() {
		panic("api: " + m.name + " registered after Handler")
	}
	for _, other := range s.methods {
		if other.path == m.path {
			panic("api: " + m.name + " registered twice")
		}
	}
	m.in, m.out = reflect.TypeFor[I](), reflect.TypeFor[O]()
	m.inputs = sync.OnceValue(func() *inputs { return s.doc.inputs(m, strict) })
	m.serve = func(x *exchange) error {
		caller, err := x.caller(m.anonymous)
		if err != nil {
			return err
		}
		buf := getBuffer()
		defer buf.free()
		if err := x.body(buf); err != nil {
			return err
		}
		var in I
		if err := m.inputs().decode(buf.b, reflect.ValueOf(&in).Elem()); err != nil {
			return err
		}
		out, err := h(x.r.Context(), caller, in)
		if err != nil {
			if m.anonymous && appliance.CodeOf(err) == appliance.Unauthenticated {
				s.failures.note(x.address(), s.Now())
			}
			return err
		}
		buf.b = buf.b[:0]
		if err := buf.put(&out); err != nil {
			return fmt.Errorf("write the answer of %s: %w", m.name, err)
		}
		x.write(buf.b)
		if s.Log.Enabled(x.r.Context(), slog.LevelDebug) {
			x.log(slog.LevelDebug, "request served", "caller", caller.ID, "tenant", caller.Tenant)
		}
		return nil
	}
	s.methods = append(s.methods, m)
}

// example is one worked request of a method, as JSON.
type example struct {
	Name              string
	Request, Response jsontext.Value
}

// Example adds a worked request to a method's documentation. Request and
// response are Go values or raw JSON. The request must be one that the method
// takes: it panics otherwise, so that no example in the document is wrong.
func (s *Server) Example(method, name string, request, response any) {
	for _, m := range s.methods {
		if m.name != method {
			continue
		}
		e := example{name, exampleJSON(method, request), exampleJSON(method, response)}
		if err := m.inputs().decode(e.Request, reflect.New(m.in).Elem()); err != nil {
			panic(fmt.Sprintf("api: example %q of %s: %v", name, method, err))
		}
		if err := json.Unmarshal(e.Response, reflect.New(m.out).Interface(), json.RejectUnknownMembers(true)); err != nil {
			panic(fmt.Sprintf("api: answer of example %q of %s: %v", name, method, err))
		}
		m.examples = append(m.examples, e)
		return
	}
	panic("api: example of " + method + ", which is not registered")
}

func exampleJSON(method string, v any) jsontext.Value {
	var raw jsontext.Value
	switch v := v.(type) {
	case string:
		raw = jsontext.Value(v)
	case []byte:
		raw = jsontext.Value(v)
	default:
		b, err := json.Marshal(v, answers)
		if err != nil {
			panic(fmt.Sprintf("api: example of %s: %v", method, err))
		}
		raw = b
	}
	if err := raw.Compact(); err != nil {
		panic(fmt.Sprintf("api: example of %s is not JSON: %v", method, err))
	}
	return raw
}
