package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/appliance"
)

type thing struct{ name, id, state, note string }

func things(width int, format string, list ...thing) string {
	var b bytes.Buffer
	p := &printer{out: &b, format: format, width: width}
	err := newTable(list,
		field[thing]{column{head: "NAME"}, func(t thing) string { return t.name }},
		field[thing]{column{head: "ID", drop: 2}, func(t thing) string { return t.id }},
		field[thing]{column{head: "STATE", drop: 1}, func(t thing) string { return t.state }},
		field[thing]{column{head: "NOTE", flex: true}, func(t thing) string { return t.note }},
		field[thing]{column{head: "MORE", wide: true}, func(t thing) string { return "more" }},
	).write(p)
	if err != nil {
		panic(err)
	}
	return b.String()
}

func TestTablesFitTheTerminal(t *testing.T) {
	one := thing{"training", "pool_01k5c000000000000000000000", "ready", "a note that is much too long for the terminal, whatever that is"}
	for _, tc := range []struct {
		name string
		got  string
		want string
	}{
		{"any width shows all", things(0, formatTable, one), "" +
			"NAME      ID                               STATE  NOTE\n" +
			"training  pool_01k5c000000000000000000000  ready  a note that is much too long for the terminal, whatever that is\n"},
		{"a text is cut before a column goes", things(80, formatTable, one), "" +
			"NAME      ID                               STATE  NOTE\n" +
			"training  pool_01k5c000000000000000000000  ready  a note that is much too long …\n"},
		{"an id goes as a whole", things(60, formatTable, one), "" +
			"NAME      STATE  NOTE\n" +
			"training  ready  a note that is much too long for the termi…\n"},
		{"then the next column", things(38, formatTable, one), "" +
			"NAME      NOTE\n" +
			"training  a note that is much too lon…\n"},
		{"what cannot go stays", things(10, formatTable, one), "" +
			"NAME      NOTE\n" +
			"training  a note that i…\n"},
		{"a column without a word is left out", things(0, formatTable, thing{name: "a", state: "ready"}, thing{name: "b"}), "" +
			"NAME  STATE\n" +
			"a     ready\n" +
			"b     -\n"},
		{"wide shows more", things(0, formatWide, thing{name: "a"}), "" +
			"NAME  MORE\n" +
			"a     more\n"},
		{"wide letters take two columns", things(0, formatTable, thing{name: "研究", state: "x"}, thing{name: "ab", state: "y"}), "" +
			"NAME  STATE\n" +
			"研究  x\n" +
			"ab    y\n"},
		{"no name controls the terminal", things(0, formatTable, thing{name: "a\x1b[31mb\nc"}), "" +
			"NAME\n" +
			"a?[31mb c\n"},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

func TestTablesKeepToTheWidth(t *testing.T) {
	rows := []poolRow{{Pool: appliance.Pool{ID: appliance.PoolPrefix + strings.Repeat("0", 26), Name: "training", GPUModel: "H100", Sharing: "exclusive", Class: "metal-host", OwnerTenantID: "acme"}}}
	for width := 40; width < 140; width++ {
		p := &printer{width: width, format: formatTable}
		for line := range strings.Lines(poolTable(rows).format(p, "")) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
				t.Fatalf("%d columns: a line takes %d: %q", width, n, line)
			}
		}
	}
}

func TestAnIDStaysWhereNothingElseNamesTheThing(t *testing.T) {
	id := appliance.PoolPrefix + strings.Repeat("0", 26)
	rows := []poolRow{{Pool: appliance.Pool{ID: id, GPUModel: "H100"}}, {Pool: appliance.Pool{ID: id, Name: "named", GPUModel: "H100"}}}
	if got := poolTable(rows).format(&printer{width: 40, format: formatTable}, ""); strings.Count(got, id) != 2 {
		t.Errorf("the ids are cut or gone:\n%s", got)
	}
}

func TestSpansReadWell(t *testing.T) {
	for _, tc := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"}, {900 * time.Millisecond, "1s"}, {59 * time.Second, "59s"}, {59*time.Second + 600*time.Millisecond, "1m"},
		{90 * time.Second, "2m"}, {59*time.Minute + 40*time.Second, "1h"}, {time.Hour, "1h"}, {7*time.Hour + 30*time.Minute, "7h30m"},
		{8*time.Hour - 5*time.Second, "8h"}, {9*time.Hour + 59*time.Minute + 50*time.Second, "10h"}, {26*time.Hour + 20*time.Minute, "26h"},
		{48 * time.Hour, "2d"}, {76 * time.Hour, "3d4h"}, {20 * 24 * time.Hour, "20d"}, {365 * 24 * time.Hour, "365d"},
	} {
		if got := spanText(tc.d); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.d, got, tc.want)
		}
	}
}

func TestFoldingKeepsWordsWhole(t *testing.T) {
	got := fold("see pool_01k5c000000000000000000000 for what is missing", 20)
	want := []string{"see", "pool_01k5c000000000000000000000", "for what is missing"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBarsShowTheFirstUnitTaken(t *testing.T) {
	p := &printer{plain: true}
	for _, tc := range []struct {
		used, total int
		want        string
	}{{0, 8, "........"}, {1, 1000, "#......."}, {4, 8, "####...."}, {8, 8, "########"}, {9, 8, "########"}, {0, 0, "........"}} {
		if got := p.bar(tc.used, tc.total, 8); got != tc.want {
			t.Errorf("%d of %d: %s, want %s", tc.used, tc.total, got, tc.want)
		}
	}
}

func TestColourIsForTheTerminalAlone(t *testing.T) {
	if got := (&printer{}).paint(red, "x"); got != "x" {
		t.Errorf("coloured without a terminal: %q", got)
	}
	if got := (&printer{colour: true}).paint(red, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("not coloured on a terminal: %q", got)
	}
}
