//go:build !mattn

package store

import (
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite"
)

const driverName = "modernc.org/sqlite"

// open opens one connection. A quoted name that matches no column is an error
// here and not a string (_dqs).
func open(uri string) (driver.Conn, error) {
	return new(sqlite.Driver).Open(uri + "&_dqs=0")
}

// init lets a commit sync with fdatasync, as every distribution's SQLite does:
// the same durability without the journal's timestamp update.
func init() { _, _ = sqlite.Fdatasync(true) } // an error means fsync stays, which is as safe

// resultCode gives SQLite's extended result code of an error, 0 if it is not SQLite's.
func resultCode(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}
