package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// ledger is what a node remembers over restarts of its agent.
type ledger struct {
	MachineID  string `json:"machineId"`
	Server     string `json:"server,omitempty"`
	NodeID     string `json:"nodeId,omitempty"`
	PoolID     string `json:"poolId,omitempty"`
	Credential string `json:"credential,omitempty"`

	// Spec is the NodeSpec last taken up, as it came: units that this binary
	// has no word for stay in it for a later one.
	Spec json.RawMessage `json:"spec,omitempty"`

	// Left says that the control plane has removed this node, and that it has
	// joined no other since: nothing is wanted of the machine any more.
	Left bool `json:"left,omitempty"`

	Units    []wire.UnitStatus    `json:"units,omitempty"`
	Checks   []wire.CheckResult   `json:"checks,omitempty"`
	Bindings []wire.BindingStatus `json:"bindings,omitempty"`

	// GPUs are those of the last inventory, the missing and lost ones too.
	GPUs []wire.GPU `json:"gpus,omitempty"`
}

// ledgerFile is where a ledger lies: one file of mode 0600, replaced as a whole,
// with the one before beside it.
type ledgerFile struct {
	dir  string
	lock *os.File
	last [sha256.Size]byte // of what was written last
}

const (
	ledgerName = "agent.json"
	backupName = "agent.json.bak"
	lockName   = "agent.lock"
)

// sealed is the form on disk. The sum tells a damaged file from a whole one.
type sealed struct {
	SHA256 string          `json:"sha256"`
	Ledger json.RawMessage `json:"ledger"`
}

// openLedger takes the state directory for this process alone, making it if
// need be, until close. It is an error if another agent has it.
func openLedger(dir string) (*ledgerFile, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("state directory %s: another agent is running on it, %s; stop that one first", dir, host.LockHolder(lock))
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	host.SignLock(lock)
	return &ledgerFile{dir: dir, lock: lock}, nil
}

func (f *ledgerFile) close() error { return f.lock.Close() }

// read answers what was written last. A damaged file is put aside and the one
// before it is read; damage says so, for the log. With neither, the ledger is
// empty and the machine joins again under the same machine id.
func (f *ledgerFile) read() (l ledger, damage error) {
	l, err := f.readFile(ledgerName)
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		damage = err
		name := filepath.Join(f.dir, ledgerName)
		if err := os.Rename(name, name+".damaged"); err != nil {
			damage = errors.Join(damage, err)
		}
	}
	l, err = f.readFile(backupName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		damage = errors.Join(damage, err)
	}
	return l, damage
}

func (f *ledgerFile) readFile(name string) (ledger, error) {
	b, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		return ledger{}, err
	}
	var in sealed
	if err := json.Unmarshal(b, &in); err != nil {
		return ledger{}, fmt.Errorf("%s is damaged: %w", filepath.Join(f.dir, name), err)
	}
	if sum := sha256.Sum256(in.Ledger); hex.EncodeToString(sum[:]) != in.SHA256 {
		return ledger{}, fmt.Errorf("%s is damaged: its checksum does not fit", filepath.Join(f.dir, name))
	}
	var l ledger
	if err := json.Unmarshal(in.Ledger, &l); err != nil {
		return ledger{}, fmt.Errorf("%s: %w", filepath.Join(f.dir, name), err)
	}
	return l, nil
}

// write makes l durable, unless it is what was written last.
func (f *ledgerFile) write(l ledger) error {
	body, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	sum := sha256.Sum256(body)
	if sum == f.last {
		return nil
	}
	b, err := json.Marshal(sealed{SHA256: hex.EncodeToString(sum[:]), Ledger: body})
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	if err := f.replace(b); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	f.last = sum
	return nil
}

func (f *ledgerFile) replace(b []byte) error {
	name, backup := filepath.Join(f.dir, ledgerName), filepath.Join(f.dir, backupName)
	if err := writeSynced(name+".new", b); err != nil {
		return err
	}
	// Between the two renames there is only the backup, which read takes.
	if err := os.Rename(name, backup); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return syncDir(f.dir)
}

func writeSynced(name string, b []byte) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
