package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/appliance/api"
	"github.com/bettercompute/bc/appliance/control"
	"github.com/bettercompute/bc/appliance/iam"
	"github.com/bettercompute/bc/appliance/reconcile"
	"github.com/bettercompute/bc/appliance/store"
)

// Where an installed appliance keeps things.
const (
	configFile    = "/etc/better-compute/appliance.toml"
	stateDir      = "/var/lib/better-compute/server" // the agent, which is root, keeps its own beside it
	runtimeSocket = "/run/better-compute/api.sock"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name: "serve", Usage: "run the control plane", Category: "run",
		Description: "Runs until SIGTERM. Everything it keeps is in the state directory; a second server on the\n" +
			"same one is refused.\n\n" +
			"Examples:\n   bc serve --state-dir /tmp/bc\n   bc serve --state-dir /tmp/bc --listen 127.0.0.1:9443 --config appliance.toml",
		Flags:  serverFlags(),
		Action: func(c *cli.Context) error { return serve(c) },
	}
}

func serverFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "state-dir", Usage: "`DIR` for everything that is kept", EnvVars: []string{"BC_STATE_DIR"}},
		&cli.StringFlag{Name: "config", Usage: "configuration `FILE` (default: " + configFile + ", if it is there)", EnvVars: []string{"BC_CONFIG"}},
		&cli.StringFlag{Name: "listen", Usage: "`HOST:PORT` of the TLS listener, or none (default: 127.0.0.1:8443)"},
		&cli.StringFlag{Name: "socket", Usage: "`PATH` of the Unix socket (default: api.sock in the state directory)"},
	}
}

func serve(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	cfg, err := serverConfig(c)
	if err != nil {
		return err
	}
	s, err := openServer(c.Context, cfg)
	if err != nil {
		return err
	}
	for _, l := range s.listeners {
		fmt.Println("listening on", l)
	}
	return s.run(c.Context)
}

// serverConfig is the configuration file under the flags.
func serverConfig(c *cli.Context) (config, error) {
	path, named := configFile, c.IsSet("config")
	if named {
		path = c.String("config")
	}
	cfg, err := readConfig(path, named)
	if err != nil {
		return cfg, err
	}
	if c.IsSet("listen") {
		cfg.Server.Listen = c.String("listen")
	}
	cfg.stateDir = c.String("state-dir")
	if cfg.stateDir == "" {
		cfg.stateDir = ownStateDir(os.Getuid() == 0 && installed())
	}
	if cfg.Server.Socket == "" || c.IsSet("state-dir") {
		cfg.Server.Socket = filepath.Join(cfg.stateDir, "api.sock")
	}
	if c.IsSet("socket") {
		cfg.Server.Socket = c.String("socket")
	}
	if cfg.Store.Path == "" {
		cfg.Store.Path = filepath.Join(cfg.stateDir, "state.db")
	}
	return cfg, cfg.validate()
}

// installed tells whether this program runs from a package, not a checkout.
func installed() bool {
	exe, err := os.Executable()
	return err == nil && filepath.Dir(exe) == "/usr/bin"
}

// ownStateDir is the system's for an installed program run by root, else the
// user's own.
func ownStateDir(system bool) string {
	if system {
		return stateDir
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "better-compute")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "better-compute")
	}
	return stateDir
}

// server is a control plane that is open and not yet serving.
type server struct {
	cfg       config
	log       *slog.Logger
	store     *store.Store
	control   *control.Control
	api       *api.Server
	certs     *api.Certificates
	listeners []*api.Listener
}

// openServer opens the state, checks it, and takes the listeners. What fails
// leaves nothing behind but the state directory.
func openServer(ctx context.Context, cfg config) (*server, error) {
	s := &server{cfg: cfg, log: cfg.logger()}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) open(ctx context.Context) (err error) {
	cfg := s.cfg
	if err := makeStateDir(cfg.stateDir); err != nil {
		return err
	}
	if s.store, err = store.Open(ctx, store.Options{Path: cfg.Store.Path, Synchronous: strings.ToUpper(cfg.Store.Synchronous)}); err != nil {
		return err
	}
	s.control = &control.Control{Store: s.store, IAM: iam.New(), Settings: cfg.settings(), Log: s.log, Version: version}
	if err := s.control.Start(ctx); err != nil {
		return err
	}
	s.api = &api.Server{Version: version, Log: s.log}
	api.Register(s.api, s.control)
	unix, err := api.ListenUnix(cfg.Server.Socket)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, unix)
	if cfg.Server.Listen == "none" {
		return nil
	}
	if s.certs, err = api.OpenCertificates(cfg.stateDir, api.CertificateOptions{CertFile: cfg.Server.TLSCert, KeyFile: cfg.Server.TLSKey, Log: s.log}); err != nil {
		return err
	}
	tls, err := api.ListenTLS(cfg.Server.Listen, s.certs)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, tls)
	return nil
}

// makeStateDir makes the folder for everything that is kept, for its owner
// alone but for the socket in it, which everyone may knock at.
func makeStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the state directory: %w; choose another with --state-dir", err)
	}
	probe, err := os.CreateTemp(dir, ".writable-")
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("the state directory %s cannot be written by uid %d; choose another with --state-dir or change its owner: %w", dir, os.Getuid(), err)
		}
		return fmt.Errorf("the state directory %s cannot be written: %w", dir, err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// closeGrace bounds the end: the listeners take up to 4 s of the 5.
const closeGrace = time.Second

// restAfter is when a server gives back the memory that its start took and does
// not keep: the loops have run once by then, and nobody waits for the start.
const restAfter = 2 * time.Second

// run serves until the context ends, and closes everything.
func (s *server) run(ctx context.Context) error {
	loops, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reconcile.Run(loops, s.log, reconcile.Tasks(s.control, time.Duration(s.cfg.Reconcile.Interval), time.Duration(s.cfg.Reconcile.PendingRetry)))
	}()
	defer context.AfterFunc(ctx, func() { host.Notify("STOPPING=1") })()
	defer time.AfterFunc(restAfter, debug.FreeOSMemory).Stop()
	host.Notify("READY=1") // the listeners are open: who comes before Serve waits
	err := s.api.Serve(ctx, s.listeners...)
	stop()
	<-done
	s.listeners = nil
	return errors.Join(err, s.close())
}

func (s *server) close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	if s.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		errs = append(errs, s.store.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// noArguments refuses words that no command takes.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return usagef("%s takes no arguments, and %q is one; see %s --help", c.Command.HelpName, c.Args().First(), c.Command.HelpName)
	}
	return nil
}
