package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrConflict says that something is someone else's: the agent leaves it alone.
var ErrConflict = errors.New("changed by someone else")

const (
	managedMark = "# Managed by Better Compute: bcd writes this file anew, and takes an edited one for yours. sha256:"
	hashDigits  = 16
)

// Managed is what stands in the place of a file of the agent's own.
type Managed struct {
	Exists  bool
	Ours    bool   // it is as the agent wrote it
	Content string // without the agent's header
}

// ReadManaged reads a file of the agent's own. One without the header, or whose
// content does not fit the hash in the header, is someone else's.
func (r *Root) ReadManaged(name string) (Managed, error) {
	data, err := r.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Managed{}, nil
	}
	if err != nil {
		return Managed{}, err
	}
	head, content, _ := strings.Cut(string(data), "\n")
	sum, marked := strings.CutPrefix(head, managedMark)
	return Managed{Exists: true, Ours: marked && sum == contentHash(content), Content: content}, nil
}

func contentHash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])[:hashDigits]
}

func managedFile(content string) []byte {
	return []byte(managedMark + contentHash(content) + "\n" + content)
}

func foreign(name string) error {
	return fmt.Errorf("%s was %w; move it away to have it written again", name, ErrConflict)
}
