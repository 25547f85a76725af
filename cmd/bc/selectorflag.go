package main

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/appliance"
)

// parseSelector reads the words of --selector: KEY=VALUE, KEY=A|B for one of
// several values, and KEY=MIN..MAX for a number in a range, of which one end
// may be left out.
func parseSelector(words []string) (appliance.Selector, error) {
	given, err := pairs("selector", words)
	if err != nil || given == nil {
		return nil, err
	}
	out := appliance.Selector{}
	for k, v := range given {
		m, err := parseMatch(v)
		if err != nil {
			return nil, usagef("--selector: %s: %w", k, err)
		}
		out[k] = m
	}
	if err := out.Validate(); err != nil {
		return nil, usagef("--selector: %s", sentence(err))
	}
	return out, nil
}

func parseMatch(v string) (appliance.Match, error) {
	if strings.Contains(v, "|") {
		return appliance.Match{In: strings.Split(v, "|")}, nil
	}
	low, high, ranged := strings.Cut(v, "..")
	if !ranged {
		return appliance.Match{Equals: v}, nil
	}
	var m appliance.Match
	for _, end := range []struct {
		text string
		into **float64
	}{{low, &m.Min}, {high, &m.Max}} {
		if end.text == "" {
			continue
		}
		n, err := strconv.ParseFloat(end.text, 64)
		if err != nil {
			return m, usagef("%q is not a range of numbers such as 40..80, 40.. or ..80", v)
		}
		*end.into = &n
	}
	if m.Min == nil && m.Max == nil {
		return m, usagef("the range %q has no end", v)
	}
	return m, nil
}

// selectorText writes a selector as --selector takes it.
func selectorText(s appliance.Selector) string {
	var out []string
	for _, k := range sortedKeys(s) {
		m := s[k]
		v := m.Equals
		switch {
		case m.In != nil:
			v = strings.Join(m.In, "|")
		case m.Min != nil || m.Max != nil:
			v = number(m.Min) + ".." + number(m.Max)
		}
		out = append(out, k+"="+v)
	}
	return strings.Join(out, " ")
}

func number(n *float64) string {
	if n == nil {
		return ""
	}
	b, err := json.Marshal(*n)
	if err != nil {
		return ""
	}
	return string(b)
}
