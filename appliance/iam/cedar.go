package iam

import (
	"embed"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	xast "github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"github.com/bettercompute/bc/appliance"
)

// This file is the only one that uses what cedar-go keeps under x/exp, which it
// may change at any time: reading the schema, checking a policy against it, and
// walking a policy.

//go:embed schema.cedarschema roles.cedar platform.cedar guardrails.cedar
var files embed.FS

// statement is one permit or forbid under the name that decisions give it.
type statement struct {
	name   string // roles:members-reserve, tenant:no-h100#2
	policy *cedar.Policy
	reason string // its @reason, for people
}

// statements is a set to authorize against, in the order of its texts.
type statements []statement

// All makes the set a cedar.PolicyIterator.
func (s statements) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for i := range s {
			if !yield(cedar.PolicyID(s[i].name), s[i].policy) {
				return
			}
		}
	}
}

// reasonOf is the @reason of a statement by name, or "".
func (s statements) reasonOf(name string) string {
	for i := range s {
		if s[i].name == name {
			return s[i].reason
		}
	}
	return ""
}

const (
	maxStatements = 64 // in one text; decisions cost in proportion to them
	maxNesting    = 32
	maxSigns      = 4 // as Cedar's grammar has it
)

// ValidatePolicy refuses, as INVALID_INPUT in the field cedar, a text that is
// not Cedar, or that the schema says could never be decided: unknown
// attributes, actions and types, comparisons of unlike things, an optional
// attribute used without asking for it. The message names the line and column.
func ValidatePolicy(text string) error {
	_, err := parse("tenant:policy", text)
	if err != nil {
		return err
	}
	return nil
}

// parse reads a text of one or more statements and checks each against the
// schema. The statements are named after the text; where there are several,
// by their @id, or else counted: tenant:no-h100#2.
func parse(name, text string) (statements, error) {
	list, err := read(text)
	if err != nil {
		return nil, err
	}
	out := make(statements, 0, len(list))
	for i, p := range list {
		if err := checkAgainstSchema(p); err != nil {
			at := p.Position()
			return nil, appliance.Invalid("cedar", "the statement at line %d, column %d: %s", at.Line, at.Column, err.Error()).Because(err)
		}
		s := statement{name: name, policy: p, reason: string(p.Annotations()["reason"])}
		if id := string(p.Annotations()["id"]); id != "" {
			if !appliance.IsLabel(id) {
				return nil, appliance.Invalid("cedar", "line %d: @id(%q) is not 1 to 63 letters, digits, dots, underscores or hyphens", p.Position().Line, id)
			}
			s.name += "#" + id
		} else if len(list) > 1 {
			s.name += "#" + strconv.Itoa(i+1)
		}
		if slices.ContainsFunc(out, func(o statement) bool { return o.name == s.name }) {
			return nil, appliance.Invalid("cedar", "line %d: a second statement is called %q", p.Position().Line, s.name)
		}
		out = append(out, s)
	}
	return out, nil
}

// read parses a text within the limits that keep parsing cheap.
func read(text string) (cedar.PolicyList, error) {
	if len(text) > appliance.MaxPolicyText {
		return nil, appliance.Invalid("cedar", "%d bytes, more than %d", len(text), appliance.MaxPolicyText)
	}
	if err := tooDeep(text); err != nil {
		return nil, err
	}
	list, err := cedar.NewPolicyListFromBytes("", []byte(text))
	if err != nil {
		return nil, appliance.Invalid("cedar", "%s", parseMessage(err)).Because(err)
	}
	if len(list) == 0 {
		return nil, appliance.Invalid("cedar", "holds no statement")
	}
	if len(list) > maxStatements {
		return nil, appliance.Invalid("cedar", "%d statements, more than %d", len(list), maxStatements)
	}
	return list, nil
}

var parsePosition = regexp.MustCompile(`<input>:(\d+):(\d+)( "[^"]*")?: `)

