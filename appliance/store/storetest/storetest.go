// Package storetest gives tests a real store on a file of their own.
package storetest

import (
	"path/filepath"
	"testing"

	"github.com/bettercompute/bc/appliance/store"
)

// New opens an empty store in the test's own folder and closes it with the
// test. Commits are not synced: a test that proves durability opens its own.
func New(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{
		Path:        filepath.Join(t.TempDir(), "state.db"),
		Synchronous: "OFF",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
