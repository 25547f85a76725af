package plan

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
)

// PoolFacts is what a policy is planned for: what its pool is, and what the
// site gives every node.
type PoolFacts struct {
	Class    appliance.Class
	Sharing  appliance.Sharing
	GPUModel string

	// Telemetry is where nodes export to if the policy does not say; nil: nowhere.
	Telemetry *wire.Telemetry
}

// PolicyContext is what a policy is checked against: its pool, its pool's
// site and owner, and the control plane.
type PolicyContext struct {
	Class         appliance.Class
	Sharing       appliance.Sharing
	GPUModel      string
	SiteKind      appliance.SiteKind
	OwnerTenantID string
	Attestors     []string          // ids of those that this control plane runs
	Offers        []appliance.Offer // those that the pool has now, to others than its owner
}

// CheckPolicy reads a policy and holds it to its pool: a policy is sound if
// every field is in its range and its nodes could be planned. Refusals read
// "policy: <path>: <what is wrong>" and are INVALID_INPUT, but for
// singleTenant, which the pool's offers can forbid (INVALID_STATE).
func CheckPolicy(c PolicyContext, raw appliance.RawPolicy) (appliance.Policy, error) {
	p, err := ReadPolicy(raw)
	if err != nil {
		return appliance.Policy{}, err
	}
	if err := validate(c, p, policyValidators); err != nil {
		return appliance.Policy{}, err
	}
	return p, nil
}

// policyValidator checks one concern of a policy.
type policyValidator struct {
	concern string
	check   func(PolicyContext, appliance.Policy) error
}

// policyValidators are run in this order; the first refusal is the answer.
var policyValidators = []policyValidator{
	{"timers", checkTimers},
	{"acceptance", checkAcceptance},
	{"overcommit", checkOvercommit},
	{"admission", checkAdmission},
	{"sharing", checkSharing},
	{"host shares", checkShares},
	{"Kubernetes", checkKubernetes}, // before the units: the join set is whole
	{"host units", checkHostUnits},
	{"MIG layout", checkMIGLayout},
	{"attestors", checkAttestors},
	{"telemetry", checkTelemetry},
	{"tenancy", checkSingleTenant},
	{"hardware profile", checkHardwareProfile},
}

// validate runs the validators. A failure that is not a refusal already is the
// policy's fault, and reads so.
func validate(c PolicyContext, p appliance.Policy, validators []policyValidator) error {
	for _, v := range validators {
		err := v.check(c, p)
		if err == nil {
			continue
		}
		var refusal *appliance.Error
		var unit *wire.UnitError
		switch {
		case errors.As(err, &refusal):
			return refusal
		case errors.As(err, &unit):
			return badPolicy(unitPath(unit), "%s", unit.Problem)
		default:
			return badPolicy("", "%s: %v", v.concern, err)
		}
	}
	return nil
}

func checkTimers(_ PolicyContext, p appliance.Policy) error {
	if b := p.DisruptionBudget; b != nil && !(*b >= 0 && *b <= 1) {
		return badPolicy("disruptionBudget", "%v is not 0 to 1", *b)
	}
	return nil
}

const maxChecks = 32

func checkAcceptance(_ PolicyContext, p appliance.Policy) error {
	if len(p.Acceptance) > maxChecks {
		return badPolicy("acceptance", "%d checks are more than %d", len(p.Acceptance), maxChecks)
	}
	for i, c := range p.Acceptance {
		path := indexPath("acceptance", i)
		if c.Kind == "" {
			return badPolicy(path+".kind", "is missing")
		}
		if !slices.Contains(wire.CheckKinds, c.Kind) {
			return badPolicy(path+".kind", "%q is not a check; checks are %s", shorten(c.Kind, 40), strings.Join(wire.CheckKinds, ", "))
		}
		if c.With == nil {
			continue
		}
		var with wire.NVMLCheck
		if err := readJSON(c.With, path+".with", reflect.ValueOf(&with).Elem()); err != nil {
			return err
		}
		if err := with.Validate(); err != nil {
			field, problem, _ := strings.Cut(err.Error(), ": ")
			return badPolicy(path+".with."+field, "%s", problem)
		}
	}
	return nil
}

