package host

import "testing"

// The order of the version format specification, the oldest first: its own examples,
// and names of entries as they are found.
func TestCompareVersions(t *testing.T) {
	for _, ordered := range [][]string{
		{"~1", ""},
		{"122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1", "123.a-1", "123.1-1", "123a-1", "124-1"},
		{"aaa-6.1.0-9-amd64.conf", "aaa-6.1.0-18-amd64.conf", "aaa-6.10.0-1-amd64.conf"},
		{"11α", "012"},
	} {
		for i, a := range ordered {
			for j, b := range ordered {
				got := compareVersions(a, b)
				if want := (i > j) && got > 0 || (i < j) && got < 0 || i == j && got == 0; !want {
					t.Errorf("%q against %q: %d", a, b, got)
				}
			}
		}
	}
	if compareVersions("11", "011") != 0 || compareVersions("a_1", "a1") != 0 {
		t.Error("leading zeros, or characters that separate, count")
	}
}
