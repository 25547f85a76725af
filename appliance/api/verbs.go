package api

import (
	"context"
	"sync"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/control"
)

// Register gives the server every verb of the product: the whole API, a line
// for each. The names are those of the CLI, the documentation and the events.
func Register(s *Server, c *control.Control) {
	do := registrar{s}
	verb(do, "tenants.create", appliance.TenantsManage, "Make a tenant below another.", c.CreateTenant)
	verb(do, "tenants.list", appliance.TenantsRead, "List the tenant and all below it.", c.ListTenants)
	verb(do, "tenants.get", appliance.TenantsRead, "Show a tenant.", c.GetTenant)
	verb(do, "tenants.suspend", appliance.TenantsManage, "Refuse a tenant's new reservations; what runs goes on.", c.SuspendTenant)
	verb(do, "tenants.resume", appliance.TenantsManage, "Take a suspended tenant's reservations again.", c.ResumeTenant)
	verb(do, "tenants.delete", appliance.TenantsManage, "Tear a tenant down: its pools are archived, its reservations end.", c.DeleteTenant)

	verb(do, "sites.create", appliance.SitesManage, "Make a site that the tenant owns.", c.CreateSite)
	verb(do, "sites.list", appliance.SitesRead, "List the tenant's own sites.", c.ListSites)
	verb(do, "sites.get", appliance.SitesRead, "Show a site.", c.GetSite)

	verb(do, "pools.create", appliance.PoolsCreate, "Make an empty pool on a site of the tenant's own.", c.CreatePool)
	verb(do, "pools.list", appliance.PoolsRead, "List the pools that the tenant owns or is offered.", c.ListPools)
	verb(do, "pools.get", appliance.PoolsRead, "Show a pool as the tenant sees it.", c.GetPool)
	verb(do, "pools.capacity", appliance.CapacityRead, "Show what a pool has, and what one node could take now.", c.PoolCapacity)
	verb(do, "pools.offer", appliance.PoolsShare, "Make a pool visible to another tenant, with quota rows.", c.OfferPool)
	verb(do, "pools.unoffer", appliance.PoolsShare, "Withdraw an offer; what runs goes on.", c.UnofferPool)
	verb(do, "pools.offers", appliance.PoolsShare, "List a pool's offers, to its owner.", c.ListOffers)
	verb(do, "pools.update", appliance.PoolsManage, "Replace a pool's policy, its GPU model, or both.", c.UpdatePool)
	verb(do, "pools.archive", appliance.PoolsManage, "Retire a pool without disturbing what runs on it.", c.ArchivePool)

	verb(do, "nodes.list", appliance.NodesRead, "List the nodes of the pools that the tenant sees.", c.ListNodes)
	verb(do, "nodes.get", appliance.NodesRead, "Show a node with its devices, resources, units and conditions.", c.GetNode)
	verb(do, "nodes.cordon", appliance.NodesManage, "Take no new bookings on a node; what runs goes on.", c.CordonNode)
	verb(do, "nodes.uncordon", appliance.NodesManage, "Take bookings on a node again.", c.UncordonNode)
	verb(do, "nodes.drain", appliance.NodesManage, "Take no new bookings on a node, to empty it.", c.DrainNode)
	verb(do, "nodes.reboot", appliance.NodesManage, "Drain a node and have its machine rebooted, once.", c.RebootNode)
	verb(do, "nodes.plan", appliance.NodesManage, "Show what a policy would still change on a node; changes nothing.", c.PlanNode)
	verb(do, "nodes.label", appliance.NodesManage, "Set or remove a node's labels, which selectors match.", c.LabelNode)
	verb(do, "nodes.remove", appliance.NodesManage, "Take an empty node out of its pool.", c.RemoveNode)
	verb(do, "nodes.explain", appliance.NodesRead, "Say what a node is, what it lacks, and what would help.", c.ExplainNode)

	verb(do, "quotas.list", appliance.QuotasRead, "List the tenant's quota rows, and everyone's in pools it owns.", c.ListQuotas)
	verb(do, "quotas.set", appliance.QuotasManage, "Set a quota row; below use is legal.", c.SetQuota)

	verb(do, "reservations.create", appliance.ReservationsCreate, "Claim resources of a pool.", c.CreateReservation)
	verb(do, "reservations.list", appliance.ReservationsRead, "List the tenant's reservations.", c.ListReservations)
	verb(do, "reservations.get", appliance.ReservationsRead, "Show a reservation.", c.GetReservation)
	verb(do, "reservations.release", appliance.ReservationsManage, "End a reservation; again changes nothing.", c.ReleaseReservation)
	verb(do, "reservations.extend", appliance.ReservationsManage, "Move a reservation's end later.", c.ExtendReservation)
	verb(do, "reservations.shorten", appliance.ReservationsManage, "Move a reservation's end earlier.", c.ShortenReservation)
	verb(do, "reservations.explain", appliance.ReservationsRead, "Say why a reservation is where it is, and what would help.", c.ExplainReservation)
	verb(do, "usage.query", appliance.UsageRead, "Integrate what was held over a window of time.", c.QueryUsage)
	verb(do, "usage.export", appliance.UsageRead, "The same as CSV.", c.ExportUsage)
	verb(do, "rates.set", appliance.RatesManage, "Set what one unit of a meter costs in the tenant's pools.", c.SetRate)
	verb(do, "rates.list", appliance.RatesRead, "List the rates of the tenant's pools.", c.ListRates)
	verb(do, "budgets.set", appliance.BudgetsManage, "Set the most that a tenant's usage may cost in a period.", c.SetBudget)
	verb(do, "budgets.list", appliance.BudgetsRead, "List the tenant's budgets with what is spent of them.", c.ListBudgets)

	verb(do, "events.list", appliance.EventsRead, "List what happened to the tenant and in the pools it sees.", c.ListEvents)

	verb(do, "iam.keys.create", appliance.KeysManage, "Make an API key; its secret is in this answer alone.", c.CreateKey)
	verb(do, "iam.keys.list", appliance.KeysRead, "List the tenant's keys.", c.ListKeys)
	verb(do, "iam.keys.revoke", appliance.KeysManage, "End a key at once.", c.RevokeKey)
	verb(do, "iam.users.create", appliance.UsersManage, "Make a user with a password or a one-time login link.", c.CreateUser)
	verb(do, "iam.users.list", appliance.UsersRead, "List the tenant's users.", c.ListUsers)
	verb(do, "iam.users.get", appliance.UsersRead, "Show a user.", c.GetUser)
	verb(do, "iam.users.update", appliance.UsersManage, "Change a user's role, disable or enable it.", c.UpdateUser)
	verb(do, "iam.users.setPassword", appliance.UsersManage, "Give a user a password.", c.SetPassword)
	verb(do, "iam.users.loginLink", appliance.UsersManage, "Make a one-time login link for a user.", c.NewLoginLink)
	verb(do, "iam.users.delete", appliance.UsersManage, "Remove a user.", c.DeleteUser)
	RPC(s, "iam.whoami", "none", "Say who the caller is, and in whose name it acts.", c.Whoami)
	OpenRPC(s, "iam.login", "Sign a person in, by a one-time link or by name and password.", c.Login)
	OpenRPC(s, "iam.logout", "End a session.", c.Logout)
	verb(do, "iam.policies.put", appliance.PoliciesManage, "Make or replace one of the tenant's own Cedar policies.", c.PutPolicy)
	verb(do, "iam.policies.list", appliance.PoliciesRead, "List the tenant's own policies.", c.ListPolicies)
	verb(do, "iam.policies.delete", appliance.PoliciesManage, "Remove one of the tenant's own policies.", c.DeletePolicy)
	verb(do, "iam.check", appliance.PoliciesRead, "Say whether a principal might do something, and which policies decide.", c.Check)

	verb(do, "system.status", appliance.SystemRead, "Show the control plane in one answer.", c.Status)

	s.addExamples = sync.OnceFunc(func() { addExamples(s) })

	s.Authenticate = c.Authenticate
	s.Ready = c.Ready
	s.Events = EventSource{
		Read: func(ctx context.Context, who appliance.Caller, tenant string, after int64, limit int) ([]appliance.Event, error) {
			page, err := c.ListEvents(ctx, who, appliance.ListEvents{TenantID: tenant, After: after, Limit: limit})
			return page.Items, err
		},
		Last: c.LastEvent,
		Wake: c.Changed,
	}
	registerAgent(s, c)
}

type registrar struct{ s *Server }

func verb[I, O any](do registrar, name string, action appliance.Action, summary string, h func(context.Context, appliance.Caller, I) (O, error)) {
	RPC(do.s, name, string(action), summary, h)
}
