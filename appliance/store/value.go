package store

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/bettercompute/bc/appliance"
)

// bindable turns an argument into what SQLite stores. Times become milliseconds
// since 1970, the zero time and nil pointers NULL, bools 0 or 1, JSON text;
// []byte stays a blob.
func bindable(a any) (driver.Value, error) {
	switch v := a.(type) {
	case nil, string, int64, float64, []byte:
		return a, nil // as it is: to take the value out and put it back would take memory anew
	case int:
		return int64(v), nil
	case bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case json.RawMessage:
		if v == nil {
			return nil, nil
		}
		return string(v), nil
	case appliance.Time:
		if v.IsZero() {
			return nil, nil
		}
		return v.UnixMilli(), nil
	case *appliance.Time:
		if v == nil || v.IsZero() {
			return nil, nil
		}
		return v.UnixMilli(), nil
	case time.Time:
		return nil, fmt.Errorf("a time.Time; times are stored as appliance.Time")
	case driver.Valuer:
		return v.Value()
	}
	return bindableKind(reflect.ValueOf(a))
}

func bindableKind(v reflect.Value) (driver.Value, error) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil, nil
		}
		return bindable(v.Elem().Interface())
	case reflect.String:
		return v.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if v.Uint() > math.MaxInt64 {
			return nil, fmt.Errorf("%d does not fit 64 bits with a sign", v.Uint())
		}
		return int64(v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.Bool:
		return bindable(v.Bool())
	}
	return nil, fmt.Errorf("%s is not a type that SQLite stores", v.Type())
}

// scanInto puts a column into a destination; see [Rows.Scan].
func scanInto(dest any, v driver.Value) error {
	switch d := dest.(type) {
	case *string:
		switch s := v.(type) {
		case string:
			*d = s
			return nil
		case nil:
			*d = ""
			return nil
		}
	case *int64:
		switch n := v.(type) {
		case int64:
			*d = n
			return nil
		case nil:
			*d = 0
			return nil
		}
	case *int:
		switch n := v.(type) {
		case int64:
			*d = int(n)
			return nil
		case nil:
			*d = 0
			return nil
		}
	case *bool:
		switch n := v.(type) {
		case int64:
			*d = n != 0
			return nil
		case nil:
			*d = false
			return nil
		}
	case *float64:
		switch n := v.(type) {
		case float64:
			*d = n
			return nil
		case int64:
			*d = float64(n)
			return nil
		case nil:
			*d = 0
			return nil
		}
	case *[]byte:
		return scanBytes(d, v)
	case *json.RawMessage:
		return scanBytes((*[]byte)(d), v)
	case *appliance.Time:
		switch n := v.(type) {
		case int64:
			*d = appliance.AtMillis(n)
			return nil
		case nil:
			*d = appliance.Time{}
			return nil
		}
	case *any:
		*d = v
		return nil
	case sql.Scanner:
		return d.Scan(v)
	}
	return scanKind(dest, v)
}

func scanBytes(d *[]byte, v driver.Value) error {
	switch b := v.(type) {
	case []byte:
		*d = b // both drivers give a copy
	case string:
		*d = []byte(b)
	case nil:
		*d = nil
	default:
		return fmt.Errorf("%T into %T", v, d)
	}
	return nil
}

// scanKind is for named types and for pointers to pointers.
func scanKind(dest any, v driver.Value) error {
	p := reflect.ValueOf(dest)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("%T is no pointer to read into", dest)
	}
	e := p.Elem()
	if v == nil {
		e.SetZero()
		return nil
	}
	if e.Kind() == reflect.Pointer {
		to := reflect.New(e.Type().Elem())
		if err := scanInto(to.Interface(), v); err != nil {
			return err
		}
		e.Set(to)
		return nil
	}
	switch x := v.(type) {
	case string:
		if e.Kind() == reflect.String {
			e.SetString(x)
			return nil
		}
	case float64:
		if e.CanFloat() {
			e.SetFloat(x)
			return nil
		}
	case int64:
		switch {
		case e.CanInt() && !e.OverflowInt(x):
			e.SetInt(x)
			return nil
		case e.CanUint() && x >= 0 && !e.OverflowUint(uint64(x)):
			e.SetUint(uint64(x))
			return nil
		case e.Kind() == reflect.Bool:
			e.SetBool(x != 0)
			return nil
		}
	}
	return fmt.Errorf("%v (%T) into %T", v, v, dest)
}
