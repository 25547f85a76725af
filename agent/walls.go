package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/unit"
	"github.com/bettercompute/bc/agent/wire"
)

// walls raises a wall for each binding and takes it down when the binding is no
// longer wanted. It works beside the node, in a goroutine of its own, since
// systemd and the end of other people's programs can take long.
//
// What it knows of a wall lies in a file below recordDir from before the wall is
// raised until nothing of it is left. The files live as long as the slices: until
// the next boot.
type walls struct {
	machine *host.Machine
	slices  *host.Slices
	ledger  *host.Ledger // where the fence is noted
	fenced  fenceTry
	log     *slog.Logger
	grace   time.Duration // between SIGTERM and SIGKILL

	poke    chan struct{} // something else is wanted
	changed chan struct{} // the report is another one

	mu     sync.Mutex
	known  bool // what is wanted is known
	asked  int  // how often something else was wanted
	wanted []wire.Binding
	gpus   []wire.GPU
	mps    bool // slots are to be served by MPS daemons
	report wallReport
}

// wallReport is how far the walls have come.
type wallReport struct {
	asked   int    // what it answers, 0: the walls could not all be looked at
	current bool   // nothing else is wanted since
	refusal string // why there are none on this machine
	states  map[string]wallState
}

// wallState is how far the wall of one reservation has come. A reservation
// without one has to wait.
type wallState struct {
	failed string // why the wall is not up
	lacks  string // what of it this machine does not enforce
	note   string
	ending bool
	since  time.Time     // of the ending
	held   string        // what keeps it from ending
	by     []wire.Holder // who it is
}

const (
	recordDir = "/run/better-compute/walls"
	// stopGrace is how long the programs of a released reservation have between
	// SIGTERM and SIGKILL.
	stopGrace = 20 * time.Second

	wallsEvery  = 30 * time.Second // how often the walls are looked at
	wallsRetry  = 5 * time.Second  // when one could not be raised
	wallsEnding = 200 * time.Millisecond
	wallsHeld   = 2 * time.Second // every process of the machine is looked at

	// ownSlices are those of reservations, whose ids begin so.
	ownSlices = "bc-res_*.slice"
)

func newWalls(root *host.Root, ledger *host.Ledger, log *slog.Logger) *walls {
	return &walls{
		machine: host.NewMachine(root), slices: &host.Slices{}, ledger: ledger, log: log, grace: stopGrace,
		poke: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
}

// want says which bindings are to be walled in, on the GPUs that there are.
func (w *walls) want(bindings []wire.Binding, gpus []wire.GPU) {
	w.mu.Lock()
	same := w.known && reflect.DeepEqual(bindings, w.wanted) && reflect.DeepEqual(gpus, w.gpus)
	if !same {
		w.asked++
	}
	w.known, w.wanted, w.gpus = true, slices.Clone(bindings), slices.Clone(gpus)
	w.mu.Unlock()
	if !same {
		signal(w.poke)
	}
}

// serve says whether slots are served by MPS daemons.
func (w *walls) serve(mps bool) {
	w.mu.Lock()
	same := w.mps == mps
	if !same {
		w.asked++
	}
	w.mps = mps
	w.mu.Unlock()
	if !same {
		signal(w.poke)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *walls) state() wallReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	report := w.report
	report.current = report.asked == w.asked
	return report
}

// run keeps the walls until ctx ends. They stay up then.
func (w *walls) run(ctx context.Context) {
	defer w.slices.Close()
	timer := time.NewTimer(wallsEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poke:
		case <-timer.C:
		}
		timer.Reset(w.round(ctx))
	}
}

// round brings every wall as far as it can come now. It answers when to look again.
func (w *walls) round(ctx context.Context) time.Duration {
	w.mu.Lock()
	known, asked, wanted, gpus := w.known, w.asked, w.wanted, w.gpus
	w.mu.Unlock()
	if !known {
		return wallsEvery
	}
	next := wallReport{asked: asked, refusal: w.slices.Refusal(), states: map[string]wallState{}}
	if next.refusal == "" {
		if err := w.endOthers(ctx, wanted, next.states); err != nil {
			w.log.Error("walls of reservations that are over may still be up", "err", err)
			next.asked = 0
		}
		w.raiseAll(ctx, wanted, gpus, next.states)
		w.noteFence(next.states, w.fence(ctx))
	}
	if ctx.Err() != nil {
		return wallsEvery // what was cut short is no finding
	}
	w.tell(next)
	again := wallsEvery
	for _, s := range next.states {
		if s.failed != "" {
			again = min(again, wallsRetry)
		}
		switch {
		case s.ending && s.held == "":
			again = min(again, wallsEnding)
		case s.ending:
			again = min(again, wallsHeld)
		}
	}
	return again
}

