package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

const (
	defaultBeat = 10 * time.Second // when the server does not say
	stepTimeout = 30 * time.Second // all requests of one step
	recheck     = 2 * time.Minute  // how often failing acceptance checks run again
	unitsPause  = 2 * time.Second  // between heartbeats that tell of one unit after the other
)

// node is the state of one machine towards its control plane. It is used by one
// goroutine at a time. Things happen to it (see, take, step), and after each the
// caller asks how long until the next step.
type node struct {
	link       *link
	log        *slog.Logger
	poolID     string
	joinToken  string
	localHost  bool
	manageHost bool
	file       *ledgerFile // nil: nothing is kept on disk
	facts      *wire.AgentFacts
	walls      *walls     // nil: this machine is not changed
	unwalled   string     // why walls is nil
	telemetry  *telemetry // nil: this machine measures nothing

	book     ledger
	spec     wire.NodeSpec
	inv      wire.Inventory
	hash     string // of inv
	readings gpu.Readings
	checked  checked
	results  []wire.UnitStatus // of each unit, when it was last compared with the machine

	joined   bool // by this process, and not refused since
	session  int  // rises with each join
	interval time.Duration
	latest   int64 // the newest generation that the server spoke of
	owes     owed
	told     int64 // the generation of the last heartbeat
	applied  int64 // the generation that results are of
	walled   wire.WallsStatus
	bare     bool            // nothing is ever applied here: a simulated machine
	dropped  []wire.UnitKind // no longer wanted, not told yet
	due      time.Time       // of the next step
	retry    backoff
	saying   string // what the log said last
	reboots  rebooting
}

// owed is what the server has not been told yet.
type owed struct{ inventory, units, checks, bindings bool }

// newNode starts from what book remembers.
func newNode(l *link, log *slog.Logger, book ledger, retryLimit time.Duration) *node {
	n := &node{link: l, log: log, book: book, retry: backoff{limit: retryLimit}, interval: defaultBeat}
	if len(book.Spec) > 0 {
		if err := json.Unmarshal(book.Spec, &n.spec); err != nil {
			log.Error("the kept NodeSpec cannot be read; it is fetched again", "err", err)
			n.spec, n.book.Spec = wire.NodeSpec{}, nil
		}
	}
	n.results = compared(book.Units)
	return n
}

// see takes in a look at the machine.
func (n *node) see(s sighting) {
	if n.book.MachineID != "" && n.book.MachineID != s.inventory.MachineID {
		n.log.Warn("the state directory is of another machine; this one joins anew", "node", n.book.NodeID)
		n.forget()
		s.inventory.GPUs = present(s.inventory.GPUs)
	}
	n.book.MachineID = s.inventory.MachineID
	n.readings = s.readings
	s.inventory.Agent = n.facts
	if n.reboots.boot != "" {
		s.inventory.BootID = n.reboots.boot
	}
	if hash := inventory.Hash(s.inventory); hash != n.hash {
		n.inv, n.hash = s.inventory, hash
		n.book.GPUs = s.inventory.GPUs
		n.owes.inventory = true
		n.hurry()
	}
	n.judge()
}

// take takes up a NodeSpec, as it came, from now on.
func (n *node) take(raw json.RawMessage) error {
	var spec wire.NodeSpec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return fmt.Errorf("the NodeSpec cannot be read: %w", err)
	}
	if spec.NodeID != n.book.NodeID {
		return fmt.Errorf("the NodeSpec is for %q, and this is %q", spec.NodeID, n.book.NodeID)
	}
	if spec.Generation < n.spec.Generation && spec.Generation != n.latest {
		return nil // a long poll's answer that a newer one has overtaken
	}
	if spec.Generation != n.spec.Generation {
		n.log.Info("NodeSpec", "generation", spec.Generation, "units", len(spec.Units.Wanted())+len(spec.Units.Unknown),
			"bindings", len(spec.Bindings))
		n.spec = spec
		if n.file != nil {
			n.book.Spec = raw
		}
		n.latest = max(n.latest, spec.Generation)
		n.hurry()
	}
	n.judge()
	return nil
}

