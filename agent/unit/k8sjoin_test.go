package unit_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/host/hosttest"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// newCA makes a certificate, and the hash that "kubeadm token create
// --print-join-command" prints of it.
func newCA(t *testing.T) (certificate, hash string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(public)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), "sha256:" + hex.EncodeToString(sum[:])
}

func TestClusterIsToldAndNeverTouched(t *testing.T) {
	cert, hash := newCA(t)
	other, _ := newCA(t)
	conf := func(server, ca string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: default-cluster\n  cluster:\n    server: %s\n    certificate-authority-data: %s\n",
			server, base64.StdEncoding.EncodeToString([]byte(ca)))
	}
	for name, c := range map[string]struct {
		conf    string
		stopped bool
		extra   string
		want    wire.UnitState
		words   string
	}{
		"no kubeadm":         {"", true, "", wire.Failed, "kubeadm is not installed"},
		"in it":              {conf("https://10.0.0.1:6443", cert), false, "", wire.InSync, "got: https://10.0.0.1:6443"},
		"second CA":          {conf("https://10.0.0.1:6443/", other+cert), false, "", wire.InSync, ""},
		"other server":       {conf("https://10.0.0.2:6443", cert), false, "", wire.Conflict, "in the cluster of https://10.0.0.2:6443"},
		"other CA":           {conf("https://10.0.0.1:6443", other), false, "", wire.Conflict, "another CA"},
		"kubelet stopped":    {conf("https://10.0.0.1:6443", cert), true, "", wire.Failed, "kubelet does not run"},
		"labels wanted":      {conf("https://10.0.0.1:6443", cert), false, `,"labels":{"pool":"a"}`, wire.Partial, "kubectl"},
		"not a kubeconfig":   {"clusters: 7", false, "", wire.Failed, "cannot be read"},
		"no cluster in it":   {"clusters: []", false, "", wire.Failed, "cannot be read"},
		"no CA in it at all": {conf("https://10.0.0.1:6443", ""), false, "", wire.Conflict, "another CA"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "one-gpu")
			if c.conf != "" {
				b.Put("/etc/kubernetes/kubelet.conf", c.conf)
			}
			if !c.stopped {
				b.Active("kubelet.service")
			}
			want := units(t, `{"k8s-join":{"apiServer":"https://10.0.0.1:6443","caCertSha256":"`+hash+`","tokenRef":"secret"`+c.extra+`}}`)
			before := b.Files(t)
			text := lines(b.sync(want))
			if !strings.HasPrefix(text, "k8s-join "+string(c.want)) || !strings.Contains(text, c.words) {
				t.Errorf("got %s", text)
			}
			b.sync(wire.Units{})
			if after := b.Files(t); len(after) != len(before) || len(b.Ran()) > 0 {
				t.Errorf("the machine was touched")
			}
		})
	}
}

const token = "abcdef.0123456789abcdef"

// joining is a machine that has all that a join needs, with a cluster that takes
// it in.
type joining struct {
	*bench
	cluster *hosttest.Cluster
	want    wire.Units
	configs []string
	files   map[string]string // that kubeadm leaves
	fails   string            // with what, if it does
}