func (w *walls) tell(next wallReport) {
	w.mu.Lock()
	before := w.report
	w.report = next
	w.mu.Unlock()
	if next.refusal != "" && next.refusal != before.refusal {
		w.log.Warn("reservations are booked and not walled in on this machine", "why", next.refusal)
	}
	for id, s := range next.states {
		if b, was := before.states[id]; !was || b.String() != s.String() {
			w.log.Info("wall", "reservation", id, "state", s.String())
		}
	}
	if !reflect.DeepEqual(before, next) {
		signal(w.changed)
	}
}

func (s wallState) String() string {
	switch {
	case s.failed != "":
		return "failed: " + s.failed
	case s.ending && s.held != "":
		return "ending: " + s.held
	case s.ending:
		return "ending"
	case s.lacks != "":
		return "up, but " + s.lacks
	}
	return "up"
}

func (w *walls) raiseAll(ctx context.Context, wanted []wire.Binding, gpus []wire.GPU, states map[string]wallState) {
	minors, _ := w.machine.String(migMinorsFile) // without it an instance's nodes cannot be told
	taken := w.stillTaken(states)
	for _, b := range wanted {
		states[b.ReservationID] = w.raiseOne(ctx, b, gpus, minors, taken)
	}
}

func (w *walls) raiseOne(ctx context.Context, b wire.Binding, gpus []wire.GPU, minors string, taken map[string]string) wallState {
	made, err := w.wallFor(b, gpus, minors)
	for _, atom := range made.Atoms {
		if why := taken[atom]; why != "" && err == nil {
			err = fmt.Errorf("%s is not free yet: %s", atom, why)
		}
	}
	var lacks []string
	if err == nil {
		lacks, err = w.raise(ctx, made)
	}
	if err != nil {
		return wallState{failed: err.Error()}
	}
	return wallState{lacks: strings.Join(lacks, "; "), note: made.Note}
}

// wallFor is the wall of a binding on this machine as it is. A GPU that an MPS
// daemon serves is closed to all but its clients. One that is to have a daemon and
// has none yet keeps a new wall waiting, while an older one stays as it was.
func (w *walls) wallFor(b wire.Binding, gpus []wire.GPU, minors string) (wall, error) {
	w.mu.Lock()
	wanted := w.mps
	w.mu.Unlock()
	before, there := w.record(b.ReservationID)
	there = there && before.EndingSince.IsZero()
	var waits, stopped string
	made, err := wallOf(b, gpus, minors, func(uuid string) bool {
		switch was := slices.Contains(before.MPS, uuid); {
		case w.machine.Exists(unit.MPSPipes(uuid) + "/control"):
			return true
		case there:
			if was {
				stopped = uuid
			}
			return was
		case wanted:
			waits = uuid
		}
		return wanted
	})
	if err == nil && waits != "" {
		err = fmt.Errorf("the MPS daemon of %s is not up yet; systemctl status 'bc-mps@%s.service' says how it is", waits, waits)
	}
	if stopped != "" {
		made.Note = join(made.Note, "the MPS daemon of "+stopped+" does not run")
	}
	return made, err
}

func join(a, b string) string { return strings.Trim(a+"; "+b, "; ") }

// noteFence says of the bindings with CPUs why the host's own work is not kept off
// them.
func (w *walls) noteFence(states map[string]wallState, why string) {
	if why == "" {
		return
	}
	for id, s := range states {
		if r, found := w.record(id); found && r.Slice.CPUs != "" && s.failed == "" && !s.ending {
			s.note = join(s.note, why)
			states[id] = s
		}
	}
}

// stillTaken says of each atom of a wall that is coming down who has it.
func (w *walls) stillTaken(states map[string]wallState) map[string]string {
	taken := map[string]string{}
	for id, s := range states {
		if r, found := w.record(id); found && s.ending {
			for _, atom := range r.Atoms {
				taken[atom] = "reservation " + id + " is ending: " + cmp.Or(s.held, "its programs are being stopped")
			}
		}
	}
	return taken
}

// raise puts one wall up, or finds it so.
func (w *walls) raise(ctx context.Context, made wall) (lacks []string, err error) {
	for _, n := range made.Nodes {
		if err := w.makeNode(ctx, n); err != nil {
			return nil, err
		}
	}
	if err := w.keep(record{wall: made}); err != nil {
		return nil, err
	}
	if lacks, err = w.slices.Raise(ctx, made.Slice); err != nil {
		return nil, err
	}
	return lacks, w.replace(cdiFile(made.Reservation), made.cdi())
}

// makeNode makes a node that is missing. The module of managed memory is loaded
// when a first CUDA program starts, which here is not allowed to load modules.
func (w *walls) makeNode(ctx context.Context, n host.Node) error {
	err := host.MakeNode(n)
	if err == nil || !slices.Equal(n.Drivers, uvmDriver) {
		return err
	}
	if loadErr := w.machine.Run(ctx, "modprobe", "nvidia-uvm"); loadErr != nil {
		return fmt.Errorf("%w; %w", err, loadErr)
	}
	return host.MakeNode(n)
}

