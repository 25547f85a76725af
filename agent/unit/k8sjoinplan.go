package unit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// runtimes are the sockets of container runtimes, those first that bring another
// one along: Docker's adapter has a containerd beside it that serves no kubelet.
var runtimes = []string{"/run/cri-dockerd.sock", "/run/crio/crio.sock", "/run/containerd/containerd.sock"}

const (
	// minKubeadm is the first minor version with kubeadm.k8s.io/v1beta3, and
	// listArguments the first with v1beta4.
	minKubeadm    = 22
	listArguments = 31
	// discoveryTimeout is how long kubeadm asks for the cluster before it says
	// why not: less than it may run.
	discoveryTimeout = "2m0s"
	kubeletPort      = ":280A" // 10250, as /proc/net/tcp writes it
)

// joinPlan is the plan of a machine that is in no cluster.
func joinPlan(s Scene, p *Plan) {
	want := s.Want.K8sJoin
	runtime, version, missing := s.joinNeeds()
	if missing != "" {
		p.State, p.Reason = wire.Failed, missing
		return
	}
	step := Step{
		Change: host.JoinCluster{Server: want.APIServer, TokenRef: want.TokenRef, Config: joinConfiguration(want, runtime, version), As: cmp.Or(joinedAs(want), "{}")},
		Undo:   "drain the machine, delete its Kubernetes node, and run kubeadm reset",
	}
	if s.Unsettled != nil {
		p.State, p.Reason = s.Unsettled.State, fmt.Sprintf("it joins when %s is settled, which is %s", s.Unsettled.Kind, s.Unsettled.State)
		p.Later = []Step{step}
		return
	}
	p.State, p.Reason = wire.Failed, "this machine has not joined yet"
	p.Steps = []Step{step}
}

// joinNeeds looks for what kubeadm would stumble over, in the order in which a
// person would mend it.
func (s Scene) joinNeeds() (runtime string, minor int, missing string) {
	want := s.Want.K8sJoin
	kubeadm := s.Machine.Version(context.Background(), "kubeadm")
	kubelet := s.Machine.Version(context.Background(), "kubelet")
	begun, _ := host.Joining(s.Prior)
	leftover := func(name string) bool { return s.Machine.Exists(name) }
	minor = minorOf(kubeadm)
	i := slices.IndexFunc(runtimes, s.Machine.Exists)
	switch {
	case kubeadm == "":
		missing = "kubeadm is not installed"
	case kubelet == "":
		missing = "the kubelet is not installed"
	case minor < minKubeadm:
		missing = fmt.Sprintf("kubeadm is %s, and has to be v1.%d or newer", kubeadm, minKubeadm)
	case want.KubernetesVersion != "" && minorOf(want.KubernetesVersion) != minor:
		missing = fmt.Sprintf("kubeadm is %s, and the pool wants %s", kubeadm, want.KubernetesVersion)
	case want.KubernetesVersion != "" && minorOf(want.KubernetesVersion) != minorOf(kubelet):
		missing = fmt.Sprintf("the kubelet is %s, and the pool wants %s", kubelet, want.KubernetesVersion)
	case i < 0:
		missing = "no container runtime answers: none of " + strings.Join(runtimes, ", ") + " is there"
	case s.swaps():
		missing = "swap is on, with which the kubelet does not start: run \"swapoff -a\" and take swap out of /etc/fstab"
	case s.listens(kubeletPort):
		missing = "something listens on port 10250, which is the kubelet's"
	case !s.Machine.ClockSynced():
		missing = "ClockSkew: this machine's clock is not synchronised; let chrony or systemd-timesyncd do it"
	case reserved(want.Labels) != "":
		missing = fmt.Sprintf("the label %s is one that a kubelet may not give itself, and would not start with: set it with kubectl", reserved(want.Labels))
	case !begun && slices.ContainsFunc(host.JoinLeftovers, leftover):
		missing = "there is something left of another join (" + strings.Join(slices.DeleteFunc(slices.Clone(host.JoinLeftovers), func(name string) bool { return !leftover(name) }), ", ") + "); run \"kubeadm reset\""
	}
	if i >= 0 {
		runtime = runtimes[i]
	}
	return runtime, minor, missing
}

