package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bettercompute/bc/"

// floors names, for each package, the packages of ours that it may import.
// Adding a line is a decision, made in review.
var floors = map[string][]string{
	"agent/wire": {},

	"appliance":           {"agent/wire"},
	"agent/host":          {"agent/wire"},
	"agent/gpu":           {"agent/wire"},
	"agent/otlp":          {},
	"agent/gpu/gputest":   {"agent/wire"},
	"agent/host/hosttest": {"agent/host"},
	"testdata/hosts":      {},

	"appliance/plan":            {"agent/wire", "appliance"},
	"appliance/store":           {"agent/wire", "appliance"},
	"appliance/store/storetest": {"appliance/store"},
	"appliance/iam":             {"appliance"},
	"agent/inventory":           {"agent/wire", "agent/host"},
	"agent/unit":                {"agent/wire", "agent/host", "agent/gpu"},

	"appliance/control": {"agent/wire", "appliance", "appliance/plan", "appliance/store", "appliance/iam"},
	"agent":             {"agent/wire", "agent/host", "agent/gpu", "agent/otlp", "agent/inventory", "agent/unit"},

	"appliance/api":       {"agent/wire", "appliance", "appliance/control"},
	"appliance/reconcile": {"appliance", "appliance/control"},

	"cmd/bc": {
		"agent", "agent/wire", "agent/host", "agent/gpu", "agent/inventory", "agent/unit", "testdata/hosts",
		"appliance", "appliance/plan", "appliance/store", "appliance/iam", "appliance/control", "appliance/api", "appliance/reconcile",
	},
}

// keepers names who alone may import what reaches outside the process, tests
// aside.
var keepers = map[string][]string{
	"database/sql":                         {"appliance/store"},
	"modernc.org/":                         {"appliance/store"},
	"github.com/mattn/go-sqlite3":          {"appliance/store"},
	"github.com/NVIDIA/":                   {"agent/gpu"},
	"github.com/coreos/go-systemd/":        {"agent/host"},
	"go.opentelemetry.io/":                 {"agent/otlp"},
	"os/exec":                              {"agent/host", "agent/gpu/gputest"},
	"github.com/urfave/cli/":               {"cmd/bc"},
	"github.com/BurntSushi/toml":           {"cmd/bc"},
	"github.com/cedar-policy/":             {"appliance/iam"},
	"github.com/danielgtaylor/huma/":       {"appliance/api"},
	"github.com/prometheus/client_golang/": {"appliance/api"},
}

// pure names the packages that may ask neither the clock nor for randomness:
// the caller passes times and ids in.
var pure = []string{"agent/wire", "appliance", "appliance/plan", "agent/inventory", "agent/unit"}

func TestImportsGoDownOnly(t *testing.T) {
	seen := map[string]bool{}
	eachSource(t, func(pkg, file string, f *ast.File) {
		seen[pkg] = true
		allowed, known := floors[pkg]
		if !known {
			t.Fatalf("%s: package %s stands on no floor; add it to floors", file, pkg)
		}
		for _, imp := range f.Imports {
			path := strings.Trim(imp.Path.Value, `"`)
			if own, ok := strings.CutPrefix(path, module); ok && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s, which its floor does not allow", file, own)
			}
			for prefix, keep := range keepers {
				if strings.HasPrefix(path, prefix) && !slices.Contains(keep, pkg) {
					t.Errorf("%s imports %s, which is kept to %s", file, path, strings.Join(keep, ", "))
				}
			}
		}
	})
	for pkg := range floors {
		if !seen[pkg] {
			t.Errorf("floors names %s, which is gone", pkg)
		}
	}
}

func TestPurePackagesAskNeitherClockNorDice(t *testing.T) {
	eachSource(t, func(pkg, file string, f *ast.File) {
		if !slices.Contains(pure, pkg) {
			return
		}
		for _, imp := range f.Imports {
			switch path := strings.Trim(imp.Path.Value, `"`); path {
			case "math/rand", "math/rand/v2", "crypto/rand":
				t.Errorf("%s imports %s", file, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since" || s.Sel.Name == "Until") {
				t.Errorf("%s asks the clock: time.%s", file, s.Sel.Name)
			}
			return true
		})
	})
}

func TestEveryPackageHasOnePackageComment(t *testing.T) {
	comments := map[string]int{}
	eachSource(t, func(pkg, _ string, f *ast.File) {
		if f.Doc != nil {
			comments[pkg]++
		} else if _, ok := comments[pkg]; !ok {
			comments[pkg] = 0
		}
	})
	for pkg, n := range comments {
		if n != 1 {
			t.Errorf("package %s has %d package comments, want 1", pkg, n)
		}
	}
}

// eachSource parses the imports and bodies of every source file of ours, tests
// left out. It reads the files itself: go test's cache does not see what a
// child process such as go list has read.
func eachSource(t *testing.T, visit func(pkg, file string, f *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "bin" || name == "dist") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, src, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(filepath.Dir(rel)), rel, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
