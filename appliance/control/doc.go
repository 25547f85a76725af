// Package control does what the API's verbs ask: may this caller, is it sound,
// one transaction, its events. A method for each verb, in the file of its
// noun; reconcilers call the same methods as named system callers, so there is
// one path for now, after a restart and after a failure.
//
// It keeps in step, on the store's writer, what every decision needs at once:
// pools with their typed policies, quota counters, and the placement index.
// These change inside the transaction that changes the rows, are put back when
// it is rolled back, and are compared with the rows at start. Readers may see
// them a commit early; whatever is answered as done is durable.
//
// It knows no HTTP and no SQL. Start reading at [Control], then
// [Control.CreatePool] and [Control.CreateReservation].
package control
