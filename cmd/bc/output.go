package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/bettercompute/bc/appliance"
)

// The formats of an answer.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatName  = "name"
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML, formatName}

// printer writes answers in the format that was asked for: the answer itself
// to out, and what is said beside it to notes, so that out can be piped.
type printer struct {
	out, notes io.Writer
	format     string
	width      int // columns that a table may take, 0 for any number
	colour     bool
	plain      bool // the terminal's locale is not UTF-8
	now        time.Time
}

func newPrinter(format string) (*printer, error) {
	if format == "" {
		format = formatTable
	}
	if !slices.Contains(formats, format) {
		return nil, usagef("--output: %q is not %s", format, either(formats))
	}
	p := &printer{out: os.Stdout, notes: os.Stderr, format: format, width: terminalWidth(os.Stdout), now: time.Now()}
	p.colour = isTerminal(os.Stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	p.plain = !utf8Locale()
	return p, nil
}

// terminalWidth is what COLUMNS says, else what the terminal has, else 0.
func terminalWidth(f *os.File) int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if n, _, err := term.GetSize(int(f.Fd())); err == nil {
		return n
	}
	return 0
}

// utf8Locale follows locale(7): the first of the three that is set decides. A
// terminal without any is taken for one of today.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToUpper(v)
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return true
}

// tabular tells whether people read the answer.
func (p *printer) tabular() bool { return p.format == formatTable || p.format == formatWide }

// note says something beside the answer.
func (p *printer) note(format string, args ...any) { fmt.Fprintf(p.notes, format+"\n", args...) }

// data writes a value as JSON or YAML, whichever was asked for.
func (p *printer) data(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	text := b.Bytes()
	if p.format == formatYAML {
		var err error
		if text, err = yaml.JSONToYAML(text); err != nil {
			return fmt.Errorf("write the answer as YAML: %w", err)
		}
	}
	_, err := p.out.Write(text)
	return err
}

// items writes a list. The table is made only if one is asked for; an empty
// list says on stderr how to go on.
func items[T any](p *printer, list []T, id func(T) string, empty string, table func([]T) *table) error {
	switch p.format {
	case formatJSON, formatYAML:
		if list == nil {
			list = []T{}
		}
		return p.data(appliance.List[T]{Items: list})
	case formatName:
		for _, it := range list {
			fmt.Fprintln(p.out, id(it))
		}
		return nil
	}
	if len(list) == 0 {
		p.note("%s", empty)
		return nil
	}
	return table(list).write(p)
}

// item writes one thing, for people as a sheet.
func item[T any](p *printer, it T, id string, write func(*sheet, T)) error {
	switch p.format {
	case formatJSON, formatYAML:
		return p.data(it)
	case formatName:
		_, err := fmt.Fprintln(p.out, id)
		return err
	}
	s := sheet{p: p}
	write(&s, it)
	_, err := io.WriteString(p.out, s.b.String())
	return err
}

// did writes what a change made: a sentence for people, the thing for programs.
func did[T any](p *printer, it T, id, format string, args ...any) error {
	return item(p, it, id, func(s *sheet, _ T) { fmt.Fprintf(&s.b, format+"\n", args...) })
}

// Colours of a terminal, as SGR codes of ECMA-48.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (p *printer) paint(sgr, s string) string {
	if !p.colour || sgr == "" || s == "" {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

// stateColours colours the words for states, of whatever thing.
var stateColours = map[string]string{
	"ready": green, "active": green, "healthy": green, "InSync": green, "yes": green,
	"pending": yellow, "placed": yellow, "adopting": yellow, "cordoned": yellow, "draining": yellow, "suspended": yellow, "disabled": yellow,
	"Partial": yellow, "PendingReboot": yellow, "PendingIdle": yellow,
	"quarantined": red, "unreachable": red, "lost": red, "failed": red, "unhealthy": red, "missing": red, "no": red,
	"Conflict": red, "Failed": red, "Unsupported": red,
	"ended": faint, "removed": faint, "archived": faint, "revoked": faint, "expired": faint, "deleted": faint,
}

// bar draws how much of something is taken.
func (p *printer) bar(used, total, width int) string {
	full, free := "█", "░"
	if p.plain {
		full, free = "#", "."
	}
	n := 0
	if total > 0 {
		n = min(width, (used*width+total-1)/total)
	}
	colour := green
	if used >= total {
		colour = yellow
	}
	return p.paint(colour, strings.Repeat(full, n)) + strings.Repeat(free, width-n)
}

// ago, until and spanText write times for people; JSON has them exactly.
func (p *printer) ago(t appliance.Time) string {
	d := p.now.Sub(t.Time)
	if d < time.Second {
		return "now"
	}
	return spanText(d) + " ago"
}

func (p *printer) until(t *appliance.Time) string {
	if t == nil {
		return ""
	}
	d := t.Sub(p.now)
	if d < 0 {
		return spanText(-d) + " ago"
	}
	return "in " + spanText(d)
}

// spanText writes a duration in one or two units: 45s, 7m, 7h30m, 12h, 3d4h, 20d.
func spanText(d time.Duration) string {
	const day = 24 * time.Hour
	two := func(big, small time.Duration, bigName, smallName string) string {
		d := d.Round(small)
		n, rest := d/big, d%big/small
		if n >= 10 || rest == 0 {
			return fmt.Sprintf("%d%s", d.Round(big)/big, bigName)
		}
		return fmt.Sprintf("%d%s%d%s", n, bigName, rest, smallName)
	}
	switch {
	case d < time.Minute-time.Second/2:
		return fmt.Sprintf("%ds", d.Round(time.Second)/time.Second)
	case d < time.Hour-time.Minute/2:
		return fmt.Sprintf("%dm", max(1, d.Round(time.Minute)/time.Minute))
	case d < 2*day-time.Minute/2:
		return two(time.Hour, time.Minute, "h", "m")
	}
	return two(day, time.Hour, "d", "h")
}

// exact writes an instant in full, with how far away it is.
func (p *printer) exact(t *appliance.Time) string {
	if t == nil {
		return ""
	}
	far := p.ago(*t)
	if t.Sub(p.now) > time.Second {
		far = p.until(t)
	}
	return t.Local().Format("2006-01-02 15:04:05 MST") + " (" + far + ")"
}

// either lists words: a, b or c.
func either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// count writes a number with its noun: 1 node, 2 nodes.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
