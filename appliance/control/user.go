package control

import (
	"context"
	"time"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// loginLinkLife is how long a one-time login link is good.
const loginLinkLife = 15 * time.Minute

// CreateUser makes a user with a password, or with a one-time login link that
// is in this answer and nowhere else.
func (c *Control) CreateUser(ctx context.Context, who appliance.Caller, in appliance.CreateUser) (appliance.User, error) {
	if _, _, err := c.forTenant(who, appliance.UsersManage, in.TenantID); err != nil {
		return appliance.User{}, c.deny(ctx, who, appliance.UsersManage, in.TenantID, in.Name, err)
	}
	if err := in.Validate(); err != nil {
		return appliance.User{}, err
	}
	u := store.Account{User: appliance.User{
		ID: c.newID(appliance.UserPrefix), TenantID: in.TenantID, Name: in.Name, Role: in.Role, HasPassword: in.Password != "", CreatedAt: c.now(),
	}}
	if in.Password != "" { // hashed before the transaction: it takes tens of milliseconds on purpose
		hash, err := iam.HashPassword(ctx, in.Password, c.Random)
		if err != nil {
			return appliance.User{}, err
		}
		u.PasswordHash = hash
	}
	err := c.write(ctx, who, appliance.UsersManage, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.UsersManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := tx.InsertUser(u); err != nil {
			return err
		}
		if !u.HasPassword {
			if u.LoginLink, err = c.newLoginLink(tx, u.ID); err != nil {
				return err
			}
		}
		return c.emitUser(tx, tr, appliance.EventUserCreated, u.User)
	})
	if err != nil {
		return appliance.User{}, err
	}
	return u.User, nil
}

// newLoginLink makes a token that signs its reader in once.
func (c *Control) newLoginLink(tx *store.Tx, subject string) (*appliance.LoginLink, error) {
	token, hash, err := iam.NewSecret(iam.LoginSecret, c.Random)
	if err != nil {
		return nil, err
	}
	link := &appliance.LoginLink{Token: token, ExpiresAt: appliance.At(c.Now().Add(loginLinkLife))}
	return link, tx.PutLoginLink(hash, subject, link.ExpiresAt, c.now())
}

func (c *Control) emitUser(tx *store.Tx, tr trail, kind appliance.EventType, u appliance.User) error {
	_, err := tx.Emit(c.event(tr, kind, u.TenantID, u.ID, c.now()), map[string]any{"name": u.Name, "role": u.Role, "disabled": u.DisabledAt != nil})
	return err
}

// GetUser shows one of the tenant's users.
func (c *Control) GetUser(ctx context.Context, who appliance.Caller, in appliance.UserRef) (out appliance.User, err error) {
	if _, _, err := c.forTenant(who, appliance.UsersRead, in.TenantID); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		u, err := c.ownUser(tx, in.TenantID, in.UserID)
		out = u.User
		return err
	})
	return out, err
}

func (c *Control) ownUser(tx *store.Tx, tenant, id string) (store.Account, error) {
	u, err := tx.User(id)
	if err == nil && u.TenantID != tenant {
		return store.Account{}, appliance.NoSuch("user")
	}
	return u, err
}

// ListUsers shows the tenant's users.
func (c *Control) ListUsers(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.User], err error) {
	if _, _, err := c.forTenant(who, appliance.UsersRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	out.Items = []appliance.User{}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		users, err := tx.UsersOf(in.TenantID, in.Cursor, in.Size()+1)
		page := store.Page(users, in.Size(), func(u store.Account) string { return u.ID })
		for _, u := range page.Items {
			out.Items = append(out.Items, u.User)
		}
		out.NextCursor = page.NextCursor
		return err
	})
	return out, err
}

// UpdateUser changes a user's role, or disables or enables it.
func (c *Control) UpdateUser(ctx context.Context, who appliance.Caller, in appliance.UpdateUser) (appliance.User, error) {
	return c.changeUser(ctx, who, in.TenantID, in.UserID, appliance.EventUserUpdated, func(tx *store.Tx, u *store.Account) error {
		if err := in.Validate(); err != nil {
			return err
		}
		if in.Role != "" {
			u.Role = in.Role
		}
		if in.Disabled != nil && *in.Disabled != (u.DisabledAt != nil) {
			u.DisabledAt = nil
			if *in.Disabled {
				at := c.now()
				u.DisabledAt = &at
				return tx.DropSessionsOf(u.ID)
			}
		}
		return nil
	})
}

// SetPassword gives a user a password.
func (c *Control) SetPassword(ctx context.Context, who appliance.Caller, in appliance.SetPassword) (appliance.User, error) {
	if _, _, err := c.forTenant(who, appliance.UsersManage, in.TenantID); err != nil {
		return appliance.User{}, c.deny(ctx, who, appliance.UsersManage, in.TenantID, in.UserID, err)
	}
	if err := in.Validate(); err != nil {
		return appliance.User{}, err
	}
	hash, err := iam.HashPassword(ctx, in.Password, c.Random)
	if err != nil {
		return appliance.User{}, err
	}
	return c.changeUser(ctx, who, in.TenantID, in.UserID, appliance.EventUserUpdated, func(tx *store.Tx, u *store.Account) error {
		u.PasswordHash, u.HasPassword = hash, true
		return tx.DropSessionsOf(u.ID)
	})
}

// NewLoginLink makes a one-time login link for a user.
func (c *Control) NewLoginLink(ctx context.Context, who appliance.Caller, in appliance.UserRef) (appliance.User, error) {
	return c.changeUser(ctx, who, in.TenantID, in.UserID, appliance.EventUserUpdated, func(tx *store.Tx, u *store.Account) (err error) {
		if u.DisabledAt != nil {
			return appliance.Refuse(appliance.InvalidState, "userId", "userId: the user is disabled")
		}
		u.LoginLink, err = c.newLoginLink(tx, u.ID)
		return err
	})
}

// DeleteUser removes a user.
func (c *Control) DeleteUser(ctx context.Context, who appliance.Caller, in appliance.UserRef) (appliance.User, error) {
	return c.changeUser(ctx, who, in.TenantID, in.UserID, appliance.EventUserDeleted, func(tx *store.Tx, u *store.Account) error {
		return tx.DropUser(u.ID)
	})
}

func (c *Control) changeUser(ctx context.Context, who appliance.Caller, tenant, id string, kind appliance.EventType, change func(*store.Tx, *store.Account) error) (out appliance.User, err error) {
	err = c.write(ctx, who, appliance.UsersManage, tenant, id, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.UsersManage, tenant)
		if err != nil {
			return err
		}
		u, err := c.ownUser(tx, tenant, id)
		if err != nil {
			return err
		}
		if err := change(tx, &u); err != nil {
			return err
		}
		if err := tx.UpdateUser(u); err != nil {
			return err
		}
		out = u.User
		return c.emitUser(tx, tr, kind, u.User)
	})
	if err != nil {
		return appliance.User{}, err
	}
	return out, nil
}
