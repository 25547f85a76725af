package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUUIDsAreGivenBackAsTheyWere(t *testing.T) {
	for name, want := range map[string][]string{
		"none":       nil,
		"alike":      {"GPU-0a", "GPU-0b", "GPU-0c"},
		"of lengths": {"GPU-1", "GPU-10", "G", "GPU-100"},
		"one empty":  {"", "GPU-1"},
	} {
		t.Run(name, func(t *testing.T) {
			var devices []Device
			for _, uuid := range want {
				devices = append(devices, Device{UUID: uuid})
			}
			u := uuidsOf(devices)
			var got []string
			for i, uuid := range u.all() {
				got = append(got, uuid)
				if u.index(uuid) != i {
					t.Errorf("%q is found at %d, not at %d", uuid, u.index(uuid), i)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || u.len() != len(want) {
				t.Errorf("%d, (-want +got):\n%s", u.len(), diff)
			}
			if u.index("GPU-") != -1 {
				t.Error("a part of one is found")
			}
		})
	}
}
