// Package store keeps the state of the control plane in one SQLite file. All
// SQL of the program is here; nothing above knows that there is SQL.
//
// There are two ways in. [Store.Write] hands a function to the one goroutine
// that owns the writing connection; functions that wait at the same time share
// one durable commit, each in a savepoint of its own, so that a refusal spoils
// nothing but itself. [Store.Read] runs a function on one of a few read-only
// connections, on the snapshot of the last commit. Nothing else opens a
// transaction.
//
// The package decides nothing and has no clock: callers pass times in. The
// writer alone looks at the monotonic clock, to bound a batch and a wait.
//
// Which SQLite driver is linked is a build tag: modernc.org/sqlite, or
// mattn/go-sqlite3 with -tags mattn, and never both: POSIX file locks belong
// to the process, so two SQLite libraries in one process drop each other's.
//
// Start reading at [Open], then writer.go, then the rows of any noun.
package store
