package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// Agent is the agent of one machine. Fill in its fields, then Run it.
type Agent struct {
	Server    string      // unix:PATH or https://HOST:PORT; empty: the one joined before
	TLS       *tls.Config // for https; nil: the system's roots
	StateDir  string      // the agent's own, made if missing
	PoolID    string      // to join; empty: the server or the token says which
	JoinToken string
	Local     bool // this is the machine that the control plane runs on

	Root *host.Root // of the machine
	GPUs GPUs       // see FindGPUs
	// Recorded is the name to go by of a machine that is not the running one,
	// by default the last part of its root.
	Recorded string
	// ManageHost allows the agent to change the machine.
	ManageHost bool

	Log *slog.Logger
	// Notify, if set, tells the service manager a state as in sd_notify(3): READY=1
	// when the NodeSpec kept from before is in force, WATCHDOG=1 at least every
	// 40 s, STOPPING=1 at the end.
	Notify func(state string)
}

const (
	lookEvery = 30 * time.Second // how often the machine is looked at, at least
	lookPause = time.Second      // between two looks that events ask for
	idle      = 10 * time.Second // the longest that the loop waits

	applyEvery = 30 * time.Second // how often units are compared with the machine
	applyPause = 2 * time.Second  // between two comparisons that events ask for
)

// leftAlone is why an agent that does not manage its host changes nothing on it.
const leftAlone = "this agent leaves the host as it is: it runs without --manage-host"

// ErrStaleLibrary says that the NVML library was replaced on disk, as by an
// upgrade of the driver, and that this process can only go on with the old one,
// which the driver no longer answers. The service manager starts a new process.
var ErrStaleLibrary = errors.New("the NVML library was replaced on disk: the agent has to be started anew to load it")

