package appliance

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Action is what a caller asks to do, as policies name it: service, things,
// verb.
type Action string

// The actions. A list is decided on the tenant, and again on each pool that it
// would show; what each action can be decided on stands in package iam's
// schema.
const (
	PoolsRead   Action = "compute:pools:read"
	PoolsCreate Action = "compute:pools:create"
	PoolsShare  Action = "compute:pools:share"  // offer, unoffer, list offers
	PoolsManage Action = "compute:pools:manage" // update, archive

	CapacityRead Action = "compute:capacity:read"

	ReservationsRead   Action = "compute:reservations:read" // also explain
	ReservationsCreate Action = "compute:reservations:create"
	ReservationsManage Action = "compute:reservations:manage" // release, extend, shorten

	NodesRead   Action = "compute:nodes:read"
	NodesManage Action = "compute:nodes:manage" // cordon, drain, label, remove, reboot
	NodesJoin   Action = "compute:nodes:join"   // make, list and revoke join tokens
	NodesReport Action = "compute:nodes:report" // what a node does for itself: fetch its spec, report

	QuotasRead   Action = "compute:quotas:read"
	QuotasManage Action = "compute:quotas:manage"

	UsageRead     Action = "compute:usage:read"
	BudgetsRead   Action = "compute:budgets:read"
	BudgetsManage Action = "compute:budgets:manage"
	RatesRead     Action = "compute:rates:read"
	RatesManage   Action = "compute:rates:manage"

	SitesRead              Action = "compute:sites:read"
	SitesManage            Action = "compute:sites:manage"
	ProviderAccountsRead   Action = "compute:providerAccounts:read"
	ProviderAccountsManage Action = "compute:providerAccounts:manage"
	EventsRead             Action = "compute:events:read"

	TenantsRead    Action = "iam:tenants:read"
	TenantsManage  Action = "iam:tenants:manage" // create, suspend, resume, delete: decided on the parent
	UsersRead      Action = "iam:users:read"
	UsersManage    Action = "iam:users:manage"
	KeysRead       Action = "iam:keys:read"
	KeysManage     Action = "iam:keys:manage"
	PoliciesRead   Action = "iam:policies:read" // list, check
	PoliciesManage Action = "iam:policies:manage"
	AuditRead      Action = "iam:audit:read"

	SystemRead   Action = "system:status:read"   // status, health
	SystemManage Action = "system:backup:manage" // back up
)

// Actions lists them all, in the order in which they are shown.
var Actions = []Action{
	PoolsRead, PoolsCreate, PoolsShare, PoolsManage, CapacityRead,
	ReservationsRead, ReservationsCreate, ReservationsManage,
	NodesRead, NodesManage, NodesJoin, NodesReport,
	QuotasRead, QuotasManage, UsageRead, BudgetsRead, BudgetsManage, RatesRead, RatesManage,
	SitesRead, SitesManage, ProviderAccountsRead, ProviderAccountsManage, EventsRead,
	TenantsRead, TenantsManage, UsersRead, UsersManage, KeysRead, KeysManage,
	PoliciesRead, PoliciesManage, AuditRead,
	SystemRead, SystemManage,
}

// Writes tells whether the action changes anything, so that its decision
// belongs in the audit trail.
func (a Action) Writes() bool { return !strings.HasSuffix(string(a), ":read") }

// Roles lists the default roles, the strongest first.
var Roles = []Role{RoleOwner, RoleOperator, RoleMember, RoleViewer}

// AuthzRow is what IAM knows of a pool for one tenant: a row exists for the
// pool's owner and for each tenant that it is offered to.
type AuthzRow struct {
	TenantID string // who looks
	PoolID   string
	GPUModel string
	Class    string
	Sharing  string
	Region   string // of the pool's site
	Owned    bool   // whether the looking tenant is the pool's owner
}

// Key is an API key: a service account of one tenant.
type Key struct {
	ID         string `json:"id" example:"key_01k5c000000000000000000000"`
	TenantID   string `json:"tenantId" example:"acme"`
	Name       string `json:"name" example:"ci"`
	Role       Role   `json:"role" enum:"owner,operator,member,viewer"`
	CreatedAt  Time   `json:"createdAt"`
	ExpiresAt  *Time  `json:"expiresAt,omitempty" doc:"From when it is refused. Absent: never."`
	LastUsedAt *Time  `json:"lastUsedAt,omitempty"`
	RevokedAt  *Time  `json:"revokedAt,omitempty"`
	Secret     string `json:"secret,omitempty" doc:"Only in the answer to iam.keys.create; it is kept nowhere." example:"bck_…"`
}

