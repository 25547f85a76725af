package main

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode"
)

// column is one of a table's columns.
type column struct {
	head  string
	wide  bool // shown in the wide format alone
	drop  int  // where the terminal is too narrow, the highest goes first; 0 stays
	flex  bool // text for people, which may be cut where it is too long
	least int  // a text is not cut shorter than this while a column can go; 0 is minFlex
	right bool
	state bool // coloured by what it says
}

// table is rows under a header. Columns in which every cell is empty are left
// out, and so are, where the width is too small, those that can be.
type table struct {
	columns []column
	rows    [][]string
}

// newTable makes a table of the items, with a column and a cell for each field.
func newTable[T any](items []T, fields ...field[T]) *table {
	t := &table{}
	for _, f := range fields {
		t.columns = append(t.columns, f.column)
	}
	for _, it := range items {
		row := make([]string, len(fields))
		for i, f := range fields {
			row[i] = f.cell(it)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// field is a column with what stands in it.
type field[T any] struct {
	column
	cell func(T) string
}

const (
	gap     = 2 // blanks between columns
	minFlex = 24
)

// write fits the table to the printer's width and writes it.
func (t *table) write(p *printer) error {
	_, err := io.WriteString(p.out, t.format(p, ""))
	return err
}

func (t *table) format(p *printer, indent string) string {
	for _, row := range t.rows {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	shown := t.shown(p.format == formatWide)
	room := 0
	if p.width > 0 && p.format != formatWide {
		room = max(p.width-len(indent), minFlex)
	}
	shown = t.fit(shown, room)
	widths := t.widths(shown)
	if over := total(widths) - room; room > 0 && over > 0 {
		for i, c := range shown {
			if t.columns[c].flex {
				widths[i] = max(widths[i]-over, 1)
			}
		}
	}
	var b strings.Builder
	for r := -1; r < len(t.rows); r++ {
		line := indent
		for i, c := range shown {
			col, cell := t.columns[c], t.columns[c].head
			if r >= 0 {
				cell = orDash(t.rows[r][c])
			}
			cell = cut(cell, widths[i], p.plain)
			blanks := strings.Repeat(" ", widths[i]-width(cell))
			switch {
			case r < 0:
				cell = p.paint(faint, cell)
			case col.state:
				cell = p.paint(stateColours[strings.SplitN(cell, " ", 2)[0]], cell)
			}
			if i > 0 {
				line += strings.Repeat(" ", gap)
			}
			if col.right {
				line += blanks + cell
			} else {
				line += cell + blanks
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// shown lists the columns that say something.
func (t *table) shown(wide bool) []int {
	var out []int
	for i, c := range t.columns {
		empty := !slices.ContainsFunc(t.rows, func(row []string) bool { return row[i] != "" })
		if (wide || !c.wide) && !empty {
			out = append(out, i)
		}
	}
	return out
}

// fit drops columns until the rest fits the room with its texts cut.
func (t *table) fit(shown []int, room int) []int {
	for room > 0 {
		widths := t.widths(shown)
		worst := -1
		for i, c := range shown {
			if t.columns[c].flex {
				widths[i] = min(widths[i], cmp.Or(t.columns[c].least, minFlex))
			}
			if t.columns[c].drop > 0 && (worst < 0 || t.columns[c].drop > t.columns[shown[worst]].drop) {
				worst = i
			}
		}
		if total(widths) <= room || worst < 0 {
			return shown
		}
		shown = slices.Delete(slices.Clone(shown), worst, worst+1)
	}
	return shown
}

func (t *table) widths(shown []int) []int {
	out := make([]int, len(shown))
	for i, c := range shown {
		out[i] = width(t.columns[c].head)
		for _, row := range t.rows {
			out[i] = max(out[i], width(orDash(row[c])))
		}
	}
	return out
}

func total(widths []int) int {
	sum := gap * max(0, len(widths)-1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// cut shortens a text to a width and marks that it did.
func cut(s string, room int, plain bool) string {
	if width(s) <= room {
		return s
	}
	mark := "…"
	if plain {
		mark = "~"
	}
	taken := 0
	for i, c := range s {
		if taken += runeWidth(c); taken > room-1 {
			return s[:i] + mark
		}
	}
	return s
}

// width is how many columns a text takes.
func width(s string) int {
	n := 0
	for _, c := range s {
		n += runeWidth(c)
	}
	return n
}

// wide holds the ranges that are W or F in Unicode's EastAsianWidth, as far as
// names of things have them.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1100, 0x115f, 1}, {0x2e80, 0xa4cf, 1}, {0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff01, 0xff60, 1}, {0xffe0, 0xffe6, 1}},
	R32: []unicode.Range32{{0x1f300, 0x1f64f, 1}, {0x1f900, 0x1f9ff, 1}, {0x20000, 0x3fffd, 1}},
}

func runeWidth(c rune) int {
	switch {
	case unicode.In(c, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, c):
		return 2
	}
	return 1
}

// printable shows what a terminal would act on as "?": names of things come
// from other people.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		if c == '\n' || c == '\t' {
			return ' '
		}
		return '?'
	}, s)
}

// sheet is what people read of one thing: facts under labels, and tables.
type sheet struct {
	p *printer
	b strings.Builder
}

const (
	labelWidth = 13
	partWidth  = 8
)

// fact writes a labelled text, folded to the width; nothing without a value.
func (s *sheet) fact(label, value string) { s.labelled("", label, labelWidth, value) }

// part is a fact below a heading.
func (s *sheet) part(label, value string) { s.labelled("  ", label, partWidth, value) }

func (s *sheet) labelled(indent, label string, column int, value string) {
	if value == "" {
		return
	}
	room := 0
	if s.p.width > 0 {
		room = max(s.p.width-len(indent)-column, minFlex)
	}
	for i, line := range fold(printable(value), room) {
		if i > 0 {
			label = ""
		}
		s.b.WriteString(indent + s.p.paint(faint, label) + strings.Repeat(" ", max(1, column-width(label))) + line + "\n")
	}
}

// state is a fact in the colour of its first word.
func (s *sheet) state(label, value string) {
	word, _, _ := strings.Cut(value, " ")
	s.b.WriteString(s.p.paint(faint, label) + strings.Repeat(" ", max(1, labelWidth-len(label))) + s.p.paint(stateColours[word], printable(value)) + "\n")
}

func (s *sheet) heading(title string) { s.b.WriteString("\n" + s.p.paint(bold, title) + "\n") }

// line writes text below a heading, folded to the width.
func (s *sheet) line(value string) {
	room := 0
	if s.p.width > 0 {
		room = max(s.p.width-4, minFlex)
	}
	for i, l := range fold(printable(value), room) {
		indent := "  "
		if i > 0 {
			indent = "    "
		}
		s.b.WriteString(indent + l + "\n")
	}
}

// lines writes texts below a heading, and nothing without any.
func (s *sheet) lines(title string, texts []string) {
	if len(texts) == 0 {
		return
	}
	s.heading(title)
	for _, t := range texts {
		s.line(t)
	}
}

// table writes a table below a heading, and nothing without rows.
func (s *sheet) table(title string, t *table) {
	if len(t.rows) == 0 {
		return
	}
	s.heading(title)
	s.b.WriteString(t.format(s.p, "  "))
}

// fold breaks a text at blanks into lines of at most room columns, 0 for any.
// A word that is wider stands alone and whole: it may be there to be pasted.
func fold(s string, room int) []string {
	if room <= 0 || width(s) <= room {
		return []string{s}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && width(line)+1+width(word) > room {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
