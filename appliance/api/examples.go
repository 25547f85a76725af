package api

import (
	_ "embed"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// examplesJSON is one worked call of every method, in an order in which they
// can be made one after the other on an empty server. The requests are written
// by hand; the answers are the product's own: a test of cmd/bc makes every
// call on a real server, compares the answers, and writes them with -update.
// Ids, times, secrets and amounts of usage stand in for those of that run.
//
//go:embed examples.json
var examplesJSON []byte

// workedCall is one entry of examples.json.
type workedCall struct {
	Method   string         `json:"method"`
	Name     string         `json:"name"`
	Request  jsontext.Value `json:"request"`
	Response jsontext.Value `json:"response"`
}

// addExamples documents the methods with their worked calls. A call that its
// method would not take is a mistake in the file: it panics.
func addExamples(s *Server) {
	var calls []workedCall
	if err := json.Unmarshal(examplesJSON, &calls, json.RejectUnknownMembers(true)); err != nil {
		panic(fmt.Sprintf("api: examples.json: %v", err))
	}
	for _, c := range calls {
		s.Example(c.Method, c.Name, []byte(c.Request), []byte(c.Response))
	}
}
