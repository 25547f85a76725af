package api

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
)

// The same read through three doors: a chi handler that decodes and answers
// and does nothing else, this package, and huma's own request path, which
// this package was measured against. Read the ratios, not the times.

var benchBody = []byte(`{"tenantId":"acme","reservationId":"res_01k5c0000000000000000000000"}`)

func benchAnswer() appliance.Reservation {
	at := appliance.AtMillis(1769846400123)
	return appliance.Reservation{
		ID: "res_01k5c0000000000000000000000", TenantID: "acme", PoolID: "pool_01k5c0000000000000000000000", State: appliance.Active,
		Resources: appliance.Amounts{"gpu": 2}, Nodes: 1, Binding: appliance.BindHold, Booked: appliance.Amounts{"gpu": 2, "vcpu": 16, "memoryGiB": 128},
		Placements: []appliance.Placement{{
			NodeID: "node_01k5c0000000000000000000000", Devices: []string{"GPU-1", "GPU-2"}, Atoms: []string{"GPU-1", "GPU-2"}, CPUs: "2-17",
			Amounts: appliance.Amounts{"gpu": 2, "vcpu": 16, "memoryGiB": 128}, Confirmed: true,
		}},
		CreatedBy: "key_1", CreatedAt: at, PlacedAt: &at, ActiveAt: &at,
	}
}

func bareHandler() http.Handler {
	answer := benchAnswer()
	mux := chi.NewRouter()
	mux.Post("/v1/reservations.get", func(w http.ResponseWriter, r *http.Request) {
		var in appliance.ReservationRef
		if err := json.UnmarshalRead(r.Body, &in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, answer)
	})
	return mux
}

func ourServer() *Server {
	answer := benchAnswer()
	s := &Server{Authenticate: authenticate}
	RPC(s, "reservations.get", "", "", func(context.Context, appliance.Caller, appliance.ReservationRef) (appliance.Reservation, error) {
		return answer, nil
	})
	return s
}

func humaHandler() http.Handler {
	answer := benchAnswer()
	mux := chi.NewRouter()
	config := huma.DefaultConfig("bench", "1")
	config.DocsPath, config.SchemasPath, config.CreateHooks = "", "", nil
	config.Formats = map[string]huma.Format{"application/json": {
		Marshal:   func(w io.Writer, v any) error { return json.MarshalWrite(w, v) },
		Unmarshal: func(b []byte, v any) error { return json.Unmarshal(b, v) },
	}}
	api := humachi.New(mux, config)
	api.OpenAPI().Components.Schemas = newDocument().registry
	type input struct{ Body appliance.ReservationRef }
	type output struct{ Body appliance.Reservation }
	huma.Register(api, huma.Operation{OperationID: "x", Method: http.MethodPost, Path: "/v1/reservations.get"},
		func(context.Context, *input) (*output, error) { return &output{answer}, nil })
	return mux
}

func benchHandlers() map[string]http.Handler {
	return map[string]http.Handler{"bare": bareHandler(), "ours": ourServer().Handler(TLS), "huma": humaHandler()}
}

// BenchmarkHandler is the door alone, in process.
func BenchmarkHandler(b *testing.B) {
	for _, name := range []string{"bare", "ours", "huma"} {
		handler := benchHandlers()[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("POST", "/v1/reservations.get", bytes.NewReader(benchBody))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Authorization", "Bearer "+goodKey)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// BenchmarkReadOverBare is the bar for an authenticated read: 8 clients on a
// Unix socket, the doors in turn within each round, so that a busy machine
// slows all alike. It reports the median over the rounds of each door's rate
// over the bare handler's; ours should be at least 0.6.
func BenchmarkReadOverBare(b *testing.B) {
	const clients, requests = 8, 400
	handlers := benchHandlers()
	took := map[string][]time.Duration{}
	round := map[string]func(){}
	for name, handler := range handlers {
		path := filepath.Join(b.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			b.Fatal(err)
		}
		server := &http.Server{Handler: handler, ConnContext: withPeer}
		go server.Serve(l)
		defer server.Close()
		client, err := Dial("unix:"+path, Options{Token: goodKey})
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		round[name] = func() {
			var working sync.WaitGroup
			begin := time.Now()
			for range clients {
				working.Go(func() {
					for range requests / clients {
						if _, err := client.Raw(context.Background(), "reservations.get", benchBody); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			working.Wait()
			took[name] = append(took[name], time.Since(begin))
		}
	}
	for b.Loop() {
		for _, name := range []string{"bare", "ours", "huma"} {
			round[name]()
		}
	}
	for _, name := range []string{"ours", "huma"} {
		var ratios []float64
		for i, bare := range took["bare"] {
			ratios = append(ratios, bare.Seconds()/took[name][i].Seconds())
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], name+"/bare")
	}
}

// BenchmarkDecode is the strict reader against the library alone and against
// what huma does with a body, on the input of the busiest write.
func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"tenantId":"acme","poolId":"pool_01k5c0000000000000000000000","resources":{"gpu":2,"vcpu":16},"selector":{"gpuProduct":"H100"},"duration":"8h","idempotencyKey":"job-4711"}`)
	d := newDocument()
	typ := reflect.TypeFor[appliance.CreateReservation]()
	schema := d.schema(typ)
	in := newInputs("reservations.create", typ, schema, d.registry, true)
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v appliance.CreateReservation
			if err := json.Unmarshal(body, &v, json.RejectUnknownMembers(true)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("strict", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v appliance.CreateReservation
			if err := in.decode(body, reflect.ValueOf(&v).Elem()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("huma", func(b *testing.B) {
		b.ReportAllocs()
		path, result := huma.NewPathBuffer(nil, 0), huma.ValidateResult{}
		for b.Loop() {
			var parsed any
			var v appliance.CreateReservation
			if err := json.Unmarshal(body, &parsed); err != nil {
				b.Fatal(err)
			}
			if huma.Validate(d.registry, schema, path, huma.ModeWriteToServer, parsed, &result); len(result.Errors) > 0 {
				b.Fatal(result.Errors)
			}
			if err := json.Unmarshal(body, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}
