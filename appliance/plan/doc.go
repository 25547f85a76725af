// Package plan makes the decisions of the control plane: where a reservation
// goes, what a pool has left, why a request does not fit, and which host
// configuration a pool's policy means for its nodes. Everything here is a pure
// function of what is passed in: no clock, no randomness, no I/O, no database.
// It knows the words of package appliance and of agent/wire and nothing else.
//
// Placement: start at [Index], which holds nodes and bookings in memory, then
// [Index.Place], [Index.Explain] and [Index.Capacity]. Whoever uses an index
// keeps it equal to the stored rows: it books what was committed and undoes
// what was rolled back. The state of an index depends only on the facts and the
// bookings that it holds, never on the order in which they came, so Release
// undoes Book, Book undoes Release, and putting the previous facts of a node
// back undoes PutNode.
//
// Policy: start at [CheckPolicy], which refuses what no host could be given,
// then [Units], [NodeUnits] and [NodeSpec], which say what a host is given, and
// [Rows], which says what of it can be booked.
package plan
