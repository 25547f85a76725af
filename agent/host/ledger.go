package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Ledger is what the agent remembers of a machine's configuration, a folder of
// small JSON files, each replaced as a whole:
//
//	desired/UNIT.json  what the control plane wants
//	prior/UNIT.json    what was there before the unit's first write
//	result/UNIT.json   how far the unit has come
//	guard/UNIT.json    boot files that are being rewritten, and have not been checked yet
//	backup/            copies of boot files from before they were rewritten
//	history            a line for each change, the newest last
type Ledger struct{ dir string }

// Book is a folder of the ledger.
type Book string

// The books of a ledger.
const (
	Desired Book = "desired"
	Priors  Book = "prior"
	Results Book = "result"
	guards  Book = "guard"
)

// OpenLedger opens the ledger in an agent's state directory. It makes nothing:
// an agent that leaves its host alone has an empty one.
func OpenLedger(stateDir string) *Ledger { return &Ledger{dir: filepath.Join(stateDir, "host")} }

// Dir is where the ledger is.
func (l *Ledger) Dir() string { return l.dir }

// lockWait is how long one process waits for another that applies a unit. The
// longest unit, an initramfs of every kernel, ends within it.
const lockWait = 11 * time.Minute

// Lock keeps every other process from applying units of this ledger, until
// unlock. The agent and bcd unit apply run side by side.
func (l *Ledger) Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("host ledger: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(l.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("host ledger: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			SignLock(f)
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			holder := LockHolder(f)
			f.Close()
			return nil, fmt.Errorf("%s is applying units of %s; wait for it to end", holder, l.dir)
		case <-time.After(100 * time.Millisecond): // flock tells nobody when it is free
		}
	}
}

// SignLock writes into a file which process has locked it. It is for people: a
// lock that cannot be signed holds just as well.
func SignLock(f *os.File) {
	if f.Truncate(0) == nil {
		fmt.Fprintln(f, os.Getpid())
	}
}

// LockHolder names the process that signed a locked file.
func LockHolder(f *os.File) string {
	data := make([]byte, 32)
	n, _ := f.ReadAt(data, 0) // not signed yet: nobody is known
	pid := strings.TrimSpace(string(data[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		return "another process"
	}
	who := "process " + pid
	if line, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil {
		words := strings.FieldsFunc(string(line), func(c rune) bool { return c == 0 })
		who += " (" + strings.Join(words[:min(len(words), 3)], " ") + ")" // what it is, and no secret that may follow
	}
	return who
}

func (l *Ledger) path(b Book, unit string) string {
	return filepath.Join(l.dir, string(b), unit+".json")
}

// Load reads a unit's page of a book. It reports false if there is none. A
// damaged one is an error that says where it is.
func (l *Ledger) Load(b Book, unit string, v any) (bool, error) {
	data, err := os.ReadFile(l.path(b, unit))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("host ledger: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("host ledger: %s is damaged, move it away to go on: %w", l.path(b, unit), err)
	}
	return true, nil
}

// Save writes a unit's page of a book.
func (l *Ledger) Save(b Book, unit string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("host ledger: %w", err)
	}
	return l.write(l.path(b, unit), append(data, '\n'))
}

func (l *Ledger) write(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("host ledger: %w", err)
	}
	if err := replaceFile(name, data); err != nil {
		return fmt.Errorf("host ledger: %w", err)
	}
	return nil
}

// Drop removes a unit's page of a book, if there is one.
func (l *Ledger) Drop(b Book, unit string) error {
	if err := os.Remove(l.path(b, unit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("host ledger: %w", err)
	}
	return nil
}

// Units lists the units with a page in a book, sorted.
func (l *Ledger) Units(b Book) []string {
	entries, _ := os.ReadDir(filepath.Join(l.dir, string(b))) // none yet: no units
	var units []string
	for _, e := range entries {
		if unit, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			units = append(units, unit)
		}
	}
	slices.Sort(units)
	return units
}

