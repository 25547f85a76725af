package store

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// crashEnv names the state for a test binary that is to write until it is killed.
const crashEnv = "STORE_TEST_WRITE_UNTIL_KILLED"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		writeUntilKilled(path)
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes numbered rows from many goroutines, each with a
// second row in the same write, and prints each number once it is acknowledged.
func writeUntilKilled(path string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := Open(context.Background(), Options{Path: path, migrations: testSchema})
	if err != nil {
		fail(err)
	}
	var last atomic.Int64
	err = s.Read(context.Background(), func(tx *Tx) error {
		var n int64
		err := tx.QueryRow("SELECT coalesce(max(id), 0) FROM rows").Scan(&n)
		last.Store(n)
		return err
	})
	if err != nil {
		fail(err)
	}
	for range 16 {
		go func() {
			for {
				n := last.Add(1)
				err := s.Write(context.Background(), func(tx *Tx) error {
					if _, err := tx.Exec("INSERT INTO rows (id, name, body) VALUES (?, ?, ?)", n, fmt.Sprint(n), fmt.Sprintf("%2000d", n)); err != nil {
						return err
					}
					if n%7 == 0 { // refused after it wrote: must never be seen
						return fmt.Errorf("refused")
					}
					_, err := tx.Exec("INSERT INTO kids (id, parent) VALUES (?, ?)", n, n)
					return err
				})
				if n%7 == 0 {
					continue
				}
				if err != nil {
					fail(err)
				}
				fmt.Println(n) // one write to the pipe, so whole lines arrive
			}
		}()
	}
	select {}
}

// Killing proves that no acknowledged write lives in the process alone. That a
// commit survives a power loss rests on synchronous=FULL and on the disk's word.
func TestKilledAtAnyMomentNothingAcknowledgedIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	acknowledged := map[int]bool{}
	for round := range 6 {
		upTo := rand.IntN(700)
		t.Logf("round %d: killed after %d acknowledgements", round, upTo)
		for _, n := range runUntilKilled(t, path, upTo) {
			acknowledged[n] = true
		}
		checkAfterCrash(t, path, acknowledged)
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was acknowledged in any round")
	}
}

func runUntilKilled(t *testing.T, path string, upTo int) (numbers []int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kill sync.Once
	lines := bufio.NewScanner(out)
	for lines.Scan() { // on to the end: what was printed before the kill was acknowledged
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
		if len(numbers) > upTo {
			kill.Do(func() { _ = cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the writing process ended by itself: %v", cmd.ProcessState)
	}
	return numbers
}

func checkAfterCrash(t *testing.T, path string, acknowledged map[int]bool) {
	t.Helper()
	s := openTest(t, Options{Path: path}) // also proves that the lock died with its holder
	there := map[int]bool{}
	for _, n := range ids(t, s) {
		there[n] = true
		if n%7 == 0 {
			t.Errorf("%d was refused and is there", n)
		}
	}
	for n := range acknowledged {
		if !there[n] {
			t.Errorf("%d was acknowledged and is lost", n)
		}
	}
	err := s.Read(t.Context(), func(tx *Tx) error {
		var halves int
		err := tx.QueryRow(`SELECT count(*) FROM rows r LEFT JOIN kids k ON k.parent = r.id
			WHERE k.id IS NULL OR r.name <> r.id OR ltrim(r.body) <> r.id OR length(r.body) <> 2000`).Scan(&halves)
		if halves > 0 {
			t.Errorf("%d writes are there by half", halves)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(path, 1); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