func newJoining(t *testing.T, version, extra string, machine ...string) *joining {
	t.Helper()
	cert, hash := newCA(t)
	j := &joining{bench: newBench(t, append(machine, "one-gpu")[0]), want: units(t, `{"k8s-join":{"apiServer":"https://10.0.0.1:6443","caCertSha256":"`+hash+`","tokenRef":"k8s/join"`+extra+`}}`)}
	j.files = map[string]string{
		"/etc/kubernetes/pki/ca.crt": cert,
		"/etc/kubernetes/kubelet.conf": fmt.Sprintf("clusters:\n- cluster:\n    server: https://10.0.0.1:6443\n    certificate-authority-data: %s\n",
			base64.StdEncoding.EncodeToString([]byte(cert))),
	}
	j.cluster = &hosttest.Cluster{Kubeadm: version, Kubelet: version, Join: func(argv []string, config string, mode os.FileMode) (string, bool) {
		if got := strings.Join(argv, " "); got != "kubeadm join --config /run/bc-k8s-join/join.yaml -v=5" || mode != 0o600 {
			t.Errorf("it ran %q with a file of mode %o", got, mode)
		}
		for name := range j.files {
			if j.Exists(name) {
				return "[ERROR FileAvailable--" + name + "]: already exists", false // as the preflight says
			}
		}
		j.configs = append(j.configs, config)
		if j.fails != "" {
			j.Put("/etc/kubernetes/pki/ca.crt", cert)
			return j.fails, false
		}
		for name, text := range j.files {
			j.Put(name, text)
		}
		j.Active("kubelet.service")
		return "", true
	}}
	j.Cluster(j.cluster)
	j.Put("/run/containerd/containerd.sock", "")
	j.Put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority")
	j.secret(t, token+"\n")
	return j
}

