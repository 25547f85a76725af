package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Change is one step of a plan. Its String is the dry run that a person reads,
// the line of the history and the text of the golden files.
type Change interface {
	fmt.Stringer
	// Apply makes the change. It is called again after a crash at any moment, so
	// applying twice is as applying once. What it overwrites it first notes in
	// the journal.
	Apply(ctx context.Context, m *Machine, j *Journal) error
}

// Journal is where the changes of one unit are noted.
type Journal struct {
	ledger     *Ledger
	unit       string
	generation int64
	bootID     string
	now        func() time.Time
	prior      Prior
	old, new   string // of the change being applied, for the history
}

// OpenJournal opens the journal of a unit. The generation is the NodeSpec's
// that its changes come from.
func OpenJournal(l *Ledger, unit string, generation int64, bootID string, now func() time.Time) (*Journal, error) {
	j := &Journal{ledger: l, unit: unit, generation: generation, bootID: bootID, now: now}
	if _, err := l.Load(Priors, unit, &j.prior); err != nil {
		return nil, err
	}
	return j, nil
}

// Prior is what is noted of the unit.
func (j *Journal) Prior() Prior { return j.prior }

// Before notes what stands at key now, and what is about to be written there.
// The value from before the first write is kept, whatever comes after.
func (j *Journal) Before(key, now string, absent bool, write string) error {
	p := j.prior.clone()
	p.before(j, key, now, absent, write)
	j.old, j.new = now, write
	return j.save(p)
}

func (p *Prior) before(j *Journal, key, now string, absent bool, write string) {
	v, known := p.Values[key]
	if !known {
		v = Value{Before: now, Absent: absent}
	}
	v.Wrote, v.Got, v.Known, v.BootID, v.At = write, "", false, j.bootID, j.now().UTC()
	p.Values[key] = v
}

func (p Prior) clone() Prior {
	values := maps.Clone(p.Values)
	if values == nil {
		values = make(map[string]Value)
	}
	return Prior{Values: values, Arguments: p.Arguments}
}

// After notes what was read back at key.
func (j *Journal) After(key, got string) error {
	v, ok := j.prior.Values[key]
	if !ok {
		return fmt.Errorf("%s was not noted before it was written", key)
	}
	v.Got, v.Known = got, true
	j.new = got
	p := j.prior.clone()
	p.Values[key] = v
	return j.save(p)
}

// Changed tells the history what a change found and left, where nothing has to
// be noted to undo it.
func (j *Journal) Changed(from, to string) { j.old, j.new = from, to }

// Forget drops what is noted of keys: they are the unit's no longer.
func (j *Journal) Forget(keys ...string) error {
	p := j.prior.clone()
	for _, key := range keys {
		delete(p.Values, key)
	}
	if len(p.Values) == len(j.prior.Values) {
		return nil
	}
	return j.save(p)
}

func (j *Journal) keep(a *Arguments) error {
	return j.save(Prior{Values: j.prior.Values, Arguments: a})
}

func (j *Journal) save(p Prior) error {
	var err error
	if p.Empty() {
		err = j.ledger.Drop(Priors, j.unit)
	} else {
		err = j.ledger.Save(Priors, j.unit, p)
	}
	if err == nil {
		j.prior = p
	}
	return err
}

// Apply makes changes in order and stops at the first that fails. Each, also
// the failed one, is a line of the history. If boot files were guarded by then,
// they are put back.
func Apply(ctx context.Context, m *Machine, j *Journal, changes []Change) error {
	for _, c := range changes {
		err := ctx.Err()
		if err == nil {
			j.old, j.new = "", ""
			err = c.Apply(ctx, m, j)
			err = errors.Join(err, j.record(c, err))
		}
		if err != nil {
			return j.rollBack(m, err)
		}
	}
	return nil
}

func (j *Journal) record(c fmt.Stringer, err error) error {
	e := Event{At: j.now().UTC(), Unit: j.unit, Generation: j.generation, Change: firstLine(c.String()), Old: j.old, New: j.new}
	if err != nil {
		e.Error = err.Error()
	}
	return j.ledger.record(e)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSuffix(line, ":")
}

// SetKernel writes a value to a file of /proc or /sys, and reads it back.
type SetKernel struct{ Path, Value string }

func (c SetKernel) String() string { return "set " + c.Path + " = " + c.Value }

// Apply is an error if the kernel says another value afterwards.
func (c SetKernel) Apply(_ context.Context, m *Machine, j *Journal) error {
	got, err := setKernel(m, j, c.Path, c.Value)
	if err == nil && got != c.Value {
		err = fmt.Errorf("%s: the kernel took %q and has %q", c.Path, c.Value, got)
	}
	return err
}

