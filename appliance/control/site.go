package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// CreateSite makes a site that the tenant owns.
func (c *Control) CreateSite(ctx context.Context, who appliance.Caller, in appliance.CreateSite) (appliance.Site, error) {
	s := appliance.Site{
		ID: c.newID(appliance.SitePrefix), OwnerTenantID: in.TenantID, Kind: in.Kind,
		Name: in.Name, Region: in.Region, CreatedAt: c.now(),
	}
	err := c.write(ctx, who, appliance.SitesManage, in.TenantID, in.Name, func(tx *store.Tx) error {
		_, tr, err := c.forTenant(who, appliance.SitesManage, in.TenantID)
		if err != nil {
			return err
		}
		if err := in.Validate(); err != nil {
			return err
		}
		if err := tx.InsertSite(s); err != nil {
			return err
		}
		_, err = tx.Emit(c.event(tr, appliance.EventSiteCreated, s.OwnerTenantID, s.ID, s.CreatedAt), s)
		return err
	})
	return s, err
}

// GetSite shows one of the tenant's own sites.
func (c *Control) GetSite(ctx context.Context, who appliance.Caller, in appliance.SiteRef) (s appliance.Site, err error) {
	if _, _, err := c.forTenant(who, appliance.SitesRead, in.TenantID); err != nil {
		return s, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		s, err = c.ownSite(tx, in.TenantID, in.SiteID)
		return err
	})
	return s, err
}

// ownSite reads a site of the tenant's; a stranger's site is no site.
func (c *Control) ownSite(tx *store.Tx, tenant, id string) (appliance.Site, error) {
	s, err := tx.Site(id)
	if err == nil && s.OwnerTenantID != tenant {
		return appliance.Site{}, appliance.NoSuch("site")
	}
	return s, err
}

// ListSites shows the tenant's own sites.
func (c *Control) ListSites(ctx context.Context, who appliance.Caller, in appliance.TenantList) (out appliance.List[appliance.Site], err error) {
	if _, _, err := c.forTenant(who, appliance.SitesRead, in.TenantID); err != nil {
		return out, err
	}
	if err := in.Page.Validate(); err != nil {
		return out, err
	}
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		items, err := tx.SitesOf(in.TenantID, in.Cursor, in.Size()+1)
		out = store.Page(items, in.Size(), func(s appliance.Site) string { return s.ID })
		return err
	})
	return out, err
}
