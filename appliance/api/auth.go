package api

import (
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/bc/appliance"
	"golang.org/x/time/rate"
)

// A caller of one address may send this many bad credentials at once, and then
// one every failureEvery.
const (
	failureBurst = 10
	failureEvery = 6 * time.Second
)

// caller finds who sends the request. An Authorization header decides, also
// for the local operator, so that a key can be tried on the socket; then the
// peer of the socket; then the console's session. With anonymous, a request
// without any of them gives a Caller without a Kind.
func (x *exchange) caller(anonymous bool) (appliance.Caller, error) {
	s := x.s
	if given, ok := x.r.Header["Authorization"]; ok {
		bearer, ok := bearerOf(given)
		if !ok {
			return x.refuseCredential(nil)
		}
		return x.checked(func() (appliance.Caller, error) {
			if s.Authenticate == nil {
				return appliance.Caller{}, appliance.Refuse(appliance.Unauthenticated, "", "no credentials are taken")
			}
			return s.Authenticate(x.r.Context(), bearer)
		})
	}
	if x.transport == Unix && isOperator(x.r.Context()) {
		return appliance.Operator(x.id, x.address()), nil
	}
	if s.Session != nil && x.r.Header.Get("Cookie") != "" {
		if err := sameOrigin.Check(x.r); err != nil {
			return appliance.Caller{}, appliance.Refuse(appliance.AccessDenied, "", "a session's request came from another site").Because(err)
		}
		return x.session()
	}
	if anonymous {
		if err := s.failures.allow(x.address(), s.Now()); err != nil {
			return appliance.Caller{}, err
		}
		return appliance.Caller{RequestID: x.id, Address: x.address()}, nil
	}
	return appliance.Caller{}, x.unauthenticated()
}

var sameOrigin = http.NewCrossOriginProtection()

// session finds the caller of a console session. A session that ended is no
// guess: a page left open would lock its whole address out.
func (x *exchange) session() (appliance.Caller, error) {
	caller, err := x.s.Session(x.r)
	if appliance.CodeOf(err) == appliance.Unauthenticated {
		return appliance.Caller{}, x.unauthenticated().Because(err)
	}
	caller.RequestID, caller.Address = x.id, x.address()
	return caller, err
}

// checked asks for a caller unless the address has failed too often, and notes
// the failure if this is another.
func (x *exchange) checked(find func() (appliance.Caller, error)) (appliance.Caller, error) {
	s, address := x.s, x.address()
	if err := s.failures.allow(address, s.Now()); err != nil {
		return appliance.Caller{}, err
	}
	caller, err := find()
	if err != nil {
		var refused *appliance.Error
		if errors.As(err, &refused) && refused.Code == appliance.Unauthenticated {
			return x.refuseCredential(err)
		}
		return appliance.Caller{}, err
	}
	caller.RequestID, caller.Address = x.id, address
	return caller, nil
}

func (x *exchange) refuseCredential(cause error) (appliance.Caller, error) {
	if err := x.s.failures.allow(x.address(), x.s.Now()); err != nil {
		return appliance.Caller{}, err
	}
	x.s.failures.note(x.address(), x.s.Now())
	return appliance.Caller{}, x.unauthenticated().Because(cause)
}

// unauthenticated is the same whatever was wrong with the credential.
func (x *exchange) unauthenticated() *appliance.Error {
	return appliance.Refuse(appliance.Unauthenticated, "", "no valid credential: send Authorization: Bearer with an API key, or use the Unix socket as root or the server's user")
}

// bearerOf takes exactly one header of the form "Bearer token".
func bearerOf(given []string) (string, bool) {
	if len(given) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(given[0], " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > 4096 {
		return "", false
	}
	return token, true
}

// address is where the request comes from, as audit trails show it.
func (x *exchange) address() string {
	if x.transport == Unix {
		if peer, ok := peerOf(x.r.Context()); ok {
			return "unix:uid=" + strconv.FormatUint(uint64(peer.Uid), 10)
		}
		return "unix"
	}
	host, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		return x.r.RemoteAddr
	}
	return host
}

// failures limits guesses per address. It holds two generations of at most
// maxAddresses each: when the newer is full it becomes the older, so that
// memory is bounded and an address is forgotten only after many others failed.
type failures struct {
	mu           sync.Mutex
	newer, older map[string]*rate.Limiter
}

const maxAddresses = 4096

func newFailures() *failures {
	return &failures{newer: map[string]*rate.Limiter{}, older: map[string]*rate.Limiter{}}
}

// allow refuses an address that has failed too often lately, whatever it sends
// now: a right guess must not be told from a wrong one.
func (f *failures) allow(address string, now time.Time) error {
	f.mu.Lock()
	l := f.get(network(address))
	f.mu.Unlock()
	if l == nil {
		return nil
	}
	tokens := l.TokensAt(now)
	if tokens >= 1 {
		return nil
	}
	wait := int(math.Ceil((1 - tokens) * failureEvery.Seconds()))
	return appliance.Refuse(appliance.RateLimited, "", "too many bad credentials from this address; try again in %d s", wait).
		With("retryAfterSeconds", wait)
}

// note counts one bad credential.
func (f *failures) note(address string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := network(address)
	l := f.get(key)
	if l == nil {
		l = rate.NewLimiter(rate.Every(failureEvery), failureBurst)
	}
	if f.newer[key] == nil {
		if len(f.newer) >= maxAddresses {
			f.newer, f.older = map[string]*rate.Limiter{}, f.newer
		}
		f.newer[key] = l
	}
	l.AllowN(now, 1)
}

func (f *failures) get(key string) *rate.Limiter {
	if l := f.newer[key]; l != nil {
		return l
	}
	return f.older[key]
}

// network is what a limit applies to: an IPv4 address, or the /64 of an IPv6
// address, all of which one machine can use.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	ip = ip.Unmap()
	if ip.Is6() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}