// wanted is the NodeSpec to hold the machine to. It is not known before the
// first one has come; a node that was removed wants nothing any more, so that
// what was changed for it is put back.
func (n *node) wanted() (wire.NodeSpec, bool) {
	return n.spec, n.spec.Generation > 0 || n.book.Left
}

// settle takes in how far the units have come. It reports whether that is news.
func (n *node) settle(results []wire.UnitStatus) bool {
	before := n.book.Units
	n.results = results
	n.judge()
	return !slices.Equal(before, n.book.Units)
}

// hear takes in how far one unit has come while others are still at work, which
// may take minutes. It reports whether that is news. The control plane hears of
// it soon, and of all that follow shortly after in the same heartbeat.
func (n *node) hear(s wire.UnitStatus) bool {
	n.results = withOne(n.results, s)
	if n.hash == "" || !n.judgeUnits(time.Now().UTC().Truncate(time.Millisecond)) {
		return false
	}
	if at := time.Now().Add(unitsPause); n.retry.tries == 0 && at.Before(n.due) {
		n.due = at
	}
	n.keep()
	return true
}

// judgeUnits brings the answers of units in line with the results. It reports
// whether they changed.
func (n *node) judgeUnits(now time.Time) bool {
	units := answerUnits(n.spec.Units, n.unitResults(now), n.book.Units, now)
	if slices.Equal(units, n.book.Units) {
		return false
	}
	n.dropped = append(n.dropped, gone(n.book.Units, units)...)
	n.book.Units, n.owes.units = units, true
	return true
}

// judge brings units, bindings and checks in line with what is wanted and what
// is there, and remembers it all.
func (n *node) judge() {
	now := time.Now().UTC().Truncate(time.Millisecond)
	if n.hash == "" {
		return // nothing is known of the machine yet
	}
	if n.judgeUnits(now) {
		n.hurry()
	}
	walls := n.wallReport()
	if status := n.wallsStatus(walls); status != n.walled {
		n.walled, n.owes.bindings = status, true
		n.hurry()
	}
	if bindings := confirm(n.spec.Bindings, &n.inv, n.book.Bindings, walls); !slices.EqualFunc(bindings, n.book.Bindings, wire.BindingStatus.Equal) {
		n.book.Bindings, n.owes.bindings = bindings, true
		n.hurry()
	}
	if checks, news := n.check(now); news {
		n.book.Checks, n.owes.checks = checks, true
		n.hurry()
	}
	n.keep()
}

// wallReport says what the walls now want to be, and answers how far they are.
// Before a first NodeSpec nothing is known of what is wanted, and none is touched;
// a node that was removed wants none.
func (n *node) wallReport() wallReport {
	if n.walls == nil {
		return wallReport{refusal: n.unwalled}
	}
	if n.spec.NodeID != "" || n.book.Left {
		sharing := n.spec.Units.GPUSharing
		n.walls.serve(sharing != nil && sharing.Mode == "mps")
		n.walls.want(n.spec.Bindings, n.inv.GPUs)
	}
	return n.walls.state()
}

// wallsStatus says what a report of the walls is of. While they are being brought
// to another NodeSpec, it stays that of the one before.
func (n *node) wallsStatus(r wallReport) wire.WallsStatus {
	if n.walls == nil || r.refusal != "" {
		return wire.WallsStatus{Why: r.refusal}
	}
	switch {
	case r.asked == 0:
		return wire.WallsStatus{Enforced: true}
	case r.current:
		return wire.WallsStatus{Enforced: true, Generation: n.spec.Generation}
	}
	return wire.WallsStatus{Enforced: true, Generation: n.walled.Generation}
}

func (n *node) keep() {
	if n.file == nil {
		return
	}
	if err := n.file.write(n.book); err != nil {
		n.log.Error("what this node knows is not safe from a restart", "err", err)
	}
}