// Run joins the machine and serves its control plane until ctx ends. It tries
// for ever: what can go wrong with a server or a machine is no error here. The
// error is of the fields or the state directory, of another agent that manages
// this machine, or ErrStaleLibrary.
func (a *Agent) Run(ctx context.Context) error {
	file, err := openLedger(a.StateDir)
	if err != nil {
		return err
	}
	defer file.close()
	n, err := a.open(file)
	if err != nil {
		return err
	}
	defer n.link.close()
	if a.ManageHost && a.Root.Dir() != "" { // an archive cannot be changed
		lock, err := a.Root.LockMachine()
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	return a.serve(ctx, n)
}

// Join says hello once, so that a refusal can be shown to who asked, and keeps
// the identity given for Run. It answers the id of the node.
func (a *Agent) Join(ctx context.Context) (string, error) {
	file, err := openLedger(a.StateDir)
	if err != nil {
		return "", err
	}
	defer file.close()
	n, err := a.open(file)
	if err != nil {
		return "", err
	}
	defer n.link.close()
	n.see(a.look(ctx, n.book.GPUs))
	if err := n.join(ctx); err != nil {
		return "", err
	}
	return n.book.NodeID, file.write(n.book)
}

// open makes the node that the ledger remembers.
func (a *Agent) open(file *ledgerFile) (*node, error) {
	book, damage := file.read()
	if damage != nil {
		a.Log.Error("the state directory was damaged; going on with what can be read", "err", damage)
	}
	server := cmp.Or(a.Server, book.Server)
	if server == "" {
		return nil, errors.New("no server is given, and the state directory knows of none: join one first")
	}
	l, err := dial(server, a.TLS, 0)
	if err != nil {
		return nil, err
	}
	book.Server = server
	limit := maxRetryFar
	if l.local {
		limit = maxRetryLocal
	}
	n := newNode(l, a.Log, book, limit)
	n.file = file
	n.poolID, n.joinToken, n.localHost, n.manageHost = a.PoolID, a.JoinToken, a.Local, a.ManageHost
	a.canReboot(n)
	if _, recorded := a.GPUs.(RecordedGPUs); !recorded {
		n.telemetry = newTelemetry(a.GPUs, a.Root, a.Log)
	}
	switch {
	case !a.ManageHost:
		n.unwalled = leftAlone
	case !a.Root.Real():
		n.unwalled = "this is a recorded machine, where nothing runs"
	default:
		n.walls = newWalls(a.Root, host.OpenLedger(a.StateDir), a.Log)
	}
	return n, nil
}

func (a *Agent) serve(ctx context.Context, n *node) error {
	ctx, cancel := context.WithCancel(ctx)
	loop := &loop{
		agent: a, node: n,
		looks:     make(chan sighting, 1),
		polls:     make(chan pollResult, 1),
		results:   make(chan unitNews, newsAtOnce),
		planned:   make(chan struct{}, 1),
		units:     a.runner(),
		pollRetry: backoff{limit: n.retry.limit},
	}
	loop.units.Tell = func(s wire.UnitStatus) { loop.results <- unitNews{one: s} }
	defer loop.working.Wait()
	defer cancel()
	if n.walls == nil {
		a.Log.Info("reservations are booked and not walled in on this machine", "why", n.unwalled)
	}
	return loop.run(ctx)
}

// loop waits for what happens to a node. The node is its alone; looks and long
// polls run beside it, one of each at a time, and hand in what they found.
type loop struct {
	agent *Agent
	node  *node

	looking bool
	lookAt  time.Time
	looked  time.Time // when the last look began
	looks   chan sighting

	units     *unit.Runner
	applying  bool
	applyAt   time.Time
	applied   time.Time // when units were last compared with the machine
	appliedTo int64     // the generation that they were compared with
	results   chan unitNews

	planning bool // for whoever asked; see startPlan
	planned  chan struct{}

	working   sync.WaitGroup // of the poll, the walls, the units and the plan
	pollFor   int            // the session that a poll is running for, 0: none is
	stopPoll  context.CancelFunc
	pollAt    time.Time
	pollRetry backoff
	polls     chan pollResult
}

// pollResult is what one long poll brought.
type pollResult struct {
	session int
	raw     json.RawMessage // nil: nothing new
	err     error
}

func (l *loop) run(ctx context.Context) error {
	defer l.agent.notify("STOPPING=1")
	xids := l.agent.GPUs.Events(ctx)
	changes := l.agent.uevents(ctx)
	var walled <-chan struct{} // nil of a machine that is not changed
	if w := l.node.walls; w != nil {
		walled = w.changed
		l.working.Go(func() { w.run(ctx) })
	}
	var exported <-chan struct{} // nil of a machine that measures nothing
	if t := l.node.telemetry; t != nil {
		exported = t.changed
		l.working.Go(func() { t.run(ctx) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.agent.notify("WATCHDOG=1")
		l.startLook(ctx)
		wait := idle
		if l.node.hash != "" { // the machine has been seen
			wait = min(wait, l.node.step(ctx))
			l.startPoll(ctx)
			wait = min(wait, l.startUnits(ctx))
			wait = min(wait, l.node.rebootIfDue(ctx))
			if l.pollFor == 0 && l.node.joined {
				wait = min(wait, time.Until(l.pollAt))
			}
		}
		if !l.looking {
			wait = min(wait, time.Until(l.lookAt))
		}
		timer.Reset(max(wait, 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case s := <-l.looks:
			l.looking = false
			first := l.node.hash == ""
			l.node.see(s)
			if first {
				l.agent.notify("READY=1")
			}
			if s.stale {
				return ErrStaleLibrary
			}
		case p := <-l.polls:
			l.take(ctx, p)
		case <-l.planned:
			l.planning = false
		case news := <-l.results:
			l.hear(news)
		case <-walled:
			l.node.judge()
		case <-exported:
			l.node.judge()
		case x, ok := <-xids:
			if !ok {
				xids = nil
				break
			}
			if t := l.node.telemetry; t != nil {
				t.xid(x)
			}
			l.agent.Log.Warn("GPU error", "gpu", x.UUID, "xid", x.Code, "fromApplication", x.FromApplication())
			l.lookSoon()
		case _, ok := <-changes:
			if !ok {
				changes = nil
				break
			}
			l.lookSoon()
			l.applyAt = earlier(l.applyAt, l.applied.Add(applyPause))
		}
	}
	return nil
}

func (l *loop) startLook(ctx context.Context) {
	if l.looking || time.Now().Before(l.lookAt) {
		return
	}
	l.looking, l.looked = true, time.Now()
	l.lookAt = l.looked.Add(lookEvery)
	known := l.node.book.GPUs
	go func() { l.looks <- l.agent.look(ctx, known) }()
}

// lookSoon brings the next look forward, so that events in a burst have one.
func (l *loop) lookSoon() {
	if at := l.looked.Add(lookPause); at.Before(l.lookAt) {
		l.lookAt = at
	}
}

func (l *loop) startPoll(ctx context.Context) {
	if l.pollFor != 0 && (l.pollFor != l.node.session || !l.node.joined) {
		l.stopPoll() // it asks for a node that this machine no longer is
	}
	if l.pollFor != 0 || !l.node.joined || time.Now().Before(l.pollAt) {
		return
	}
	ctx, l.stopPoll = context.WithCancel(ctx)
	l.pollFor = l.node.session
	session, book, after := l.pollFor, l.node.book, l.node.spec.Generation
	l.working.Go(func() {
		raw, err := l.node.link.spec(ctx, book.Credential, book.NodeID, after, longPoll)
		l.polls <- pollResult{session, raw, err}
	})
}

func (l *loop) take(ctx context.Context, p pollResult) {
	l.pollFor = 0
	l.stopPoll()
	if p.session != l.node.session {
		l.pollAt = time.Now()
		return
	}
	var asked wire.Asked
	if p.err == nil && json.Unmarshal(p.raw, &asked) == nil && asked.Plan != nil {
		l.startPlan(ctx, *asked.Plan)
		p.raw = nil
	}
	if p.err == nil && p.raw != nil {
		l.node.retry.reset() // whatever failed before, the server is there
		p.err = l.node.take(p.raw)
	}
	if p.err == nil {
		l.pollRetry.reset()
		l.pollAt = time.Now()
		return
	}
	l.pollAt = time.Now().Add(l.pollRetry.next())
	l.node.hurry() // the heartbeat finds out what is wrong, and says so
}

func (a *Agent) notify(state string) {
	if a.Notify != nil {
		a.Notify(state)
	}
}
