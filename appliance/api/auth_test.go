package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
	"golang.org/x/sys/unix"
)

func whoAmI(t *testing.T, c *Client) appliance.Caller {
	t.Helper()
	out, err := Do[thing, echoed](t.Context(), c, "things.echo", thing{TenantID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return out.Caller
}

func TestTheSocketsOwnerIsTheOperatorUnlessItSendsAKey(t *testing.T) {
	r := newRig(t, nil)
	c := whoAmI(t, r.unix)
	if c.Kind != appliance.CallerOperator || c.ID != "operator" || c.Address != fmt.Sprintf("unix:uid=%d", os.Geteuid()) || c.RequestID == "" {
		t.Errorf("without a key: %+v", c)
	}
	c = whoAmI(t, dial(t, "unix:"+r.socket, Options{Token: memberKey}))
	if c.Kind != appliance.CallerKey || c.Tenant != "acme" || c.Role != appliance.RoleMember {
		t.Errorf("with a key: %+v", c)
	}
	c = whoAmI(t, r.tls)
	if c.ID != "key_1" || c.Address != "127.0.0.1" {
		t.Errorf("over TLS: %+v", c)
	}
}

func TestAnotherUsersPeerNeedsACredential(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as another user")
	}
	r := newRig(t, nil)
	for dir := filepath.Dir(r.socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dialAs(65534, r.socket) }}
	defer transport.CloseIdleConnections()
	nobody := &Client{base: "http://unix", http: &http.Client{Transport: transport}}
	resp, body := send(t, nobody, "POST", "/v1/things.echo", `{"tenantId":"a"}`)
	if resp.StatusCode != 401 {
		t.Errorf("without a key: %d %s", resp.StatusCode, body)
	}
	resp, body = send(t, nobody, "POST", "/v1/things.echo", `{"tenantId":"a"}`, "Authorization", "Bearer "+memberKey)
	if resp.StatusCode != 200 || !strings.Contains(body, `"Address":"unix:uid=65534"`) {
		t.Errorf("with a key: %d %s", resp.StatusCode, body)
	}
}

// dialAs connects as another user, on a thread of its own that ends with the
// goroutine: the raw system call changes the identity of that thread alone.
func dialAs(uid uintptr, path string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		const keep = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uid, keep); errno != 0 {
			done <- result{nil, errno}
			return
		}
		c, err := net.Dial("unix", path)
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

func TestEveryBadCredentialGetsTheSameAnswer(t *testing.T) {
	r := newRig(t, func(s *Server) {
		s.Authenticate = func(ctx context.Context, bearer string) (appliance.Caller, error) {
			if bearer == "revoked" {
				return appliance.Caller{}, appliance.Refuse(appliance.Unauthenticated, "key", "revoked yesterday").With("id", "key_9")
			}
			return authenticate(ctx, bearer)
		}
	})
	first := ""
	for _, header := range []string{"-", "Bearer wrong", "Bearer revoked", "Bearer ", "Bearer", "Basic YTpi", goodKey, "Bearer " + strings.Repeat("x", 5000)} {
		var given []string
		if header != "-" {
			given = []string{"Authorization", header}
		}
		resp, body := send(t, r.tls, "POST", "/v1/things.echo", `{"tenantId":"a"}`, given...)
		if first == "" {
			first = body
		}
		if resp.StatusCode != 401 || body != first {
			t.Errorf("%.40q: %d %s", header, resp.StatusCode, body)
		}
	}
	resp, body := send(t, r.tls, "POST", "/v1/things.echo", `{"tenantId":"a"}`, "Authorization", "Bearer "+goodKey, "Authorization", "Bearer "+memberKey)
	if resp.StatusCode != 401 || body != first {
		t.Errorf("two headers: %d %s", resp.StatusCode, body)
	}
}

