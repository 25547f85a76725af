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
	"strings"
	"testing"

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
		"in no cluster":      {"", true, "", wire.Unsupported, "kubeadm join 10.0.0.1:6443 --discovery-token-ca-cert-hash " + hash},
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