func (j *joining) secret(t *testing.T, text string) {
	t.Helper()
	name := filepath.Join(j.Dir(), host.SecretsDir, "k8s/join")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// is checks the unit, and that the token is nowhere but in its file.
func (j *joining) is(t *testing.T, state wire.UnitState, words string) {
	t.Helper()
	text := lines(j.sync(j.want))
	if !strings.HasPrefix(text, "k8s-join "+string(state)) || !strings.Contains(text, words) {
		t.Errorf("got %s want %s with %q", text, state, words)
	}
	for name, content := range j.Files(t) {
		if strings.Contains(content, token) && name != host.SecretsDir+"/k8s/join" {
			t.Errorf("the token is left in %s", name)
		}
	}
	ledger, err := filepath.Glob(filepath.Join(j.state, "*", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	more, _ := filepath.Glob(filepath.Join(j.state, "*", "*"))
	for _, name := range append(ledger, more...) {
		if data, err := os.ReadFile(name); err == nil && strings.Contains(string(data), token) {
			t.Errorf("the token is left in %s", name)
		}
	}
}

// The configuration is the one of kubeadm's own version, once, and afterwards
// there is nothing to do; taken out of the policy, the machine stays and the
// history says what a person has to do.
func TestMachineJoinsItsCluster(t *testing.T) {
	extra := `,"kubernetesVersion":"v1.31","labels":{"pool":"a","gpu":"h100"},"taints":["nvidia.com/gpu=yes:NoSchedule","own:NoExecute"]`
	for version, want := range map[string]string{
		"v1.31.4": `{"apiVersion":"kubeadm.k8s.io/v1beta4","kind":"JoinConfiguration","timeouts":{"discovery":"2m0s"},
			"discovery":{"bootstrapToken":{"apiServerEndpoint":"10.0.0.1:6443","token":"` + token + `","caCertHashes":["HASH"]}},
			"nodeRegistration":{"criSocket":"unix:///run/containerd/containerd.sock",
				"kubeletExtraArgs":[{"name":"node-labels","value":"gpu=h100,pool=a"}],
				"taints":[{"key":"nvidia.com/gpu","value":"yes","effect":"NoSchedule"},{"key":"own","effect":"NoExecute"}]}}`,
		"v1.28.0": `{"apiVersion":"kubeadm.k8s.io/v1beta3","kind":"JoinConfiguration",
			"discovery":{"timeout":"2m0s","bootstrapToken":{"apiServerEndpoint":"10.0.0.1:6443","token":"` + token + `","caCertHashes":["HASH"]}},
			"nodeRegistration":{"criSocket":"unix:///run/containerd/containerd.sock",
				"kubeletExtraArgs":{"node-labels":"gpu=h100,pool=a"},
				"taints":[{"key":"nvidia.com/gpu","value":"yes","effect":"NoSchedule"},{"key":"own","effect":"NoExecute"}]}}`,
	} {
		t.Run(version, func(t *testing.T) {
			j := newJoining(t, version, strings.Replace(extra, "v1.31", version[:5], 1))
			plan, err := j.Preview(wire.UnitK8sJoin, unit.Desired{Units: j.want})
			if err != nil || !strings.Contains(plan.Lines(), "join the cluster of https://10.0.0.1:6443") || strings.Contains(plan.Lines(), token) {
				t.Errorf("the plan is %s %v", plan.Lines(), err)
			}
			j.is(t, wire.InSync, "got: https://10.0.0.1:6443")
			j.now = j.now.Add(time.Hour)
			j.is(t, wire.InSync, "")
			if len(j.configs) != 1 {
				t.Fatalf("kubeadm ran %d times", len(j.configs))
			}
			var got, wanted any
			if err := yaml.Unmarshal([]byte(j.configs[0]), &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(strings.Replace(want, "HASH", j.want.K8sJoin.CACertSHA256, 1)), &wanted); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wanted, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}

			relabelled := units(t, `{"k8s-join":{"apiServer":"https://10.0.0.1:6443","caCertSha256":"`+j.want.K8sJoin.CACertSHA256+`","tokenRef":"k8s/join","labels":{"pool":"b"}}}`)
			if text := lines(j.sync(relabelled)); !strings.HasPrefix(text, "k8s-join Partial") || !strings.Contains(text, "kubectl") {
				t.Errorf("other labels: %s", text)
			}
			before := j.Files(t)
			j.Ran()
			j.sync(wire.Units{})
			if diff := cmp.Diff(before, j.Files(t)); diff != "" || len(j.Ran()) > 0 {
				t.Errorf("taken out, it changed the machine\n%s", diff)
			}
			events, err := j.Ledger.History()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(events, func(e host.Event) bool {
				return strings.HasPrefix(e.Change, "LeftJoined: ") && strings.Contains(e.Change, "kubeadm reset")
			}) {
				t.Errorf("the history does not say that it stays: %+v", events)
			}
		})
	}
}

// What kubeadm would stumble over is named before it runs.
func TestJoinNamesWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		extra   string
		prepare func(t *testing.T, j *joining)
		words   string
	}{
		"no kubelet":    {"", func(_ *testing.T, j *joining) { j.cluster.Kubelet = "" }, "the kubelet is not installed"},
		"old kubeadm":   {"", func(_ *testing.T, j *joining) { j.cluster.Kubeadm = "v1.21.9" }, "has to be v1.22 or newer"},
		"other kubeadm": {`,"kubernetesVersion":"1.30"`, func(*testing.T, *joining) {}, "kubeadm is v1.31.4, and the pool wants 1.30"},
		"other kubelet": {`,"kubernetesVersion":"1.31.9"`, func(_ *testing.T, j *joining) { j.cluster.Kubelet = "v1.30.1" }, "the kubelet is v1.30.1"},
		"no runtime":    {"", func(_ *testing.T, j *joining) { j.Machine.Remove("/run/containerd/containerd.sock") }, "no container runtime"},
		"swap":          {"", func(_ *testing.T, j *joining) { j.Put("/proc/swaps", "Filename Type\n/swap.img file") }, "swapoff -a"},
		"port": {"", func(_ *testing.T, j *joining) {
			j.Put("/proc/net/tcp6", "  sl  local_address\n   0: 0000:280A 0000:0000 0A 0")
		}, "port 10250"},
		"clock":           {"", func(_ *testing.T, j *joining) { j.cluster.Unsynced = true }, "ClockSkew"},
		"reserved label":  {`,"labels":{"node-role.kubernetes.io/gpu":""}`, func(*testing.T, *joining) {}, "the label node-role.kubernetes.io/gpu"},
		"leftovers":       {"", func(_ *testing.T, j *joining) { j.Put("/etc/kubernetes/pki/ca.crt", "x") }, "left of another join (/etc/kubernetes/pki/ca.crt)"},
		"no secret":       {"", func(_ *testing.T, j *joining) { j.Machine.Remove(host.SecretsDir + "/k8s/join") }, "write it to /etc/better-compute/secrets/k8s/join"},
		"secret no token": {"", func(t *testing.T, j *joining) { j.secret(t, "hunter2") }, "is not a bootstrap token"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJoining(t, "v1.31.4", c.extra)
			c.prepare(t, j)
			j.is(t, wire.Failed, c.words)
			if len(j.configs) > 0 {
				t.Error("kubeadm ran")
			}
		})
	}
}