// endOthers takes down the walls of reservations that are no longer wanted.
func (w *walls) endOthers(ctx context.Context, wanted []wire.Binding, states map[string]wallState) error {
	live, err := w.slices.List(ctx, ownSlices)
	if err != nil {
		return err
	}
	ids := w.recorded()
	for _, name := range live {
		if id := reservationOf(name); id != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if slices.ContainsFunc(wanted, func(b wire.Binding) bool { return b.ReservationID == id }) {
			continue
		}
		state, gone, err := w.end(ctx, id, slices.Contains(live, sliceName(id)))
		if err != nil {
			state.held = err.Error()
		}
		if !gone || err != nil {
			r, _ := w.record(id)
			state.ending, state.since = true, r.EndingSince
			states[id] = state
		}
	}
	return nil
}

// end goes one step in taking a wall down: nothing more can be started behind
// it, its programs are asked to end and then killed, and it is gone when none is
// left and nobody holds its devices. It answers what keeps it, and who.
func (w *walls) end(ctx context.Context, id string, live bool) (s wallState, gone bool, err error) {
	r, _ := w.record(id)
	now := time.Now()
	if r.EndingSince.IsZero() {
		if err := w.machine.RemoveFile(cdiFile(id)); err != nil {
			return s, false, err
		}
		r.Reservation, r.Slice.Name, r.EndingSince = id, sliceName(id), now.UTC().Truncate(time.Millisecond)
		if err := w.keep(r); err != nil {
			return s, false, err
		}
	}
	if live {
		if err := w.slices.Stop(ctx, r.Slice.Name); err != nil {
			return s, false, err
		}
	}
	populated, err := w.slices.Populated(r.Slice.Name)
	if err != nil {
		return s, false, err
	}
	if populated {
		if now.Sub(r.EndingSince) < w.grace {
			return s, false, nil
		}
		s.by, _ = told(w.slices.Processes(r.Slice.Name, maxHolders))
		s.held = "its programs do not end, although they were killed"
		return s, false, w.slices.Kill(r.Slice.Name)
	}
	holders, err := w.heldBy(ctx, &r.wall)
	if err != nil || len(holders) > 0 {
		s.by, s.held = told(holders)
		return s, false, err
	}
	if live {
		return s, false, nil // systemd has still to take note of its end
	}
	if err := w.slices.Forget(r.Slice.Name); err != nil {
		return s, false, err
	}
	if err := w.machine.RemoveFile(recordFile(id)); err != nil {
		return s, false, err
	}
	w.log.Info("wall", "reservation", id, "state", "gone")
	return s, true, nil
}

// maxHolders bounds how many holders a report names.
const maxHolders = 3

// heldBy lists the processes outside that hold the wall's devices. Whose work is
// run by a cluster or a hypervisor is ended by that.
func (w *walls) heldBy(ctx context.Context, wl *wall) ([]host.Holder, error) {
	if !wl.here() {
		return nil, nil
	}
	holders, err := host.Holders(ctx, wl.exclusiveNodes())
	return slices.DeleteFunc(holders, func(h host.Holder) bool { return !wl.outsider(h, os.Getpid()) }), err
}

// told are holders as a report has them, and in words.
func told(holders []host.Holder) (list []wire.Holder, words string) {
	var names []string
	for _, h := range holders[:min(len(holders), maxHolders)] {
		list = append(list, wire.Holder{PID: h.PID, Command: h.Command, User: h.User, Device: h.Path})
		names = append(names, h.String())
	}
	if more := len(holders) - len(list); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return list, strings.Join(names, ", ")
}

// record is what is known of a wall over restarts of the agent.
type record struct {
	wall
	EndingSince time.Time `json:"endingSince,omitzero"`
}

func recordFile(id string) string { return recordDir + "/" + id + ".json" }

func (w *walls) record(id string) (r record, found bool) {
	text, err := w.machine.ReadFile(recordFile(id))
	if err != nil {
		return record{}, false
	}
	if err := json.Unmarshal(text, &r); err != nil {
		w.log.Error("the record of a wall cannot be read", "reservation", id, "err", err)
		return record{}, false
	}
	return r, true
}

func (w *walls) recorded() (ids []string) {
	names, _ := w.machine.ReadDir(recordDir) // none yet
	for _, name := range names {
		if id, ok := strings.CutSuffix(path.Base(name), ".json"); ok && legalID().MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (w *walls) keep(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return w.replace(recordFile(r.Reservation), append(text, '\n'))
}

// replace writes a file as a whole, if it is another one than is there.
func (w *walls) replace(name string, text []byte) error {
	if there, err := w.machine.ReadFile(name); err == nil && bytes.Equal(there, text) {
		return nil
	}
	return w.machine.WriteFile(name, text)
}
