// Package store keeps the state of the control plane in one SQLite file. All
// SQL of the program is here; nothing above knows that there is SQL.
//
// There are two ways in. [Store.Write] hands a function to the one goroutine
// that runs all writes; functions that wait at the same time share
// one durable commit, each in a savepoint of its own, so that a refusal spoils
// nothing but itself. [Store.WriteChecked] is for the few that must be fast: it
// has no savepoint, and what it leaves to [Tx.Later] is written while the next
// are decided. [Store.Read] runs a function on one of a few read-only
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
// Start reading at [Open], then writer.go and scribe.go, then the rows of any noun.
package store
