package appliance

// SiteKind is whose machines stand at a site.
type SiteKind string

// A custom site is the customer's own; shared and dedicated ones are the
// platform's and belong to root.
const (
	SiteCustom    SiteKind = "custom"
	SiteShared    SiteKind = "shared"
	SiteDedicated SiteKind = "dedicated"
)

// Site is where machines stand.
type Site struct {
	ID            string   `json:"id" example:"site_01k5c000000000000000000000"`
	OwnerTenantID string   `json:"ownerTenantId"`
	Kind          SiteKind `json:"kind" enum:"custom,shared,dedicated"`
	Name          string   `json:"name"`
	Region        string   `json:"region" doc:"A label that policies can decide on."`
	CreatedAt     Time     `json:"createdAt"`
}

// CreateSite is the input of sites.create.
type CreateSite struct {
	TenantID string   `json:"tenantId" doc:"The owner: root for shared and dedicated sites." example:"acme"`
	Kind     SiteKind `json:"kind" enum:"custom,shared,dedicated"`
	Name     string   `json:"name" example:"lab"`
	Region   string   `json:"region" example:"fra1"`
}

// SiteRef is the input of sites.get.
type SiteRef struct {
	TenantID string `json:"tenantId" example:"acme"`
	SiteID   string `json:"siteId"`
}

var label = textLike(63, `^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// IsLabel tells whether s can be a site's name or region: 1 to 63 letters,
// digits, dots, underscores and hyphens, starting with a letter or digit.
func IsLabel(s string) bool { return label.MatchString(s) }

// Validate refuses what no site may be, and platform kinds for customers.
func (in CreateSite) Validate() error {
	if !IsLabel(in.Name) {
		return Invalid("name", "%q is not 1 to 63 letters, digits, dots, underscores or hyphens", in.Name)
	}
	if !IsLabel(in.Region) {
		return Invalid("region", "%q is not 1 to 63 letters, digits, dots, underscores or hyphens", in.Region)
	}
	switch in.Kind {
	case SiteCustom:
	case SiteShared, SiteDedicated:
		if in.TenantID != Root {
			return Invalid("kind", "%s sites belong to the platform (tenant root); make a custom site", in.Kind)
		}
	default:
		return Invalid("kind", "%q is not custom, shared or dedicated", in.Kind)
	}
	return nil
}
