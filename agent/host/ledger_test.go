package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A second process that would apply units is told which one does.
func TestLockNamesItsHolder(t *testing.T) {
	l := OpenLedger(t.TempDir())
	unlock, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Lock(ended)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d (%s", os.Getpid(), os.Args[0])) {
		t.Errorf("the second is told %v", err)
	}
	unlock()
	again, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again()
}
