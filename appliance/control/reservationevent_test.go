package control

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

func TestAReservationsEventWritesItselfAsTheLibraryWouldWriteIt(t *testing.T) {
	type plain reservationFacts // without its method
	gen := rapid.MakeCustom[plain](rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[appliance.Time](): rapid.Custom(func(t *rapid.T) any {
			return appliance.AtMillis(rapid.Int64Range(0, 1<<47).Draw(t, "ms"))
		}),
		reflect.TypeFor[string](): rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z]{0,9}`)).AsAny(),
	}})
	rapid.Check(t, func(t *rapid.T) {
		p := gen.Draw(t, "facts")
		want, err := json.Marshal(&p, json.Deterministic(true), jsonv1.OmitEmptyWithLegacySemantics(true), jsontext.AllowInvalidUTF8(true))
		if err != nil {
			t.Fatal(err)
		}
		f := reservationFacts(p)
		if diff := cmp.Diff(string(want), string(f.AppendJSON(nil))); diff != "" {
			t.Fatal(diff)
		}
	})
}
