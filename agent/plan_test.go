package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// governed is a machine of which the governor can be set.
func governed(t *testing.T) (root *host.Root, governor string) {
	t.Helper()
	dir := testMachine(t, "b").Dir()
	governor = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
	for name, text := range map[string]string{
		governor: "powersave", filepath.Join(filepath.Dir(governor), "affected_cpus"): "0",
		filepath.Join(filepath.Dir(governor), "scaling_available_governors"): "performance powersave",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := host.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	return root, governor
}

// A plan is what the units would do: what is wanted, what is no longer, and what
// cannot be. The machine and what is wanted of it stay as they are, whether or
// not the agent may change them.
func TestAPlanIsShownAndNothingChanges(t *testing.T) {
	const set = "set /sys/devices/system/cpu/cpufreq/policy0/scaling_governor = performance"
	for _, manages := range []bool{false, true} {
		c, socket := newControl(), socketPath(t)
		c.serve(t, socket)
		a := testAgent(t, socket, newTestGPUs(1))
		var governor string
		a.Root, governor = governed(t)
		a.ManageHost = manages
		start(t, a)
		c.await(t, "a first heartbeat", func() bool { return len(c.beats) > 0 })
		c.change(func() {
			c.asks = []wire.PlanRequest{{ID: "plan_1", Units: wire.Units{
				CPU: &wire.CPU{Governor: "performance"}, Hugepages: &wire.Hugepages{SizeKiB: 3, Count: 1},
			}}}
		})
		c.await(t, "a plan", func() bool { return len(c.plans) == 1 })
		var got wire.PlanReport
		c.look(func() { got = c.plans[0] })
		want := []wire.UnitPlan{
			{Kind: wire.UnitHugepages, State: wire.Failed, Steps: []wire.PlanStep{}},
			{Kind: wire.UnitCPU, State: wire.InSync, Wanted: "governor performance", Got: "governor powersave",
				Steps: []wire.PlanStep{{Change: set}}},
		}
		if !strings.Contains(got.Units[0].Reason, "size") {
			t.Errorf("pages of 3 KiB are refused with %q", got.Units[0].Reason)
		}
		for i := range got.Units {
			got.Units[i].Reason = ""
			for j := range got.Units[i].Steps {
				if got.Units[i].Steps[j].Undo == "" {
					t.Errorf("%s is not said how to undo", got.Units[i].Steps[j].Change)
				}
				got.Units[i].Steps[j].Undo = ""
			}
		}
		if diff := cmp.Diff(want, got.Units); diff != "" {
			t.Error(diff)
		}
		if got.ID != "plan_1" || !strings.Contains(got.Note, "recorded") {
			t.Errorf("%+v", got)
		}
		if now, _ := a.Root.String(governor); now != "powersave" {
			t.Errorf("the governor is %s", now)
		}
		if book := readBook(t, a.StateDir); len(book.Spec) != 0 {
			t.Errorf("the plan is kept as what is wanted: %s", book.Spec)
		}
		if !manages {
			continue
		}
		c.want(wire.NodeSpec{Units: wire.Units{CPU: &wire.CPU{Governor: "performance"}}})
		c.await(t, "the unit in force", func() bool { return len(c.only().units) == 1 && c.only().units[0].State == wire.InSync })
		c.change(func() { c.asks = []wire.PlanRequest{{ID: "plan_2"}} })
		c.await(t, "a plan to undo it", func() bool { return len(c.plans) == 2 })
		c.look(func() { got = c.plans[1] })
		if len(got.Units) != 1 || !got.Units[0].Gone || len(got.Units[0].Steps) != 1 || !strings.HasPrefix(got.Units[0].Steps[0].Change, "restore ") {
			t.Errorf("undoing is planned as %+v", got.Units)
		}
		if now, _ := a.Root.String(governor); now != "performance" {
			t.Errorf("after a plan to undo it the governor is %s", now)
		}
	}
}
