package agent

import (
	"math/rand/v2"
	"time"
)

const (
	firstRetry    = 250 * time.Millisecond
	maxRetryLocal = 2 * time.Second  // on a Unix socket a try costs next to nothing
	maxRetryFar   = 30 * time.Second // over the network
)

// backoff paces the tries of something that fails: each pause is up to twice
// the one before, at most limit, and the upper half of it is by chance, so that
// many nodes do not come back at the same moment.
type backoff struct {
	limit time.Duration
	tries int
}

func (b *backoff) next() time.Duration {
	d := min(firstRetry<<min(b.tries, 16), b.limit)
	b.tries++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.tries = 0 }

// jitter answers d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