func TestGuessingIsSlowedDownPerAddress(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRig(t, func(s *Server) { s.Now = func() time.Time { return now } })
	try := func(token string) (int, string) {
		resp, body := send(t, r.tls, "POST", "/v1/things.echo", `{"tenantId":"a"}`, "Authorization", "Bearer "+token)
		return resp.StatusCode, resp.Header.Get("Retry-After") + body
	}
	for i := range failureBurst {
		if status, _ := try("wrong"); status != 401 {
			t.Fatalf("guess %d: %d", i, status)
		}
	}
	// A right guess must look like a wrong one now.
	status, body := try(goodKey)
	if wrong, again := try("wrong"); status != 429 || wrong != 429 || again != body || !strings.HasPrefix(body, "6") {
		t.Errorf("right: %d %s, wrong: %d %s", status, body, wrong, again)
	}
	if resp, _ := send(t, r.unix, "POST", "/v1/things.echo", `{"tenantId":"a"}`); resp.StatusCode != 200 {
		t.Errorf("another address: %d", resp.StatusCode)
	}
	now = now.Add(failureEvery)
	if status, body := try(goodKey); status != 200 {
		t.Errorf("after the wait: %d %s", status, body)
	}
}

func TestFailuresAreBoundedAndKeyedByNetwork(t *testing.T) {
	f, now := newFailures(), time.Now()
	for range failureBurst {
		f.note("2001:db8::1", now)
	}
	if f.allow("2001:db8::ffff", now) == nil {
		t.Error("another address of the same /64 is let guess on")
	}
	if err := f.allow("2001:db8:0:1::1", now); err != nil {
		t.Errorf("another /64: %v", err)
	}
	for i := range 4 * maxAddresses {
		f.note(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), now)
	}
	if n := len(f.newer) + len(f.older); n > 2*maxAddresses {
		t.Errorf("%d addresses are kept", n)
	}
}

func TestAgentsMayComeWithoutACredentialAndSendNewerFields(t *testing.T) {
	r := newRig(t, nil)
	resp, body := send(t, r.tls, "POST", "/agent/v1/hello", `{"kind":"token","addedLater":{"x":null}}`)
	if resp.StatusCode != 200 || !strings.Contains(body, `"Kind":""`) || !strings.Contains(body, `"Address":"127.0.0.1"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	resp, body = send(t, r.tls, "POST", "/agent/v1/hello", `{"kind":"token"}`, "Authorization", "Bearer "+memberKey)
	if resp.StatusCode != 200 || !strings.Contains(body, `"ID":"key_2"`) {
		t.Errorf("with a credential: %d %s", resp.StatusCode, body)
	}
	for range failureBurst {
		send(t, r.tls, "POST", "/agent/v1/hello", `{"kind":"guess"}`)
	}
	if resp, _ = send(t, r.tls, "POST", "/agent/v1/hello", `{"kind":"token"}`); resp.StatusCode != 429 {
		t.Errorf("after many guesses of a join token: %d", resp.StatusCode)
	}
}

func TestASessionIsTakenFromItsOwnSiteOnly(t *testing.T) {
	r := newRig(t, func(s *Server) {
		s.Session = func(r *http.Request) (appliance.Caller, error) {
			if c, err := r.Cookie("session"); err == nil && c.Value == "s1" {
				return appliance.Caller{Kind: appliance.CallerUser, ID: "user_1", Tenant: "acme"}, nil
			}
			return appliance.Caller{}, appliance.Refuse(appliance.Unauthenticated, "", "no session")
		}
	})
	for _, c := range []struct {
		cookie, site string
		status       int
	}{
		{"session=s1", "same-origin", 200}, {"session=s1", "", 200}, {"session=s1", "cross-site", 403}, {"session=other", "same-origin", 401}, {"", "", 401},
	} {
		var header []string
		if c.cookie != "" {
			header = append(header, "Cookie", c.cookie)
		}
		if c.site != "" {
			header = append(header, "Sec-Fetch-Site", c.site)
		}
		if resp, body := send(t, r.tls, "POST", "/v1/things.echo", `{"tenantId":"a"}`, header...); resp.StatusCode != c.status {
			t.Errorf("%q %q: %d %s, want %d", c.cookie, c.site, resp.StatusCode, body, c.status)
		}
	}
}

func TestAStoreThatFailsToAuthenticateIsNotABadCredential(t *testing.T) {
	r := newRig(t, func(s *Server) {
		s.Authenticate = func(context.Context, string) (appliance.Caller, error) {
			return appliance.Caller{}, errors.New("disk gone")
		}
	})
	for range failureBurst + 1 {
		if resp, body := send(t, r.tls, "POST", "/v1/things.echo", `{"tenantId":"a"}`, "Authorization", "Bearer x"); resp.StatusCode != 500 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
}
