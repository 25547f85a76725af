package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/bettercompute/bc/agent/wire"
	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/control"
)

// config is the configuration file. Every key is optional.
type config struct {
	stateDir string // by flag alone

	Server struct {
		Listen  string `toml:"listen"` // HOST:PORT of the TLS listener; "none" for none
		Socket  string `toml:"socket"`
		TLSCert string `toml:"tls_cert"`
		TLSKey  string `toml:"tls_key"`
	} `toml:"server"`
	Bootstrap struct {
		Tenant   string `toml:"tenant"`
		Site     string `toml:"site"`
		Region   string `toml:"region"`
		AutoPool bool   `toml:"auto_pool"`
	} `toml:"bootstrap"`
	Reconcile struct {
		Interval         span `toml:"interval"`
		PendingRetry     span `toml:"pending_retry"`
		Heartbeat        span `toml:"heartbeat"`
		UnreachableAfter span `toml:"unreachable_after"`
	} `toml:"reconcile"`
	Store struct {
		Path        string `toml:"path"`
		Synchronous string `toml:"synchronous"`
	} `toml:"store"`
	Events struct {
		Keep span `toml:"keep"`
	} `toml:"events"`
	Log struct {
		Level  slog.Level `toml:"level"`
		Format string     `toml:"format"`
	} `toml:"log"`
	GPU struct {
		Aliases map[string]string `toml:"aliases"`
	} `toml:"gpu"`
	Telemetry struct {
		OTLPEndpoint       string            `toml:"otlp_endpoint"` // empty: off, unless a policy has one
		Interval           span              `toml:"interval"`
		HeadersRef         string            `toml:"headers_ref"`
		ResourceAttributes map[string]string `toml:"resource_attributes"`
	} `toml:"telemetry"`
}

// span is a duration in the file: "30s".
type span time.Duration

// UnmarshalText reads a duration above zero.
func (s *span) UnmarshalText(b []byte) error {
	d, err := appliance.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"30s\" or \"5m\"", b)
	}
	*s = span(d)
	return nil
}

// defaultConfig is what an empty file means.
func defaultConfig() config {
	d := control.Defaults()
	var c config
	c.Server.Listen = "127.0.0.1:8443"
	c.Bootstrap.Tenant, c.Bootstrap.Site, c.Bootstrap.Region, c.Bootstrap.AutoPool = d.Tenant, d.Site, d.Region, d.AutoPool
	c.Reconcile.Interval, c.Reconcile.PendingRetry = span(30*time.Second), span(30*time.Second)
	c.Reconcile.Heartbeat, c.Reconcile.UnreachableAfter = span(d.Heartbeat), span(d.UnreachableAfter)
	c.Events.Keep = span(d.KeepEvents)
	c.Store.Synchronous, c.Log.Format = "full", "text"
	c.Telemetry.Interval, c.Telemetry.ResourceAttributes = span(time.Minute), map[string]string{}
	return c
}

