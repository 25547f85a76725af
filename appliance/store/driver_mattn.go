//go:build mattn

package store

import (
	"database/sql/driver"
	"errors"

	"github.com/mattn/go-sqlite3"
)

const driverName = "github.com/mattn/go-sqlite3"

// open opens one connection.
func open(uri string) (driver.Conn, error) {
	return new(sqlite3.SQLiteDriver).Open(uri)
}

// resultCode gives SQLite's extended result code of an error, 0 if it is not SQLite's.
func resultCode(err error) int {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return 0
	}
	if e.ExtendedCode != 0 {
		return int(e.ExtendedCode)
	}
	return int(e.Code)
}
