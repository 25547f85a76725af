package store

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// ErrNoRows is what [Row.Scan] gives when nothing matched. Rows functions turn
// it into the refusal that fits; no general rule does.
var ErrNoRows = sql.ErrNoRows

// SQLite's result codes, https://www.sqlite.org/rescode.html. The low byte is
// the primary code.
const (
	codeError    = 1
	codeBusy     = 5
	codeLocked   = 6
	codeNoMemory = 7
	codeReadOnly = 8
	codeIO       = 10
	codeCorrupt  = 11
	codeFull     = 13
	codeCantOpen = 14
	codeNotADB   = 26

	codeForeignKey = 787
	codePrimaryKey = 1555
	codeUnique     = 2067
	codeRowID      = 2579
)

// isDuplicate says whether err is a primary key or unique index that is taken.
func isDuplicate(err error) bool {
	c := resultCode(err)
	return c == codePrimaryKey || c == codeUnique || c == codeRowID
}

// isForeignKey says whether err is a reference to a row that is not there, or
// the removal of a row that is referred to.
func isForeignKey(err error) bool { return resultCode(err) == codeForeignKey }

// isDamage says whether err means that the file is not, or no longer, a sound
// database.
func isDamage(err error) bool {
	c := resultCode(err) & 0xff
	return c == codeCorrupt || c == codeNotADB
}

// endsTransaction says whether SQLite may have rolled the whole transaction
// back when it met err (https://www.sqlite.org/lang_transaction.html, "Response
// To Errors Within A Transaction"). Further statements would then commit one by
// one, so none may follow.
func endsTransaction(err error) bool {
	switch resultCode(err) & 0xff {
	case codeBusy, codeLocked, codeNoMemory, codeReadOnly, codeIO, codeCorrupt, codeFull, codeCantOpen, codeNotADB:
		return true
	}
	return false
}

// worded turns what the disk did to us into words for people, with SQLite's
// own words as the cause, and leaves every other error as it is. Each is
// Unavailable, for trying again later can help, except damage, which is a
// failure.
func worded(err error) error {
	if err == nil || appliance.CodeOf(err) != appliance.Internal { // nil, or already a refusal
		return err
	}
	say := func(reason, format string, args ...any) error {
		return appliance.Refuse(appliance.Unavailable, "", format, args...).WithReason(reason).Because(err)
	}
	switch resultCode(err) & 0xff {
	case codeFull:
		return say("DiskFull", "the disk that holds the state is full; nothing was changed, reads go on, and writes work again as soon as there is space")
	case codeIO, codeCantOpen:
		return say("DiskError", "the disk that holds the state gave an error; nothing was changed, reads go on, try again later and look at the system log")
	case codeReadOnly:
		return say("ReadOnly", "the disk that holds the state is read-only; nothing was changed, and writes work again once it is writable")
	case codeBusy, codeLocked:
		return say("Busy", "another program holds the state file locked; nothing was changed, try again later")
	case codeNoMemory:
		return say("NoMemory", "there is not enough memory for this write; nothing was changed, try again later")
	case codeCorrupt, codeNotADB:
		return fmt.Errorf("the state file is damaged: stop the server, keep the file, and restore a backup: %w", err)
	}
	return err
}

// shuttingDown answers whoever comes too late.
func shuttingDown() error {
	return appliance.Refuse(appliance.Unavailable, "", "the server is shutting down; try again when it is back").WithReason("ShuttingDown")
}

// statementError says which statement an error is of, by its first line.
func statementError(query string, err error) error {
	line, _, _ := strings.Cut(strings.TrimSpace(query), "\n")
	if len(line) > 80 {
		line = line[:80] + "…"
	}
	return fmt.Errorf("%s: %w", line, err)
}

var errReadOnlyTx = errors.New("store: a function given to Read may not write")

var errSecondQuery = errors.New("store: a function given to ReadOne may run one query")
