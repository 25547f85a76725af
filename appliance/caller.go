package appliance

// CallerKind is what kind of principal calls.
type CallerKind string

// The local operator is a Unix-socket peer whose uid is 0 or the server's own:
// it acts in any tenant's name. System callers are the reconcilers.
const (
	CallerOperator CallerKind = "operator"
	CallerKey      CallerKind = "key"
	CallerUser     CallerKind = "user"
	CallerNode     CallerKind = "node"
	CallerSystem   CallerKind = "system"
)

// Role is what a key or a user may do in its tenant.
type Role string

// Default roles of every tenant: owner does everything, operator runs the
// machines, member reads and reserves, viewer reads.
const (
	RoleOwner    Role = "owner"
	RoleOperator Role = "operator"
	RoleMember   Role = "member"
	RoleViewer   Role = "viewer"
)

// Caller is who asks, as the door found out.
type Caller struct {
	Kind      CallerKind
	ID        string // key_…, user_…, node_…; operator; system:expiry
	Tenant    string // the tenant of a key or user, the owner of a node
	Role      Role   // of a key or user
	RequestID string
	Address   string // where from, for the audit trail: 10.0.0.7, unix:uid=0
}

// Operator is the local operator.
func Operator(requestID, address string) Caller {
	return Caller{Kind: CallerOperator, ID: string(CallerOperator), RequestID: requestID, Address: address}
}

// System is a reconciler, by name.
func System(name string) Caller {
	return Caller{Kind: CallerSystem, ID: "system:" + name}
}
