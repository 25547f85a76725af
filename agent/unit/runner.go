package unit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// Runner applies units to a machine and remembers in the ledger how far each
// has come. Its methods may be called from several processes at once: each
// unit is applied under the ledger's lock.
type Runner struct {
	Machine *host.Machine
	Ledger  *host.Ledger
	GPUs    *gpu.Library // nil: GPUs are not set
	// Manage allows changes. Without it every unit is Unsupported, and says
	// what it would change.
	Manage bool
	// Services has units applied by the static systemd units where those are
	// installed. They use the state directory of an installed agent.
	Services bool
	Now      func() time.Time
	Log      *slog.Logger
	// Tell, if set, is called by Sync with how each unit stands, one after the
	// other, as soon as that is known. An empty state says that nothing is wanted
	// of the unit, and nothing of it is left.
	Tell func(wire.UnitStatus)
}

// InstalledStateDir is the state directory of an installed agent, which the
// static systemd units use.
const InstalledStateDir = "/var/lib/better-compute/agent"

// UsesServices reports whether an agent with this state directory may have the
// static systemd units apply its units.
func UsesServices(stateDir string) bool { return filepath.Clean(stateDir) == InstalledStateDir }

// Desired is what a unit is to be, as it lies in the ledger.
type Desired struct {
	Generation int64      `json:"generation"` // of the NodeSpec
	Units      wire.Units `json:"units"`      // this one, or none: it is to be removed
	Held       []string   `json:"heldGPUs,omitempty"`
	// UpIn is the boot in which the agent that wants this was up. A boot at which
	// it is not confirms nothing: see Scene.Up.
	UpIn string `json:"agentUpIn,omitempty"`
}

