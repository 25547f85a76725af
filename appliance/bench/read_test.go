package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// TestRead measures the authenticated read of one reservation, and the answer
// to a repeated create, beside a bare handler that reads one row.
func TestRead(t *testing.T) {
	needBars(t)
	f := makeFleet(t, 100, nil)
	f.serve(t)
	floor := openSameRows(t)
	for range 500 {
		if err := floor.s.Write(context.Background(), floor.write); err != nil {
			t.Fatal(err)
		}
	}
	bare := serveBare(t, floor.handler())
	const clients, n = 8, 8000
	ours, theirs := dialAll(t, f.socket(), clients), dialAll(t, bare, clients)
	var ids [500]string
	load(t, ours, len(ids), func(c *wireClient, i int) error {
		var out appliance.Reservation
		err := c.callRaw(f.key, "reservations.create", createBody(f, fmt.Sprintf(`,"idempotencyKey":"k%d"`, i)), &out)
		ids[i] = out.ID
		return err
	})
	get := func(c *wireClient, i int) error {
		return c.callRaw(f.key, "reservations.get", refBody(ids[i%len(ids)]), nil)
	}
	readRow := func(c *wireClient, i int) error {
		return c.callRaw("", "reservations.get", refBody(fmt.Sprintf("res_%026d", 1+i%500)), nil)
	}
	var rate, bareRate, over, replay, cpu, again []float64
	for range *rounds {
		b := load(t, theirs, n, readRow)
		r := load(t, ours, n, get)
		repeats := load(t, ours, n, func(c *wireClient, i int) error {
			return c.callRaw(f.key, "reservations.create", createBody(f, fmt.Sprintf(`,"idempotencyKey":"k%d"`, i%len(ids))), nil)
		})
		rate, bareRate = append(rate, r.rate()), append(bareRate, b.rate())
		over, replay = append(over, r.rate()/b.rate()), append(replay, repeats.rate()/r.rate())
		cpu, again = append(cpu, float64(b.each())/float64(r.each())), append(again, float64(r.each())/float64(repeats.each()))
	}
	report(t, "read of one reservation, 8 clients", "%.0f/s; %.2f × bare chi with one row (%.0f/s), by CPU time %.2f ×", median(rate), median(over), median(bareRate), median(cpu))
	report(t, "repeated create under its idempotency key", "%.2f × that read, by CPU time %.2f ×", median(replay), median(again))
	// The p99 of reads on an idle server, beside reads while 8 clients write.
	writers := dialAll(t, f.socket(), clients)
	calm, busy, share := besideWrites(t, ours[:1], get, func() { creates(t, f, writers, 160) })
	body := createBody(f, "")
	bareWriters := dialAll(t, bare, clients)
	_, _, bareShare := besideWrites(t, theirs[:1], readRow, func() {
		load(t, bareWriters, 160, func(c *wireClient, _ int) error { return c.callRaw("", "reservations.create", body, nil) })
	})
	report(t, "p99 of a read beside 8 writers", "%.1f × idle (%.0f us, idle %.0f us); bare chi %.1f ×", share, busy, calm, bareShare)
}

// besideWrites compares one client's reads on an idle server with its reads
// while something writes over and over: medians of the p99s in microseconds,
// and of their ratio.
func besideWrites(t *testing.T, reader []*wireClient, get func(*wireClient, int) error, write func()) (idle, busy, share float64) {
	t.Helper()
	var idles, busies, shares []float64
	for range *rounds {
		calm := load(t, reader, 1500, get)
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					write()
				}
			}
		}()
		hot := load(t, reader, 1500, get)
		close(stop)
		<-done
		idles, busies = append(idles, float64(calm.at(0.99).Microseconds())), append(busies, float64(hot.at(0.99).Microseconds()))
		shares = append(shares, float64(hot.at(0.99))/float64(calm.at(0.99)))
	}
	return median(idles), median(busies), median(shares)
}

