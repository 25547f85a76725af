package iam

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

func TestRefusedPoliciesSayWhereAndWhy(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     `holds no statement`,
		`// only a comment`:                    `holds no statement`,
		`permit (principal, action, resource)`: `line 1, column 37: got  want ;`,
		"permit (\n  principal,\n  act,\n  resource);":                                                       `line 3, column 6: near ",": got act want action`,
		"permit (principal, action, resource) when { \"\\q\" == 1 };":                                        `line 1, column 45: invalid char escape`,
		"permit (principal, action, resource);\n\nforbid (principal, action, resource is Pol);":              "the statement at line 3, column 1: unrecognized entity type `Pol`",
		`forbid (principal, action, resource is Pool) when { resource.gpuModle == "H100" };`:                 "the statement at line 1, column 1: attribute `gpuModle` on entity type `Pool` not found",
		`forbid (principal, action, resource is Pool) when { resource.gpuModel == 100 };`:                    "the statement at line 1, column 1: the types Long and String are not compatible",
		`forbid (principal, action, resource) when { resource.gpuModel == "H100" };`:                         "the statement at line 1, column 1: attribute `gpuModel` on entity type `Tenant` not found (some of these actions are decided on a tenant as well: write `resource is Pool`)",
		`forbid (principal, action == Action::"compute:pols:read", resource);`:                               "the statement at line 1, column 1: unrecognized action `Action::\"compute:pols:read\"`",
		`permit (principal in Role::"ownr", action, resource);`:                                              `the statement at line 1, column 1: Role::"ownr" is not a role`,
		`permit (principal is LocalOperator, action, resource);`:                                             "the statement at line 1, column 1: no action is asked by such a principal about such a resource; principals are User and Key, resources Tenant and Pool",
		`permit (principal, action == Action::"compute:nodes:report", resource);`:                            "the statement at line 1, column 1: no action is asked by such a principal about such a resource; principals are User and Key, resources Tenant and Pool",
		`forbid (principal, action, resource) unless { context.address.isInRange(ip("10.0.0.0/8")) };`:       "the statement at line 1, column 1: unable to guarantee safety of access to optional attribute `address` in context (write `context has address && …`: callers on the local socket have none)",
		`forbid (principal, action, resource) when { context.at > datetime("yesterday") };`:                  "the statement at line 1, column 1: error during extension function argument validation: failed to parse as a datetime value: `\"yesterday\"`",
		"@id(\"a\") permit (principal, action, resource);\n@id(\"a\") forbid (principal, action, resource);": `line 2: a second statement is called "tenant:policy#a"`,
		`@id("a b") permit (principal, action, resource);`:                                                   `line 1: @id("a b") is not 1 to 63 letters, digits, dots, underscores or hyphens`,
		"permit (principal, action, resource)\nwhen { " + strings.Repeat("(", 40):                            `line 2: more than 32 brackets inside each other`,
		"permit (principal, action, resource)\nwhen { context has a" + strings.Repeat(".a", 40) + " };":      `line 2: more than 32 attributes of each other`,
		"permit (principal, action, resource)\nwhen { !!! ! !true };":                                        `line 2: more than 4 of ! and - in a row`,
		strings.Repeat("permit (principal, action, resource);", 65):                                          `65 statements, more than 64`,
		"permit (principal, action, resource);" + strings.Repeat(" ", appliance.MaxPolicyText):               `16421 bytes, more than 16384`,
	} {
		err := ValidatePolicy(text)
		var refusal *appliance.Error
		if !errors.As(err, &refusal) || refusal.Code != appliance.InvalidInput || refusal.Field != "cedar" {
			t.Errorf("%.80q: %v, want a refusal of the field cedar", text, err)
			continue
		}
		if diff := cmp.Diff("cedar: "+want, refusal.Message); diff != "" {
			t.Errorf("%.80q (-want +got):\n%s", text, diff)
		}
	}
}

