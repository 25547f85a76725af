package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlagsWorkBehindArguments(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"bc", "bc"},
		{"bc status", "bc status"},
		{"bc pools get NAME -o json", "bc -o json pools get -- NAME"},
		{"bc pools get NAME -o=json", "bc -o=json pools get -- NAME"},
		{"bc -o json pools get NAME", "bc -o json pools get -- NAME"},
		{"bc pools --tenant acme list", "bc --tenant acme pools list"},
		{"bc pools list --tenant=acme", "bc --tenant=acme pools list"},
		{"bc pool update NAME --set a=b --yes --set c=d", "bc pool update --set a=b --yes --set c=d -- NAME"},
		{"bc pools update --yes NAME", "bc pools update --yes -- NAME"},
		{"bc pools get -- -o", "bc pools get -- -o"},
		{"bc pools get NAME -- -o json", "bc pools get -- NAME -o json"},
		{"bc pools get NAME --frob", "bc pools get --frob -- NAME"},
		{"bc pools get NAME --help", "bc pools get --help"},
		{"bc pools get -h NAME -o json", "bc pools get --help"},
		{"bc pools offer P --to acme --priority -5", "bc pools offer --to acme --priority -5 -- P"},
		{"bc api pools.list -f -", "bc api -f - -- pools.list"},
		{"bc policies put NAME -f -", "bc policies put -f - -- NAME"},
		{"bc events --follow -o json", "bc -o json events --follow"},
		{"bc events list --follow", "bc events list --follow"},
		{"bc pools frob NAME -o json", "bc -o json pools frob NAME"}, // for the noun to refuse by name
		{"bcd run --server unix:x --state-dir d", "bcd run --server unix:x --state-dir d"},
		{"bc bcd run --server unix:x -o json", "bc -o json bcd run --server unix:x"},
		{"bc pools get NAME -o", "bc -o pools get -- NAME"}, // its value is missing, which the library says
		{"bc pools get N --generate-bash-completion", "bc pools get N --generate-bash-completion"},
	} {
		app := newApp()
		if strings.HasPrefix(tc.in, "bcd ") {
			app = newAgentApp()
		}
		got := strings.Join(flagsFirst(app, strings.Fields(tc.in)), " ")
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.in, diff)
		}
	}
}
