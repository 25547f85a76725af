package store

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchWrite is a booking's likely set of rows: five statements.
func benchWrite(tx *Tx, n int64, body string) error {
	for _, q := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO reservations (id, tenant, body) VALUES (?, ?, ?)", []any{fmt.Sprintf("res_%020d", n), "acme", body}},
		{"UPDATE nodes SET allocated = allocated + 1 WHERE id = ?", []any{n % 1000}},
		{"INSERT INTO keys (key, reservation) VALUES (?, ?)", []any{fmt.Sprintf("key_%020d", n), n}},
		{"UPDATE quota SET used = used + 1 WHERE tenant = ?", []any{"acme"}},
		{"INSERT INTO events (type, data) VALUES (?, ?)", []any{"reservation.created", body[:100]}},
	} {
		if _, err := tx.Exec(q.text, q.args...); err != nil {
			return err
		}
	}
	return nil
}

const benchSchema = `
	CREATE TABLE reservations (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
	CREATE INDEX reservations_by_tenant ON reservations(tenant);
	CREATE TABLE nodes (id INTEGER PRIMARY KEY, allocated INTEGER NOT NULL) STRICT;
	CREATE TABLE keys (key TEXT PRIMARY KEY, reservation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
	CREATE TABLE quota (tenant TEXT PRIMARY KEY, used INTEGER NOT NULL) STRICT, WITHOUT ROWID;
	CREATE TABLE events (seq INTEGER PRIMARY KEY, type TEXT NOT NULL, data TEXT NOT NULL) STRICT;
	INSERT INTO quota VALUES ('acme', 0);
	WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n+1 FROM c WHERE n < 999) INSERT INTO nodes SELECT n, 0 FROM c;`

func benchStore(b *testing.B) *Store {
	return openTest(b, Options{Synchronous: "FULL", migrations: withSteps(benchSchema)})
}

var benchBody = strings.Repeat(`{"a":"b"},`, 37)

// BenchmarkGroupCommit measures durable writes by clients that each wait for
// their answer, against single commits of the same rows through the same
// connection in the same run: the metric is how many times as many.
func BenchmarkGroupCommit(b *testing.B) {
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprint("clients=", clients), func(b *testing.B) {
			s := benchStore(b)
			var n atomic.Int64
			single := func(count int) time.Duration {
				start := time.Now()
				err := s.Write(context.Background(), func(*Tx) error { return errHeld }) // the writer is idle: its connection may be used
				if err != errHeld {
					b.Fatal(err)
				}
				for range count {
					tx := Tx{c: s.writer.c, ctx: context.Background(), w: &s.writer}
					for _, step := range []func() error{
						func() error { return s.writer.c.exec("BEGIN IMMEDIATE") },
						func() error { return benchWrite(&tx, n.Add(1), benchBody) },
						func() error { return s.writer.c.exec("COMMIT") },
					} {
						if err := step(); err != nil {
							b.Fatal(err)
						}
					}
				}
				return time.Since(start)
			}
			took := make([][]time.Duration, clients)
			grouped := func(count int) time.Duration {
				start := time.Now()
				var left atomic.Int64
				left.Store(int64(count))
				var wg sync.WaitGroup
				for c := range clients {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							began := time.Now()
							if err := s.Write(context.Background(), func(tx *Tx) error { return benchWrite(tx, n.Add(1), benchBody) }); err != nil {
								b.Error(err)
							}
							took[c] = append(took[c], time.Since(began))
						}
					})
				}
				wg.Wait()
				return time.Since(start)
			}
			single(100)
			grouped(clients * 10)
			for c := range took {
				took[c] = nil
			}
			b.ReportAllocs()
			b.ResetTimer()
			var t1, tn time.Duration
			var n1, nn int
			for left := b.N; left > 0; { // in turn, for the disk's speed drifts
				k := min(left, max(clients*20, 200))
				b.StopTimer()
				t1, n1 = t1+single(max(k/clients, 50)), n1+max(k/clients, 50)
				b.StartTimer()
				tn, nn = tn+grouped(k), nn+k
				left -= k
			}
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(nn)/tn.Seconds(), "writes/s")
			b.ReportMetric(float64(n1)/t1.Seconds(), "single/s")
			b.ReportMetric(float64(nn)/tn.Seconds()/(float64(n1)/t1.Seconds()), "x-single")
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(all[len(all)*99/100])/float64(all[len(all)/2]), "p99/p50")
		})
	}
}

// BenchmarkRead measures one row by key: within a read transaction, and the
// statement alone, which is what the transaction is paid on top of.
func BenchmarkRead(b *testing.B) {
	s := benchStore(b)
	err := s.Write(b.Context(), func(tx *Tx) error {
		for i := range int64(10_000) {
			if err := benchWrite(tx, i, benchBody); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	one := func(tx *Tx, i int) error {
		var tenant, body string
		return tx.QueryRow("SELECT tenant, body FROM reservations WHERE id = ?", fmt.Sprintf("res_%020d", i%10_000)).Scan(&tenant, &body)
	}
	b.Run("transaction", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if err := s.Read(b.Context(), func(tx *Tx) error { return one(tx, i) }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("statement", func(b *testing.B) {
		c, err := s.takeReader(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		defer s.giveReader(c, true)
		tx := Tx{c: c, ctx: b.Context()}
		b.ReportAllocs()
		for i := range b.N {
			if err := one(&tx, i); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("transaction, all CPUs", func(b *testing.B) {
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Read(context.Background(), func(tx *Tx) error { return one(tx, int(n.Add(1))) }); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("list of 1000", func(b *testing.B) {
		for range b.N {
			err := s.Read(b.Context(), func(tx *Tx) error {
				rows, err := tx.Query("SELECT id, tenant, body FROM reservations ORDER BY id LIMIT 1000")
				if err != nil {
					return err
				}
				for rows.Next() {
					var id, tenant, body string
					if err := rows.Scan(&id, &tenant, &body); err != nil {
						return err
					}
				}
				return rows.Err()
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOpen measures a start on a state of 100,000 rows.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state.db")
	s := openTest(b, Options{Path: path})
	err := s.Write(b.Context(), func(tx *Tx) error {
		for i := range 100_000 {
			if _, err := tx.Exec("INSERT INTO rows (id, body) VALUES (?, ?)", i, benchBody); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(b.Context(), Options{Path: path, migrations: testSchema})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
