package appliance

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestInputsOfIAMNameTheFieldThatTheyRefuse(t *testing.T) {
	const key = "key_01k5c000000000000000000000"
	good := func(in interface{ Validate() error }) {
		t.Helper()
		if err := in.Validate(); err != nil {
			t.Errorf("%+v: %v", in, err)
		}
	}
	good(CreateKey{Name: "ci", Role: RoleMember})
	good(CreateUser{Name: "ada@acme.example", Role: RoleOwner})
	good(CreateUser{Name: "ada", Role: RoleViewer, Password: "twelve chars"})
	good(CreateUser{Name: "ada", Role: RoleViewer, Password: "zwölf Zeichen"})
	good(UpdateUser{Disabled: new(bool)})
	good(UpdateUser{Role: RoleViewer})
	good(SetPassword{Password: strings.Repeat("x", MaxPassword)})
	good(PutPolicy{Name: "no-h100", Cedar: "permit (principal, action, resource);"})
	good(Check{Principal: "operator", Action: PoolsRead})
	good(Check{Principal: key, Action: ReservationsCreate})

	for _, c := range []struct {
		in    interface{ Validate() error }
		field string
	}{
		{CreateKey{Role: RoleMember}, "name"},
		{CreateKey{Name: "a b", Role: RoleMember}, "name"},
		{CreateKey{Name: "ci", Role: "admin"}, "role"},
		{CreateKey{Name: "ci"}, "role"},
		{CreateUser{Role: RoleOwner}, "name"},
		{CreateUser{Name: "<ada>", Role: RoleOwner}, "name"},
		{CreateUser{Name: strings.Repeat("a", 101), Role: RoleOwner}, "name"},
		{CreateUser{Name: "ada", Role: "root"}, "role"},
		{CreateUser{Name: "ada", Role: RoleOwner, Password: "eleven char"}, "password"},
		{SetPassword{}, "password"},
		{SetPassword{Password: strings.Repeat("x", MaxPassword+1)}, "password"},
		{SetPassword{Password: "twelve chars\xff"}, "password"},
		{UpdateUser{}, "role"},
		{UpdateUser{Role: "root"}, "role"},
		{PutPolicy{Cedar: "x"}, "name"},
		{PutPolicy{Name: "p", Cedar: " \n"}, "cedar"},
		{PutPolicy{Name: "p", Cedar: strings.Repeat("x", MaxPolicyText+1)}, "cedar"},
		{Check{Principal: "operator", Action: "compute:pools:steal"}, "action"},
		{Check{Principal: "ada", Action: PoolsRead}, "principal"},
		{Check{Principal: "pool_" + key[4:], Action: PoolsRead}, "principal"},
	} {
		err := c.in.Validate()
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != InvalidInput || refusal.Field != c.field {
			t.Errorf("%T %+v: %v, want INVALID_INPUT of %s", c.in, c.in, err, c.field)
		}
	}
}

func TestARefusedPasswordIsNotRepeated(t *testing.T) {
	for _, p := range []string{"hunter2", strings.Repeat("hunter2", 30), "hunter2hunter2\xff"} {
		if err := (SetPassword{Password: p}).Validate(); err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("the refusal of %q: %v", p, err)
		}
	}
}

func TestEveryActionIsListedOnceAndKnowsWhetherItWrites(t *testing.T) {
	for i, a := range Actions {
		if slices.Contains(Actions[i+1:], a) {
			t.Errorf("%s is listed twice", a)
		}
		if strings.Count(string(a), ":") != 2 {
			t.Errorf("%s is not service:things:verb", a)
		}
	}
	if PoolsRead.Writes() || AuditRead.Writes() || !PoolsShare.Writes() || !NodesJoin.Writes() {
		t.Error("Writes does not tell reading from writing")
	}
}
