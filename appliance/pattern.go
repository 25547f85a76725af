package appliance

import (
	"regexp"
	"sync"
)

// pattern is a regular expression with the most bytes that it matches. It is
// compiled when it is first needed, and the length is no part of it: each of
// {1,100} would be a state of the program.
type pattern struct {
	most int
	re   func() *regexp.Regexp
}

func textLike(most int, expr string) pattern {
	return pattern{most, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// MatchString tells whether s is what the pattern says.
func (p pattern) MatchString(s string) bool { return len(s) <= p.most && p.re().MatchString(s) }
