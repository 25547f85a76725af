package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// SecretsDir is where the references of a policy lead to: the file
// SecretsDir/REF of the machine holds the secret REF. It is root's alone.
const SecretsDir = "/etc/better-compute/secrets"

// maxSecret is the most bytes of a secret.
const maxSecret = 16 << 10

// Secret reads what a reference stands for. The reference is a path below
// [SecretsDir] that no link and no .. leads out of. The file has to belong to
// root, or to who runs this process, and to be closed to everybody else: one
// that others read is no secret, and one that others write is not ours. The
// error never quotes the file.
func (r *Root) Secret(ref string) ([]byte, error) {
	if r.Dir() == "" {
		return nil, fmt.Errorf("the secret %q: %w", ref, ErrRecorded)
	}
	missing := func() ([]byte, error) {
		return nil, fmt.Errorf("the secret %q is not on this machine: write it to %s/%s with mode 0600", ref, SecretsDir, ref)
	}
	// The path is the machine's, whatever stands before it here.
	fail := func(err error) ([]byte, error) {
		var of *fs.PathError
		if errors.As(err, &of) {
			err = of.Err
		}
		return nil, fmt.Errorf("the secret %q: %s/%s: %w", ref, SecretsDir, ref, err)
	}
	if !filepath.IsLocal(ref) || filepath.Clean(ref) != ref || ref == "." {
		return nil, fmt.Errorf("the secret %q is not the name of a file below %s", ref, SecretsDir)
	}
	dir, err := os.OpenRoot(filepath.Join(r.Dir(), SecretsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return missing()
	}
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	// A pipe would block, a file does not mind.
	f, err := dir.OpenFile(ref, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return missing()
	}
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	owner := -1
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = int(s.Uid)
	}
	switch {
	case !info.Mode().IsRegular():
		return fail(errors.New("is not a file"))
	case owner != 0 && owner != os.Geteuid():
		return fail(fmt.Errorf("belongs to user %d, and has to be root's; use chown root", owner))
	case info.Mode().Perm()&0o077 != 0:
		return fail(fmt.Errorf("has mode %04o, and is open to others than root; use chmod 0600", info.Mode().Perm()))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxSecret {
		return fail(fmt.Errorf("is longer than %d bytes", maxSecret))
	}
	if strings.TrimSpace(string(data)) == "" {
		return fail(errors.New("is empty"))
	}
	return data, nil
}