// minorOf is 31 of v1.31.4 and of 1.31, -1 of what is no version.
func minorOf(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimRight(parts[1], "+"))
	if err != nil {
		return -1
	}
	return n
}

// swaps reports whether /proc/swaps lists anything below its heading.
func (s Scene) swaps() bool {
	text, _ := s.Machine.String("/proc/swaps")
	return strings.Count(strings.TrimSpace(text), "\n") > 0
}

// listens reports whether a socket listens on a port of any address.
func (s Scene) listens(port string) bool {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := s.Machine.String(file)
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], port) && f[3] == "0A" { // TCP_LISTEN
				return true
			}
		}
	}
	return false
}

// selfLabels are the labels below kubernetes.io that the kubelet gives itself
// ("NodeRestriction", Kubernetes admission controllers).
var selfLabels = []string{
	"kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/os",
	"beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone",
	"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
}

// reserved is the first label that a kubelet refuses to give itself, "" if there
// is none.
func reserved(labels map[string]string) string {
	for _, key := range sortedKeys(labels) {
		prefix, _, ok := strings.Cut(key, "/")
		below := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
		if !ok || !below("kubernetes.io") && !below("k8s.io") || slices.Contains(selfLabels, key) ||
			below("kubelet.kubernetes.io") || below("node.kubernetes.io") {
			continue
		}
		return key
	}
	return ""
}

// joinedAs is what of the unit only takes effect at a join, "" for nothing.
func joinedAs(want *wire.K8sJoin) string {
	if len(want.Labels)+len(want.Taints) == 0 {
		return ""
	}
	b, err := json.Marshal(struct {
		Labels map[string]string `json:"labels,omitempty"`
		Taints []string          `json:"taints,omitempty"`
	}{want.Labels, want.Taints})
	if err != nil {
		return err.Error() // texts: Marshal has no way to refuse them
	}
	return string(b)
}

// joinConfiguration is what kubeadm reads, with a mark for the token.
func joinConfiguration(want *wire.K8sJoin, runtime string, minor int) string {
	type object = map[string]any
	server := want.APIServer
	if u, err := url.Parse(server); err == nil {
		server = hostPort(u)
	}
	discovery := object{"bootstrapToken": object{"apiServerEndpoint": server, "token": host.JoinToken, "caCertHashes": []string{strings.ToLower(want.CACertSHA256)}}}
	node := object{"criSocket": "unix://" + runtime}
	taints := []object{}
	for _, t := range want.Taints {
		name, effect, _ := strings.Cut(t, ":")
		key, value, _ := strings.Cut(name, "=")
		taint := object{"key": key, "effect": effect}
		if value != "" {
			taint["value"] = value
		}
		taints = append(taints, taint)
	}
	if len(taints) > 0 {
		node["taints"] = taints
	}
	var labels []string
	for _, key := range sortedKeys(want.Labels) {
		labels = append(labels, key+"="+want.Labels[key])
	}
	config := object{"apiVersion": "kubeadm.k8s.io/v1beta3", "kind": "JoinConfiguration", "discovery": discovery, "nodeRegistration": node}
	if minor >= listArguments {
		config["apiVersion"] = "kubeadm.k8s.io/v1beta4"
		config["timeouts"] = object{"discovery": discoveryTimeout}
	} else {
		discovery["timeout"] = discoveryTimeout
	}
	if value := strings.Join(labels, ","); value != "" && minor >= listArguments {
		node["kubeletExtraArgs"] = []object{{"name": "node-labels", "value": value}}
	} else if value != "" {
		node["kubeletExtraArgs"] = object{"node-labels": value}
	}
	b, err := yaml.Marshal(config)
	if err != nil {
		return err.Error() // plain data: Marshal has no way to refuse it
	}
	return string(b)
}

// unsettled finds a unit that waits for a reboot or for idle GPUs. A kubelet
// reads CPUs, huge pages and GPUs when it starts, and mis-admits when they change
// (kubernetes #124066).
func (r *Runner) unsettled() *wire.UnitStatus {
	for _, kind := range wire.UnitKinds {
		var last Result
		if known, err := r.Ledger.Load(host.Results, string(kind), &last); err != nil || !known || kind == wire.UnitK8sJoin {
			continue
		}
		if state := last.Status.State; state == wire.PendingReboot || state == wire.PendingIdle {
			return &last.Status
		}
	}
	return nil
}
