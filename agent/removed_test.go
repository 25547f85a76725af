package agent

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/bettercompute/bc/agent/wire"
)

// A node's walls come down when the control plane says that the node was removed,
// and for nothing else: not when it is away, nor when it does not know the
// credential, as one brought back from a backup, nor when something else answers.
func TestOnlyRemovalTakesWallsDown(t *testing.T) {
	answer := func(status int, code, reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "" { // the hello of a new machine
				json.NewEncoder(w).Encode(wire.Welcome{Version: wire.Version, Reason: "no pool takes it"})
				return
			}
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"code": code, "message": "m", "reason": reason}})
		}
	}
	for _, c := range []struct {
		name   string
		server http.HandlerFunc // nil: nobody is there
		down   bool
	}{
		{"removed", answer(http.StatusNotFound, "NOT_FOUND", wire.ReasonNodeRemoved), true},
		{"the credential is not known", answer(http.StatusUnauthorized, "UNAUTHENTICATED", ""), false},
		{"another service answers", answer(http.StatusNotFound, "NOT_FOUND", ""), false},
		{"no access", answer(http.StatusForbidden, "ACCESS_DENIED", wire.ReasonNodeRemoved), false},
		{"the server is broken", answer(http.StatusInternalServerError, "INTERNAL", ""), false},
		{"nobody is there", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := socketPath(t)
			if c.server != nil {
				l, err := net.Listen("unix", socket)
				if err != nil {
					t.Fatal(err)
				}
				server := &http.Server{Handler: c.server}
				go server.Serve(l)
				t.Cleanup(func() { server.Close() })
			}
			l, err := dial("unix:"+socket, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.close()
			w := &walls{log: slog.New(slog.DiscardHandler), poke: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
			n := newNode(l, slog.New(slog.DiscardHandler), ledger{NodeID: "node_1", Credential: "bcn_1"}, maxRetryFar)
			n.walls = w
			n.spec = wire.NodeSpec{NodeID: "node_1", Generation: 3, Bindings: []wire.Binding{{ReservationID: "res_1"}}}
			n.hash = "seen"
			n.judge()
			if !w.known || len(w.wanted) != 1 {
				t.Fatalf("before: known %v, wanted %v", w.known, w.wanted)
			}
			if err := n.join(t.Context()); err == nil {
				t.Fatal("it joined")
			}
			n.judge()
			if down := len(w.wanted) == 0; down != c.down || n.book.Left != c.down {
				t.Errorf("the walls come down: %v, want %v; the node has left: %v", down, c.down, n.book.Left)
			}
			if kept := n.book.NodeID == "node_1" && n.spec.Generation == 3; kept == c.down {
				t.Errorf("it goes by %q, generation %d", n.book.NodeID, n.spec.Generation)
			}
		})
	}
}
