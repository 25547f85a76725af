package api

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

// Every field of any value, so that one that is added to the type and not to
// AppendJSON is found too.
func TestAReservationWritesItselfAsTheLibraryWouldWriteIt(t *testing.T) {
	type plain appliance.Reservation // without its method
	gen := rapid.MakeCustom[plain](rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[appliance.Time](): rapid.Custom(func(t *rapid.T) any {
			return appliance.AtMillis(rapid.Int64Range(-1<<45, 1<<47).Draw(t, "ms"))
		}),
		reflect.TypeFor[*float64](): rapid.Custom(func(t *rapid.T) any { // no NaN comes through the door
			if f := rapid.Float64Range(-1e30, 1e30).Draw(t, "f"); f > 0 {
				return &f
			}
			return (*float64)(nil)
		}),
		reflect.TypeFor[string](): rapid.OneOf(
			rapid.String(), rapid.StringMatching(`[a-zA-Z0-9_-]{0,30}`),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).AsAny(),
	}})
	rapid.Check(t, func(t *rapid.T) {
		p := gen.Draw(t, "reservation")
		want, err := json.Marshal(&p, answers)
		if err != nil {
			t.Fatal(err)
		}
		r := appliance.Reservation(p)
		if diff := cmp.Diff(string(want), string(r.AppendJSON(nil))); diff != "" {
			t.Fatal(diff)
		}
	})
}
