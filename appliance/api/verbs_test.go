package api

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance/control"
)

// TestREADMEListsEveryVerb holds the table of the README to what is served.
func TestREADMEListsEveryVerb(t *testing.T) {
	s := &Server{}
	Register(s, &control.Control{})
	var b strings.Builder
	b.WriteString("| verb | action | what it does |\n| --- | --- | --- |\n")
	for _, m := range s.methods {
		if !m.hidden {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", m.name, m.action, m.summary)
		}
	}
	const path, open, end = "../../README.md", "<!-- verbs -->\n", "<!-- /verbs -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), open)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no table between %q and %q", open, end)
	}
	want := head + open + b.String() + end + tail
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("the table of verbs in README.md is not what the API serves; run go test ./appliance/api -run README -update")
	}
}
