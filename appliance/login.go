package appliance

// Login is the input of iam.login: a one-time login link's token, or a name and
// password.
type Login struct {
	Token    string `json:"token,omitempty" doc:"Of a login link; then nothing else." example:"bcl_…"`
	TenantID string `json:"tenantId,omitempty" example:"acme"`
	Name     string `json:"name,omitempty" example:"ada@acme.example"`
	Password string `json:"password,omitempty"`
}

// Session answers iam.login. Its token is a bearer credential.
type Session struct {
	Token     string `json:"token" doc:"A bearer credential, shown here alone." example:"bcs_…"`
	User      User   `json:"user"`
	ExpiresAt Time   `json:"expiresAt"`
}

// Logout is the input of iam.logout.
type Logout struct {
	Token string `json:"token" doc:"The session to end." example:"bcs_…"`
}

// LoggedOut answers iam.logout.
type LoggedOut struct {
	Ended bool `json:"ended" doc:"Always: whether there was such a session is not told."`
}

// Validate refuses anything but one of the two ways.
func (in Login) Validate() error {
	byName := in.TenantID != "" || in.Name != "" || in.Password != ""
	if (in.Token != "") == byName {
		return Invalid("token", "give either the token of a login link, or tenantId, name and password")
	}
	if byName && (in.TenantID == "" || in.Name == "" || in.Password == "") {
		return Invalid("password", "tenantId, name and password go together")
	}
	return nil
}

// Whoami is the input of iam.whoami, which needs nothing.
type Whoami struct{}

// Identity answers iam.whoami: who the caller is.
type Identity struct {
	ID       string     `json:"id" example:"key_01k5c000000000000000000000"`
	Kind     CallerKind `json:"kind" enum:"operator,key,user,node"`
	TenantID string     `json:"tenantId" doc:"In whose name the caller acts; of the local operator, who may act in any, the one that the first start made."`
	Role     Role       `json:"role,omitempty"`
}
