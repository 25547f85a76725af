package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// ask reads a request. What no node of the pool can serve has a refusal.
func (x *Index) ask(r Request) *ask {
	a := &ask{nodes: max(1, r.Nodes), pool: x.pools[r.PoolID], profiles: []string{""}, holder: r.ReservationID}
	if a.pool == nil {
		a.refusal = "the pool has no nodes"
		return a
	}
	a.share = [2]int32{a.pool.share(0), a.pool.share(1)}
	a.pinned, a.whole = r.Binding == appliance.BindInstance, r.Binding == appliance.BindNode
	namesScalars := false
	for _, name := range r.Resources.Names() {
		amount := r.Resources[name]
		i := scalarIndex(name)
		namesScalars = namesScalars || i >= 0
		switch {
		case amount < 0 || amount > appliance.MaxCount:
			a.refusal = fmt.Sprintf("%s: %d is not 0 to %d", name, amount, appliance.MaxCount)
		case amount%a.nodes != 0:
			a.refusal = fmt.Sprintf("%s: %d does not divide by %d nodes", name, amount, a.nodes)
		case i >= 0:
			a.scalars[i] = int32(amount / a.nodes)
		case amount == 0:
		case name != a.pool.sharing.Resource():
			a.refusal = fmt.Sprintf("the pool's GPUs are booked as %s, not as %s", a.pool.sharing.Resource(), name)
		default:
			a.resource, a.atoms = name, amount/a.nodes
		}
	}
	if a.refusal == "" && a.resource == "" && !a.whole && a.scalars == [scalarCount]int32{} {
		a.refusal = "it asks for nothing"
	}
	if a.resource == appliance.ResourceGPU && !namesScalars && !a.whole {
		a.addShare(r.PerGPU)
	}
	for i, v := range a.scalars {
		if a.least[i] = v; v == 0 {
			a.least[i] = -1
		}
	}
	a.narrow(r.Selector)
	if len(a.selector) > 0 {
		a.matched = make([]verdict, x.classCount)
	}
	return a
}

// addShare adds the default host share of whole GPUs.
func (a *ask) addShare(perGPU appliance.Amounts) {
	a.shared = true
	for i, share := range a.share {
		each := int64(share)
		if given, ok := perGPU[appliance.Scalars[i]]; ok {
			each = int64(given)
		}
		a.scalars[i] = int32(min(appliance.MaxCount, max(0, each)*int64(a.atoms)))
	}
}

// narrow splits the selector into what is asked of attributes, of the hostname
// and of MIG instances.
func (a *ask) narrow(s appliance.Selector) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if name != AttributeHostname && name != appliance.MIGProfile {
			a.selector = append(a.selector, attribute{name, s[name]})
		}
	}
	if host, ok := s[AttributeHostname]; ok {
		a.hostname = &host
	}
	if a.resource == appliance.ResourceMIG {
		profile, given := s[appliance.MIGProfile]
		a.chooseProfiles(profile, given)
	}
}

// chooseProfiles lists the profiles that will do, in the order in which the
// selector names them.
func (a *ask) chooseProfiles(want appliance.Match, given bool) {
	have := slices.Sorted(maps.Keys(a.pool.profiles))
	a.profiles = nil
	switch {
	case len(have) == 0:
		a.refusal = "no GPU of the pool has MIG instances"
	case !given && len(have) > 1:
		a.refusal = "selector migProfile is required: the pool has " + strings.Join(have, ", ")
	case !given:
		a.profiles = have
	case want.In != nil:
		for _, p := range want.In {
			if slices.Contains(have, p) && !slices.Contains(a.profiles, p) {
				a.profiles = append(a.profiles, p)
			}
		}
	default:
		for _, p := range have {
			if want.Matches(p) {
				a.profiles = append(a.profiles, p)
			}
		}
	}
	if a.refusal == "" && len(a.profiles) == 0 {
		a.refusal = fmt.Sprintf("selector migProfile %s: the pool has %s", want, strings.Join(have, ", "))
	}
}
