package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Guard keeps copies of boot files in the ledger, before they are written. From
// then on until a check that ends it (CheckEntries, CheckNext), a change that
// fails has them put back, and so has a process that dies: see Recover.
type Guard struct{ Paths []string }

func (c Guard) String() string {
	if len(c.Paths) == 1 {
		return "keep a copy of " + c.Paths[0]
	}
	return "keep copies of " + strings.Join(c.Paths, ", ")
}

// guard is what a Guard began, as it lies in the ledger.
type guard struct {
	Files []guardedFile `json:"files"`
}

type guardedFile struct {
	Path   string `json:"path"`
	Absent bool   `json:"absent,omitempty"` // there was none
	Copy   string `json:"copy,omitempty"`   // the name of its copy in backup/
	// Wrote is the hash of what the agent was about to write there, "" of
	// nothing: it was about to remove the file.
	Wrote *string `json:"wrote,omitempty"`
}

// Apply keeps one copy a file: the one from before the last rewrite.
func (c Guard) Apply(_ context.Context, m *Machine, j *Journal) error {
	var g guard
	for _, name := range c.Paths {
		data, err := m.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			g.Files = append(g.Files, guardedFile{Path: name, Absent: true})
			continue
		}
		if err != nil {
			return err
		}
		flat := strings.ReplaceAll(strings.Trim(path.Clean(name), "/"), "/", "-")
		if err := j.ledger.write(j.ledger.backup(flat), data); err != nil {
			return err
		}
		g.Files = append(g.Files, guardedFile{Path: name, Copy: flat})
	}
	return j.ledger.Save(guards, j.unit, g)
}

func (l *Ledger) backup(flat string) string { return filepath.Join(l.dir, "backup", flat) }

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// guarded notes what is about to stand in a file, if it is guarded.
func (j *Journal) guarded(name, hash string) error {
	var g guard
	if known, err := j.ledger.Load(guards, j.unit, &g); err != nil || !known {
		return err
	}
	i := slices.IndexFunc(g.Files, func(f guardedFile) bool { return f.Path == name })
	if i < 0 {
		return nil
	}
	g.Files[i].Wrote = &hash
	return j.ledger.Save(guards, j.unit, g)
}

func (j *Journal) write(m *Machine, name string, data []byte) error {
	if err := j.guarded(name, hashOf(data)); err != nil {
		return err
	}
	return m.WriteFile(name, data)
}

// CheckEntries reads back what will boot, notes that it has a unit's kernel
// arguments, and ends a Guard.
type CheckEntries struct {
	Files       []string // of the entries that count; nil: all
	Tokens, Old []string // what they are to have, and not to have
}

func (c CheckEntries) String() string { return "check what will boot" }

// Apply is an error if a program said that it ended well and the entries say
// otherwise.
func (c CheckEntries) Apply(_ context.Context, m *Machine, j *Journal) error {
	entries := m.BootEntries()
	if len(entries) == 0 {
		return errors.New("after the change, the boot loader's files have no entry to boot")
	}
	for _, e := range entries {
		if (c.Files == nil || slices.Contains(c.Files, e.File)) && e.Lacks(c.Tokens, c.Old) {
			return fmt.Errorf("after the change, an entry of %s boots with %q: something else decides on its arguments", e.File, strings.Join(e.Arguments, " "))
		}
	}
	if err := j.ledger.Drop(guards, j.unit); err != nil {
		return err
	}
	a := j.prior.Arguments
	if a == nil || len(a.Tokens) == 0 {
		return nil
	}
	written := *a
	written.Written, written.BootID, written.At = true, j.bootID, j.now().UTC()
	return j.keep(&written)
}

// CheckNext reads back which entry boots next, once, and ends a Guard. Only now
// is it known that arguments of a unit are armed: until then they were to be.
type CheckNext struct {
	ID   string
	Arms bool // arguments of this unit are in the entry
}

func (c CheckNext) String() string { return "check that the next boot is that of " + c.ID }

// Apply is an error if the boot loader's memory says another.
func (c CheckNext) Apply(_ context.Context, m *Machine, j *Journal) error {
	if now := m.NextBoot(); now != c.ID {
		return fmt.Errorf("the boot loader was told to boot %s next, and says %q", c.ID, now)
	}
	if err := j.ledger.Drop(guards, j.unit); err != nil {
		return err
	}
	a := j.prior.Arguments
	if !c.Arms || a == nil || a.Trial != TrialWaits {
		return nil
	}
	armed := *a
	armed.Trial, armed.BootID, armed.At = TrialArmed, j.bootID, j.now().UTC()
	return j.keep(&armed)
}

// CheckWritable finds out whether a folder can be written, by writing: what is
// to be written there after a boot had better not fail then.
type CheckWritable struct{ Dir string }

func (c CheckWritable) String() string { return "check that " + c.Dir + " can be written" }

// Apply leaves nothing there.
func (c CheckWritable) Apply(_ context.Context, m *Machine, _ *Journal) error {
	name := path.Join(c.Dir, ".better-compute.check")
	if err := m.WriteFile(name, nil); err != nil {
		return err
	}
	return m.RemoveFile(name)
}

// rollBack puts guarded files back after a change that failed, and answers the
// failure with what became of them.
func (j *Journal) rollBack(m *Machine, failure error) error {
	restored, err := j.ledger.rollBack(m, j.unit, false)
	if a, next := j.prior.Arguments, m.NextBoot(); err == nil && a != nil && a.Trial == TrialArmed && a.BootID == j.bootID && next != TrialEntry && next != LoaderTrial {
		waits := *a // the boot loader knows of it no longer
		waits.Trial = TrialWaits
		err = j.keep(&waits)
	}
	if len(restored) == 0 && err == nil {
		return failure
	}
	c := putBack(restored)
	j.old, j.new = "", ""
	if note := j.record(c, err); note != nil {
		err = errors.Join(err, note)
	}
	if err != nil {
		return fmt.Errorf("%w; and %s: %w", failure, c, err)
	}
	return fmt.Errorf("%w; %s", failure, c)
}

