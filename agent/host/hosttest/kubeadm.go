package hosttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/bettercompute/bc/agent/host"
)

// Cluster stands in for kubeadm and for the cluster that it joins.
type Cluster struct {
	Kubeadm, Kubelet string // versions such as v1.31.4; empty: not installed
	Unsynced         bool   // the machine's clock
	// Join is called with the arguments and the JoinConfiguration as kubeadm finds
	// it, and the mode of its file. It answers what kubeadm writes, and whether
	// that was well.
	Join func(argv []string, config string, mode os.FileMode) (output string, ok bool)
}

// Cluster gives the machine kubeadm.
func (m *Machine) Cluster(c *Cluster) {
	m.edge.cluster = c
	for name, version := range map[string]string{"/usr/bin/kubeadm": c.Kubeadm, "/usr/bin/kubelet": c.Kubelet} {
		if version != "" {
			m.Put(name, version)
		}
	}
}

func (e *edge) kubeadm(argv []string) error {
	name := argv[len(argv)-2]
	data, err := e.root.ReadFile(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(e.root.Dir(), name))
	if err != nil {
		return err
	}
	output, ok := e.cluster.Join(argv, string(data), info.Mode().Perm())
	if !ok {
		return &host.CommandError{Argv: argv, Output: output, Log: output, Err: errors.New("exit status 1")}
	}
	return nil
}

func (e *edge) Version(_ context.Context, program string) string {
	switch {
	case e.cluster == nil:
	case program == "kubeadm":
		return e.cluster.Kubeadm
	case program == "kubelet":
		return e.cluster.Kubelet
	}
	return ""
}

func (e *edge) ClockSynced() bool { return e.cluster == nil || !e.cluster.Unsynced }
