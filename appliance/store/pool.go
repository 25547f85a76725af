package store

import "github.com/bettercompute/bc/appliance"

const poolColumns = `p.id, p.owner_tenant_id, p.site_id, p.class, p.gpu_model, p.sharing, p.agent,
	p.provider_account_id, p.name, p.policy, p.version, p.created_at, p.archived_at IS NOT NULL, s.region`

const poolFrom = ` FROM pools p JOIN sites s ON s.id = p.site_id `

func scanPool(r *Rows) (p appliance.Pool, err error) {
	var policy string
	err = r.Scan(&p.ID, &p.OwnerTenantID, &p.SiteID, &p.Class, &p.GPUModel, &p.Sharing, &p.Agent,
		&p.ProviderAccountID, &p.Name, &policy, &p.Version, &p.CreatedAt, &p.Archived, &p.Region)
	p.Policy = appliance.RawPolicy(policy)
	p.Quotas = []appliance.Quota{}
	return p, err
}

// InsertPool adds a pool; CONFLICT if the id is taken, or the name among the
// owner's live pools.
func (tx *Tx) InsertPool(p appliance.Pool) error {
	policy, _ := p.Policy.MarshalJSON()
	_, err := tx.Exec(`INSERT INTO pools (id, owner_tenant_id, site_id, class, gpu_model, sharing, agent,
		provider_account_id, name, policy, version, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.ID, p.OwnerTenantID, p.SiteID, p.Class, p.GPUModel, p.Sharing, p.Agent,
		p.ProviderAccountID, p.Name, string(policy), p.Version, p.CreatedAt)
	if isDuplicate(err) {
		return appliance.Refuse(appliance.ConflictCode, "name", "name: the tenant has a pool named %q already", p.Name)
	}
	return err
}

// Pool reads one pool, archived ones too, without quota rows.
func (tx *Tx) Pool(id string) (appliance.Pool, error) {
	return one(tx, "pool", scanPool, `SELECT `+poolColumns+poolFrom+`WHERE p.id = ?`, id)
}

// UpdatePool writes a pool's policy, model and version.
func (tx *Tx) UpdatePool(p appliance.Pool) error {
	policy, _ := p.Policy.MarshalJSON()
	_, err := tx.Exec(`UPDATE pools SET policy = ?, gpu_model = ?, version = ? WHERE id = ?`,
		string(policy), p.GPUModel, p.Version, p.ID)
	return err
}

// ArchivePool marks a pool as archived.
func (tx *Tx) ArchivePool(id string, at appliance.Time) error {
	_, err := tx.Exec(`UPDATE pools SET archived_at = ? WHERE id = ? AND archived_at IS NULL`, at, id)
	return err
}

// OwnedPools lists the pools that a tenant owns, archived ones too.
func (tx *Tx) OwnedPools(tenant string) ([]appliance.Pool, error) {
	return collect(tx, scanPool, `SELECT `+poolColumns+poolFrom+`WHERE p.owner_tenant_id = ? ORDER BY p.id`, tenant)
}

// AllPools lists every pool, archived ones too.
func (tx *Tx) AllPools() ([]appliance.Pool, error) {
	return collect(tx, scanPool, `SELECT `+poolColumns+poolFrom+`ORDER BY p.id`)
}

const authzColumns = `tenant_id, pool_id, gpu_model, class, sharing, region, owned`

func scanAuthz(r *Rows) (a appliance.AuthzRow, err error) {
	err = r.Scan(&a.TenantID, &a.PoolID, &a.GPUModel, &a.Class, &a.Sharing, &a.Region, &a.Owned)
	return a, err
}

// PutAuthz writes what IAM knows of a pool for a tenant.
func (tx *Tx) PutAuthz(a appliance.AuthzRow) error {
	_, err := tx.Exec(`INSERT OR REPLACE INTO pool_authz (`+authzColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		a.TenantID, a.PoolID, a.GPUModel, a.Class, a.Sharing, a.Region, a.Owned)
	return err
}

// DropAuthz takes a pool out of a tenant's sight.
func (tx *Tx) DropAuthz(tenant, pool string) error {
	_, err := tx.Exec(`DELETE FROM pool_authz WHERE tenant_id = ? AND pool_id = ?`, tenant, pool)
	return err
}

// Authz reads what IAM knows of a pool for a tenant; NOT_FOUND if the tenant
// does not see the pool.
func (tx *Tx) Authz(tenant, pool string) (appliance.AuthzRow, error) {
	return one(tx, "pool", scanAuthz, `SELECT `+authzColumns+` FROM pool_authz WHERE tenant_id = ? AND pool_id = ?`, tenant, pool)
}

// AuthzOf lists a pool's rows: who sees it.
func (tx *Tx) AuthzOf(pool string) ([]appliance.AuthzRow, error) {
	return collect(tx, scanAuthz, `SELECT `+authzColumns+` FROM pool_authz WHERE pool_id = ? ORDER BY tenant_id`, pool)
}
