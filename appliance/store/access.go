package store

import "github.com/bettercompute/bc/appliance"

const policyColumns = `tenant_id, name, cedar, created_at, updated_at`

func scanAccessPolicy(r *Rows) (p appliance.AccessPolicy, err error) {
	err = r.Scan(&p.TenantID, &p.Name, &p.Cedar, &p.CreatedAt, &p.UpdatedAt)
	return p, err
}

// PutAccessPolicy makes or replaces a tenant's policy; the time of the first
// stays.
func (tx *Tx) PutAccessPolicy(p appliance.AccessPolicy) error {
	_, err := tx.Exec(`INSERT INTO access_policies (`+policyColumns+`) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (tenant_id, name) DO UPDATE SET cedar = excluded.cedar, updated_at = excluded.updated_at`,
		p.TenantID, p.Name, p.Cedar, p.CreatedAt, p.UpdatedAt)
	return err
}

// AccessPolicies lists a tenant's policies in order of name.
func (tx *Tx) AccessPolicies(tenant string) ([]appliance.AccessPolicy, error) {
	return collect(tx, scanAccessPolicy, `SELECT `+policyColumns+` FROM access_policies WHERE tenant_id = ? ORDER BY name`, tenant)
}

// DropAccessPolicy removes a policy and tells whether there was one.
func (tx *Tx) DropAccessPolicy(tenant, name string) (bool, error) {
	r, err := tx.Exec(`DELETE FROM access_policies WHERE tenant_id = ? AND name = ?`, tenant, name)
	return r.Changed > 0, err
}

// Account is a user with what its password is checked against.
type Account struct {
	appliance.User
	PasswordHash string
}

const userColumns = `id, tenant_id, name, role, password_hash, created_at, last_login_at, disabled_at`

func scanAccount(r *Rows) (u Account, err error) {
	err = r.Scan(&u.ID, &u.TenantID, &u.Name, &u.Role, &u.PasswordHash, &u.CreatedAt, &u.LastLoginAt, &u.DisabledAt)
	u.HasPassword = u.PasswordHash != ""
	return u, err
}

// InsertUser adds a user; CONFLICT if the tenant has one of that name.
func (tx *Tx) InsertUser(u Account) error {
	_, err := tx.Exec(`INSERT INTO users (`+userColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		u.ID, u.TenantID, u.Name, u.Role, u.PasswordHash, u.CreatedAt, u.LastLoginAt, u.DisabledAt)
	if isDuplicate(err) {
		return appliance.Refuse(appliance.ConflictCode, "name", "name: the tenant has a user named %q already", u.Name)
	}
	return err
}

// UpdateUser writes a user's role, password and times.
func (tx *Tx) UpdateUser(u Account) error {
	_, err := tx.Exec(`UPDATE users SET role = ?, password_hash = ?, last_login_at = ?, disabled_at = ? WHERE id = ?`,
		u.Role, u.PasswordHash, u.LastLoginAt, u.DisabledAt, u.ID)
	return err
}

// DropUser removes a user and its login links.
func (tx *Tx) DropUser(id string) error {
	if _, err := tx.Exec(`DELETE FROM login_links WHERE subject = ?`, id); err != nil {
		return err
	}
	_, err := tx.Exec(`DELETE FROM users WHERE id = ?`, id)
	return err
}

// User reads one user.
func (tx *Tx) User(id string) (Account, error) {
	return one(tx, "user", scanAccount, `SELECT `+userColumns+` FROM users WHERE id = ?`, id)
}

// UsersOf lists a tenant's users in order of id, after a cursor.
func (tx *Tx) UsersOf(tenant, after string, limit int) ([]Account, error) {
	return collect(tx, scanAccount, `SELECT `+userColumns+` FROM users WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`, tenant, after, limit)
}

// PutLoginLink keeps the hash of a login link's token, and drops those whose
// time is over.
func (tx *Tx) PutLoginLink(hash, subject string, expires, now appliance.Time) error {
	if _, err := tx.Exec(`DELETE FROM login_links WHERE expires_at <= ?`, now); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO login_links (token_hash, subject, expires_at) VALUES (?, ?, ?)`, hash, subject, expires)
	return err
}

// TakeLoginLink gives whom a login link signs in, once: it is gone afterwards.
// NOT_FOUND if there is none, or its time is over.
func (tx *Tx) TakeLoginLink(hash string, now appliance.Time) (subject string, err error) {
	subject, err = one(tx, "login link", func(r *Rows) (s string, err error) { return s, r.Scan(&s) },
		`SELECT subject FROM login_links WHERE token_hash = ? AND expires_at > ?`, hash, now)
	if err != nil {
		return "", err
	}
	_, err = tx.Exec(`DELETE FROM login_links WHERE token_hash = ?`, hash)
	return subject, err
}

// UserNamed reads a tenant's user by name.
func (tx *Tx) UserNamed(tenant, name string) (Account, error) {
	return one(tx, "user", scanAccount, `SELECT `+userColumns+` FROM users WHERE tenant_id = ? AND name = ?`, tenant, name)
}

// PutSession keeps a session, and drops those whose time is over.
func (tx *Tx) PutSession(hash, user string, expires, now appliance.Time) error {
	if _, err := tx.Exec(`DELETE FROM sessions WHERE expires_at <= ?`, now); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO sessions (token_hash, user_id, expires_at) VALUES (?, ?, ?)`, hash, user, expires)
	return err
}

// SessionUser reads whose session it is; NOT_FOUND if there is none, or its
// time is over.
func (tx *Tx) SessionUser(hash string, now appliance.Time) (Account, error) {
	return one(tx, "session", scanAccount, `SELECT u.id, u.tenant_id, u.name, u.role, u.password_hash, u.created_at, u.last_login_at, u.disabled_at
		FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.token_hash = ? AND s.expires_at > ?`, hash, now)
}

// DropSession ends one session.
func (tx *Tx) DropSession(hash string) error {
	_, err := tx.Exec(`DELETE FROM sessions WHERE token_hash = ?`, hash)
	return err
}

// DropSessionsOf ends every session of a user.
func (tx *Tx) DropSessionsOf(user string) error {
	_, err := tx.Exec(`DELETE FROM sessions WHERE user_id = ?`, user)
	return err
}
