package control

import (
	"context"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// sessionLife is how long a person stays signed in.
const sessionLife = 12 * time.Hour

// badLogin is the one answer to a login that failed, whatever was wrong.
func badLogin() error {
	return appliance.Refuse(appliance.Unauthenticated, "", "the login failed: the link was used or is too old, or the name or password is wrong")
}

// Login signs a person in, by a one-time link or by name and password. An
// unknown name takes as long as a wrong password.
func (c *Control) Login(ctx context.Context, _ appliance.Caller, in appliance.Login) (out appliance.Session, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	if in.Token == "" {
		if err := c.checkPassword(ctx, in); err != nil {
			return out, err
		}
	}
	token, hash, err := iam.NewSecret(iam.SessionSecret, c.Random)
	if err != nil {
		return out, err
	}
	out.Token = token
	err = c.Store.Write(ctx, func(tx *store.Tx) error {
		u, err := c.signIn(tx, in)
		if isNotFound(err) || err == nil && u.DisabledAt != nil {
			return badLogin()
		}
		if err != nil {
			return err
		}
		now := c.now()
		u.LastLoginAt = &now
		if err := tx.UpdateUser(u); err != nil {
			return err
		}
		out.User, out.ExpiresAt = u.User, appliance.At(now.Add(sessionLife))
		if err := tx.PutSession(hash, u.ID, out.ExpiresAt, now); err != nil {
			return err
		}
		who := appliance.Caller{Kind: appliance.CallerUser, ID: u.ID, Tenant: u.TenantID, Role: u.Role}
		return c.emitUser(tx, trail{who: who}, appliance.EventUserLoggedIn, u.User)
	})
	if err != nil {
		return appliance.Session{}, err
	}
	return out, nil
}

// checkPassword is done before the transaction: it takes tens of milliseconds
// on purpose.
func (c *Control) checkPassword(ctx context.Context, in appliance.Login) error {
	var u store.Account
	err := c.Store.Read(ctx, func(tx *store.Tx) (err error) {
		u, err = tx.UserNamed(in.TenantID, in.Name)
		return err
	})
	if err != nil && !isNotFound(err) {
		return err
	}
	ok, err := iam.IsPassword(ctx, in.Password, u.PasswordHash)
	if err != nil {
		return err
	}
	if !ok {
		return badLogin()
	}
	return nil
}

// signIn finds who signs in. A login link is used up by it.
func (c *Control) signIn(tx *store.Tx, in appliance.Login) (store.Account, error) {
	if in.Token == "" {
		return tx.UserNamed(in.TenantID, in.Name)
	}
	if prefix, err := iam.ParseSecret(in.Token); err != nil || prefix != iam.LoginSecret {
		return store.Account{}, badLogin()
	}
	subject, err := tx.TakeLoginLink(iam.HashSecret(in.Token), c.now())
	if err != nil {
		return store.Account{}, err
	}
	return tx.User(subject)
}

// Logout ends a session. Whoever has its token may end it.
func (c *Control) Logout(ctx context.Context, _ appliance.Caller, in appliance.Logout) (appliance.LoggedOut, error) {
	if prefix, err := iam.ParseSecret(in.Token); err != nil || prefix != iam.SessionSecret {
		return appliance.LoggedOut{}, appliance.Invalid("token", "is not a session's token (bcs_…)")
	}
	err := c.Store.Write(ctx, func(tx *store.Tx) error { return tx.DropSession(iam.HashSecret(in.Token)) })
	return appliance.LoggedOut{Ended: err == nil}, err
}

// sessionCaller finds whose session a token's hash stands for.
func (c *Control) sessionCaller(ctx context.Context, hash string) (who appliance.Caller, ok bool, err error) {
	var u store.Account
	err = c.Store.Read(ctx, func(tx *store.Tx) (err error) {
		u, err = tx.SessionUser(hash, c.now())
		return err
	})
	if isNotFound(err) || err == nil && u.DisabledAt != nil {
		return who, false, nil
	}
	return appliance.Caller{Kind: appliance.CallerUser, ID: u.ID, Tenant: u.TenantID, Role: u.Role}, err == nil, err
}

// Whoami says who the caller is, and in whose name it acts.
func (c *Control) Whoami(ctx context.Context, who appliance.Caller, _ appliance.Whoami) (appliance.Identity, error) {
	out := appliance.Identity{ID: who.ID, Kind: who.Kind, TenantID: who.Tenant, Role: who.Role}
	if out.TenantID != "" {
		return out, nil
	}
	home, _, err := c.Home(ctx)
	out.TenantID = home
	return out, err
}
