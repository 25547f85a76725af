package appliance

// Root is the tenant above all others: the platform.
const Root = "root"

// TenantState is how far a tenant's life has come.
type TenantState string

// A suspended tenant's new reservations are refused, what runs goes on. A
// deleted tenant's pools are archived and its reservations end.
const (
	TenantActive    TenantState = "active"
	TenantSuspended TenantState = "suspended"
	TenantDeleted   TenantState = "deleted"
)

// Tenant is who owns, offers, reserves and pays. Tenants are a tree under root.
type Tenant struct {
	ID        string      `json:"id" doc:"Slug: 1 to 63 of a-z 0-9 -, starting with a letter." example:"acme"`
	ParentID  string      `json:"parentId,omitempty" doc:"Empty only for root."`
	Name      string      `json:"name" example:"Acme Research"`
	State     TenantState `json:"state" enum:"active,suspended,deleted"`
	CreatedAt Time        `json:"createdAt"`
}

// CreateTenant is the input of tenants.create.
type CreateTenant struct {
	TenantID string `json:"tenantId" doc:"The tenant in whose name the caller acts; the new tenant's parent or an ancestor of it." example:"root"`
	ID       string `json:"id" doc:"The new tenant's slug." example:"acme"`
	ParentID string `json:"parentId,omitempty" doc:"Default: tenantId."`
	Name     string `json:"name,omitempty" doc:"For people. Default: the id." maxLength:"200"`
}

// TenantRef is the input of the verbs on one tenant.
type TenantRef struct {
	TenantID string `json:"tenantId" doc:"The tenant in whose name the caller acts." example:"root"`
	ID       string `json:"id" doc:"The tenant." example:"acme"`
}

var tenantID = textLike(63, `^[a-z][a-z0-9-]*$`)

// IsTenantID tells whether id is a tenant's slug.
func IsTenantID(id string) bool { return tenantID.MatchString(id) }

// Validate refuses what no tenant may be.
func (in CreateTenant) Validate() error {
	if !IsTenantID(in.ID) {
		return Invalid("id", "%q is not 1 to 63 of a-z, 0-9 and -, starting with a letter", in.ID)
	}
	return checkName("name", in.Name)
}

// checkName holds free names for people to one printable line.
func checkName(field, name string) error {
	if len(name) > 200 {
		return Invalid(field, "longer than 200 bytes")
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f {
			return Invalid(field, "holds a control character")
		}
	}
	return nil
}
