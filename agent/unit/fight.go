package unit

import (
	"context"
	"fmt"
	"strings"

	"github.com/bettercompute/bc/agent/wire"
)

// rivals are the services that are known to set what a unit sets.
var rivals = map[wire.UnitKind][]string{
	wire.UnitHugepages: {"tuned.service", "libvirtd.service"},
	wire.UnitCPU: {
		"tuned.service", "power-profiles-daemon.service", "tlp.service", "auto-cpufreq.service", "cpupower.service",
		"thermald.service", "cpufrequtils.service",
	},
	wire.UnitIOMMU:         {"tuned.service"},
	wire.UnitKernelModules: {"tuned.service"},
	wire.UnitGPUSettings:   {"tuned.service", "nvidia-powerd.service"},
}

// fight says who may be changing a unit again and again.
func (r *Runner) fight(ctx context.Context, kind wire.UnitKind, plan Plan) string {
	var who []string
	for _, service := range rivals[kind] {
		if r.Machine.UnitActive(ctx, service) {
			who = append(who, strings.TrimSuffix(service, ".service"))
		}
	}
	if kind == wire.UnitHugepages {
		who = append(who, r.settingFiles("vm.nr_hugepages", "vm.nr_hugepages_mempolicy")...)
	}
	text := fmt.Sprintf("someone else changed it back %d times in %v, so the agent stopped: %s", conflictFlips, conflictWindow, summary(plan))
	if len(who) > 0 {
		return text + ". Suspected: " + strings.Join(who, ", ")
	}
	return text + ". None of the services known to do that runs here"
}

// settingFiles lists the sysctl.d files that set one of the names.
func (r *Runner) settingFiles(names ...string) []string {
	var files []string
	for _, pattern := range []string{"/etc/sysctl.conf", "/etc/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/usr/lib/sysctl.d/*.conf"} {
		for _, file := range r.Machine.Glob(pattern) {
			data, _ := r.Machine.ReadHead(file, 64<<10)
			for line := range strings.Lines(string(data)) {
				key, _, ok := strings.Cut(strings.TrimSpace(line), "=")
				key = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(key), "-"), "/", ".")
				if ok && (key == names[0] || key == names[1]) {
					files = append(files, file)
					break
				}
			}
		}
	}
	return files
}
