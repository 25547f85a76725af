package api

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/bettercompute/bc/appliance"
)

// anyOf makes values of every field of a type, so that one that is added to the
// type and not to its AppendJSON is found too.
func anyOf[T any]() *rapid.Generator[T] {
	return rapid.MakeCustom[T](rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[appliance.Time](): rapid.Custom(func(t *rapid.T) any {
			return appliance.AtMillis(rapid.Int64Range(-1<<45, 1<<47).Draw(t, "ms"))
		}),
		reflect.TypeFor[*float64](): rapid.Custom(func(t *rapid.T) any { // no NaN comes through the door
			if f := rapid.Float64Range(-1e30, 1e30).Draw(t, "f"); f > 0 {
				return &f
			}
			return (*float64)(nil)
		}),
		reflect.TypeFor[appliance.RawPolicy](): rapid.SampledFrom([]appliance.RawPolicy{
			nil, appliance.RawPolicy("{}"), appliance.RawPolicy("{ \"perGpu\" : {\n\"vcpu\": 1.50e1} }"), appliance.RawPolicy(`{"a":"\u003c\/","a":12345678901234567890}`),
		}).AsAny(),
		reflect.TypeFor[string](): rapid.OneOf(
			rapid.String(), rapid.StringMatching(`[a-zA-Z0-9_-]{0,30}`),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).AsAny(),
	}})
}

// The types without their methods.
type (
	reservation appliance.Reservation
	pool        appliance.Pool
)

func TestWhatWritesItselfIsAsTheLibraryWouldWriteIt(t *testing.T) {
	same := func(t *rapid.T, plain, itself any) {
		want, err := json.Marshal(plain, answers)
		if err != nil {
			t.Fatal(err)
		}
		var got buffer
		if err := got.put(itself); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got.b)); diff != "" {
			t.Fatal(diff)
		}
	}
	t.Run("reservation", rapid.MakeCheck(func(t *rapid.T) {
		plain := anyOf[reservation]().Draw(t, "reservation")
		itself := appliance.Reservation(plain)
		same(t, &plain, &itself)
	}))
	t.Run("pool", rapid.MakeCheck(func(t *rapid.T) {
		plain := anyOf[pool]().Draw(t, "pool")
		itself := appliance.Pool(plain)
		same(t, &plain, &itself)
	}))
	t.Run("page", rapid.MakeCheck(func(t *rapid.T) {
		plain := anyOf[appliance.List[pool]]().Draw(t, "page")
		itself := appliance.List[appliance.Pool]{NextCursor: plain.NextCursor}
		for _, p := range plain.Items {
			itself.Items = append(itself.Items, appliance.Pool(p))
		}
		same(t, &plain, &itself)
	}))
	t.Run("page of others", rapid.MakeCheck(func(t *rapid.T) {
		page := anyOf[appliance.List[appliance.Tenant]]().Draw(t, "page")
		same(t, &page, &page)
	}))
}