type putBack []string

func (p putBack) String() string {
	if len(p) == 0 {
		return "the files of the boot loader are not put back"
	}
	return "put back as it was: " + strings.Join(p, ", ")
}

// rollBack answers the files that it put back. After a death nobody knows how
// much time has passed: only what is damaged, or still as the agent wrote it,
// is put back then, and nothing that someone else has made since.
func (l *Ledger) rollBack(m *Machine, unit string, died bool) ([]string, error) {
	var g guard
	known, err := l.Load(guards, unit, &g)
	if err != nil || !known {
		return nil, err
	}
	var restored []string
	for _, f := range slices.Backward(g.Files) {
		was := []byte(nil)
		if !f.Absent {
			if was, err = os.ReadFile(l.backup(f.Copy)); err != nil {
				return restored, fmt.Errorf("host ledger: %w", err)
			}
		}
		now, err := m.ReadFile(f.Path)
		gone := errors.Is(err, fs.ErrNotExist)
		if err != nil && !gone {
			return restored, err
		}
		if gone && f.Absent || !gone && !f.Absent && string(now) == string(was) {
			continue
		}
		ours := f.Wrote != nil && (gone && *f.Wrote == "" || !gone && *f.Wrote == hashOf(now))
		if died && !ours && !damaged(f.Path, now) {
			continue
		}
		if err := putFileBack(m, f, was); err != nil {
			return restored, err
		}
		restored = append(restored, f.Path)
	}
	return restored, l.Drop(guards, unit)
}

func putFileBack(m *Machine, f guardedFile, was []byte) error {
	if f.Absent {
		return m.RemoveFile(f.Path)
	}
	if f.Path == GRUBConfig && m.Exists(GRUBConfig+".new") {
		// What grub-mkconfig left when it failed; on a full disk it is in the way.
		if err := m.RemoveFile(GRUBConfig + ".new"); err != nil {
			return err
		}
	}
	return m.WriteFile(f.Path, was)
}

// damaged reports whether a boot file is not all there: its program was stopped
// while it wrote.
func damaged(name string, data []byte) bool {
	text := strings.TrimRight(string(data), "\n")
	switch {
	case name == GRUBConfig: // it ends with the mark behind the last script's part
		return !strings.HasPrefix(text[strings.LastIndexByte(text, '\n')+1:], "### END ")
	case name == GRUBEnvironment: // of a fixed size
		return len(data) != 1024
	case path.Ext(name) == ".conf":
		keys := map[string]bool{}
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 {
				keys[f[0]] = true
			}
		}
		return !keys["linux"] || !keys["options"]
	}
	return false
}

// Recover puts back boot files that a process which died was rewriting. It is
// called under the ledger's lock. It answers the files.
func Recover(m *Machine, l *Ledger, bootID string, now func() time.Time) ([]string, error) {
	var all []string
	var failures error
	for _, unit := range l.Units(guards) {
		j, err := OpenJournal(l, unit, 0, bootID, now)
		if err == nil {
			var restored []string
			if restored, err = l.rollBack(m, unit, true); len(restored) > 0 || err != nil {
				err = errors.Join(err, j.record(putBack(restored), err))
			}
			all = append(all, restored...)
		}
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("boot files of the unit %s, which a process was rewriting when it died: %w", unit, err))
		}
	}
	return all, failures
}

// Guards reports whether boot files of a unit are not put back yet.
func (l *Ledger) Guards(unit string) bool { return slices.Contains(l.Units(guards), unit) }

// Interrupted reports whether a process died, or is at work, while it rewrote
// boot files.
func (l *Ledger) Interrupted() bool { return len(l.Units(guards)) > 0 }

// KeepArguments notes which kernel arguments a unit keeps from now on, before
// the boot loader is told. Old ones may still stand in boot entries.
type KeepArguments struct {
	Tokens, Old []string
	Trial       Trial
	Standing    []string
	With        []string
	Written     bool // it was seen that the entries have them
}

func (c KeepArguments) String() string {
	tokens := strings.Join(c.Tokens, " ")
	switch {
	case len(c.Tokens) == 0 && len(c.Old) == 0:
		return "note that no kernel arguments are kept"
	case len(c.Tokens) == 0:
		return "note that kernel arguments are given up: " + strings.Join(c.Old, " ")
	case c.Trial == TrialPassed:
		return "note that the machine came up with " + tokens
	case c.Trial == TrialFailed:
		return "note that the machine did not come up with " + tokens
	}
	text := "note kernel arguments"
	if c.Trial == TrialWaits {
		text += " for a trial"
	}
	if text += ": " + tokens; len(c.Old) > 0 {
		text += " in place of " + strings.Join(c.Old, " ")
	}
	return text
}

// Apply changes the ledger only. What was noted already keeps the boot in which
// it was decided.
func (c KeepArguments) Apply(_ context.Context, _ *Machine, j *Journal) error {
	if len(c.Tokens) == 0 && len(c.Old) == 0 {
		return j.keep(nil)
	}
	a := &Arguments{
		Tokens: c.Tokens, Old: c.Old, Trial: c.Trial, Standing: c.Standing, With: c.With, Written: c.Written,
		BootID: j.bootID, At: j.now().UTC(),
	}
	if b := j.prior.Arguments; b != nil && slices.Equal(b.Tokens, c.Tokens) && b.Trial == c.Trial {
		a.BootID, a.At = b.BootID, b.At
		a.Written = a.Written || b.Written
	}
	return j.keep(a)
}
