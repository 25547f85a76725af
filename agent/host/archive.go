package host

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
)

// Archive is a machine's files as one readable text, a txtar archive. Its
// comment says where it comes from. Its sections are:
//
//	values        files of one line, by directory: a line "dir/", then a
//	              line "  name value" for each
//	links         symbolic links, "path -> target"
//	dirs          directories with nothing recorded in them
//	root/PATH     a text file of more lines
//	base64/PATH   a file that is not text
//	NAME          anything else is a document about the machine, such as nvml.json
//
// Every text file ends in a newline, whether it did on the machine or not.
type Archive struct {
	Comment string

	files map[string][]byte
	links map[string]string
	dirs  map[string]bool
	docs  map[string][]byte
}

// NewArchive returns an archive without files. The comment is any text.
func NewArchive(comment string) *Archive {
	return &Archive{
		Comment: comment,
		files:   make(map[string][]byte),
		links:   make(map[string]string),
		dirs:    make(map[string]bool),
		docs:    make(map[string][]byte),
	}
}

// AddFile records a file. Paths here and below may begin with a slash and have
// no white space.
func (a *Archive) AddFile(name string, data []byte) {
	if textual(data) && !bytes.HasSuffix(data, []byte("\n")) {
		data = append(bytes.Clone(data), '\n')
	}
	a.files[strings.Trim(name, "/")] = data
}

// AddLink records a symbolic link.
func (a *Archive) AddLink(name, target string) { a.links[strings.Trim(name, "/")] = target }

// AddDir records a directory.
func (a *Archive) AddDir(name string) { a.dirs[strings.Trim(name, "/")] = true }

// SetDocument records a text about the machine that is not a file of it. The
// name has no slash.
func (a *Archive) SetDocument(name string, data []byte) { a.docs[name] = data }

// Document returns such a text.
func (a *Archive) Document(name string) ([]byte, bool) {
	data, ok := a.docs[name]
	return data, ok
}

const (
	sectionValues = "values"
	sectionLinks  = "links"
	sectionDirs   = "dirs"
	prefixText    = "root/"
	prefixBase64  = "base64/"
)

// Format returns the archive as text. Equal archives give equal texts.
func (a *Archive) Format() []byte {
	out := txtar.Archive{Comment: []byte(a.Comment)}
	add := func(name string, data []byte) {
		out.Files = append(out.Files, txtar.File{Name: name, Data: data})
	}
	for _, name := range slices.Sorted(maps.Keys(a.docs)) {
		add(name, a.docs[name])
	}

	var values, links, dirs bytes.Buffer
	dir := "\x00"
	var rest []txtar.File
	for _, name := range slices.SortedFunc(maps.Keys(a.files), byDirectory) {
		data := a.files[name]
		switch {
		case oneLine(data):
			if d := parent(name); d != dir {
				dir = d
				fmt.Fprintf(&values, "%s/\n", d)
			}
			line := "  " + path.Base(name)
			if value := strings.TrimSuffix(string(data), "\n"); value != "" {
				line += " " + value
			}
			values.WriteString(line + "\n")
		case textual(data) && !hasMarker(data):
			rest = append(rest, txtar.File{Name: prefixText + name, Data: data})
		default:
			rest = append(rest, txtar.File{Name: prefixBase64 + name, Data: wrapBase64(data)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.links)) {
		fmt.Fprintf(&links, "%s -> %s\n", name, a.links[name])
	}
	for _, name := range slices.Sorted(maps.Keys(a.dirs)) {
		fmt.Fprintln(&dirs, name)
	}
	for name, b := range map[string]*bytes.Buffer{sectionValues: &values, sectionLinks: &links, sectionDirs: &dirs} {
		if b.Len() > 0 {
			rest = append(rest, txtar.File{Name: name, Data: b.Bytes()})
		}
	}
	slices.SortFunc(rest, func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
	out.Files = append(out.Files, rest...)
	return txtar.Format(&out)
}

// byDirectory orders files so that those of one directory stand together.
func byDirectory(a, b string) int {
	if c := strings.Compare(parent(a), parent(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func wrapBase64(data []byte) []byte {
	var b bytes.Buffer
	for line := range slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), 76) {
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// textual reports whether data is printable text in UTF-8.
func textual(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(c rune) bool {
		return c != '\n' && c != '\t' && !unicode.IsPrint(c)
	})
}

func oneLine(data []byte) bool {
	return textual(data) && bytes.Count(data, []byte("\n")) == 1 && data[len(data)-1] == '\n'
}

// plainName reports whether a path is printable and has no white space, which
// the sections of an archive need.
func plainName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) })
}

// hasMarker reports whether txtar would read a line as the start of a section.
func hasMarker(data []byte) bool {
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("-- ")) {
			return true
		}
	}
	return false
}