// Each way in which kubeadm fails has a name; what it leaves is taken away, so
// that the next try, which waits longer each time, can succeed.
func TestJoinThatFailsIsNamedAndTriedAgain(t *testing.T) {
	for output, words := range map[string]string{
		`I1 token.go:221] The cluster-info ConfigMap does not yet contain a JWS signature for token ID "abcdef", will try again`:                               "TokenExpired: ",
		`cluster CA found in cluster-info ConfigMap is invalid: none of the public keys "sha256:1" are pinned`:                                                 "CAHashMismatch: ",
		`Get "https://10.0.0.1:6443/": tls: failed to verify certificate: x509: certificate has expired or is not yet valid`:                                   "ClockSkew: ",
		`Get "https://10.0.0.1:6443/": dial tcp 10.0.0.1:6443: connect: connection refused`:                                                                    "ApiUnreachable: ",
		"error execution phase preflight: [preflight] Some fatal errors occurred:\n\t[ERROR Hostname]: token " + token + " in a log\ngoroutine 1\nmain.main()": "kubeadm join failed: error execution phase preflight",
	} {
		j := newJoining(t, "v1.31.4", "")
		j.fails = output
		j.is(t, wire.Failed, words)
		log, err := os.ReadFile(filepath.Join(j.Dir(), host.JoinLog))
		if err != nil || !strings.Contains(string(log), output[:20]) {
			t.Errorf("the log is %q, %v", log, err)
		}
		j.is(t, wire.Failed, words)
		if len(j.configs) != 1 {
			t.Errorf("it was tried %d times at once", len(j.configs))
		}
		j.now = j.now.Add(31 * time.Second)
		j.is(t, wire.Failed, words)
		j.now = j.now.Add(31 * time.Second)
		j.is(t, wire.Failed, words)
		if len(j.configs) != 2 {
			t.Errorf("it was tried %d times within a minute", len(j.configs))
		}
		j.fails = ""
		j.now = j.now.Add(time.Minute)
		j.is(t, wire.InSync, "")
	}
}

// An agent that is killed while kubeadm runs joins afterwards, over what its own
// try has left.
func TestJoinGoesOnAfterAKill(t *testing.T) {
	for moment := 1; ; moment++ {
		j := newJoining(t, "v1.31.4", "")
		j.DieAt(moment)
		died := func() (died bool) {
			defer func() {
				if e := recover(); e == (hosttest.Died{}) {
					died = true
				} else if e != nil {
					panic(e)
				}
			}()
			j.sync(j.want)
			return false
		}()
		j.DieAt(0)
		if !died {
			if moment < 3 {
				t.Fatalf("it was never killed: %d moments", moment)
			}
			return
		}
		if !j.Exists("/etc/kubernetes/kubelet.conf") {
			j.Put("/etc/kubernetes/pki/ca.crt", "half")
		}
		j.Ledger = host.OpenLedger(j.state) // a new process
		j.now = j.now.Add(time.Hour)
		j.is(t, wire.InSync, "")
	}
}

// A machine joins last: not before the units that still change it.
func TestJoinWaitsForTheUnitsThatStillChangeTheMachine(t *testing.T) {
	j := newJoining(t, "v1.31.4", "", "debian-amd")
	both := j.want
	both.IOMMU = &wire.IOMMU{Passthrough: true}
	text := lines(j.sync(both))
	if !strings.Contains(text, "iommu PendingReboot") || !strings.Contains(text, "k8s-join PendingReboot") || !strings.Contains(text, "it joins when iommu is settled") {
		t.Errorf("got %s", text)
	}
	if len(j.configs) > 0 {
		t.Error("it joined")
	}
}