// parseMessage turns the parser's
//
//	parser error: parse error at <input>:2:6 ",": exact got actn want action
//
// into "line 2, column 6: near ",": got actn want action".
func parseMessage(err error) string {
	s := err.Error()
	m := parsePosition.FindStringSubmatchIndex(s)
	if m == nil {
		return strings.TrimPrefix(s, "parser error: ")
	}
	rest := strings.TrimPrefix(s[m[1]:], "exact ")
	at := fmt.Sprintf("line %s, column %s: ", s[m[2]:m[3]], s[m[4]:m[5]])
	if m[6] >= 0 && m[7]-m[6] > len(` ""`) {
		at += "near" + s[m[6]:m[7]] + ": "
	}
	return at + rest
}

// tooDeep says where and in what way a text, strings and comments aside, goes
// deeper than people write: the parser recurses for brackets and signs, and
// turns has a.b.c into a test for each step, which checking then walks more
// than quadratically (16 KiB of it took 50 s).
func tooDeep(text string) error {
	line, brackets, steps, signs := 1, 0, 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '"' {
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		} else if strings.HasPrefix(text[i:], "//") {
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
			continue
		}
		switch {
		case c == '\n':
			line++
		case c == ' ' || c == '\t' || c == '\r':
		case c == '.':
			steps++
		case c == '!' || c == '-':
			signs++
		case c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z':
			signs = 0
		default:
			steps, signs = 0, 0
			if strings.IndexByte("([{", c) >= 0 {
				brackets++
			} else if strings.IndexByte(")]}", c) >= 0 {
				brackets--
			}
		}
		switch {
		case brackets > maxNesting:
			return appliance.Invalid("cedar", "line %d: more than %d brackets inside each other", line, maxNesting)
		case steps > maxNesting:
			return appliance.Invalid("cedar", "line %d: more than %d attributes of each other", line, maxNesting)
		case signs > maxSigns:
			return appliance.Invalid("cedar", "line %d: more than %d of ! and - in a row", line, maxSigns)
		}
	}
	return nil
}

// neverMeet is what the validator says of a statement that no request meets.
const neverMeet = "unable to find an applicable action given the policy scope constraints"

var inContextFor = regexp.MustCompile(` in context for Action::"[^"]*"`)

// checkAgainstSchema gives each fault once, whatever number of actions and
// principals it was found for, and at most three.
func checkAgainstSchema(p *cedar.Policy) error {
	var faults []string
	if err := vocabulary().validator.Policy("", (*xast.Policy)(p.AST())); err != nil {
		faults = strings.Split(inContextFor.ReplaceAllString(err.Error(), " in context"), "\n")
	}
	// The validator takes any id for a member of an enumeration.
	walk(p, func(uid types.EntityUID) {
		if uid.Type == typeRole && appliance.CheckRole("", appliance.Role(uid.ID)) != nil {
			faults = append(faults, fmt.Sprintf("%s is not a role", uid))
		}
	}, func(string) {}, func(string) {})
	if faults == nil {
		return nil
	}
	slices.Sort(faults)
	faults = slices.Compact(faults)
	if len(faults) > 1 { // the cause stands beside it
		faults = slices.DeleteFunc(faults, func(f string) bool { return f == neverMeet })
	}
	said := strings.Join(faults[:min(len(faults), 3)], "; ")
	if said == neverMeet {
		said = "no action is asked by such a principal about such a resource; principals are User and Key, resources Tenant and Pool"
	}
	if strings.Contains(said, "on entity type `Tenant` not found") {
		said += " (some of these actions are decided on a tenant as well: write `resource is Pool`)"
	}
	if strings.Contains(said, "optional attribute `address`") {
		said += " (write `context has address && …`: callers on the local socket have none)"
	}
	return errors.New(said)
}

// words is the schema, read.
type words struct {
	validator *validate.Validator
	actions   types.EntityMap
	asked     map[appliance.Action]asked
}