func setKernel(m *Machine, j *Journal, name, value string) (string, error) {
	now, ok := m.Setting(name)
	if !ok {
		return "", fmt.Errorf("%s cannot be read", name)
	}
	if err := j.Before(name, now, false, value); err != nil {
		return "", err
	}
	if err := m.WriteKernel(name, value); err != nil {
		return "", err
	}
	got, ok := m.Setting(name)
	if !ok {
		return "", fmt.Errorf("%s cannot be read after it was written", name)
	}
	return got, j.After(name, got)
}

// Setting is what a kernel file that can be written is set to. It is what the
// file says, but for nr_hugepages, which counts pages that go back by themselves
// and is written without them.
func (r *Root) Setting(name string) (string, bool) {
	s, ok := r.String(name)
	if !ok || path.Base(name) != "nr_hugepages" {
		return s, ok
	}
	surplus, _ := r.Int(path.Join(path.Dir(name), "surplus_hugepages"))
	n, err := strconv.ParseInt(s, 10, 64)
	return strconv.FormatInt(n-surplus, 10), err == nil
}

// SetPool sets the size of a pool of huge pages. The kernel takes any number
// and gives what it can, without an error.
type SetPool struct {
	Path  string // of nr_hugepages
	Pages int
}

func (c SetPool) String() string { return fmt.Sprintf("set %s = %d", c.Path, c.Pages) }

// compactMemory has the kernel move pages together, so that free memory
// becomes contiguous ("compact_memory", kernel admin guide, sysctl/vm).
const compactMemory = "/proc/sys/vm/compact_memory"

// maxPoolTries is how often a short pool is asked for again; it ends sooner
// when a try brings nothing.
const maxPoolTries = 8

// Apply compacts memory once if the pool stays short, then asks again for as
// long as that helps. A pool that is short in the end is no error: the plan
// that follows says so.
func (c SetPool) Apply(ctx context.Context, m *Machine, j *Journal) error {
	want := fmt.Sprint(c.Pages)
	got, err := setKernel(m, j, c.Path, want)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(got); err != nil || n >= c.Pages {
		return nil
	}
	// A kernel without compaction has no such file; the pool is what it is.
	_ = m.WriteKernel(compactMemory, "1")
	for range maxPoolTries {
		before := got
		if err := m.WriteKernel(c.Path, want); err != nil {
			return err
		}
		got, _ = m.Setting(c.Path)
		if got == want || got == before || ctx.Err() != nil {
			break
		}
	}
	return j.After(c.Path, got)
}

// SetEach writes one value to many files of /proc or /sys, and reads each back.
// All that they were is noted in one go: a machine has a file for each of some
// hundred CPUs.
type SetEach struct {
	Paths []string
	Value string
}

func (c SetEach) String() string { return "set " + Several(c.Paths) + " = " + c.Value }

// Apply stops at the first file that does not take the value.
func (c SetEach) Apply(_ context.Context, m *Machine, j *Journal) error {
	p := j.prior.clone()
	for _, name := range c.Paths {
		now, ok := m.Setting(name)
		if !ok {
			return fmt.Errorf("%s cannot be read", name)
		}
		p.before(j, name, now, false, c.Value)
		j.Changed(now, c.Value)
	}
	if err := j.save(p); err != nil {
		return err
	}
	var failure error
	for _, name := range c.Paths {
		if failure = m.WriteKernel(name, c.Value); failure != nil {
			break
		}
		got, _ := m.Setting(name)
		if got != c.Value {
			failure = fmt.Errorf("%s: the kernel took %q and has %q", name, c.Value, got)
			break
		}
		v := p.Values[name]
		v.Got, v.Known = got, true
		p.Values[name] = v
	}
	return errors.Join(failure, j.save(p))
}

// Several writes many paths as one: the digits that differ become a *.
func Several(paths []string) string {
	if len(paths) == 1 {
		return paths[0]
	}
	patterns := map[string]int{}
	for _, name := range paths {
		patterns[pattern(name)]++
	}
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(patterns)) {
		parts = append(parts, fmt.Sprintf("%s (%d files)", p, patterns[p]))
	}
	return strings.Join(parts, ", ")
}

// pattern writes the last folder's number as *.
func pattern(name string) string {
	dir := path.Dir(name)
	return strings.TrimRight(dir, "0123456789") + "*/" + path.Base(name)
}

// Restore puts back the value from before the first write and forgets it. The
// files all had the same.
type Restore struct {
	Paths []string
	Value string
}

