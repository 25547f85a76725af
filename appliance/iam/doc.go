// Package iam decides: may this caller do this to that? It holds the default
// roles, the guard rails and each tenant's own policies, all in Cedar
// (https://www.cedarpolicy.com), and the making and checking of secrets and
// passwords. It keeps cedar-go to itself. It has no clock, no randomness and no
// storage: whoever asks passes the time, a source of random bytes, and the rows.
//
// # Who may do what
//
// A key or user has one role in one tenant and acts only in that tenant's name:
//
//	owner     everything in its tenant; makes, suspends and deletes tenants below it
//	operator  pools, offers, nodes, join tokens, quotas, sites, provider accounts,
//	          reservations; reads users, keys, policies and the audit trail
//	member    reads pools, capacity, nodes, quotas, usage, budgets, rates, sites,
//	          events; reserves, and manages the tenant's reservations
//	viewer    reads what a member reads
//
// Budgets and rates are money and, like access, the owner's alone to change.
//
// The local operator does everything in any tenant's name, reconcilers do
// everything, a node reports for itself. A pool that is offered and not owned
// is never shared, changed or run by the offered tenant, whatever its policies
// say. testdata/decisions.txt is the whole table, generated.
//
// # How it is decided
//
// schema.cedarschema has the actions, in groups, and what each is decided on.
// Two sets must allow. guardrails.cedar is asked first and holds for everyone.
// Then, for users and keys, roles.cedar together with the policies of the
// tenant in whose name they act: something must permit and nothing may forbid;
// for everyone else platform.cedar. A tenant's policies are never asked about
// another tenant's requests. Cedar skips a policy that meets an error, forbids
// included; here such an error is a denial. An unknown action, an unknown
// tenant, or an action asked of a thing that it is not decided on is a denial.
//
// Start reading at [Engine.Decide], then roles.cedar, guardrails.cedar and
// the schema.
package iam