// asked is an action, and what it can be decided on.
type asked struct {
	uid              types.EntityUID
	ofTenant, ofPool bool
}

// vocabulary reads the embedded schema, once.
var vocabulary = sync.OnceValue(func() words {
	text, _ := files.ReadFile("schema.cedarschema")
	var s schema.Schema
	s.SetFilename("schema.cedarschema")
	if err := s.UnmarshalCedar(text); err != nil {
		panic(err)
	}
	r, err := s.Resolve()
	if err != nil {
		panic(err)
	}
	w := words{validator: validate.New(r), actions: types.EntityMap{}, asked: map[appliance.Action]asked{}}
	for uid, a := range r.Actions {
		w.actions[uid] = a.Entity
		if uid.ID == types.String(appliance.NodesReport) {
			w.asked[appliance.NodesReport] = asked{uid: uid, ofTenant: true, ofPool: true}
		}
		if a.AppliesTo == nil {
			continue
		}
		w.asked[appliance.Action(uid.ID)] = asked{
			uid:      uid,
			ofTenant: slices.Contains(a.AppliesTo.Resources, typeTenant),
			ofPool:   slices.Contains(a.AppliesTo.Resources, typePool),
		}
	}
	return w
})

// builtin reads one of the embedded policy files, whose statements all have an
// @id.
func builtin(file string) statements {
	text, _ := files.ReadFile(file + ".cedar")
	list, err := cedar.NewPolicyListFromBytes(file+".cedar", text)
	if err != nil {
		panic(err)
	}
	var out statements
	for _, p := range list {
		a := p.Annotations()
		out = append(out, statement{name: file + ":" + string(a["id"]), policy: p, reason: string(a["reason"])})
	}
	return out
}

// facts is what a set of policies can tell apart. Cedar has no way to take an
// entity's id apart or to make one, so a decision stays the same when an id
// that no policy spells out is swapped for another; the same holds for an
// attribute that no policy names. Such ids and attributes are left out of what
// a decision is remembered by.
type facts struct {
	ids                              map[string]bool // spelled out, of whatever type
	gpuModel, class, sharing, region bool
	context                          bool // the hour and the address may matter
}

// add learns what one more policy tells apart.
func (f *facts) add(p *cedar.Policy) {
	walk(p, f.id, f.attribute, func(variable string) {
		f.context = f.context || variable == "context"
	})
}

// walk visits the entities that a policy spells out, the attributes that it
// names, and its variables.
func walk(p *cedar.Policy, entity func(types.EntityUID), attribute, variable func(string)) {
	ast := (*xast.Policy)(p.AST())
	for _, scope := range []any{ast.Principal, ast.Action, ast.Resource} {
		switch s := scope.(type) {
		case xast.ScopeTypeEq:
			entity(s.Entity)
		case xast.ScopeTypeIn:
			entity(s.Entity)
		case xast.ScopeTypeIsIn:
			entity(s.Entity)
		case xast.ScopeTypeInSet:
			for _, e := range s.Entities {
				entity(e)
			}
		}
	}
	for _, c := range ast.Conditions {
		xast.Inspect(xast.NewNode(c.Body), func(n xast.IsNode) bool {
			switch n := n.(type) {
			case xast.NodeValue:
				if uid, ok := n.Value.(types.EntityUID); ok {
					entity(uid)
				}
			case xast.NodeTypeAccess:
				attribute(string(n.Value))
			case xast.NodeTypeHas:
				attribute(string(n.Value))
			case xast.NodeTypeVariable:
				variable(string(n.Name))
			}
			return true
		})
	}
}

func (f *facts) id(uid types.EntityUID) {
	if f.ids == nil {
		f.ids = map[string]bool{}
	}
	f.ids[string(uid.ID)] = true
}

func (f *facts) attribute(name string) {
	switch name {
	case "gpuModel":
		f.gpuModel = true
	case "class":
		f.class = true
	case "sharing":
		f.sharing = true
	case "region":
		f.region = true
	}
}
