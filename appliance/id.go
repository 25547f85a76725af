package appliance

import (
	"crypto/sha256"
	"strings"

	"github.com/oklog/ulid/v2"
)

// Prefixes of identifiers: the prefix, then a ULID in lower case.
const (
	PoolPrefix            = "pool_"
	SitePrefix            = "site_"
	NodePrefix            = "node_"
	ReservationPrefix     = "res_"
	JoinTokenPrefix       = "jtok_"
	KeyPrefix             = "key_"
	UserPrefix            = "user_"
	ProviderAccountPrefix = "pacct_"
	RebootPrefix          = "reboot_"
	PlanPrefix            = "plan_" // of a question to a node; never kept
)

// ID joins a prefix and a ULID.
func ID(prefix string, u ulid.ULID) string { return prefix + strings.ToLower(u.String()) }

// IsID tells whether id is of that prefix and well formed.
func IsID(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	if !ok || len(rest) != ulid.EncodedSize || rest != strings.ToLower(rest) {
		return false
	}
	_, err := ulid.ParseStrict(rest)
	return err == nil
}

// DeriveID is the id of what a caller makes for a tenant under an idempotency
// key: the same three always give the same id. Its time part means nothing.
func DeriveID(prefix, tenant, caller, key string) string {
	h := sha256.New()
	for _, part := range []string{prefix, tenant, caller, key} {
		h.Write([]byte{byte(len(part) >> 8), byte(len(part))})
		h.Write([]byte(part))
	}
	var u ulid.ULID
	copy(u[:], h.Sum(nil))
	return ID(prefix, u)
}
