package store

import "github.com/bettercompute/bc/appliance"

const siteColumns = `id, owner_tenant_id, kind, name, region, created_at`

func scanSite(r *Rows) (s appliance.Site, err error) {
	err = r.Scan(&s.ID, &s.OwnerTenantID, &s.Kind, &s.Name, &s.Region, &s.CreatedAt)
	return s, err
}

// InsertSite adds a site; CONFLICT if its owner has one of that name.
func (tx *Tx) InsertSite(s appliance.Site) error {
	_, err := tx.Exec(`INSERT INTO sites (`+siteColumns+`) VALUES (?, ?, ?, ?, ?, ?)`,
		s.ID, s.OwnerTenantID, s.Kind, s.Name, s.Region, s.CreatedAt)
	if isDuplicate(err) {
		return appliance.Refuse(appliance.ConflictCode, "name", "name: the tenant has a site named %q already", s.Name)
	}
	return err
}

// Site reads one site.
func (tx *Tx) Site(id string) (appliance.Site, error) {
	return one(tx, "site", scanSite, `SELECT `+siteColumns+` FROM sites WHERE id = ?`, id)
}

// SitesOf lists a tenant's sites in order of id, after a cursor.
func (tx *Tx) SitesOf(tenant, after string, limit int) ([]appliance.Site, error) {
	return collect(tx, scanSite, `SELECT `+siteColumns+` FROM sites WHERE owner_tenant_id = ? AND id > ? ORDER BY id LIMIT ?`,
		tenant, after, limit)
}
