package control

import (
	"context"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// Keys of what the file remembers of its first start.
const (
	metaTenant = "bootstrap.tenant"
	metaSite   = "bootstrap.site"
)

// bootstrap makes root, the customer tenant and its custom site, once.
func (c *Control) bootstrap(ctx context.Context) error {
	return c.Store.Write(ctx, func(tx *store.Tx) error {
		done, err := tx.Meta(metaSite)
		if err != nil || done != "" {
			return err
		}
		t, at := trail{who: appliance.System("bootstrap"), policies: "system"}, c.now()
		root := appliance.Tenant{ID: appliance.Root, Name: appliance.Root, State: appliance.TenantActive, CreatedAt: at}
		if err := tx.InsertTenant(root); err != nil {
			return err
		}
		if _, err := tx.Emit(c.event(t, appliance.EventTenantCreated, root.ID, root.ID, at), root); err != nil {
			return err
		}
		owner := appliance.CreateTenant{ID: c.Settings.Tenant}
		if err := owner.Validate(); err != nil {
			return appliance.Refuse(appliance.InvalidInput, "bootstrap.tenant", "bootstrap.tenant: %q is not a tenant id: 1 to 63 of a-z, 0-9 and -, starting with a letter", c.Settings.Tenant)
		}
		if owner.ID != appliance.Root {
			tenant := appliance.Tenant{ID: owner.ID, ParentID: root.ID, Name: owner.ID, State: appliance.TenantActive, CreatedAt: at}
			if err := tx.InsertTenant(tenant); err != nil {
				return err
			}
			if _, err := tx.Emit(c.event(t, appliance.EventTenantCreated, tenant.ID, tenant.ID, at), tenant); err != nil {
				return err
			}
		}
		in := appliance.CreateSite{TenantID: owner.ID, Kind: appliance.SiteCustom, Name: c.Settings.Site, Region: c.Settings.Region}
		if err := in.Validate(); err != nil {
			return err
		}
		site := appliance.Site{ID: c.newID(appliance.SitePrefix), OwnerTenantID: owner.ID, Kind: in.Kind, Name: in.Name, Region: in.Region, CreatedAt: at}
		if err := tx.InsertSite(site); err != nil {
			return err
		}
		if _, err := tx.Emit(c.event(t, appliance.EventSiteCreated, owner.ID, site.ID, at), site); err != nil {
			return err
		}
		if err := tx.SetMeta(metaTenant, owner.ID); err != nil {
			return err
		}
		return tx.SetMeta(metaSite, site.ID)
	})
}

// Home is the customer tenant and the site that the first start made.
func (c *Control) Home(ctx context.Context) (tenant string, site appliance.Site, err error) {
	err = c.Store.Read(ctx, func(tx *store.Tx) error {
		if tenant, err = tx.Meta(metaTenant); err != nil {
			return err
		}
		id, err := tx.Meta(metaSite)
		if err != nil {
			return err
		}
		site, err = tx.Site(id)
		return err
	})
	return tenant, site, err
}
