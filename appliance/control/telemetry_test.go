package control

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// restartWith starts the control plane on the same file, with another default.
func restartWith(f *fixture, telemetry *wire.Telemetry) {
	f.t.Helper()
	f.stop()
	s, err := store.Open(context.Background(), store.Options{Path: f.path, Synchronous: f.sync})
	f.must(err)
	settings := f.c.Settings
	settings.Telemetry = telemetry
	f.c = &Control{Store: s, IAM: iam.New(), Settings: settings, Now: f.now, Random: rand.NewChaCha8([32]byte{99})}
	f.must(f.c.Start(context.Background()))
	f.must(f.c.RefreshNodes(context.Background()))
}

// The configuration's default reaches the nodes of pools whose policy does not
// say where to export to, and of no other; another one, or none, with the next
// start; and a start that changes nothing writes nothing.
func TestTelemetryDefaultReachesTheNodesOfPoolsWithoutTheirOwn(t *testing.T) {
	f := newFixture(t)
	silent := f.join(f.pool(appliance.SharingExclusive, `{}`), machine("silent", 16, 64, 1))
	own := f.join(f.pool(appliance.SharingExclusive, `{"telemetry":{"otlpEndpoint":"https://pool.example"}}`), machine("own", 16, 64, 1))
	generation := func(node string) int64 {
		spec, _, _, err := f.c.Spec(context.Background(), f.asNode(node), node, 0)
		f.must(err)
		return spec.Generation
	}
	check := func(when string, want *wire.Telemetry) {
		t.Helper()
		for node, want := range map[string]*wire.Telemetry{silent: want, own: {OTLPEndpoint: "https://pool.example", IntervalSeconds: 60}} {
			spec, _, _, err := f.c.Spec(context.Background(), f.asNode(node), node, 0)
			f.must(err)
			if d := cmp.Diff(want, spec.Units.Telemetry); d != "" {
				t.Errorf("%s (-want +got)\n%s", when, d)
			}
		}
	}
	check("without a default", nil)
	site := &wire.Telemetry{OTLPEndpoint: "https://site.example:4318", IntervalSeconds: 30, HeadersRef: "otel"}
	restartWith(f, site)
	check("with one", site)
	before := generation(silent)
	restartWith(f, site)
	if after := generation(silent); after != before {
		t.Errorf("the same default made generation %d of %d", after, before)
	}
	moved := &wire.Telemetry{OTLPEndpoint: "https://moved.example:4318", IntervalSeconds: 30}
	restartWith(f, moved)
	check("with another", moved)
	restartWith(f, nil)
	check("without one again", nil)
	f.verify()
}
