package control

import (
	"context"
	"testing"
	"time"

	"github.com/bettercompute/bc/appliance"
)

func TestALoginLinkSignsInOnce(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.tenant("lab")
	u, err := f.c.CreateUser(ctx, operator, appliance.CreateUser{TenantID: "lab", Name: "ada", Role: appliance.RoleMember})
	f.must(err)
	refused := func(in appliance.Login, what string) {
		t.Helper()
		if _, err := f.c.Login(ctx, appliance.Caller{}, in); appliance.CodeOf(err) != appliance.Unauthenticated {
			t.Errorf("%s: %v", what, err)
		}
	}
	s, err := f.c.Login(ctx, appliance.Caller{}, appliance.Login{Token: u.LoginLink.Token})
	f.must(err)
	refused(appliance.Login{Token: u.LoginLink.Token}, "the link a second time")
	who, err := f.c.Authenticate(ctx, s.Token)
	if err != nil || who.ID != u.ID || who.Tenant != "lab" || who.Role != appliance.RoleMember {
		t.Fatalf("the session is %+v, %v", who, err)
	}

	again, err := f.c.NewLoginLink(ctx, operator, appliance.UserRef{TenantID: "lab", UserID: u.ID})
	f.must(err)
	f.advance(loginLinkLife)
	refused(appliance.Login{Token: again.LoginLink.Token}, "a link whose time is over")
	refused(appliance.Login{TenantID: "lab", Name: "ada", Password: "correct horse battery"}, "a user without a password")
	refused(appliance.Login{TenantID: "lab", Name: "eve", Password: "correct horse battery"}, "a name that is not there")
}

func TestASessionEndsWithItsTimeThePasswordAndTheUser(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.tenant("lab")
	const password = "correct horse battery"
	u, err := f.c.CreateUser(ctx, operator, appliance.CreateUser{TenantID: "lab", Name: "ada", Role: appliance.RoleOwner, Password: password})
	f.must(err)
	signIn := func(password string) string {
		t.Helper()
		s, err := f.c.Login(ctx, appliance.Caller{}, appliance.Login{TenantID: "lab", Name: "ada", Password: password})
		f.must(err)
		return s.Token
	}
	over := func(token, what string) {
		t.Helper()
		if _, err := f.c.Authenticate(ctx, token); appliance.CodeOf(err) != appliance.Unauthenticated {
			t.Errorf("after %s the session goes on: %v", what, err)
		}
	}
	token := signIn(password)
	f.advance(sessionLife - time.Second)
	if _, err := f.c.Authenticate(ctx, token); err != nil {
		t.Errorf("ended early: %v", err)
	}
	f.advance(time.Second)
	over(token, "12 hours")

	token = signIn(password)
	_, err = f.c.Logout(ctx, appliance.Caller{}, appliance.Logout{Token: token})
	f.must(err)
	over(token, "logging out")

	token = signIn(password)
	_, err = f.c.SetPassword(ctx, operator, appliance.SetPassword{TenantID: "lab", UserID: u.ID, Password: "another long secret"})
	f.must(err)
	over(token, "a new password")

	token = signIn("another long secret")
	yes, no := true, false
	_, err = f.c.UpdateUser(ctx, operator, appliance.UpdateUser{TenantID: "lab", UserID: u.ID, Disabled: &yes})
	f.must(err)
	over(token, "disabling")
	if _, err := f.c.Login(ctx, appliance.Caller{}, appliance.Login{TenantID: "lab", Name: "ada", Password: "another long secret"}); appliance.CodeOf(err) != appliance.Unauthenticated {
		t.Errorf("a disabled user signed in: %v", err)
	}
	_, err = f.c.UpdateUser(ctx, operator, appliance.UpdateUser{TenantID: "lab", UserID: u.ID, Disabled: &no})
	f.must(err)
	token = signIn("another long secret")
	_, err = f.c.DeleteUser(ctx, operator, appliance.UserRef{TenantID: "lab", UserID: u.ID})
	f.must(err)
	over(token, "deleting the user")
}

// A repetition under the same key is answered whatever has become of the pool
// and the time since.
func TestARepeatedCreateIsAnsweredAfterThePoolWasArchived(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	pool := f.pool(appliance.SharingExclusive, "")
	f.join(pool, machine("a", 64, 512, 8))
	end := appliance.At(f.now().Add(time.Hour))
	in := appliance.CreateReservation{TenantID: f.own, PoolID: pool, Resources: appliance.Amounts{"gpu": 1}, ExpiresAt: &end, IdempotencyKey: "k"}
	first, err := f.c.CreateReservation(ctx, operator, in)
	f.must(err)
	f.advance(2 * time.Hour)
	_, err = f.c.ArchivePool(ctx, operator, appliance.PoolRef{TenantID: f.own, PoolID: pool})
	f.must(err)
	again, err := f.c.CreateReservation(ctx, operator, in)
	if err != nil || again.ID != first.ID {
		t.Fatalf("the repetition answers %s, %v; the first was %s", again.ID, err, first.ID)
	}
	in.IdempotencyKey = "other"
	if _, err := f.c.CreateReservation(ctx, operator, in); appliance.CodeOf(err) != appliance.NotFound {
		t.Errorf("a new one in an archived pool: %v", err)
	}
}

func TestARemovedMachineStaysAway(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	pool := f.pool(appliance.SharingExclusive, "")
	inv := machine("a", 64, 512, 8)
	id := f.join(pool, inv)
	r := f.reserve(pool, 1)
	ref := appliance.NodeRef{TenantID: f.own, NodeID: id}
	if _, err := f.c.RemoveNode(ctx, operator, ref); appliance.CodeOf(err) != appliance.InvalidState {
		t.Fatalf("removed with a booking on it: %v", err)
	}
	f.release(r)
	n, err := f.c.RemoveNode(ctx, operator, ref)
	if err != nil || n.State != appliance.NodeRemoved {
		t.Fatalf("%s, %v", n.State, err)
	}
	if got, err := f.c.PoolCapacity(ctx, operator, appliance.PoolRef{TenantID: f.own, PoolID: pool}); err != nil || got.Nodes.Total != 0 {
		t.Errorf("the pool still counts %d nodes (%v)", got.Nodes.Total, err)
	}
	f.restart()
	f.verify()
	if again := f.join(pool, inv); again == id { // named by hand it is another node
		t.Error("the removed node came back under its id")
	}
	f.verify()
}
