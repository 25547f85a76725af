package api

import "errors"

var errServerClosing = errors.New("the server is closing")