func TestSoundPoliciesPass(t *testing.T) {
	for _, text := range []string{
		`permit (principal, action, resource);`,
		`forbid (principal is User, action in [Action::"compute:pools:*", Action::"iam:keys:manage"], resource) when { principal.role == "operator" };`,
		`permit (principal == Key::"key_01k5c000000000000000000000", action, resource == Pool::"pool_01k5c000000000000000000000");`,
		`forbid (principal, action, resource is Pool) when { resource.region like "us-*" && resource.sharing == "mig" };`,
		`forbid (principal, action, resource) unless { context has address && context.address.isInRange(ip("10.0.0.0/8")) };`,
		`forbid (principal, action, resource is Pool) when { resource.gpuModel == ")]}(((((((((((((((((((((((((((((((((((((((\"((" }; // ((((((((`,
		"@id(\"a\")\npermit (principal, action, resource);\n@id(\"b\")\n@reason(\"closed on the 5th\")\nforbid (principal, action, resource) when { context.at > datetime(\"2026-03-05\") };",
	} {
		if err := ValidatePolicy(text); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
}

func TestStatementsAreNamedAfterTheirPolicy(t *testing.T) {
	const permit = "permit (principal, action, resource);"
	for text, want := range map[string][]string{
		permit:                            {"tenant:p"},
		permit + permit:                   {"tenant:p#1", "tenant:p#2"},
		`@id("x")` + permit:               {"tenant:p#x"},
		permit + `@id("nights")` + permit: {"tenant:p#1", "tenant:p#nights"},
	} {
		set, err := parse("tenant:p", text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range set {
			got = append(got, s.name)
		}
		if !cmp.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestAReasonIsToldToWhoIsDenied(t *testing.T) {
	e := tree(t, `@reason("the cluster is closed for the audit") forbid (principal, action == Action::"compute:reservations:create", resource);`)
	d := e.Decide(Question{Caller: apiKey("acme", appliance.RoleOwner), Action: appliance.ReservationsCreate, Tenant: "acme", Pool: h100("acme", true), At: noon})
	want := Decision{Policies: []string{"tenant:p1"}, Reason: "forbidden by tenant:p1: the cluster is closed for the audit"}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

func TestTheSchemaAndTheWordsHaveTheSameActions(t *testing.T) {
	var schema []appliance.Action
	for a := range vocabulary().asked {
		schema = append(schema, a)
	}
	words := slices.Clone(appliance.Actions)
	slices.Sort(schema)
	slices.Sort(words)
	if diff := cmp.Diff(words, schema); diff != "" {
		t.Errorf("actions (-words +schema):\n%s", diff)
	}
}

func TestTheBuiltInPoliciesAreSoundAndLookAtNothingThatIsNotRemembered(t *testing.T) {
	for _, file := range []string{"roles", "guardrails", "platform"} {
		names := map[string]bool{}
		var f facts
		for _, s := range builtin(file) {
			if s.name == file+":" || names[s.name] {
				t.Errorf("%s: a statement without its own @id: %s", file, s.name)
			}
			names[s.name] = true
			// The schema knows users and keys alone to ask for things.
			if err := checkAgainstSchema(s.policy); err != nil && file != "platform" {
				t.Errorf("%s: %v", s.name, err)
			}
			f.add(s.policy)
		}
		if f.gpuModel || f.class || f.sharing || f.region {
			t.Errorf("%s looks at an attribute that is remembered only if a tenant's policy does: %+v", file, f)
		}
	}
}

// Whatever the text: no panic, one decision for equal questions, and no effect
// on another tenant.
func FuzzValidatePolicy(f *testing.F) {
	for _, seed := range []string{
		`permit (principal, action, resource);`,
		`@id("a") forbid (principal in Role::"viewer", action in [Action::"compute:pools:*"], resource is Pool) when { resource.gpuModel like "H*" };`,
		`forbid (principal, action, resource) unless { context has address && context.address.isInRange(ip("10.0.0.0/8")) };`,
		`permit (principal == Key::"key_1", action, resource == Pool::"pool_1") when { if resource.owned then 1 + 1 == 2 else -1 < 2 };`,
		`permit (principal, action, resource) when { {"a": [1, 2]}.a.contains(1) || context.at.toDate() > datetime("2026-01-01") };`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := ValidatePolicy(text)
		if err != nil && appliance.CodeOf(err) != appliance.InvalidInput {
			t.Fatalf("refused with %v, want INVALID_INPUT", err)
		}
		e := tree(t)
		set := e.SetTenant("acme", []string{"root"}, []appliance.AccessPolicy{{Name: "p", Cedar: text}})
		if (set == nil) != (err == nil) {
			t.Fatalf("ValidatePolicy says %v, SetTenant %v", err, set)
		}
		for _, q := range []Question{
			{Tenant: "acme", Action: appliance.PoolsRead},
			{Tenant: "acme", Action: appliance.PoolsManage, Pool: h100("acme", true)},
		} {
			q.Caller, q.At = apiKey("acme", appliance.RoleViewer), noon
			if diff := cmp.Diff(e.Decide(q), e.Decide(q)); diff != "" {
				t.Fatalf("the same question, two answers:\n%s", diff)
			}
			if err != nil && e.Decide(q).Allowed {
				t.Fatal("permitted although the policy cannot be read")
			}
		}
		beta := Question{Tenant: "beta", Action: appliance.KeysManage, Caller: apiKey("beta", appliance.RoleViewer), At: noon}
		if e.Decide(beta).Allowed {
			t.Fatal("another tenant's viewer gained by it")
		}
	})
}
