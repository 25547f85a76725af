// Package appliance is the vocabulary of the control plane: tenants, sites,
// pools, offers, quotas, nodes, reservations, usage, events, callers, and the
// refusals they meet. It holds the shapes of the API's inputs and answers with
// their validation, and has no I/O, no clock and no randomness: whoever calls
// passes times and ids in.
//
// Start reading at [Pool], then [Reservation] and [Error].
package appliance