// readConfig reads the file over the defaults. An absent file is an empty one
// unless it was named. A key that is not known stops the start: it is a typing
// mistake that would otherwise change nothing in silence.
func readConfig(path string, named bool) (config, error) {
	c := defaultConfig()
	if path == "" {
		return c, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := parseTOML(path, string(text), &c, nil); err != nil {
		return c, err
	}
	if err := c.validate(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func orFile(key string) string {
	if key == "" {
		return "the file"
	}
	return key
}

// lineOf finds the line of a key, 1 if it cannot be told.
func lineOf(text string, key toml.Key) int {
	table, last := "", 1
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			table = strings.Trim(line, "[] ")
			if table == key.String() {
				return i + 1
			}
			continue
		}
		name, _, found := strings.Cut(line, "=")
		name = strings.Trim(strings.TrimSpace(name), `"`)
		if found && (table+"."+name == key.String() || table == "" && name == key.String()) {
			return i + 1
		}
		if strings.Contains(line, key[len(key)-1]) {
			last = i + 1 // in an inline table, or below a table that is named otherwise
		}
	}
	return last
}

func (c config) validate() error {
	if l := c.Server.Listen; l != "none" {
		if _, _, err := net.SplitHostPort(l); err != nil {
			return fmt.Errorf("server.listen: %q is not HOST:PORT, such as 127.0.0.1:8443, or none", l)
		}
	}
	if (c.Server.TLSCert == "") != (c.Server.TLSKey == "") {
		return errors.New("server.tls_cert and server.tls_key stand together or not at all")
	}
	switch strings.ToLower(c.Store.Synchronous) {
	case "full", "extra":
	default:
		return fmt.Errorf("store.synchronous: %q is not full or extra; less would lose what was acknowledged", c.Store.Synchronous)
	}
	switch c.Log.Format {
	case "text", "json":
	default:
		return fmt.Errorf("log.format: %q is not text or json", c.Log.Format)
	}
	if !appliance.IsTenantID(c.Bootstrap.Tenant) {
		return fmt.Errorf("bootstrap.tenant: %q is not 1 to 63 of a-z, 0-9 and -, starting with a letter", c.Bootstrap.Tenant)
	}
	for key, v := range map[string]string{"site": c.Bootstrap.Site, "region": c.Bootstrap.Region} {
		if !appliance.IsLabel(v) {
			return fmt.Errorf("bootstrap.%s: %q is not 1 to 63 letters, digits, dots, underscores or hyphens", key, v)
		}
	}
	if c.Reconcile.UnreachableAfter < 2*c.Reconcile.Heartbeat {
		return errors.New("reconcile.unreachable_after must be at least twice reconcile.heartbeat, or one late heartbeat loses a node")
	}
	for name, family := range c.GPU.Aliases {
		if !wire.LegalGPUFamily(family) {
			return fmt.Errorf("gpu.aliases: %q = %q: a family is 1 to 32 letters, digits or hyphens", name, family)
		}
	}
	return c.validateTelemetry()
}

// telemetryKeys are the file's names of what the unit calls otherwise.
var telemetryKeys = map[string]string{
	"otlpEndpoint": "otlp_endpoint", "intervalSeconds": "interval", "headersRef": "headers_ref", "resourceAttributes": "resource_attributes",
}

// validateTelemetry checks what nodes would get by what they check themselves.
func (c config) validateTelemetry() error {
	t := c.Telemetry
	if time.Duration(t.Interval)%time.Second != 0 {
		return fmt.Errorf("telemetry.interval: %v is not a number of seconds", time.Duration(t.Interval))
	}
	unit := c.telemetry()
	if unit == nil {
		if t.HeadersRef != "" || len(t.ResourceAttributes) > 0 {
			return errors.New("telemetry.otlp_endpoint: is missing; without it the other keys of [telemetry] mean nothing")
		}
		return nil
	}
	var wrong *wire.UnitError
	if err := unit.Validate(); errors.As(err, &wrong) {
		key, rest, _ := strings.Cut(wrong.Field, ".")
		if rest != "" {
			rest = "." + rest
		}
		return fmt.Errorf("telemetry.%s%s: %s", telemetryKeys[key], rest, wrong.Problem)
	}
	return nil
}

// telemetry is the default of all pools, nil if there is none.
func (c config) telemetry() *wire.Telemetry {
	t := c.Telemetry
	if t.OTLPEndpoint == "" {
		return nil
	}
	return &wire.Telemetry{
		OTLPEndpoint: t.OTLPEndpoint, IntervalSeconds: int(time.Duration(t.Interval) / time.Second),
		HeadersRef: t.HeadersRef, ResourceAttributes: t.ResourceAttributes,
	}
}

// settings are the file's part of control.
func (c config) settings() control.Settings {
	return control.Settings{
		Tenant: c.Bootstrap.Tenant, Site: c.Bootstrap.Site, Region: c.Bootstrap.Region, AutoPool: c.Bootstrap.AutoPool,
		Heartbeat: time.Duration(c.Reconcile.Heartbeat), UnreachableAfter: time.Duration(c.Reconcile.UnreachableAfter),
		KeepEvents: time.Duration(c.Events.Keep), Aliases: c.GPU.Aliases, Telemetry: c.telemetry(),
	}
}

// logger writes to stderr, which the journal takes.
func (c config) logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Log.Level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
