package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// examplesFile is what the OpenAPI document takes its examples from.
var examplesFile = filepath.Join("..", "..", "appliance", "api", "examples.json")

type workedCall struct {
	Method   string          `json:"method"`
	Name     string          `json:"name"`
	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`
}

// The example of every method in the OpenAPI document is a call that works:
// they are made one after the other on an empty server, and answer what the
// document says. With -update the answers are written.
func TestGuideExamples(t *testing.T) {
	text, err := os.ReadFile(examplesFile)
	if err != nil {
		t.Fatal(err)
	}
	var calls []workedCall
	if err := json.Unmarshal(text, &calls); err != nil {
		t.Fatal(err)
	}
	b := startBox(t)
	op := b.operator(t)
	all := methods(t, op)
	for _, c := range calls {
		delete(all, c.Method)
	}
	for method := range all {
		t.Errorf("%s has no example: add its request to %s and run this test with -update", method, examplesFile)
	}
	world := newStandIns()
	for i, c := range calls {
		a := op.post(t, c.Method, world.real(t, c.Request))
		if a.status != 200 {
			t.Fatalf("%s (%s): %d %s", c.Method, c.Name, a.status, a.body)
		}
		got := world.standIn(a.body)
		if want := compact(t, c.Response); !bytes.Equal(got, want) && !updating() {
			t.Errorf("%s (%s) answers\n%s\nits example says\n%s", c.Method, c.Name, got, want)
		}
		calls[i].Response = got
		b.afterExample(t, c.Method, a.body)
	}
	documented, err := op.Get(t.Context(), "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	for method, example := range documentedExamples(t, documented) {
		if !slices.ContainsFunc(calls, func(c workedCall) bool {
			return c.Method == method && sameJSON(t, c.Request, example)
		}) {
			t.Errorf("the document's example of %s is none of the file's: %s", method, example)
		}
	}
	if updating() && !t.Failed() {
		out, err := json.MarshalIndent(calls, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(examplesFile, append(out, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// afterExample brings about what the calls behind one need: nodes of the pool,
// and their word that they enforce a booking.
func (b *box) afterExample(t *testing.T, method string, answer []byte) {
	t.Helper()
	op := b.operator(t)
	switch method {
	case "pools.create":
		var p appliance.Pool
		if err := json.Unmarshal(answer, &p); err != nil {
			t.Fatal(err)
		}
		b.fleet(t, p, "l40s-4", 1)
	case "reservations.create":
		var r appliance.Reservation
		if err := json.Unmarshal(answer, &r); err != nil {
			t.Fatal(err)
		}
		await(t, op, r.TenantID, "the node confirms it", func() bool {
			return do[appliance.Reservation](t, op, "reservations.get", object{"tenantId": r.TenantID, "reservationId": r.ID}).State == appliance.Active
		})
	}
}

// documentedExamples are the requests that the document shows, by method.
func documentedExamples(t *testing.T, document []byte) map[string]json.RawMessage {
	t.Helper()
	var doc struct {
		Paths map[string]struct {
			Post *struct {
				RequestBody struct {
					Content map[string]struct {
						Examples map[string]struct{ Value json.RawMessage }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]json.RawMessage{}
	for path, item := range doc.Paths {
		if item.Post == nil {
			continue
		}
		method := strings.TrimPrefix(path, "/v1/")
		for _, example := range item.Post.RequestBody.Content["application/json"].Examples {
			out[method] = example.Value
		}
		if out[method] == nil {
			t.Errorf("the document shows no example of %s", method)
		}
	}
	return out
}

func compact(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return out.Bytes()
}

// sameJSON compares two values, whatever the order of their keys.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// standIns are what an example shows in place of what differs in every run:
// ids in order of appearance, and times counted from one morning.
type standIns struct {
	start    time.Time
	byReal   map[string]string
	byShown  map[string]string
	ofPrefix map[string]int
	secrets  map[string]string // the last of each prefix
}

func newStandIns() *standIns {
	return &standIns{start: time.Now(), byReal: map[string]string{}, byShown: map[string]string{}, ofPrefix: map[string]int{}, secrets: map[string]string{}}
}

var (
	anID     = regexp.MustCompile(`\b(pool|site|node|res|key|user|jtok|pacct|reboot)_[0-9a-z]{26}\b`)
	aTime    = regexp.MustCompile(`\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`)
	aSecret  = regexp.MustCompile(`\b(bck|bcl|bcj|bcs)_[A-Za-z0-9_-]{10,}`)
	anAmount = regexp.MustCompile(`"quantity":[0-9.e+-]+`)
	aCost    = regexp.MustCompile(`"(cost|spent)":[0-9.e+-]+`)
	aRow     = regexp.MustCompile(`,\d+\.\d{6},`) // of a CSV
	aRowCost = regexp.MustCompile(`,\d+\.\d{4}\\n`)
	morning  = time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
)

const shownTime = "2006-01-02T15:04:05.000Z"

// standIn puts the stand-ins into an answer.
func (s *standIns) standIn(body []byte) []byte {
	body = anID.ReplaceAllFunc(body, func(id []byte) []byte {
		shown, ok := s.byReal[string(id)]
		if !ok {
			prefix, _, _ := strings.Cut(string(id), "_")
			s.ofPrefix[prefix]++
			shown = prefix + "_01k5c" + strings.Repeat("0", 20) + string(rune('0'+s.ofPrefix[prefix]))
			s.byReal[string(id)], s.byShown[shown] = shown, string(id)
		}
		return []byte(shown)
	})
	body = aTime.ReplaceAllFunc(body, func(text []byte) []byte {
		at, err := time.Parse(shownTime, string(text))
		if err != nil {
			return text
		}
		return []byte(morning.Add(at.Sub(s.start).Round(5 * time.Minute)).Format(shownTime))
	})
	body = aSecret.ReplaceAllFunc(body, func(secret []byte) []byte {
		shown := string(secret[:4]) + "…"
		s.byShown[shown] = string(secret) // the last one shown
		return []byte(shown)
	})
	body = anAmount.ReplaceAll(body, []byte(`"quantity":1.5`))
	body = aCost.ReplaceAll(body, []byte(`"$1":1.875`))
	body = aRow.ReplaceAll(body, []byte(`,1.500000,`))
	return aRowCost.ReplaceAll(body, []byte(`,1.8750\n`))
}

// real puts what is real on this server in place of a request's stand-ins.
func (s *standIns) real(t *testing.T, request []byte) []byte {
	t.Helper()
	request = anID.ReplaceAllFunc(request, func(shown []byte) []byte {
		id, ok := s.byShown[string(shown)]
		if !ok {
			t.Fatalf("the request names %s, which no answer before it has shown: %s", shown, request)
		}
		return []byte(id)
	})
	for _, shown := range []string{"bcl_…", "bcs_…"} {
		if secret, ok := s.byShown[shown]; ok {
			request = bytes.ReplaceAll(request, []byte(shown), []byte(secret))
		}
	}
	for prefix, secret := range s.secrets {
		request = bytes.ReplaceAll(request, []byte(prefix+"…"), []byte(secret))
	}
	for shown, at := range map[string]time.Duration{"2026-01-31T00:00:00Z": -12 * time.Hour, "2026-02-01T00:00:00Z": 12 * time.Hour} {
		request = bytes.ReplaceAll(request, []byte(shown), []byte(s.start.Add(at).UTC().Format(time.RFC3339)))
	}
	return request
}