// forget leaves the node that this machine was, with all that was wanted of it.
func (n *node) forget() {
	n.book = ledger{MachineID: n.book.MachineID, Server: n.book.Server, GPUs: n.book.GPUs}
	n.spec, n.latest, n.checked, n.results, n.applied = wire.NodeSpec{}, 0, checked{}, nil, 0
	n.joined = false
}

// forgetMissing drops the GPUs that do not answer; the next look finds those that
// are still there. Only leaving the node does so: a GPU that was taken out goes
// with the node that it was part of.
func (n *node) forgetMissing() {
	n.inv.GPUs = present(n.inv.GPUs)
	n.hash = inventory.Hash(n.inv)
	n.book.GPUs = n.inv.GPUs
}

func present(gpus []wire.GPU) []wire.GPU {
	return slices.DeleteFunc(slices.Clone(gpus), func(g wire.GPU) bool {
		return g.Health == wire.GPUMissing || g.Health == wire.GPULost
	})
}

// hurry makes the next step due now, unless the server is being waited for.
func (n *node) hurry() {
	if n.retry.tries == 0 {
		n.due = time.Time{}
	}
}

// step talks with the control plane if that is due. It answers how long nothing
// more is.
func (n *node) step(ctx context.Context) time.Duration {
	if wait := time.Until(n.due); wait > 0 {
		return wait
	}
	limited, cancel := context.WithTimeout(ctx, stepTimeout)
	wait, err := n.contact(limited)
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return 0
		}
		wait = n.failed(err)
	} else {
		n.retry.reset()
		n.say(slog.LevelInfo, "joined "+n.book.NodeID, "joined", "node", n.book.NodeID, "pool", n.book.PoolID)
	}
	n.due = time.Now().Add(wait)
	return wait
}

// errNoPool says that the server has no place for this machine yet.
type errNoPool struct{ reason string }

func (e errNoPool) Error() string { return e.reason }

// failed answers how long to wait after err.
func (n *node) failed(err error) time.Duration {
	wait := n.retry.next()
	var r *refusal
	var noPool errNoPool
	switch {
	case errors.As(err, &noPool):
		n.say(slog.LevelInfo, "no pool: "+noPool.reason, "waiting for a pool", "reason", noPool.reason)
	case errors.As(err, &r):
		if stranger(err) {
			n.joined = false
		}
		wait = max(wait, r.RetryAfter)
		n.say(slog.LevelWarn, r.Error(), "refused", "err", err)
	default:
		n.say(slog.LevelWarn, "away", "no contact with the control plane; what it last wanted stays in force", "err", err)
	}
	return wait
}

// say logs a line, unless the last one told the same state.
func (n *node) say(level slog.Level, state, line string, args ...any) {
	if n.saying == state {
		return
	}
	n.saying = state
	n.log.Log(context.Background(), level, line, args...)
}

// contact tells the server what it lacks and learns what it wants. It answers
// how long until the next time.
func (n *node) contact(ctx context.Context) (time.Duration, error) {
	if !n.joined {
		if err := n.join(ctx); err != nil {
			return 0, err
		}
	}
	for range 3 { // a reply may ask for all again, or for the new NodeSpec to be taken up
		wait, err := n.beat(ctx)
		if err != nil {
			return 0, err
		}
		if !n.joined {
			return 0, nil // removed: join again at once
		}
		if n.latest != n.spec.Generation {
			if err := n.fetch(ctx); err != nil {
				return 0, err
			}
		}
		if n.owes == (owed{}) && n.told == n.spec.Generation {
			return wait, nil
		}
	}
	return jitter(n.interval), nil
}

