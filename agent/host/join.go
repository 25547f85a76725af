package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// joinDir is root's alone and in memory.
	joinDir    = "/run/bc-k8s-join"
	joinConfig = joinDir + "/join.yaml"
	// JoinLog is what kubeadm wrote when it last failed, at most its last 64 KiB.
	JoinLog = joinDir + "/kubeadm.log"

	// JoinToken stands for the token in a JoinConfiguration.
	JoinToken = "@TOKEN@"

	joinNote = "kubeadm join"
)

// JoinLeftovers are the files that kubeadm join makes before it can fail, and
// refuses to find when it runs again.
var JoinLeftovers = []string{"/etc/kubernetes/bootstrap-kubelet.conf", "/etc/kubernetes/pki/ca.crt"}

// bootstrapToken is what Kubernetes calls one.
var bootstrapToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)

// JoinCluster runs kubeadm join. The token is read when that is done, stands in
// a file of root's below /run for as long, and nowhere else.
type JoinCluster struct {
	Server   string
	TokenRef string
	Config   string // a JoinConfiguration in YAML, with JoinToken for the token
	As       string // what is noted of it: as what the machine joins
}

func (c JoinCluster) String() string {
	return fmt.Sprintf("join the cluster of %s with the token in the secret %q, by kubeadm join --config %s:%s", c.Server, c.TokenRef, joinConfig, indented(c.Config))
}

// Joining tells from what a unit noted whether a join by this change began, and
// as what. It may have been cut off.
func Joining(p Prior) (begun bool, as string) {
	v, begun := p.Values[joinNote]
	return begun, v.Wrote
}

// Apply first removes what a join of its own that failed or was cut off has left.
func (c JoinCluster) Apply(ctx context.Context, m *Machine, j *Journal) error {
	secret, err := m.Secret(c.TokenRef)
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(secret))
	if !bootstrapToken.MatchString(token) {
		return fmt.Errorf("the secret %q is not a bootstrap token such as \"kubeadm token create\" prints, with 6 characters, a dot and 16 characters", c.TokenRef)
	}
	tidy := func() (err error) {
		for _, name := range JoinLeftovers {
			err = errors.Join(err, m.RemoveFile(name))
		}
		return err
	}
	if begun, _ := Joining(j.Prior()); begun {
		if err := tidy(); err != nil {
			return err
		}
	}
	if err := j.Before(joinNote, "", true, c.As); err != nil {
		return err
	}
	if err := m.WriteSecret(joinConfig, []byte(strings.ReplaceAll(c.Config, JoinToken, token))); err != nil {
		return err
	}
	err = m.Run(ctx, "kubeadm", "join", "--config", joinConfig, "-v=5")
	if gone := m.RemoveFile(joinConfig); err == nil {
		err = gone
	}
	if err == nil {
		return j.After(joinNote, c.As)
	}
	var ran *CommandError
	if errors.As(err, &ran) {
		ran.Output, ran.Log = strings.ReplaceAll(ran.Output, token, "[token]"), strings.ReplaceAll(ran.Log, token, "[token]")
		_ = m.WriteSecret(JoinLog, []byte(ran.Log)) // the error says the most of it
		err = errors.New(joinFailure(ran))
	}
	return errors.Join(err, tidy())
}

// joinFailures are what kubeadm's log has of why it failed, the surest first: a
// cluster that is not the right one also looks away.
var joinFailures = []struct {
	words  []string
	reason string
}{
	{[]string{"are pinned"}, "CAHashMismatch: the cluster that answers has another CA than caCertSha256"},
	{[]string{"certificate has expired or is not yet valid"}, "ClockSkew: a certificate is not valid by this machine's clock; set the clock, or renew the certificate"},
	{[]string{"JWS signature", "Unauthorized"}, "TokenExpired: the cluster does not know the token any more; write one of \"kubeadm token create\" into the secret"},
	{[]string{
		"connection refused", "no such host", "i/o timeout", "no route to host", "network is unreachable", "deadline exceeded",
		"timed out waiting", "did not end within", "connection reset", "server misbehaving",
	}, "ApiUnreachable: the API server does not answer"},
}

// joinFailure says why kubeadm failed in a line.
func joinFailure(ran *CommandError) string {
	said := ran.Log + "\n" + ran.Err.Error()
	for _, f := range joinFailures {
		for _, words := range f.words {
			if strings.Contains(said, words) {
				return f.reason + "; see " + JoinLog
			}
		}
	}
	for line := range strings.Lines(ran.Log) { // a stack trace may follow
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[ERROR ") || strings.HasPrefix(line, "error execution phase") {
			return "kubeadm join failed: " + tail(line) + "; see " + JoinLog
		}
	}
	return "kubeadm join failed: " + ran.Err.Error() + "; see " + JoinLog
}

// DropToken removes the file with the token that a join which was cut off has
// left.
type DropToken struct{}

func (DropToken) String() string { return "remove " + joinConfig }

// Apply is no error if the file is not there.
func (DropToken) Apply(_ context.Context, m *Machine, _ *Journal) error {
	return m.RemoveFile(joinConfig)
}

// LeavesToken reports whether there is something for DropToken.
func (m *Machine) LeavesToken() bool { return m.Exists(joinConfig) }

// Left forgets that the machine joined a cluster by this agent. It stays in it.
type Left struct{ Why string }

func (c Left) String() string { return "LeftJoined: " + c.Why }

// Apply changes the ledger only.
func (c Left) Apply(_ context.Context, _ *Machine, j *Journal) error { return j.Forget(joinNote) }

// WriteSecret makes a file that only root reads, in a folder that is only
// root's. A file or link that is there goes first.
func (e treeEdge) WriteSecret(name string, data []byte) error {
	p, err := e.path(name)
	if err != nil {
		return err
	}
	dir := filepath.Dir(p)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err != nil {
		return err
	} else if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder of root's alone; remove it", filepath.Dir(name))
	}
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// versionTimeout bounds a program that says its version.
const versionTimeout = 10 * time.Second

// versionOf lists the programs that are asked for their version.
var versionOf = map[string][]string{"kubeadm": {"version", "-o", "short"}, "kubelet": {"--version"}}

// Version is "" of a machine where nothing runs.
func (e treeEdge) Version(context.Context, string) string { return "" }

// ClockSynced is true of a machine where nothing runs.
func (e treeEdge) ClockSynced() bool { return true }

// Version asks a program of Kubernetes for its version, such as v1.31.4, and is
// "" without one.
func (e *realEdge) Version(ctx context.Context, program string) string {
	args, ok := versionOf[program]
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	for _, dir := range programDirs {
		name := dir + "/" + program
		if _, err := os.Stat(name); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"LC_ALL=C.UTF-8", "HOME=/root"}, "/", time.Second
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		return strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes ")
	}
	return ""
}

// ClockSynced asks the kernel, whatever keeps its clock. Where the kernel does
// not say, as in a container, the clock is taken for good.
func (e *realEdge) ClockSynced() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err != nil || state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}

// maxLog bounds what is kept of a program's output while it runs.
const maxLog = 64 << 10

// lastWords keeps the end of what is written to it.
type lastWords struct{ bytes.Buffer }

func (w *lastWords) Write(b []byte) (int, error) {
	if over := w.Len() + len(b) - maxLog; over > 0 {
		w.Next(min(over, w.Len()))
		w.Buffer.Write(b[max(0, len(b)-maxLog):])
		return len(b), nil
	}
	return w.Buffer.Write(b)
}