// ParseArchive reads the text of an archive. It refuses paths that lead out of
// the machine or have white space in them, and sections that do not read.
func ParseArchive(data []byte) (*Archive, error) {
	in := txtar.Parse(data)
	a := NewArchive(string(in.Comment))
	for _, f := range in.Files {
		var err error
		switch {
		case f.Name == sectionValues:
			err = a.parseValues(f.Data)
		case f.Name == sectionLinks:
			err = a.parseLinks(f.Data)
		case f.Name == sectionDirs:
			for line := range strings.Lines(string(f.Data)) {
				a.AddDir(strings.TrimSuffix(line, "\n"))
			}
		case strings.HasPrefix(f.Name, prefixText):
			a.AddFile(strings.TrimPrefix(f.Name, prefixText), f.Data)
		case strings.HasPrefix(f.Name, prefixBase64):
			var raw []byte
			raw, err = base64.StdEncoding.DecodeString(string(f.Data)) // newlines are passed over
			a.AddFile(strings.TrimPrefix(f.Name, prefixBase64), raw)
		case strings.Contains(f.Name, "/"):
			err = errors.New("files of the machine are under root/ or base64/")
		default:
			a.SetDocument(f.Name, f.Data)
		}
		if err != nil {
			return nil, fmt.Errorf("recorded machine: section %q: %w", f.Name, err)
		}
	}
	for _, names := range [][]string{keys(a.files), keys(a.links), keys(a.dirs)} {
		for _, name := range names {
			if !fs.ValidPath(name) || name == "." || !plainName(name) {
				return nil, fmt.Errorf("recorded machine: %q is not a plain path below its root", name)
			}
		}
	}
	return a, nil
}

func keys[V any](m map[string]V) []string { return slices.Collect(maps.Keys(m)) }

func (a *Archive) parseValues(data []byte) error {
	dir := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if item, ok := strings.CutPrefix(line, "  "); ok {
			name, value, _ := strings.Cut(item, " ")
			if name == "" {
				return fmt.Errorf("%q has no name", line)
			}
			a.AddFile(path.Join(dir, name), []byte(value+"\n"))
			continue
		}
		d, ok := strings.CutSuffix(line, "/")
		if !ok {
			return fmt.Errorf("%q is neither a directory nor a value", line)
		}
		dir = d
	}
	return nil
}

func (a *Archive) parseLinks(data []byte) error {
	for line := range strings.Lines(string(data)) {
		name, target, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " -> ")
		if !ok || target == "" {
			return fmt.Errorf("%q is not PATH -> TARGET", line)
		}
		a.AddLink(name, target)
	}
	return nil
}

// Unpack writes the files of an archive, and its documents beside them at the
// top, into a directory that is empty or does not exist yet. The directory
// then is a root for [OpenRoot].
func Unpack(a *Archive, dir string) error {
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return fmt.Errorf("unpack recorded machine: %s is not empty", dir)
	}
	made := make(map[string]bool)
	mkdir := func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		return os.MkdirAll(filepath.Join(dir, name), 0o755)
	}
	write := func(name string, data []byte) error {
		if err := mkdir(parent(name)); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), data, 0o644)
	}
	for name := range a.dirs {
		if err := mkdir(name); err != nil {
			return fmt.Errorf("unpack recorded machine: %w", err)
		}
	}
	for _, all := range []map[string][]byte{a.files, a.docs} {
		for name, data := range all {
			if err := write(name, data); err != nil {
				return fmt.Errorf("unpack recorded machine: %w", err)
			}
		}
	}
	// Links come last, so that no file is written through one.
	for name := range a.links {
		if err := mkdir(parent(name)); err != nil {
			return fmt.Errorf("unpack recorded machine: %w", err)
		}
	}
	for name, target := range a.links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("unpack recorded machine: %w", err)
		}
	}
	return nil
}