// join says hello, and once more as a new machine if the server does not know
// the node that this one was.
func (n *node) join(ctx context.Context) error {
	hello := wire.Hello{
		Version: wire.Version, MachineID: n.inv.MachineID, Hostname: n.inv.Hostname,
		PoolID: n.poolID, JoinToken: n.joinToken, Local: n.localHost,
		NodeID: n.book.NodeID, Inventory: n.inv, InventoryHash: n.hash,
	}
	welcome, err := n.link.hello(ctx, n.book.Credential, hello)
	if stranger(err) && n.book.Credential != "" {
		if removed(err) {
			n.leave()
			hello.Inventory, hello.InventoryHash = n.inv, n.hash
		}
		hello.NodeID = ""
		welcome, err = n.link.hello(ctx, "", hello)
	}
	if err != nil {
		return err
	}
	if welcome.NodeID == "" {
		return errNoPool{cmp.Or(welcome.Reason, "the control plane has no pool for this machine yet")}
	}
	if welcome.NodeID != n.book.NodeID {
		n.forget()
		n.forgetMissing()
	}
	n.book.NodeID, n.book.PoolID = welcome.NodeID, welcome.PoolID
	if welcome.Credential != "" {
		n.book.Credential = welcome.Credential
	}
	n.interval = defaultBeat
	if s := welcome.HeartbeatSeconds; s > 0 {
		n.interval = min(time.Duration(min(s, 3600))*time.Second, maxRetry)
	}
	n.joined = true
	n.session++
	n.owes = owed{inventory: n.hash != hello.InventoryHash, units: true, checks: true, bindings: true}
	n.judge()
	return nil
}

// beat sends the inventory if it is owed, then a heartbeat with all else that
// is. It answers how long until the next one.
func (n *node) beat(ctx context.Context) (time.Duration, error) {
	if n.owes.inventory {
		reply, err := n.link.inventory(ctx, n.book.Credential, wire.InventoryReport{NodeID: n.book.NodeID, Hash: n.hash, Inventory: n.inv})
		if err != nil {
			return 0, err
		}
		if n.heed(reply); !n.joined {
			return 0, nil
		}
		n.owes.inventory = false // it was just sent, whatever the reply
	}
	reply, err := n.link.heartbeat(ctx, n.book.Credential, n.heartbeat())
	if err != nil {
		return 0, err
	}
	n.owes, n.told, n.dropped = owed{}, n.spec.Generation, nil
	n.heed(reply)
	if reply.RetrySeconds > 0 {
		return min(time.Duration(min(reply.RetrySeconds, 3600))*time.Second, maxRetry), nil
	}
	return jitter(n.interval), nil
}

func (n *node) heartbeat() wire.Heartbeat {
	h := wire.Heartbeat{NodeID: n.book.NodeID, InventoryHash: n.hash, Generation: n.spec.Generation, Applied: n.applied}
	if n.bare {
		h.Applied = n.spec.Generation
	}
	if n.owes.units {
		h.Units = withGone(n.book.Units, n.dropped)
	}
	if n.owes.checks {
		h.Checks = whole(n.book.Checks)
	}
	if n.owes.bindings {
		bindings := whole(n.book.Bindings)
		h.Bindings = &bindings
		walls := n.walled
		h.Walls = &walls
	}
	return h
}

// whole tells a list that has nothing in it from one that is not sent.
func whole[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// leave takes in that the control plane has removed this node: what was changed
// for it is put back, and its walls come down. Only the control plane itself says
// so. One that does not answer, or no longer knows the credential, such as one
// brought back from a backup, is none of it: there all stays as it is.
func (n *node) leave() {
	n.log.Warn("the control plane has removed this node", "node", n.book.NodeID)
	n.forget()
	n.book.Left = true
	n.forgetMissing()
	n.judge()
}

// heed takes in what the server answered.
func (n *node) heed(reply wire.HeartbeatReply) {
	if reply.Gone {
		n.leave()
		return
	}
	n.latest = reply.Generation
	n.owes.inventory = n.owes.inventory || reply.SendInv
	if reply.SendAll {
		n.owes.units, n.owes.checks, n.owes.bindings = true, true, true
	}
}

// fetch asks for the newest NodeSpec, which the server said is another one than
// this node has. It may be an older one: a control plane restored from a backup.
func (n *node) fetch(ctx context.Context) error {
	after := n.spec.Generation
	if n.latest < after {
		after = 0
	}
	raw, err := n.link.spec(ctx, n.book.Credential, n.book.NodeID, after, 0)
	if err != nil || raw == nil {
		return err
	}
	return n.take(raw)
}
