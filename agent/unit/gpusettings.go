package unit

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/bettercompute/bc/agent/gpu"
	"github.com/bettercompute/bc/agent/host"
	"github.com/bettercompute/bc/agent/wire"
)

// gpuSettings keeps the power cap and the ECC mode of every GPU. The cap is
// lost with every reset and every unloading of the driver, so it is compared
// each time, and what is compared is the requested cap: what is enforced can be
// lower by someone else's doing.
type gpuSettings struct{ gpus *gpu.Library }

const (
	powerKey = "power-limit-mw"
	eccKey   = "ecc"
)

func (u gpuSettings) Plan(s Scene) Plan {
	want := s.Want.GPUSettings
	p := Plan{Wanted: wantedSettings(want)}
	if s.unanswered(&p) {
		return p
	}
	p.Steps = u.undo(s, func(what string) bool {
		return what == powerKey && want.PowerLimitWatts > 0 || what == eccKey && want.ECC != nil
	})
	var all verdicts
	var got []string
	var caps, modes []Step
	refused := false
	for _, g := range s.compute() {
		var parts []string
		if want.PowerLimitWatts > 0 {
			step, fits := u.planPower(g, want.PowerLimitWatts*1000, &all)
			caps, refused = append(caps, step...), refused || !fits
			parts = append(parts, powerText(g))
		}
		if want.ECC != nil {
			modes = append(modes, u.planECC(s, g, *want.ECC, &all)...)
			parts = append(parts, eccText(g))
		}
		got = append(got, strings.Join(parts, ", "))
	}
	if refused { // one model, one range: a cap for some of the GPUs helps nobody
		caps = nil
	}
	p.Steps = append(p.Steps, s.failedLast(append(caps, modes...))...)
	s.silent(&all)
	p.Got = tally(got)
	all.sum(&p)
	return p
}

// planPower reports false if the board does not take such a cap.
func (u gpuSettings) planPower(g gpu.State, mw int, all *verdicts) ([]Step, bool) {
	l := g.Power
	switch {
	case l == nil && unread(g, "power limit") != "":
		all.add(wire.Failed, unread(g, "power limit"))
	case l == nil:
		all.add(wire.Unsupported, g.Product+" has no power limit that can be set")
	case mw < l.Min || mw > l.Max:
		all.add(wire.Failed, fmt.Sprintf("%s takes %s to %s (default %s)", g.Product, wattText(l.Min), wattText(l.Max), wattText(l.Default)))
		return nil, false
	case l.Limit != mw:
		all.add(wire.Partial, fmt.Sprintf("%s is at %s", gpuName(g), wattText(l.Limit)))
		return []Step{{Change: u.setPower(g, mw, false), Undo: "back to " + wattText(l.Limit)}}, true
	case l.Enforced > 0 && l.Enforced < mw:
		all.add(wire.InSync, fmt.Sprintf("%s is held to %s by something else, such as the machine's management controller",
			gpuName(g), wattText(l.Enforced)))
	case g.Persistence != nil && !*g.Persistence:
		all.add(wire.InSync, "persistence mode is off, so the cap is lost and set again whenever nothing uses the GPU: start nvidia-persistenced")
	default:
		all.add(wire.InSync, "")
	}
	return nil, true
}

func (u gpuSettings) planECC(s Scene, g gpu.State, on bool, all *verdicts) []Step {
	v, noted := s.Prior.Values[gpuKey(g.UUID, eccKey)]
	switch e := g.ECC; {
	case e == nil && unread(g, "ECC mode") != "":
		all.add(wire.Failed, unread(g, "ECC mode"))
	case e == nil:
		all.add(wire.NotApplicable, g.Product+" has no ECC mode that can be set")
	case e.Pending != on:
		all.add(wire.Partial, fmt.Sprintf("%s has ECC %s", gpuName(g), onOff(e.Pending)))
		return []Step{{Change: u.setECC(g, on, false), Needs: NeedsReboot, Undo: "back to " + onOff(e.Pending) + " at the next reset"}}
	case e.Enabled == on:
		all.add(wire.InSync, "")
	case noted && v.BootID != s.BootID:
		all.add(wire.Failed, gpuName(g)+" did not take ECC "+onOff(on)+" up at the reboot: reset it with \"nvidia-smi --gpu-reset\" when it is free")
	default:
		all.add(wire.PendingReboot, "ECC "+onOff(on)+" takes effect when the GPU is reset or the machine rebooted")
	}
	return nil
}

func (u gpuSettings) Remove(s Scene) []Step { return u.undo(s, func(string) bool { return false }) }

func (u gpuSettings) undo(s Scene, keep func(what string) bool) []Step {
	return s.undoGPUs(keep, readSetting, func(g gpu.State, what string, v host.Value, _ string) (Step, bool) {
		if what == eccKey {
			return Step{Change: u.setECC(g, v.Before == "on", true), Needs: NeedsReboot}, g.ECC != nil
		}
		mw, err := strconv.Atoi(v.Before)
		return Step{Change: u.setPower(g, mw, true)}, err == nil
	})
}

// readSetting is a setting as it is noted: ECC as it will be.
func readSetting(g gpu.State, what string) string {
	switch {
	case what == powerKey && g.Power != nil:
		return strconv.Itoa(g.Power.Limit)
	case what == eccKey && g.ECC != nil:
		return onOff(g.ECC.Pending)
	}
	return "not told"
}

func (u gpuSettings) setPower(g gpu.State, mw int, restore bool) gpuChange {
	return gpuChange{
		gpus: u.gpus, gpu: g, what: powerKey, words: "the power limit to " + wattText(mw), restore: restore,
		from: readSetting(g, powerKey), to: strconv.Itoa(mw),
		set:  func(ctx context.Context, uuid string) error { return u.gpus.SetPowerLimitMilliwatts(ctx, uuid, mw) },
		read: func(g gpu.State) string { return readSetting(g, powerKey) },
	}
}

func (u gpuSettings) setECC(g gpu.State, on, restore bool) gpuChange {
	return gpuChange{
		gpus: u.gpus, gpu: g, what: eccKey, words: "ECC " + onOff(on) + " from its next reset on", restore: restore,
		from: readSetting(g, eccKey), to: onOff(on),
		set:  func(ctx context.Context, uuid string) error { return u.gpus.SetECC(ctx, uuid, on) },
		read: func(g gpu.State) string { return readSetting(g, eccKey) },
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// wattText is exact: 450 W, 199.5 W.
func wattText(mw int) string { return strconv.FormatFloat(float64(mw)/1000, 'f', -1, 64) + " W" }

func wantedSettings(want *wire.GPUSettings) string {
	var parts []string
	if want.PowerLimitWatts > 0 {
		parts = append(parts, wattText(want.PowerLimitWatts*1000))
	}
	if want.ECC != nil {
		parts = append(parts, "ECC "+onOff(*want.ECC))
	}
	return strings.Join(parts, ", ")
}

func powerText(g gpu.State) string {
	if g.Power == nil {
		return "no power limit"
	}
	return wattText(g.Power.Limit)
}

func eccText(g gpu.State) string {
	switch {
	case g.ECC == nil:
		return "no ECC"
	case g.ECC.Enabled != g.ECC.Pending:
		return fmt.Sprintf("ECC %s, %s after a reset", onOff(g.ECC.Enabled), onOff(g.ECC.Pending))
	}
	return "ECC " + onOff(g.ECC.Enabled)
}
