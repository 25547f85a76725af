package agent

import (
	"container/heap"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/inventory"
	"github.com/bettercompute/bc/agent/wire"
)

// Fleet runs many nodes over one recorded machine, in one process: the same
// node as an [Agent] has, with an identity of its own for each, nothing on
// disk, and one HTTP transport for all. Instead of long polls, which would hold
// a connection each, its nodes fetch a NodeSpec when a heartbeat's answer speaks
// of a newer one. Fill in its fields, then Run it.
type Fleet struct {
	Server    string // as in Agent
	TLS       *tls.Config
	PoolID    string
	JoinToken string

	Nodes   int
	Machine wire.Inventory // of the recorded machine
	// Group sets the identities of one fleet apart from those of another. The
	// same group is the same machines again.
	Group string

	Log *slog.Logger

	mu      sync.Mutex
	joined  int
	failing int             // nodes that wait to try again
	said    map[string]bool // states that the log has
}

// fleetFacts are those of every node of a fleet. There is nothing on one that a
// plan could be compared with.
var fleetFacts = &wire.AgentFacts{}

// fleetConns is how many requests of a fleet run at once.
const fleetConns = 64

// Joined answers how many nodes are joined now.
func (f *Fleet) Joined() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.joined
}

// Run serves the nodes until ctx ends. The error is of the fields.
func (f *Fleet) Run(ctx context.Context) error {
	if f.Machine.Recorded == "" {
		return errors.New("a fleet runs over a recorded machine only")
	}
	l, err := dial(f.Server, f.TLS, fleetConns)
	if err != nil {
		return err
	}
	defer l.close()

	f.said = make(map[string]bool)
	due := make(dueNodes, 0, f.Nodes)
	for i := range f.Nodes {
		due = append(due, f.node(l, i))
	}
	f.serve(ctx, due)
	return nil
}

func (f *Fleet) node(l *link, i int) *node {
	n := newNode(l, slog.New(slog.DiscardHandler), ledger{}, maxRetryFar)
	n.poolID, n.joinToken = f.PoolID, f.JoinToken
	n.unwalled, n.bare = "this is a simulated machine, where nothing runs", true
	n.facts, n.reboots.restart = fleetFacts, n.seemToReboot
	inv := inventory.Personalise(f.Machine, f.Group, i)
	n.see(sighting{inventory: inv, readings: gpu.Readings{Library: inv.GPULibrary, GPUs: recordedReadings(inv.GPUs)}})
	return n
}

// serve gives the nodes, as they become due, to a few workers.
func (f *Fleet) serve(ctx context.Context, due dueNodes) {
	heap.Init(&due)
	work, done := make(chan *node), make(chan *node)
	var workers sync.WaitGroup
	for range min(fleetConns, f.Nodes) {
		workers.Go(func() {
			for n := range work {
				f.step(ctx, n)
				done <- n
			}
		})
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	busy := 0
	for ctx.Err() == nil {
		var out chan *node // nil while nothing is due
		var next *node
		timer.Stop()
		if len(due) > 0 {
			next = due[0]
			if wait := time.Until(next.due); wait > 0 {
				timer.Reset(wait)
			} else {
				out = work
			}
		}
		select {
		case <-ctx.Done():
		case out <- next:
			heap.Pop(&due)
			busy++
		case n := <-done:
			busy--
			heap.Push(&due, n)
		case <-timer.C:
		}
	}
	close(work)
	for ; busy > 0; busy-- {
		<-done
	}
	workers.Wait()
}

// step does a node's step and keeps account of it. Of what nodes say, the log
// gets each thing once until all are in contact again: ten thousand tell the
// same at the same moment.
func (f *Fleet) step(ctx context.Context, n *node) {
	wasJoined, wasFailing := n.joined, n.retry.tries > 0
	n.step(ctx)
	n.rebootIfDue(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joined += one(n.joined) - one(wasJoined)
	f.failing += one(n.retry.tries > 0) - one(wasFailing)
	if n.retry.tries > 0 && !f.said[n.saying] {
		f.said[n.saying] = true
		f.Log.Warn("a node of the fleet has no contact", "state", n.saying)
	}
	if f.joined == f.Nodes && f.failing == 0 && (!wasJoined || wasFailing) {
		clear(f.said)
		f.Log.Info("every node of the fleet is joined", "nodes", f.Nodes)
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// dueNodes is a heap of nodes by when they are due.
type dueNodes []*node

func (d dueNodes) Len() int           { return len(d) }
func (d dueNodes) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueNodes) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dueNodes) Push(n any)        { *d = append(*d, n.(*node)) }
func (d *dueNodes) Pop() any {
	last := len(*d) - 1
	n := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return n
}