// Prior is what a unit found before its first writes, and what it wrote since.
// It stays until the unit is removed.
type Prior struct {
	Values map[string]Value `json:"values,omitempty"` // by path, or by a name that the unit gives
	// Arguments are the kernel arguments that the unit keeps.
	Arguments *Arguments `json:"arguments,omitempty"`
}

// Empty reports whether nothing is left to be undone.
func (p Prior) Empty() bool { return len(p.Values) == 0 && p.Arguments == nil }

// Value is one thing that a unit changed.
type Value struct {
	Before string    `json:"before"`           // from before the first write
	Absent bool      `json:"absent,omitempty"` // it was not there
	Wrote  string    `json:"wrote"`            // the last write
	Got    string    `json:"got,omitempty"`    // as read back after it
	Known  bool      `json:"known,omitempty"`  // Got was read
	BootID string    `json:"bootId,omitempty"` // of the last write
	At     time.Time `json:"at"`               // of the last write
}

// OurDoing reports whether a thing is as the unit left it. After a write that was cut
// short nobody can tell, and it counts as the unit's.
func (v Value) OurDoing(now string) bool { return !v.Known || now == v.Got || now == v.Wrote }

// Arguments are kernel arguments of one unit, in order.
type Arguments struct {
	Tokens []string `json:"tokens"`
	// Old are tokens that the unit kept before and that may still stand in boot
	// entries.
	Old []string `json:"old,omitempty"`
	// Trial says how far Tokens are on a boot loader that boots them once first.
	Trial Trial `json:"trial,omitempty"`
	// Standing are the tokens in place of which Tokens are tried: they stay in
	// boot entries until then.
	Standing []string `json:"standing,omitempty"`
	With     []string `json:"with,omitempty"` // what other units had tried together with Tokens when that failed
	// Written says that Tokens were read back from the boot entries.
	Written bool      `json:"written,omitempty"`
	BootID  string    `json:"bootId"` // of the boot in which all this was decided
	At      time.Time `json:"at"`
}

// Trial is how far kernel arguments have come that boot once before they are
// written for good.
type Trial string

// The states of a trial. Without one, arguments are written at once.
const (
	TrialWaits  Trial = "waits"  // they are to be tried; nobody has seen yet that the boot loader knows
	TrialArmed  Trial = "armed"  // the next boot tries them
	TrialPassed Trial = "passed" // the machine came up with them
	TrialFailed Trial = "failed" // the machine was booted since, and came up without them
)

// Lasting are the tokens that boot entries are to have for good.
func (a Arguments) Lasting() []string {
	switch a.Trial {
	case TrialWaits, TrialArmed, TrialFailed:
		return a.Standing
	}
	return a.Tokens
}

// Event is a line of the history.
type Event struct {
	At         time.Time `json:"at"`
	Unit       string    `json:"unit"`
	Generation int64     `json:"generation"` // of the NodeSpec that wanted it, 0: an operator
	Change     string    `json:"change"`
	Old        string    `json:"old,omitempty"`
	New        string    `json:"new,omitempty"`
	Error      string    `json:"error,omitempty"`
}

// maxHistory bounds the history, about 5000 changes. The one before is kept.
const maxHistory = 1 << 20

func (l *Ledger) historyPath() string { return filepath.Join(l.dir, "history") }

// record appends a line. A line that was cut short by a crash is passed over
// when the history is read.
func (l *Ledger) record(e Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("host history: %w", err)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return fmt.Errorf("host history: %w", err)
	}
	if info, err := os.Stat(l.historyPath()); err == nil && info.Size() > maxHistory {
		if err := os.Rename(l.historyPath(), l.historyPath()+".1"); err != nil {
			return fmt.Errorf("host history: %w", err)
		}
	}
	f, err := os.OpenFile(l.historyPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("host history: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("host history: %w", err)
	}
	return nil
}

// History lists the changes that were made, the oldest first.
func (l *Ledger) History() ([]Event, error) {
	var events []Event
	for _, name := range []string{l.historyPath() + ".1", l.historyPath()} {
		data, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("host history: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			var e Event
			if json.Unmarshal([]byte(line), &e) == nil {
				events = append(events, e)
			}
		}
	}
	return events, nil
}
