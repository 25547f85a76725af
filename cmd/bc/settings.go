package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"github.com/urfave/cli/v2"
)

// settings are how a person wants to use the command line: the file
// config.toml under the environment and the flags.
type settings struct {
	Server string `toml:"server"`
	Token  string `toml:"token"`
	CA     string `toml:"ca"`
	Tenant string `toml:"tenant"`
	Output string `toml:"output"`
}

// settingsFile is where they are kept: ~/.config/better-compute/config.toml,
// or below XDG_CONFIG_HOME; empty without a home.
func settingsFile() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "better-compute", "config.toml")
}

// readSettings gives each setting from its flag, else from its variable, else
// from the file.
func readSettings(c *cli.Context) (settings, error) {
	var s settings
	if path := settingsFile(); path != "" {
		if err := readTOML(path, &s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		if s.CA != "" && !filepath.IsAbs(s.CA) {
			s.CA = filepath.Join(filepath.Dir(path), s.CA)
		}
	}
	for name, v := range map[string]*string{"server": &s.Server, "token": &s.Token, "ca": &s.CA, "tenant": &s.Tenant, "output": &s.Output} {
		if given := c.String(name); given != "" {
			*v = given
		}
	}
	return s, nil
}

// readTOML reads a file into a struct and refuses keys that the struct lacks,
// naming file, line and key: a mistyped key would otherwise change nothing in
// silence.
func readTOML(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return parseTOML(path, string(text), into, nil)
}

// parseTOML is readTOML of a text. What stands below a key for which free
// answers true may have any keys.
func parseTOML(path, text string, into any, free func(toml.Key) bool) error {
	md, err := toml.Decode(text, into)
	if err != nil {
		var bad toml.ParseError
		if errors.As(err, &bad) {
			return fmt.Errorf("%s:%d: %s: %s", path, bad.Position.Line, orFile(bad.LastKey), bad.Message)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range md.Undecoded() {
		if free == nil || !free(key) {
			return fmt.Errorf("%s:%d: %s: unknown key", path, lineOf(text, key), key)
		}
	}
	return nil
}