func (c Restore) String() string { return "restore " + Several(c.Paths) + " = " + c.Value }

// Apply is an error if the kernel does not take the value.
func (c Restore) Apply(_ context.Context, m *Machine, j *Journal) error {
	for _, name := range c.Paths {
		j.Changed(j.prior.Values[name].Wrote, c.Value)
		if err := m.WriteKernel(name, c.Value); err != nil {
			return err
		}
	}
	return j.Forget(c.Paths...)
}

// Forget leaves a thing as it is and no longer counts it as the unit's.
type Forget struct{ Key, Why string }

func (c Forget) String() string { return "leave " + c.Key + " as it is: " + c.Why }

// Apply changes the ledger only.
func (c Forget) Apply(_ context.Context, _ *Machine, j *Journal) error { return j.Forget(c.Key) }

// ForgetEach is Forget of many files.
type ForgetEach struct {
	Paths []string
	Why   string
}

func (c ForgetEach) String() string { return "leave " + Several(c.Paths) + " as it is: " + c.Why }

// Apply changes the ledger only.
func (c ForgetEach) Apply(_ context.Context, _ *Machine, j *Journal) error {
	return j.Forget(c.Paths...)
}

// WriteManaged writes a file of the agent's own, with a header that says so.
type WriteManaged struct{ Path, Content string }

func (c WriteManaged) String() string { return "write " + c.Path + ":" + indented(c.Content) }

func indented(content string) string {
	var b strings.Builder
	for line := range strings.Lines(content) {
		b.WriteString("\n    " + strings.TrimSuffix(line, "\n"))
	}
	return b.String()
}

// Apply refuses to write over a file that someone else made or edited.
func (c WriteManaged) Apply(_ context.Context, m *Machine, j *Journal) error {
	now, err := m.ReadManaged(c.Path)
	if err != nil {
		return err
	}
	if now.Exists && !now.Ours {
		return foreign(c.Path)
	}
	j.Changed(now.Content, c.Content)
	if err := j.write(m, c.Path, managedFile(c.Content)); err != nil {
		return err
	}
	now, err = m.ReadManaged(c.Path)
	if err == nil && now.Content != c.Content {
		err = fmt.Errorf("%s does not read as it was written", c.Path)
	}
	return err
}

// RemoveManaged removes a file of the agent's own.
type RemoveManaged struct{ Path string }

func (c RemoveManaged) String() string { return "remove " + c.Path }

// Apply refuses to remove a file that someone else made or edited.
func (c RemoveManaged) Apply(_ context.Context, m *Machine, j *Journal) error {
	now, err := m.ReadManaged(c.Path)
	if err != nil {
		return err
	}
	if now.Exists && !now.Ours {
		return foreign(c.Path)
	}
	j.Changed(now.Content, "")
	if err := j.guarded(c.Path, ""); err != nil {
		return err
	}
	return m.RemoveFile(c.Path)
}

// Edit replaces the content of a file that is not the agent's, from what it was
// when the change was planned.
type Edit struct{ Path, Old, New string }

func (c Edit) String() string {
	return "edit " + c.Path + " from:" + indented(c.Old) + "\n  to:" + indented(c.New)
}

// Apply refuses a file that is no longer as it was.
func (c Edit) Apply(_ context.Context, m *Machine, j *Journal) error {
	now, err := m.ReadFile(c.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(now) == c.New {
		return nil
	}
	if string(now) != c.Old {
		return fmt.Errorf("%s was %w since it was looked at", c.Path, ErrConflict)
	}
	j.Changed(c.Old, c.New)
	return j.write(m, c.Path, []byte(c.New))
}

// RunCommand runs one of [Programs].
type RunCommand struct{ Argv []string }

// Command is a RunCommand of these words.
func Command(argv ...string) RunCommand { return RunCommand{argv} }

func (c RunCommand) String() string { return "run " + strings.Join(c.Argv, " ") }

// Apply waits for the program to end.
func (c RunCommand) Apply(ctx context.Context, m *Machine, _ *Journal) error {
	return m.Run(ctx, c.Argv...)
}

// Note remembers a fact about what the unit did, such as that an initramfs holds
// its options: a value under a key that is no path.
type Note struct{ Key, Value string }

func (c Note) String() string { return "note " + c.Key + ": " + c.Value }

// Apply changes the ledger only.
func (c Note) Apply(_ context.Context, _ *Machine, j *Journal) error {
	if err := j.Before(c.Key, "", true, c.Value); err != nil {
		return err
	}
	return j.After(c.Key, c.Value)
}
