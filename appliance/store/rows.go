package store

import (
	"bytes"
	"errors"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/bettercompute/bc/appliance"
)

// collect reads every row of a query.
func collect[T any](tx *Tx, scan func(*Rows) (T, error), query string, args ...any) ([]T, error) {
	rows, err := tx.Query(query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// one reads the first row of a query, or answers that there is no such thing.
func one[T any](tx *Tx, thing string, scan func(*Rows) (T, error), query string, args ...any) (T, error) {
	all, err := collect(tx, scan, query, args...)
	if err == nil && len(all) == 0 {
		err = appliance.NoSuch(thing)
	}
	if err != nil {
		var zero T
		return zero, err
	}
	return all[0], nil
}

// Page cuts a list that was read one longer than asked, and names the cursor
// of the next page.
func Page[T any](items []T, size int, cursor func(T) string) appliance.List[T] {
	if len(items) <= size {
		return appliance.List[T]{Items: items}
	}
	items = items[:size]
	return appliance.List[T]{Items: items, NextCursor: cursor(items[size-1])}
}

// stored is how JSON is kept: keys in order, so that equal values are equal
// bytes; an absent list stays null; omitempty as in encoding/json.
var stored = json.JoinOptions(
	json.Deterministic(true), json.FormatNilSliceAsNull(true), json.FormatNilMapAsNull(true),
	jsonv1.OmitEmptyWithLegacySemantics(true),
	jsontext.AllowDuplicateNames(true), // what we write holds none: do not look for them
	jsontext.AllowInvalidUTF8(true),    // a host's broken bytes become U+FFFD, not a failure
)

var texts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// toJSON writes a value of ours that always can be written.
func toJSON(v any) string {
	b := texts.Get().(*bytes.Buffer)
	defer texts.Put(b)
	b.Reset()
	if v, ok := v.(appliance.JSONAppender); ok {
		b.Write(v.AppendJSON(b.AvailableBuffer()))
		return b.String()
	}
	if err := json.MarshalWrite(b, v, stored); err != nil {
		panic("store: " + err.Error()) // a type of ours that JSON cannot hold; the writer answers INTERNAL
	}
	return b.String()
}

// fromJSON reads what toJSON wrote.
func fromJSON(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into, stored); err != nil {
		return errors.Join(errors.New("a row holds JSON that this version cannot read"), err)
	}
	return nil
}

// SetMeta keeps one value for the file as a whole.
func (tx *Tx) SetMeta(key, value string) error {
	_, err := tx.Exec(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
	return err
}

// Meta reads what SetMeta kept; empty if nothing was.
func (tx *Tx) Meta(key string) (string, error) {
	var v string
	err := tx.QueryRow(`SELECT value FROM meta WHERE key = ?`, key).Scan(&v)
	if errors.Is(err, ErrNoRows) {
		return "", nil
	}
	return v, err
}