// TestList measures a page of 100 out of 1,000 pools with four quota rows each,
// and the decision on all 1,000.
func TestList(t *testing.T) {
	needBars(t)
	var site, home string
	f := makeFleet(t, 1, func(s *server, f *fleet) {
		h, at, err := s.control.Home(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		home, site = h, at.ID
		parallel(t, 16, 999, func(i int) error {
			_, err := s.control.CreatePool(context.Background(), fleetOperator, appliance.CreatePool{
				TenantID: home, SiteID: site, Class: appliance.ClassMetalHost, GPUModel: "H100", Name: fmt.Sprintf("p%d", i),
				OwnerQuota: appliance.QuotaMap{"gpu": 1, "vcpu": 1, "memoryGiB": 1, "hugepages1Gi": 1},
			})
			return err
		})
	})
	f.serve(t)
	clients := dialAll(t, f.socket(), 8)
	var rate []float64
	for range *rounds {
		r := load(t, clients, 2000, func(c *wireClient, _ int) error {
			return c.callRaw(f.key, "pools.list", []byte(`{"tenantId":"local","limit":100}`), nil)
		})
		rate = append(rate, r.rate())
	}
	report(t, "pools.list, page of 100 of 1,000 pools × 4 quota rows", "%.0f/s", median(rate))
}

// TestScale compares creates at 10,000 nodes with creates at 100, and times
// what runs over all nodes.
func TestScale(t *testing.T) {
	needBars(t)
	small, large := makeFleet(t, 100, nil), makeFleet(t, 10_000, nil)
	small.serve(t)
	s := large.serve(t)
	few, many := dialAll(t, small.socket(), 64), dialAll(t, large.socket(), 64)
	var share, cpu []float64
	creates(t, small, few, 700)
	creates(t, large, many, 700)
	for range *rounds {
		var a, b result
		for range 4 { // in turn, since what fits the small one is soon over
			a.add(creates(t, small, few, 700))
			b.add(creates(t, large, many, 700))
		}
		share, cpu = append(share, b.rate()/a.rate()), append(cpu, float64(a.each())/float64(b.each()))
	}
	report(t, "creates at 10,000 nodes against 100, 64 clients", "%.2f ×, by CPU time %.2f ×", median(share), median(cpu))

	var beats []float64
	beat := fmt.Appendf(nil, `{"nodeId":%q,"inventoryHash":"1","generation":1,"bindings":[]}`, large.node)
	if status, body, err := many[0].post("/agent/v1/heartbeat", large.nodeKey, beat); err != nil || status != 200 {
		t.Fatalf("heartbeat: %d %s %v", status, body, err)
	}
	quiet := fmt.Appendf(nil, `{"nodeId":%q,"inventoryHash":"1","generation":1}`, large.node)
	for range *rounds {
		beats = append(beats, load(t, many[:8], 5000, func(c *wireClient, _ int) error {
			status, _, err := c.post("/agent/v1/heartbeat", large.nodeKey, quiet)
			if status != 200 && err == nil {
				err = fmt.Errorf("heartbeat answered %d", status)
			}
			return err
		}).rate())
	}
	report(t, "quiet heartbeats, 8 connections", "%.0f/s: 10,000 nodes at one in 10 s take %.0f %% of that; %d B each", median(beats), 100*1000/median(beats), len(quiet))

	var loop, liveness []float64
	for range *rounds {
		start := time.Now()
		if err := s.control.RefreshNodes(context.Background()); err != nil {
			t.Fatal(err)
		}
		loop = append(loop, float64(time.Since(start).Microseconds())/1000)
		start = time.Now()
		if err := s.control.CheckLiveness(context.Background()); err != nil {
			t.Fatal(err)
		}
		liveness = append(liveness, float64(time.Since(start).Microseconds())/1000)
	}
	report(t, "capacity.hosts and liveness over 10,000 unchanged nodes", "%.2f ms and %.2f ms", median(loop), median(liveness))
}