// hash tells one desired state from another. The generation is not part of it:
// it also rises when other units change.
func (d Desired) hash() string {
	data, err := json.Marshal(d.Units)
	if err != nil {
		return err.Error() // Units is plain data: Marshal has no way to refuse it
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Result is how far a unit has come, as it lies in the ledger.
type Result struct {
	Status     wire.UnitStatus `json:"status"`
	Generation int64           `json:"generation"`
	Desired    string          `json:"desired"` // hash of what was wanted
	BootID     string          `json:"bootId"`
	// Mended are the times within the last ten minutes at which the unit had
	// been changed by someone else and was put right.
	Mended   []time.Time `json:"mended,omitempty"`
	Failures int         `json:"failures,omitempty"` // in a row
	NextTry  time.Time   `json:"nextTry,omitzero"`
}

const (
	conflictFlips  = 3
	conflictWindow = 10 * time.Minute
	firstRetry     = 30 * time.Second
	maxRetry       = 30 * time.Minute
	// maxRounds bounds how often a plan is made and applied before the steps
	// left are called a failure. Huge pages need three: try, then kernel
	// arguments, then nothing.
	maxRounds = 4
)

// Sync brings every unit of a NodeSpec as far as it can come now, and removes
// those that are no longer wanted. It answers a status for each wanted unit that
// this binary knows, and for each other of which something is left on the machine,
// in order of application. One failing unit does not stop the others.
func (r *Runner) Sync(ctx context.Context, spec wire.NodeSpec) []wire.UnitStatus {
	out := []wire.UnitStatus{}
	if r.Manage && r.Ledger.Interrupted() {
		if err := r.recover(ctx); err != nil {
			r.Log.Error("boot files are not put back yet", "err", err)
		}
	}
	for _, kind := range wire.UnitKinds {
		if kind == wire.UnitTelemetry {
			continue // the agent exports by itself, and nothing on the machine changes
		}
		d := Desired{Generation: spec.Generation, Units: only(spec.Units, kind), Held: held(spec.Bindings), UpIn: r.Machine.BootID()}
		wanted := len(d.Units.Wanted()) > 0
		var status wire.UnitStatus
		if wanted || r.touched(kind) {
			status = r.sync(ctx, kind, d)
		}
		if !wanted {
			status = leaving(status)
		}
		if status.State != "" {
			out = append(out, status)
		}
		if !wanted && (status.State == wire.Failed || status.State == wire.Conflict) {
			r.Log.Warn("a unit that is no longer wanted is not undone yet", "unit", string(kind), "why", status.Reason)
		}
		if status.Kind = kind; r.Tell != nil {
			r.Tell(status)
		}
	}
	return out
}

func held(bindings []wire.Binding) []string {
	var uuids []string
	for _, b := range bindings {
		for _, d := range b.Devices {
			uuids = append(uuids, d.UUID)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

// touched reports whether a unit was applied here before.
func (r *Runner) touched(kind wire.UnitKind) bool {
	name := string(kind)
	var d Desired
	known, err := r.Ledger.Load(host.Desired, name, &d)
	var p host.Prior
	noted, err2 := r.Ledger.Load(host.Priors, name, &p)
	return known || noted || err != nil || err2 != nil
}

func (r *Runner) sync(ctx context.Context, kind wire.UnitKind, d Desired) wire.UnitStatus {
	name := string(kind)
	if r.known(kind) == nil {
		return r.stamp(wire.UnitStatus{Kind: kind, State: wire.Unsupported, Reason: "this version of the agent does not apply " + name})
	}
	if !r.Manage {
		if len(d.Units.Wanted()) == 0 {
			return wire.UnitStatus{} // what an agent that managed the host left is its owner's
		}
		return r.stamp(r.leave(kind, d))
	}
	status, settled := r.settled(kind, d)
	if err := r.want(ctx, name, d, settled); err != nil {
		return r.stamp(failed(kind, err))
	}
	if settled {
		return status
	}
	if r.Services && r.Machine.UnitInstalled(ctx, Service(kind)) {
		if status, ok := r.byService(ctx, kind, d); ok {
			return status
		}
	}
	status, err := r.apply(ctx, kind, d)
	if err != nil {
		return r.stamp(failed(kind, err))
	}
	return status
}

// leave says what a unit would change on a host that is left as it is.
func (r *Runner) leave(kind wire.UnitKind, d Desired) wire.UnitStatus {
	status := wire.UnitStatus{Kind: kind, State: wire.Unsupported, Reason: "this agent leaves the host as it is: it runs without --manage-host"}
	plan, err := r.Preview(kind, d)
	if err != nil {
		status.Reason += "; " + err.Error()
		return status
	}
	status.Wanted, status.Got = plan.Wanted, plan.Got
	if steps := summary(plan); steps != "" {
		status.Reason += ". It would: " + steps
	} else {
		status.Reason += ". It would change nothing: " + cmp.Or(plan.Reason, string(plan.State))
	}
	return status
}

// maxSummary bounds a plan in a status: a heartbeat carries it.
const maxSummary = 600

func summary(p Plan) string {
	var lines []string
	for _, s := range slices.Concat(p.Steps, p.Later) {
		line, _, _ := strings.Cut(s.Change.String(), "\n")
		line = strings.TrimSuffix(line, ":")
		if s.Needs != NeedsNothing {
			line += " (needs " + string(s.Needs) + ")"
		}
		lines = append(lines, line)
	}
	text := strings.Join(lines, "; ")
	if len(text) > maxSummary {
		text = strings.ToValidUTF8(text[:maxSummary], "") + fmt.Sprintf("… (%d steps in all)", len(lines))
	}
	return text
}

// Preview is the plan of a unit for a desired state, with nothing changed.
func (r *Runner) Preview(kind wire.UnitKind, d Desired) (Plan, error) {
	u := r.known(kind)
	if u == nil {
		return Plan{State: wire.Unsupported, Reason: "this version of the agent does not apply " + string(kind)}, nil
	}
	if err := d.Units.Validate(); err != nil {
		return Plan{State: wire.Failed, Reason: err.Error()}, nil
	}
	s, err := r.scene(kind, d)
	if err != nil {
		return Plan{}, err
	}
	if len(d.Units.Wanted()) == 0 {
		return removal(u, s, kind), nil
	}
	return u.Plan(s), nil
}

func (r *Runner) scene(kind wire.UnitKind, d Desired) (Scene, error) {
	s := Scene{
		Machine: r.Machine, Want: d.Units, Held: d.Held, Arguments: make(map[string]host.Arguments),
		BootID: r.Machine.BootID(), Now: r.Now(),
	}
	s.Up = s.BootID != "" && d.UpIn == s.BootID
	if usesGPUs(kind) {
		s.GPUs = look(r.GPUs)
	}
	if kind == wire.UnitK8sJoin {
		s.Unsettled = r.unsettled()
	}
	for _, name := range r.Ledger.Units(host.Priors) {
		var p host.Prior
		if _, err := r.Ledger.Load(host.Priors, name, &p); err != nil {
			return s, err
		}
		if name == string(kind) {
			s.Prior = p
		}
		if p.Arguments != nil {
			s.Arguments[name] = *p.Arguments
		}
	}
	return s, nil
}

// want writes the desired state where the unit that applies it reads it. For a
// unit with nothing to do a new generation alone is not worth a write: each
// booking on the node makes one.
func (r *Runner) want(ctx context.Context, name string, d Desired, settled bool) error {
	var before Desired
	if known, err := r.Ledger.Load(host.Desired, name, &before); err == nil && known &&
		before.hash() == d.hash() && (settled || before.Generation == d.Generation) && before.UpIn == d.UpIn && slices.Equal(before.Held, d.Held) {
		return nil
	}
	unlock, err := r.Ledger.Lock(ctx) // which a join of a cluster holds for minutes
	if err != nil {
		return err
	}
	defer unlock()
	return r.Ledger.Save(host.Desired, name, d)
}

// settled answers the status of a unit for which there is nothing to do now:
// it is as it should be, waits for its next try, or is left to whoever fights
// over it.
func (r *Runner) settled(kind wire.UnitKind, d Desired) (wire.UnitStatus, bool) {
	var last Result
	known, err := r.Ledger.Load(host.Results, string(kind), &last)
	if err != nil || !known || last.Desired != d.hash() || last.BootID != r.Machine.BootID() {
		return wire.UnitStatus{}, false
	}
	if r.Now().Before(last.NextTry) {
		return last.Status, true
	}
	plan, err := r.Preview(kind, d)
	if err != nil || len(plan.Steps) > 0 || plan.State != last.Status.State || last.Failures > 0 {
		return wire.UnitStatus{}, false
	}
	return last.Status, plan.Reason == last.Status.Reason && plan.Got == last.Status.Got
}

// byService has systemd run the unit, which writes its result. It reports
// false if systemd did not run it.
func (r *Runner) byService(ctx context.Context, kind wire.UnitKind, d Desired) (wire.UnitStatus, bool) {
	err := r.Machine.RestartUnit(ctx, Service(kind))
	var ran *host.UnitFailed
	if err != nil && !errors.As(err, &ran) {
		r.Log.Warn("systemd did not run a unit; the agent applies it itself", "unit", Service(kind), "err", err)
		return wire.UnitStatus{}, false
	}
	var result Result
	known, readErr := r.Ledger.Load(host.Results, string(kind), &result)
	if err == nil && readErr == nil && !known && len(d.Units.Wanted()) == 0 {
		return wire.UnitStatus{}, true // nothing of it is left
	}
	if readErr != nil || !known ||
		result.Generation != d.Generation || result.Desired != d.hash() {
		if err == nil {
			err = fmt.Errorf("%s wrote no result; see journalctl -u %s", Service(kind), Service(kind))
		}
		return r.stamp(failed(kind, err)), true
	}
	return result.Status, true
}

// Apply brings one unit as far as it can come, from its desired state in the
// ledger: what bcd unit apply does, at boot and for the agent. It reports
// false if nothing is wanted of the unit and nothing is left to be undone.
func (r *Runner) Apply(ctx context.Context, kind wire.UnitKind) (wire.UnitStatus, bool, error) {
	if r.known(kind) == nil {
		return wire.UnitStatus{}, false, fmt.Errorf("this version of the agent does not apply %s", string(kind))
	}
	var d Desired
	known, err := r.Ledger.Load(host.Desired, string(kind), &d)
	if err != nil {
		return wire.UnitStatus{}, false, err
	}
	if !known && !r.touched(kind) {
		return wire.UnitStatus{}, false, nil
	}
	d.Units = only(d.Units, kind)
	status, err := r.apply(ctx, kind, d)
	return status, true, err
}

// Remove undoes one unit, and forgets that it was wanted. It reports false if
// the unit was never applied here.
func (r *Runner) Remove(ctx context.Context, kind wire.UnitKind) (wire.UnitStatus, bool, error) {
	if r.known(kind) == nil || !r.touched(kind) {
		return wire.UnitStatus{}, false, nil
	}
	// Should not all be put back now, the next boot goes on with it.
	if err := r.want(ctx, string(kind), Desired{}, false); err != nil {
		return wire.UnitStatus{}, true, err
	}
	status, err := r.apply(ctx, kind, Desired{})
	status.Reason = strings.TrimPrefix(status.Reason, takenOut) // it was asked for here
	return status, true, err
}

// Wanted is what the agent last wanted of this machine, from the ledger.
func (r *Runner) Wanted() (wire.NodeSpec, error) {
	var spec wire.NodeSpec
	for _, kind := range wire.UnitKinds {
		var d Desired
		if _, err := r.Ledger.Load(host.Desired, string(kind), &d); err != nil {
			return spec, err
		}
		spec.Generation = max(spec.Generation, d.Generation)
		take(&spec.Units, d.Units, kind)
	}
	return spec, nil
}

// apply plans and applies under the lock until nothing is left, and writes the
// result. The error is of the ledger: what goes wrong with a unit is its status.
func (r *Runner) apply(ctx context.Context, kind wire.UnitKind, d Desired) (wire.UnitStatus, error) {
	unlock, err := r.Ledger.Lock(ctx)
	if err != nil {
		return wire.UnitStatus{}, err
	}
	defer unlock()
	if err := r.putBack(); err != nil && r.Ledger.Guards(string(kind)) {
		return wire.UnitStatus{}, err // the unit's own; what others lack keeps no unit from its work
	}
	name, now := string(kind), r.Now().UTC().Truncate(time.Millisecond)
	var last Result
	if _, err := r.Ledger.Load(host.Results, name, &last); err != nil {
		r.Log.Warn("the last result of a unit cannot be read", "unit", name, "err", err)
		last = Result{}
	}
	result := Result{Generation: d.Generation, Desired: d.hash(), BootID: r.Machine.BootID()}
	same, wanted := last.Desired == result.Desired && last.BootID == result.BootID, len(d.Units.Wanted()) > 0
	if same && wanted {
		result.Mended = slices.DeleteFunc(last.Mended, func(t time.Time) bool { return now.Sub(t) >= conflictWindow })
	}
	plan, err := r.Preview(kind, d)
	if err == nil {
		if same && wanted && undone(last, plan) {
			result.Mended = append(result.Mended, now)
		}
		if len(result.Mended) >= conflictFlips {
			plan.State, plan.Reason = wire.Conflict, r.fight(ctx, kind, plan)
		} else {
			plan, err = r.rounds(ctx, kind, d, plan)
		}
	}
	status := wire.UnitStatus{Kind: kind, State: plan.State, Reason: plan.Reason, Wanted: plan.Wanted, Got: plan.Got, Since: now}
	if err != nil {
		status.State, status.Reason = stateOf(err), explain(err)
	}
	if last.Status.State == status.State && same {
		status.Since = last.Status.Since
	}
	result.Status = status
	if !wanted {
		return r.removed(name, result, err)
	}
	switch {
	case err != nil || plan.State == wire.Failed && len(plan.Steps) > 0:
		if same {
			result.Failures = last.Failures
		}
		result.Failures++
		result.NextTry = now.Add(min(firstRetry<<min(result.Failures-1, 10), maxRetry))
	case len(result.Mended) >= conflictFlips:
		result.NextTry = result.Mended[len(result.Mended)-1].Add(conflictWindow)
	}
	return status, r.Ledger.Save(host.Results, name, result)
}

// recover puts back boot files that another process was rewriting when it died.
func (r *Runner) recover(ctx context.Context) error {
	unlock, err := r.Ledger.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return r.putBack()
}

// putBack is recover, under the lock.
func (r *Runner) putBack() error {
	files, err := host.Recover(r.Machine, r.Ledger, r.Machine.BootID(), r.Now)
	if len(files) > 0 {
		r.Log.Warn("a process died while boot files were rewritten; they are as they were", "files", files)
	}
	return err
}

// rounds applies the plan, and the plans that follow from it, until no steps
// are left. It answers the last plan.
func (r *Runner) rounds(ctx context.Context, kind wire.UnitKind, d Desired, plan Plan) (Plan, error) {
	for round := 1; len(plan.Steps) > 0; round++ {
		j, err := host.OpenJournal(r.Ledger, string(kind), d.Generation, r.Machine.BootID(), r.Now)
		if err != nil {
			return plan, err
		}
		for _, s := range plan.Steps {
			line, _, _ := strings.Cut(s.Change.String(), "\n")
			r.Log.Info("change", "unit", string(kind), "change", line)
		}
		if err := host.Apply(ctx, r.Machine, j, changes(plan.Steps)); err != nil {
			return plan, err
		}
		before := plan.Lines()
		if plan, err = r.Preview(kind, d); err != nil {
			return plan, err
		}
		if len(plan.Steps) > 0 && (plan.Lines() == before || round == maxRounds) {
			if plan.State != wire.Failed {
				plan.State = wire.Failed
				plan.Reason = "the machine did not stay as it was set: " + summary(plan)
			}
			return plan, nil
		}
	}
	return plan, nil
}

// undone reports whether somebody has changed a unit that was as wanted.
func undone(last Result, plan Plan) bool {
	switch last.Status.State {
	case wire.InSync, wire.Partial, wire.PendingReboot, wire.Conflict:
		return slices.ContainsFunc(plan.Steps, func(s Step) bool { return !s.Again })
	}
	return false
}

func stateOf(err error) wire.UnitState {
	if errors.Is(err, host.ErrConflict) {
		return wire.Conflict
	}
	return wire.Failed
}

func failed(kind wire.UnitKind, err error) wire.UnitStatus {
	return wire.UnitStatus{Kind: kind, State: stateOf(err), Reason: err.Error()}
}

func (r *Runner) stamp(s wire.UnitStatus) wire.UnitStatus {
	s.Since = r.Now().UTC().Truncate(time.Millisecond)
	return s
}
