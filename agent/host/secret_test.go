package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bettercompute/bc/agent/host"
)

// secrets is a machine with a folder of secrets, and one file outside of it.
func secrets(t *testing.T) (*host.Root, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, host.SecretsDir)
	if err := os.MkdirAll(filepath.Join(below, "otel"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shadow"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, below
}

func TestSecretIsReadByItsReference(t *testing.T) {
	root, below := secrets(t)
	for _, ref := range []string{"vault:otel", "otel/headers"} {
		if err := os.WriteFile(filepath.Join(below, ref), []byte("X-Key: "+ref+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := root.Secret(ref); err != nil || string(got) != "X-Key: "+ref+"\n" {
			t.Errorf("%s: got %q, %v", ref, got, err)
		}
	}
}

// Whatever is refused, the error says where the file has to be or what is wrong
// with it, and not what is in it.
func TestSecretOutsideItsFolderOrOpenToOthersIsRefused(t *testing.T) {
	root, below := secrets(t)
	file := func(name, text string, mode os.FileMode) {
		p := filepath.Join(below, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
	link := func(name, target string) {
		if err := os.Symlink(target, filepath.Join(below, name)); err != nil {
			t.Fatal(err)
		}
	}
	file("group", "hunter2", 0o640)
	file("world", "hunter2", 0o604)
	file("empty", " \n", 0o600)
	file("long", strings.Repeat("hunter2", 1<<12), 0o600)
	link("up", "../../../shadow")
	link("away", "/etc/passwd")
	if err := syscall.Mkfifo(filepath.Join(below, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"missing":         "write it to /etc/better-compute/secrets/missing",
		"../../../shadow": "not the name of a file below",
		"otel/../../../x": "not the name of a file below",
		"/etc/passwd":     "not the name of a file below",
		"otel/../up":      "not the name of a file below",
		"otel//headers":   "not the name of a file below",
		".":               "not the name of a file below",
		"":                "not the name of a file below",
		"up":              "escapes",
		"away":            "escapes",
		"otel":            "is not a file",
		"pipe":            "is not a file",
		"group":           "mode 0640",
		"world":           "mode 0604",
		"empty":           "is empty",
		"long":            "longer than 16384 bytes",
	} {
		got, err := root.Secret(ref)
		if err == nil || !strings.Contains(err.Error(), want) || got != nil {
			t.Errorf("%q: got %q, %v; want an error with %q", ref, got, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), below)) {
			t.Errorf("%q: the error tells too much: %v", ref, err)
		}
	}
	if os.Geteuid() == 0 {
		file("other", "hunter2", 0o600)
		if err := os.Chown(filepath.Join(below, "other"), 1234, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := root.Secret("other"); err == nil || !strings.Contains(err.Error(), "user 1234") {
			t.Errorf("a file of another user: %v", err)
		}
	}
}

func TestSecretOfARecordedMachineIsNotRead(t *testing.T) {
	a, err := host.ParseArchive([]byte("-- root/etc/better-compute/secrets/x --\nhunter2\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := a.Root().Secret("x"); err == nil {
		t.Errorf("got %q", got)
	}
}
