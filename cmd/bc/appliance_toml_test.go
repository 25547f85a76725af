package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/wire"
)

const shippedConfig = "../../packaging/appliance.toml"

func TestTheShippedConfigurationIsTheDefault(t *testing.T) {
	got, err := readConfig(shippedConfig, true)
	if err != nil {
		t.Fatal(err)
	}
	got.GPU.Aliases = nil // its table is there, empty
	if d := cmp.Diff(defaultConfig(), got, cmp.AllowUnexported(config{})); d != "" {
		t.Errorf("the file changes a default (-default +file):\n%s", d)
	}
}

// With the # before each key taken away, the file says what holds without it,
// and no key of ours is missing.
func TestTheShippedConfigurationShowsEveryKeyWithItsDefault(t *testing.T) {
	text, err := os.ReadFile(shippedConfig)
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^#(\w+ = )`).ReplaceAllString(string(text), "$1")
	path := filepath.Join(t.TempDir(), "appliance.toml")
	if err := os.WriteFile(path, []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readConfig(path, true)
	if err != nil {
		t.Fatal(err)
	}
	got.GPU.Aliases = nil
	if d := cmp.Diff(defaultConfig(), got, cmp.AllowUnexported(config{})); d != "" {
		t.Errorf("a default is shown wrongly (-default +shown):\n%s", d)
	}
	var file map[string]any
	if err := toml.Unmarshal([]byte(shown), &file); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(structKeys(reflect.TypeFor[config](), ""), mapKeys(file, "")); d != "" {
		t.Errorf("keys (-known +shown):\n%s", d)
	}
}

// structKeys names what a configuration file may set: the leaves, and tables
// with keys of the user's own.
func structKeys(t reflect.Type, prefix string) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("toml")
		switch {
		case name == "":
		case f.Type.Kind() == reflect.Struct:
			out = append(out, structKeys(f.Type, prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	slices.Sort(out)
	return out
}

func mapKeys(m map[string]any, prefix string) []string {
	var out []string
	for name, v := range m {
		if table, ok := v.(map[string]any); ok && len(table) > 0 {
			out = append(out, mapKeys(table, prefix+name+".")...)
		} else {
			out = append(out, prefix+name)
		}
	}
	slices.Sort(out)
	return out
}

// What nodes would refuse is refused at the start, by the file's own keys.
func TestTelemetryOfTheConfigurationIsCheckedAsNodesDo(t *testing.T) {
	read := func(text string) (config, error) {
		path := filepath.Join(t.TempDir(), "appliance.toml")
		if err := os.WriteFile(path, []byte("[telemetry]\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readConfig(path, true)
	}
	c, err := read("otlp_endpoint = \"https://otel.example:4318\"\ninterval = \"2m\"\nheaders_ref = \"otel\"\nresource_attributes = {site = \"x\"}\n")
	want := &wire.Telemetry{
		OTLPEndpoint: "https://otel.example:4318", IntervalSeconds: 120, HeadersRef: "otel", ResourceAttributes: map[string]string{"site": "x"},
	}
	if d := cmp.Diff(want, c.settings().Telemetry); d != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, d)
	}
	if c, err := read(""); c.settings().Telemetry != nil || err != nil {
		t.Errorf("an empty section is %+v, %v", c.settings().Telemetry, err)
	}
	const url = "otlp_endpoint = \"https://otel.example\"\n"
	for text, want := range map[string]string{
		"otlp_endpoint = \"otel.example\"":               "telemetry.otlp_endpoint: \"otel.example\" is not an http or https URL",
		url + "interval = \"4s\"":                        "telemetry.interval: 4 is not 5 to 3600",
		url + "interval = \"5500ms\"":                    "telemetry.interval: 5.5s is not a number of seconds",
		url + "headers_ref = \"a b\"":                    "telemetry.headers_ref: is not 1 to 256",
		url + "resource_attributes = {n = \"a\\u0001\"}": "telemetry.resource_attributes.n: is not at most 256",
		"headers_ref = \"a\"":                            "telemetry.otlp_endpoint: is missing",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestAWrongKeyInTheConfigurationIsNamedWithItsLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "appliance.toml")
	if err := os.WriteFile(path, []byte("[server]\n\nlisten_on = \"127.0.0.1:1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := readConfig(path, true)
	if err == nil || !strings.Contains(err.Error(), path+":3: server.listen_on: unknown key") {
		t.Errorf("got %v", err)
	}
}
