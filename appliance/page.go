package appliance

// Limits of a list's page.
const (
	DefaultLimit = 100
	MaxLimit     = 500
)

// Page is the part of every list's input that says which part to show.
type Page struct {
	Limit  int    `json:"limit,omitempty" doc:"Items on a page, 1 to 500. Default 100." minimum:"1" maximum:"500"`
	Cursor string `json:"cursor,omitempty" doc:"The nextCursor of the page before."`
}

// Size is how many items to show.
func (p Page) Size() int {
	if p.Limit == 0 {
		return DefaultLimit
	}
	return p.Limit
}

// Validate holds the limit to its range.
func (p Page) Validate() error {
	if p.Limit < 0 || p.Limit > MaxLimit {
		return Invalid("limit", "%d is not 1 to %d", p.Limit, MaxLimit)
	}
	return nil
}

// List is a page of items.
type List[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// TenantList is the input of the lists that need nothing but a tenant.
type TenantList struct {
	TenantID string `json:"tenantId" doc:"The tenant in whose name the caller acts." example:"acme"`
	Page
}