func checkOvercommit(_ PolicyContext, p appliance.Policy) error {
	for _, r := range slices.Sorted(maps.Keys(p.Overcommit)) {
		path := joinPath("overcommit", r)
		switch {
		case appliance.IsGPUResource(r):
			return badPolicy(path, "GPUs are never overcommitted")
		case !appliance.IsScalar(r):
			return badPolicy(path, "is not a scalar; scalars are %s", strings.Join(appliance.Scalars, ", "))
		case !(p.Overcommit[r] > 0):
			return badPolicy(path, "%v is not above 0", p.Overcommit[r])
		}
	}
	return nil
}

func checkAdmission(_ PolicyContext, p appliance.Policy) error {
	if p.Admission == nil {
		return nil
	}
	switch p.Admission.BudgetCheck {
	case "", appliance.BudgetCheckNone, appliance.BudgetCheckMeter:
		return nil
	default:
		return badPolicy("admission.budgetCheck", "%q is not none or meter", shorten(string(p.Admission.BudgetCheck), 40))
	}
}

// checkSharing leaves the range of replicas to the unit.
func checkSharing(c PolicyContext, p appliance.Policy) error {
	if p.Sharing != nil && p.Sharing.Replicas != nil && !c.Sharing.SingleTenantOnly() {
		return badPolicy("sharing.replicas", "only timeslice and mps pools have slots, this one is %s", c.Sharing)
	}
	return nil
}

func checkShares(_ PolicyContext, p appliance.Policy) error {
	for _, s := range []struct {
		path  string
		share *appliance.HostShare
	}{{"hostReserve", p.HostReserve}, {"perGpu", p.PerGPU}} {
		if s.share == nil {
			continue
		}
		if n := s.share.VCPU; n != nil && *n < 0 {
			return badPolicy(s.path+".vcpu", "%d is below 0", *n)
		}
		if n := s.share.MemoryGiB; n != nil && *n < 0 {
			return badPolicy(s.path+".memoryGiB", "%d is below 0", *n)
		}
	}
	return nil
}

// checkHostUnits runs the agent's own checks on what nodes would get, after
// what has no word there: fields that must not be left out.
func checkHostUnits(c PolicyContext, p appliance.Policy) error {
	if h := p.Hugepages; h != nil {
		switch {
		case h.Size == "":
			return badPolicy("hugepages.size", "is missing")
		case pageKiB[h.Size] == 0:
			return badPolicy("hugepages.size", "%q is not 2Mi or 1Gi", shorten(h.Size, 40))
		case h.Count == nil:
			return badPolicy("hugepages.count", "is missing")
		}
	}
	if g := p.GPU; g != nil && g.PowerLimitWatts != nil && *g.PowerLimitWatts == 0 { // which a unit takes for no cap
		return badPolicy("gpu.powerLimitWatts", "0 is not 1 to %d", wire.MaxPowerLimitWatts)
	}
	// Without the site's telemetry, which is not the policy's to answer for.
	return hostUnits(p, PoolFacts{Class: c.Class, Sharing: c.Sharing, GPUModel: c.GPUModel}).Validate()
}

// unitPath is where the policy says what a unit got wrong.
func unitPath(e *wire.UnitError) string {
	switch e.Kind {
	case wire.UnitKernelModules:
		return "kernelModules." + e.Field
	case wire.UnitHugepages:
		return "hugepages." + strings.Replace(e.Field, "sizeKiB", "size", 1)
	case wire.UnitGPUSettings:
		return "gpu." + e.Field
	case wire.UnitGPUSharing:
		return "sharing." + e.Field
	case wire.UnitMIGLayout:
		return "migLayout"
	case wire.UnitK8sJoin:
		return "kubernetes." + strings.Replace(e.Field, "tokenRef", "joinTokenRef", 1)
	default:
		return string(e.Kind) + "." + e.Field
	}
}