// CreateKey is the input of iam.keys.create.
type CreateKey struct {
	TenantID  string `json:"tenantId" doc:"The tenant that the key acts for." example:"acme"`
	Name      string `json:"name" doc:"Unique among the tenant's live keys." example:"ci"`
	Role      Role   `json:"role" enum:"owner,operator,member,viewer"`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"From when the key is refused. Default: never."`
}

// RevokeKey is the input of iam.keys.revoke.
type RevokeKey struct {
	TenantID string `json:"tenantId" example:"acme"`
	KeyID    string `json:"keyId"`
}

// User is a person who signs in to the console.
type User struct {
	ID          string     `json:"id" example:"user_01k5c000000000000000000000"`
	TenantID    string     `json:"tenantId" example:"acme"`
	Name        string     `json:"name" doc:"What the person signs in with; unique in the tenant." example:"ada@acme.example"`
	Role        Role       `json:"role" enum:"owner,operator,member,viewer"`
	HasPassword bool       `json:"hasPassword" doc:"Without one the person signs in by login links."`
	CreatedAt   Time       `json:"createdAt"`
	LastLoginAt *Time      `json:"lastLoginAt,omitempty"`
	DisabledAt  *Time      `json:"disabledAt,omitempty" doc:"Since when the person cannot sign in."`
	LoginLink   *LoginLink `json:"loginLink,omitempty" doc:"Only in the answer to iam.users.create without a password."`
}

// LoginLink signs its reader in to the console, once.
type LoginLink struct {
	Token     string `json:"token" doc:"Good once, until expiresAt." example:"bcl_…"`
	URL       string `json:"url,omitempty" doc:"The console's address with the token in it."`
	ExpiresAt Time   `json:"expiresAt"`
}

// CreateUser is the input of iam.users.create.
type CreateUser struct {
	TenantID string `json:"tenantId" example:"acme"`
	Name     string `json:"name" doc:"1 to 100 letters, digits and . _ + @ -, such as an e-mail address; unique in the tenant." example:"ada@acme.example"`
	Role     Role   `json:"role" enum:"owner,operator,member,viewer"`
	Password string `json:"password,omitempty" doc:"12 to 128 characters. Without it the answer has a one-time login link."`
}

// UserRef is the input of the verbs on one user: iam.users.get, .delete and
// .loginLink.
type UserRef struct {
	TenantID string `json:"tenantId" example:"acme"`
	UserID   string `json:"userId"`
}

// UpdateUser is the input of iam.users.update.
type UpdateUser struct {
	TenantID string `json:"tenantId" example:"acme"`
	UserID   string `json:"userId"`
	Role     Role   `json:"role,omitempty" enum:"owner,operator,member,viewer"`
	Disabled *bool  `json:"disabled,omitempty" doc:"A disabled user's sessions end at once."`
}

// SetPassword is the input of iam.users.setPassword. The user's sessions end.
type SetPassword struct {
	TenantID string `json:"tenantId" example:"acme"`
	UserID   string `json:"userId"`
	Password string `json:"password" doc:"12 to 128 characters."`
}

// AccessPolicy is a tenant's own policy, in Cedar. It decides for the tenant's
// users and keys, in requests that act in the tenant's name, and nowhere else.
type AccessPolicy struct {
	TenantID  string `json:"tenantId" example:"acme"`
	Name      string `json:"name" example:"no-h100"`
	Cedar     string `json:"cedar" doc:"One or more Cedar statements, as given."`
	CreatedAt Time   `json:"createdAt"`
	UpdatedAt Time   `json:"updatedAt"`
}

// PutPolicy is the input of iam.policies.put, which makes or replaces one.
type PutPolicy struct {
	TenantID string `json:"tenantId" example:"acme"`
	Name     string `json:"name" doc:"1 to 63 letters, digits, dots, underscores or hyphens." example:"no-h100"`
	Cedar    string `json:"cedar" doc:"One or more Cedar statements, at most 16 KiB." example:"forbid (principal, action, resource is Pool) when { resource.gpuModel == \"H100\" };"`
}

// DeletePolicy is the input of iam.policies.delete.
type DeletePolicy struct {
	TenantID string `json:"tenantId" example:"acme"`
	Name     string `json:"name" example:"no-h100"`
}

// PolicyDeleted answers iam.policies.delete.
type PolicyDeleted struct {
	Removed bool `json:"removed"`
}

// Check is the input of iam.check: might this principal do this?
type Check struct {
	TenantID  string `json:"tenantId" doc:"The tenant in whose name it would act." example:"acme"`
	Principal string `json:"principal" doc:"The id of a key, user or node, or operator for the local operator." example:"key_01k5c000000000000000000000"`
	Action    Action `json:"action" example:"compute:reservations:create"`
	PoolID    string `json:"poolId,omitempty" doc:"The pool that it is about, for actions that are decided on a pool."`
}

// CheckResult is a decision: the answer of iam.check, and what the audit trail
// keeps of every write.
type CheckResult struct {
	Allowed  bool     `json:"allowed"`
	Policies []string `json:"policies" doc:"The policies that decided; empty when none permits." example:"[\"roles:members-reserve\"]"`
	Reason   string   `json:"reason" doc:"The same in words."`
}

// Limits of passwords, in characters (OWASP ASVS 4.0.3, V2.1.1 and V2.1.2), and
// of a policy's text, in bytes.
const (
	MinPassword   = 12
	MaxPassword   = 128
	MaxPolicyText = 16 << 10
)

var userName = textLike(100, `^[A-Za-z0-9][A-Za-z0-9._+@-]*$`)

// Validate refuses what no key may be.
func (in CreateKey) Validate() error {
	if !IsLabel(in.Name) {
		return Invalid("name", "%q is not 1 to 63 letters, digits, dots, underscores or hyphens", in.Name)
	}
	return CheckRole("role", in.Role)
}

// Validate refuses what no user may be. The password never shows in a refusal.
func (in CreateUser) Validate() error {
	if !userName.MatchString(in.Name) {
		return Invalid("name", "%q is not 1 to 100 letters, digits and . _ + @ -, starting with a letter or digit", in.Name)
	}
	if err := CheckRole("role", in.Role); err != nil {
		return err
	}
	if in.Password == "" {
		return nil
	}
	return checkPassword(in.Password)
}

// Validate refuses an update that changes nothing and roles that do not exist.
func (in UpdateUser) Validate() error {
	if in.Role == "" && in.Disabled == nil {
		return Invalid("role", "give role, disabled or both")
	}
	if in.Role == "" {
		return nil
	}
	return CheckRole("role", in.Role)
}

// Validate holds the password to its lengths.
func (in SetPassword) Validate() error { return checkPassword(in.Password) }

// Validate refuses names and lengths that no policy may have. What the text
// says is checked by package iam.
func (in PutPolicy) Validate() error {
	if !IsLabel(in.Name) {
		return Invalid("name", "%q is not 1 to 63 letters, digits, dots, underscores or hyphens", in.Name)
	}
	if strings.TrimSpace(in.Cedar) == "" {
		return Invalid("cedar", "is empty; delete the policy instead")
	}
	if len(in.Cedar) > MaxPolicyText {
		return Invalid("cedar", "%d bytes, more than %d", len(in.Cedar), MaxPolicyText)
	}
	return nil
}

// Validate refuses actions that do not exist and what cannot be a principal.
func (in Check) Validate() error {
	if !slices.Contains(Actions, in.Action) {
		return Invalid("action", "%q is not an action; actions are such as %s", in.Action, ReservationsCreate)
	}
	if in.Principal == string(CallerOperator) {
		return nil
	}
	for _, prefix := range []string{KeyPrefix, UserPrefix, NodePrefix} {
		if IsID(prefix, in.Principal) {
			return nil
		}
	}
	return Invalid("principal", "%q is not the id of a key, user or node, nor operator", in.Principal)
}

// CheckRole refuses roles that do not exist.
func CheckRole(field string, r Role) error {
	if !slices.Contains(Roles, r) {
		return Invalid(field, "%q is not owner, operator, member or viewer", r)
	}
	return nil
}

func checkPassword(p string) error {
	if !utf8.ValidString(p) {
		return Invalid("password", "is not valid UTF-8")
	}
	if n := utf8.RuneCountInString(p); n < MinPassword || n > MaxPassword {
		return Invalid("password", "has %d characters, not %d to %d", n, MinPassword, MaxPassword)
	}
	return nil
}
