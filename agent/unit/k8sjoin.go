package unit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net/url"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// k8sJoin joins the machine to the wanted cluster if it is in none. It leaves
// none, and touches no other: that ends what runs in it, so a person does it.
type k8sJoin struct{}

// kubeletConf is where kubeadm puts what a kubelet knows of its cluster.
const kubeletConf = "/etc/kubernetes/kubelet.conf"

func (k8sJoin) Plan(s Scene) Plan {
	want := s.Want.K8sJoin
	p := Plan{Wanted: want.APIServer, State: wire.InSync}
	data, err := s.Machine.ReadFile(kubeletConf)
	if err != nil {
		p.Got = "no cluster"
		joinPlan(s, &p)
		return p
	}
	var conf struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
				CAFile string `json:"certificate-authority"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal(data, &conf); err != nil || len(conf.Clusters) != 1 {
		p.State, p.Reason = wire.Failed, kubeletConf+" cannot be read as the kubeconfig of one cluster"
		return p
	}
	if s.Machine.LeavesToken() {
		p.Steps = []Step{{Change: host.DropToken{}, Again: true}}
	}
	c := conf.Clusters[0].Cluster
	p.Got = c.Server
	if len(c.CA) == 0 && c.CAFile != "" {
		c.CA, _ = s.Machine.ReadFile(c.CAFile) // one that is not there has no right hash
	}
	switch {
	case !sameServer(c.Server, want.APIServer):
		p.State, p.Reason = wire.Conflict, "this machine is in the cluster of "+c.Server+"; to move it, drain it and run \"kubeadm reset\" by hand"
	case !hasCA(c.CA, want.CACertSHA256):
		p.State, p.Reason = wire.Conflict, "the cluster that this machine is in has another CA than "+want.CACertSHA256
	case !s.Machine.UnitActive(context.Background(), "kubelet.service"):
		p.State, p.Reason = wire.Failed, "the kubelet does not run; see systemctl status kubelet"
	case joinedAs(want) != "" && !s.joinedAs(joinedAs(want)):
		p.State, p.Reason = wire.Partial, "labels and taints are given to a Kubernetes node when it joins, and this one had joined otherwise: set them with kubectl"
	}
	return p
}

// Remove leaves the cluster to people.
func (k8sJoin) Remove(s Scene) []Step {
	var steps []Step
	if s.Machine.LeavesToken() {
		steps = append(steps, Step{Change: host.DropToken{}})
	}
	if begun, _ := host.Joining(s.Prior); !begun {
		return steps
	}
	why := "this machine is still in its Kubernetes cluster; to take it out, \"kubectl drain\" and \"kubectl delete node\" it, and run \"kubeadm reset\" here"
	if !s.Machine.Exists(kubeletConf) {
		why = "this machine is in no Kubernetes cluster"
	}
	return append(steps, Step{Change: host.Left{Why: why}})
}

func (s Scene) joinedAs(as string) bool {
	_, joining := host.Joining(s.Prior)
	return joining == as
}

func hostPort(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + cmp.Or(u.Port(), "443")
}

func sameServer(a, b string) bool {
	one, err := url.Parse(a)
	other, err2 := url.Parse(b)
	return err == nil && err2 == nil && hostPort(one) == hostPort(other)
}

// hasCA reports whether one of the PEM certificates has the public key of a
// kubeadm hash: SHA-256 of its SubjectPublicKeyInfo.
func hasCA(certs []byte, hash string) bool {
	for len(certs) > 0 {
		var block *pem.Block
		if block, certs = pem.Decode(certs); block == nil {
			return false
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		if strings.EqualFold(hash, "sha256:"+hex.EncodeToString(sum[:])) {
			return true
		}
	}
	return false
}
