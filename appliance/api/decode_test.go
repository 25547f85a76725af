package api

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
)

// thing is the input of the test verbs: one field of each kind that the
// product's inputs have.
type thing struct {
	TenantID  string                  `json:"tenantId" doc:"Whose." example:"acme"`
	Class     string                  `json:"class,omitempty" enum:"metal-host,vps-host,provider"`
	Max       int                     `json:"max,omitempty" minimum:"0" maximum:"2147483647"`
	Ratio     float64                 `json:"ratio,omitempty" minimum:"0.5"`
	DryRun    bool                    `json:"dryRun,omitempty"`
	Name      string                  `json:"name,omitempty" maxLength:"5"`
	ExpiresAt *appliance.Time         `json:"expiresAt,omitempty"`
	Version   *int                    `json:"version,omitempty" minimum:"1"`
	Resources appliance.Amounts       `json:"resources,omitempty"`
	Selector  appliance.Selector      `json:"selector,omitempty"`
	Labels    map[string]string       `json:"labels,omitempty"`
	States    []appliance.Sharing     `json:"states,omitempty" enum:"mig,mps" maxItems:"2"`
	Parts     []part                  `json:"parts,omitempty"`
	Policy    appliance.RawPolicy     `json:"policy,omitempty"`
	PolicyPtr *appliance.RawPolicy    `json:"policyPtr,omitempty"`
	appliance.Page
}

type part struct {
	Kind  string `json:"kind" enum:"a,b"`
	Count int    `json:"count,omitempty" minimum:"1"`
}

func thingInputs() *inputs {
	d := newDocument()
	t := reflect.TypeFor[thing]()
	return newInputs("things.make", t, d.schema(t), d.registry, true)
}

func TestBadInputIsRefusedInWordsThatNameTheField(t *testing.T) {
	for _, c := range []struct{ body, field, message string }{
		{``, "tenantId", "tenantId: is required"},
		{`{}`, "tenantId", "tenantId: is required"},
		{`{"tenantId":"a","max":}`, "?", "?"},
		{`{"tenantId":"a"`, "", "?"},
		{`{"tenantId":"a"}x`, "", "?"},
		{`{"tenantId":"a"} {}`, "", "?"},
		{`[1]`, "", "?"},
		{`null`, "", "?"},
		{`"x"`, "", "?"},
		{`nul`, "", "?"},
		{`{'a':1}`, "", "?"},
		{"\xef\xbb\xbf{}", "", "?"},
		{`{"tenantId":"a","nope":1}`, "nope", "?"},
		{`{"tenantId":"a","TenantID":"b"}`, "TenantID", "?"},
		{`{"tenantId":"a","tenantId":"b"}`, "tenantId", "?"},
		{`{"tenantId":"a","policy":{"cpu":{"isolate":"1","isolate":"2"}}}`, "?", "?"},
		{"{\"tenantId\":\"\xff\"}", "?", "?"},
		{"{\"tenantId\":\"a\",\"policy\":{\"x\":\"\xff\"}}", "?", "?"},
		{`{"tenantId":5}`, "?", "?"},
		{`{"tenantId":null}`, "?", "?"},
		{`{"tenantId":["a"]}`, "?", "?"},
		{`{"tenantId":"a","class":"bogus"}`, "?", "?"},
		{`{"tenantId":"a","class":""}`, "?", "?"},
		{`{"tenantId":"a","max":"5"}`, "?", "?"},
		{`{"tenantId":"a","max":1.5}`, "?", "?"},
		{`{"tenantId":"a","max":1e3}`, "?", "?"},
		{`{"tenantId":"a","max":-1}`, "?", "?"},
		{`{"tenantId":"a","max":2147483648}`, "?", "?"},
		{`{"tenantId":"a","max":99999999999999999999}`, "?", "?"},
		{`{"tenantId":"a","max":NaN}`, "?", "?"},
		{`{"tenantId":"a","max":01}`, "?", "?"},
		{`{"tenantId":"a","max":true}`, "?", "?"},
		{`{"tenantId":"a","ratio":0.1}`, "?", "?"},
		{`{"tenantId":"a","ratio":1e999}`, "?", "?"},
		{`{"tenantId":"a","dryRun":"yes"}`, "?", "?"},
		{`{"tenantId":"a","name":"sixsix"}`, "?", "?"},
		{`{"tenantId":"a","expiresAt":"tomorrow"}`, "?", "?"},
		{`{"tenantId":"a","expiresAt":5}`, "?", "?"},
		{`{"tenantId":"a","expiresAt":null}`, "?", "?"},
		{`{"tenantId":"a","version":0}`, "?", "?"},
		{`{"tenantId":"a","resources":{"gpu":null}}`, "?", "?"},
		{`{"tenantId":"a","resources":{"gpu":-1}}`, "?", "?"},
		{`{"tenantId":"a","resources":{"gpu.mig":"1"}}`, "?", "?"},
		{`{"tenantId":"a","resources":{"bogus":1}}`, "?", "?"},
		{`{"tenantId":"a","resources":[]}`, "?", "?"},
		{`{"tenantId":"a","selector":{"gpuProduct":{"in":["a"],"min":1}}}`, "?", "?"},
		{`{"tenantId":"a","selector":{"gpuProduct":null}}`, "?", "?"},
		{`{"tenantId":"a","selector":{"gpuProduct":{"bogus":1}}}`, "?", "?"},
		{`{"tenantId":"a","labels":{"a":1}}`, "?", "?"},
		{`{"tenantId":"a","labels":{"%s%d":1}}`, "?", "?"},
		{`{"tenantId":"a","states":["mig","bogus"]}`, "?", "?"},
		{`{"tenantId":"a","states":["mig","mps","mig"]}`, "?", "?"},
		{`{"tenantId":"a","states":"mig"}`, "?", "?"},
		{`{"tenantId":"a","parts":[{"kind":"a"},{"kind":"c"}]}`, "?", "?"},
		{`{"tenantId":"a","parts":[{"kind":"a","more":1}]}`, "?", "?"},
		{`{"tenantId":"a","parts":[{"count":1}]}`, "?", "?"},
		{`{"tenantId":"a","parts":[null]}`, "?", "?"},
		{`{"tenantId":"a","policy":null}`, "?", "?"},
		{`{"tenantId":"a","policyPtr":null}`, "?", "?"},
		{`{"tenantId":"a","policy":"{}"}`, "?", "?"},
		{`{"tenantId":"a","policy":[]}`, "?", "?"},
		{`{"tenantId":"a","limit":0}`, "?", "?"},
		{`{"tenantId":"a","limit":501}`, "?", "?"},
		{`{"tenantId":"a","%s":1}`, "?", "?"},
		{`{"tenantId":"a","policy":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100) + `}`, "?", "?"},
		{strings.Repeat(`[`, 100000), "", "?"},
	} {
		var in thing
		err := thingInputs().decode([]byte(c.body), reflect.ValueOf(&in).Elem())
		var e *appliance.Error
		if !errors.As(err, &e) || e.Code != appliance.InvalidInput {
			t.Errorf("%.100s: %v", c.body, err)
			continue
		}
		t.Logf("{`%.90s`, %q, %q},", c.body, e.Field, e.Message)
	}
}

var _ = context.Background
var _ = json.Marshal
var _ huma.Schema