func checkMIGLayout(c PolicyContext, p appliance.Policy) error {
	if p.MIGLayout == "" {
		return nil
	}
	if c.Sharing != appliance.SharingMIG {
		return badPolicy("migLayout", "only mig pools have one, this one is %s", c.Sharing)
	}
	if err := wire.CheckLayout(c.GPUModel, p.MIGLayout); err != nil {
		return badPolicy("migLayout", "%v", err)
	}
	return nil
}

const maxAttestors = 16

func checkAttestors(c PolicyContext, p appliance.Policy) error {
	ids := p.JoinAttestors
	if ids == nil {
		return nil
	}
	if len(ids) == 0 || len(ids) > maxAttestors {
		return badPolicy("joinAttestors", "holds %d ids, not 1 to %d", len(ids), maxAttestors)
	}
	for i, id := range ids {
		path := indexPath("joinAttestors", i)
		if !slices.Contains(c.Attestors, id) {
			known := slices.Sorted(slices.Values(c.Attestors))
			return badPolicy(path, "%q is no attestor of this control plane; it runs %s", shorten(id, 40), strings.Join(known, ", "))
		}
		if slices.Contains(ids[:i], id) {
			return badPolicy(path, "%s is listed twice", id)
		}
	}
	return nil
}

func checkKubernetes(c PolicyContext, p appliance.Policy) error {
	k := p.Kubernetes
	if k == nil {
		return nil
	}
	set := []struct{ field, value string }{
		{"apiServer", k.APIServer}, {"caCertSha256", k.CACertSHA256}, {"joinTokenRef", k.JoinTokenRef},
	}
	joins := slices.ContainsFunc(set, func(f struct{ field, value string }) bool { return f.value != "" })
	for _, f := range set {
		if joins && f.value == "" {
			return badPolicy("kubernetes."+f.field, "is missing: apiServer, caCertSha256 and joinTokenRef come together or not at all")
		}
	}
	if api := k.GPUAPI; api != "" && api != "device-plugin" && api != "dra" {
		return badPolicy("kubernetes.gpuApi", "%q is not device-plugin or dra", shorten(api, 40))
	}
	if k.PlatformOperated && c.OwnerTenantID != appliance.Root {
		return badPolicy("kubernetes.platformOperated", "counts only on a pool that the platform (tenant %s) owns", appliance.Root)
	}
	if joins && c.SiteKind != appliance.SiteCustom && !k.PlatformOperated {
		return badPolicy("kubernetes.platformOperated", "must be true for hosts of a %s site to join a cluster", c.SiteKind)
	}
	return joinUnit(k).ValidateNode() // also where no unit comes of it
}

// checkTelemetry checks the options also where no unit comes of them.
func checkTelemetry(_ PolicyContext, p appliance.Policy) error {
	if p.Telemetry == nil {
		return nil
	}
	return telemetryUnit(p.Telemetry, nil).ValidateOptions()
}

func checkSingleTenant(c PolicyContext, p appliance.Policy) error {
	if !p.SingleTenant {
		return nil
	}
	refuse := func(why string) error {
		return appliance.Refuse(appliance.InvalidState, "policy.singleTenant", "policy: singleTenant: cannot be turned on while %s", why)
	}
	if len(c.Offers) > 1 {
		return refuse(fmt.Sprintf("the pool is offered to %d tenants besides its owner", len(c.Offers)))
	}
	for _, o := range c.Offers {
		if o.IncludeDescendants {
			return refuse(fmt.Sprintf("the offer to %s includes its descendants", o.TenantID))
		}
	}
	return nil
}

func checkHardwareProfile(_ PolicyContext, p appliance.Policy) error {
	if n := len(p.HardwareProfile); n > 200 {
		return badPolicy("hardwareProfile", "%d bytes are more than 200", n)
	}
	if strings.ContainsFunc(p.HardwareProfile, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return badPolicy("hardwareProfile", "holds a control character")
	}
	return nil
}
