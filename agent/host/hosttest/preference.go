package hosttest

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

const preference = "energy_performance_preference"

// governed is what the drivers that choose frequencies by themselves do to the
// preference of a policy when its governor is written: performance turns it to
// performance. When that governor goes, intel_pstate brings the preference from
// before back, and amd-pstate-epp leaves it.
func (e *edge) governed(policy, governor string) {
	file := path.Join(policy, preference)
	now, ok := e.root.String(file)
	if !ok {
		return
	}
	if _, known := e.fresh[file]; !known {
		e.fresh[file] = now + "\n"
	}
	driver, _ := e.root.String(path.Join(policy, "scaling_driver"))
	before, _ := e.root.String(path.Join(policy, "scaling_governor"))
	switch {
	case governor == "performance":
		e.put(file, "performance")
	case before == "performance" && driver == "intel_pstate":
		e.put(file, e.fresh[file])
	}
}

// prefer is a write of the preference, which a policy under the governor
// performance does not take.
func (e *edge) prefer(name, value string) error {
	governor, _ := e.root.String(path.Join(path.Dir(name), "scaling_governor"))
	offered, told := e.root.String(path.Join(path.Dir(name), "energy_performance_available_preferences"))
	switch {
	case governor == "performance" && value != "performance":
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EBUSY}
	case told && !slices.Contains(strings.Fields(offered), value):
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EINVAL}
	}
	return nil
}
