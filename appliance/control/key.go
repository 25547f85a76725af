package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/store"
)

// CreateKey makes an API key. The secret is in this answer and nowhere else.
func (c *Control) CreateKey(ctx context.Context, who appliance.Caller, in appliance.CreateKey) (appliance.Key, error) {
	secret, hash, err := iam.NewSecret(iam.APIKeySecret, c.Random)
	if err != nil {
		return appliance.Key{}, err
	}
	k := appliance.Key{
		ID: c.newID(appliance.KeyPrefix), TenantID: in.TenantID, Name: in.Name, Role: in.Role,
		CreatedAt: c.now(), ExpiresAt: in.ExpiresAt,
	}
	err = c.write(ctx, who, appliance.KeysManage, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.KeysManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if in.ExpiresAt != nil && !in.ExpiresAt.After(k.CreatedAt.Time) {
			return appliance.Invalid("expiresAt", "is not in the future")
		}
		if err := tx.InsertKey(k, hash); err != nil {
			return err
		}
		_, err = tx.Emit(c.event(tr, appliance.EventKeyCreated, k.TenantID, k.ID, k.CreatedAt), k)
		return err
	})
	if err != nil {
		return appliance.Key{}, err
	}
	k.Secret = secret
	return k, nil
}

// ListKeys shows the tenant's keys, revoked ones too, without their secrets.
func (c *Control) ListKeys(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Key], err error) {
	if _, _, err := c.forTenant(who, appliance.KeysRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		keys, err := tx.KeysOf(in.TenantID, in.Cursor, in.Size()+1)
		out = store.Page(keys, in.Size(), func(k appliance.Key) string { return k.ID })
		return err
	})
	return out, err
}

// RevokeKey ends a key at once. Revoking again changes nothing.
func (c *Control) RevokeKey(ctx context.Context, who appliance.Caller, in appliance.RevokeKey) (out appliance.Key, err error) {
	err = c.write(ctx, who, appliance.KeysManage, in.TenantID, in.KeyID, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.KeysManage, in.TenantID)
		if err != nil {
			return err
		}
		k, err := tx.Key(in.KeyID)
		if err == nil && k.TenantID != in.TenantID {
			err = appliance.NoSuch("key")
		}
		if err != nil {
			return err
		}
		if k.RevokedAt == nil {
			at := c.now()
			if err := tx.RevokeKey(k.ID, at); err != nil {
				return err
			}
			k.RevokedAt = &at
			if _, err := tx.Emit(c.event(tr, appliance.EventKeyRevoked, k.TenantID, k.ID, at), k); err != nil {
				return err
			}
			tx.Done(func() { c.keys.forget(k.ID) })
		}
		out = k
		return nil
	})
	return out, err
}
