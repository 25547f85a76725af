package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// UnitError is why a unit cannot be what it is asked to be, on any machine.
// What only one machine cannot do is found when the unit is planned there.
type UnitError struct {
	Kind    UnitKind
	Field   string // in the unit's own words: isolate, load[2], options.nvidia
	Problem string
}

func (e *UnitError) Error() string {
	return string(e.Kind) + ": " + e.Field + ": " + e.Problem
}

// Validate checks every unit that is set, in order of application, and gives
// the first thing that is wrong as a *[UnitError]. The control plane runs it
// on what a policy's nodes would get, and the agent on what it got.
func (u Units) Validate() error {
	for _, kind := range u.Wanted() {
		var err error
		switch kind {
		case UnitKernelModules:
			err = u.KernelModules.Validate()
		case UnitHugepages:
			err = u.Hugepages.Validate()
		case UnitCPU:
			err = u.CPU.Validate()
		case UnitMIGLayout:
			err = u.MIGLayout.Validate()
		case UnitGPUSettings:
			err = u.GPUSettings.Validate()
		case UnitGPUSharing:
			err = u.GPUSharing.Validate()
		case UnitK8sJoin:
			err = u.K8sJoin.Validate()
		case UnitTelemetry:
			err = u.Telemetry.Validate()
		case UnitIOMMU: // on or off: nothing to check
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func invalid(kind UnitKind, field, format string, args ...any) error {
	return &UnitError{Kind: kind, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// The sizes of huge pages that can be asked for, in KiB.
const (
	Hugepage2MiKiB = 2 << 10
	Hugepage1GiKiB = 1 << 20
)

// MaxHugepages is the most pages of one size: 2^24.
const MaxHugepages = 1 << 24

// Validate refuses sizes other than 2 MiB and 1 GiB, and counts outside 0 to
// MaxHugepages.
func (h *Hugepages) Validate() error {
	if h.SizeKiB != Hugepage2MiKiB && h.SizeKiB != Hugepage1GiKiB {
		return invalid(UnitHugepages, "sizeKiB", "%d is not 2048 (2Mi) or 1048576 (1Gi)", h.SizeKiB)
	}
	if h.Count < 0 || h.Count > MaxHugepages {
		return invalid(UnitHugepages, "count", "%d is not 0 to %d", h.Count, MaxHugepages)
	}
	return nil
}

const (
	maxModules       = 64
	maxModuleOptions = 1024 // bytes of one module's options
)

var (
	moduleName  = textLike(64, `^[A-Za-z0-9_][A-Za-z0-9_-]*$`)
	optionKey   = textLike(64, `^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	optionValue = textLike(256, `^[A-Za-z0-9_.,:=+@%*-]+$`)
)

// Validate refuses names that no module has, and options that modprobe could
// read as anything but key=value words: modprobe.d can run commands as root,
// so nothing that quotes, escapes, comments, names a path or starts another
// line is taken. A module is named once, with - and _ alike. Modules and
// options that can keep a machine from booting, take away a way into it or open
// the walls between its tenants are refused too; what drives the root disk and
// the network of one machine is only known there.
func (k *KernelModules) Validate() error {
	if len(k.Load) > maxModules {
		return invalid(UnitKernelModules, "load", "%d modules are more than %d", len(k.Load), maxModules)
	}
	loaded := make(map[string]bool)
	for i, name := range k.Load {
		field := fmt.Sprintf("load[%d]", i)
		if !moduleName.MatchString(name) {
			return invalid(UnitKernelModules, field, "%q is not a module name: 1 to 64 letters, digits, _ and -, not starting with -", clip(name, 80))
		}
		if key := ModuleKey(name); loaded[key] {
			return invalid(UnitKernelModules, field, "%s is listed twice (- and _ are the same in a module's name)", name)
		} else {
			loaded[key] = true
		}
		if problem := deniedLoad(name); problem != "" {
			return invalid(UnitKernelModules, field, "%s", problem)
		}
	}
	if len(k.Options) > maxModules {
		return invalid(UnitKernelModules, "options", "options of %d modules are more than %d", len(k.Options), maxModules)
	}
	given := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(k.Options)) {
		if !moduleName.MatchString(name) {
			return invalid(UnitKernelModules, "options", "%q is not a module name: 1 to 64 letters, digits, _ and -, not starting with -", clip(name, 80))
		}
		key := ModuleKey(name)
		if given[key] {
			return invalid(UnitKernelModules, "options", "%s is given twice (- and _ are the same in a module's name)", name)
		}
		given[key] = true
		if problem := checkModuleOptions(name, k.Options[name]); problem != "" {
			return invalid(UnitKernelModules, "options."+name, "%s", problem)
		}
	}
	return nil
}

// ModuleKey is the one spelling of a module's name: the kernel takes - and _
// for the same.
func ModuleKey(name string) string { return strings.ReplaceAll(name, "-", "_") }

func checkModuleOptions(module, options string) string {
	if options == "" {
		return "is empty"
	}
	if len(options) > maxModuleOptions {
		return fmt.Sprintf("%d bytes are more than %d", len(options), maxModuleOptions)
	}
	seen := make(map[string]bool)
	for word := range strings.SplitSeq(options, " ") {
		key, value, ok := strings.Cut(word, "=")
		if !ok || !optionKey.MatchString(key) || !optionValue.MatchString(value) {
			return fmt.Sprintf("%q is not key=value words with one blank between, of letters, digits and . , : = + @ %% * _ -", clip(options, 80))
		}
		if key = ModuleKey(key); seen[key] {
			return key + " is given twice"
		}
		seen[key] = true
		if problem := deniedWord(module, key, value); problem != "" {
			return problem
		}
	}
	return ""
}

// Governors are the cpufreq governors that can be asked for.
var Governors = []string{"performance", "schedutil", "ondemand", "powersave"}

// Validate refuses unknown governors, and lists of CPUs that do not ascend or
// that hold CPU 0, which the kernel needs for itself.
func (c *CPU) Validate() error {
	if c.Governor != "" && !slices.Contains(Governors, c.Governor) {
		return invalid(UnitCPU, "governor", "%q is not %s", clip(c.Governor, 40), either(Governors))
	}
	if c.Isolate == "" {
		return nil
	}
	cpus, err := ParseCPUList(c.Isolate)
	if err != nil {
		return invalid(UnitCPU, "isolate", "%v", err)
	}
	switch {
	case strings.Trim(c.Isolate, "0123456789,-:/") != "":
		return invalid(UnitCPU, "isolate", "%q is not a list of CPUs such as 2-5,8", clip(c.Isolate, 40))
	case cpus.Contains(0):
		return invalid(UnitCPU, "isolate", "CPU 0 cannot be isolated")
	case !ascending(c.Isolate):
		return invalid(UnitCPU, "isolate", "%q does not ascend; write it as %s", clip(c.Isolate, 40), clip(cpus.String(), 80))
	}
	return nil
}

// ascending reports whether each entry of a legal list starts above the end of
// the entry before.
func ascending(list string) bool {
	last := -1
	for item := range strings.SplitSeq(list, ",") {
		span, _, _ := strings.Cut(item, ":")
		low, high, ranged := strings.Cut(span, "-")
		if !ranged {
			high = low
		}
		first, _ := strconv.Atoi(low)
		if first <= last {
			return false
		}
		last, _ = strconv.Atoi(high)
	}
	return true
}

// MaxPowerLimitWatts bounds a power cap. What one board allows is less, and is
// found on the node.
const MaxPowerLimitWatts = 10000

// Validate refuses power caps outside 1 to MaxPowerLimitWatts; 0 leaves the
// cap alone.
func (g *GPUSettings) Validate() error {
	if g.PowerLimitWatts < 0 || g.PowerLimitWatts > MaxPowerLimitWatts {
		return invalid(UnitGPUSettings, "powerLimitWatts", "%d is not 1 to %d", g.PowerLimitWatts, MaxPowerLimitWatts)
	}
	return nil
}

// MaxReplicas is the most slots of one GPU: MPS serves 48 clients from Volta on.
const MaxReplicas = 48

// Validate refuses modes other than mps and timeslice, and slots outside 1 to
// MaxReplicas.
func (s *GPUSharing) Validate() error {
	if s.Mode != "mps" && s.Mode != "timeslice" {
		return invalid(UnitGPUSharing, "mode", "%q is not mps or timeslice", clip(s.Mode, 40))
	}
	if s.Replicas < 1 || s.Replicas > MaxReplicas {
		return invalid(UnitGPUSharing, "replicas", "%d is not 1 to %d", s.Replicas, MaxReplicas)
	}
	return nil
}

// Validate refuses a layout without a name. Whether a GPU can have it is for
// [CheckLayout] and [ResolveLayout], which know the GPU.
func (m *MIGLayout) Validate() error {
	if m.Layout == "" || len(m.Layout) > maxLayout {
		return invalid(UnitMIGLayout, "layout", "has %d characters, not 1 to %d", len(m.Layout), maxLayout)
	}
	return nil
}

var (
	caHash     = textLike(71, `^sha256:[0-9A-Fa-f]{64}$`)
	k8sVersion = textLike(9, `^v?1\.[0-9]{1,3}(\.[0-9]{1,3})?$`)
	k8sName    = textLike(63, `^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
	k8sPrefix  = textLike(253, `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	hostName   = textLike(253, `^[A-Za-z0-9_.:-]+$`)
	reference  = textLike(256, `^[!-~]+$`)
)

var taintEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// Validate refuses API servers that are not https://host[:port], hashes that
// are not sha256: and 64 hex digits, and labels, taints and versions that
// Kubernetes would refuse.
func (k *K8sJoin) Validate() error {
	if problem := checkURL(k.APIServer, "https"); problem != "" {
		return invalid(UnitK8sJoin, "apiServer", "%s", problem)
	}
	if u, _ := url.Parse(k.APIServer); strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return invalid(UnitK8sJoin, "apiServer", "%q has more than a host and a port", clip(k.APIServer, 80))
	}
	if !caHash.MatchString(k.CACertSHA256) {
		return invalid(UnitK8sJoin, "caCertSha256", "%q is not sha256: and 64 hex digits", clip(k.CACertSHA256, 80))
	}
	if !reference.MatchString(k.TokenRef) {
		return invalid(UnitK8sJoin, "tokenRef", "is not 1 to 256 printable characters without blanks")
	}
	return k.ValidateNode()
}

// ValidateNode checks what describes the node to its cluster, however it joins.
func (k *K8sJoin) ValidateNode() error {
	if len(k.Labels) > 64 {
		return invalid(UnitK8sJoin, "labels", "%d labels are more than 64", len(k.Labels))
	}
	for _, key := range slices.Sorted(maps.Keys(k.Labels)) {
		if !k8sKey(key) {
			return invalid(UnitK8sJoin, "labels", "%q is not a Kubernetes label name", clip(key, 80))
		}
		if v := k.Labels[key]; v != "" && !k8sName.MatchString(v) {
			return invalid(UnitK8sJoin, "labels."+key, "%q is not a Kubernetes label value", clip(v, 80))
		}
	}
	if len(k.Taints) > 64 {
		return invalid(UnitK8sJoin, "taints", "%d taints are more than 64", len(k.Taints))
	}
	for i, taint := range k.Taints {
		name, effect, ok := strings.Cut(taint, ":")
		key, value, _ := strings.Cut(name, "=")
		if !ok || !k8sKey(key) || value != "" && !k8sName.MatchString(value) || !slices.Contains(taintEffects, effect) {
			return invalid(UnitK8sJoin, fmt.Sprintf("taints[%d]", i), "%q is not key=value:effect with the effect %s", clip(taint, 80), either(taintEffects))
		}
	}
	if k.KubernetesVersion != "" && !k8sVersion.MatchString(k.KubernetesVersion) {
		return invalid(UnitK8sJoin, "kubernetesVersion", "%q is not a version such as 1.31 or v1.31.4", clip(k.KubernetesVersion, 40))
	}
	return nil
}

// k8sKey reports whether s is a qualified name: a name, or prefix/name.
func k8sKey(s string) bool {
	prefix, name, qualified := strings.Cut(s, "/")
	if !qualified {
		return k8sName.MatchString(s)
	}
	return k8sPrefix.MatchString(prefix) && k8sName.MatchString(name)
}

// The bounds of the interval at which metrics are exported, in seconds.
const (
	MinIntervalSeconds = 5
	MaxIntervalSeconds = 3600
)

// Validate refuses endpoints that are not http or https URLs, intervals
// outside 5 to 3600 s, and more than 32 attributes.
func (t *Telemetry) Validate() error {
	if problem := checkURL(t.OTLPEndpoint, "http", "https"); problem != "" {
		return invalid(UnitTelemetry, "otlpEndpoint", "%s", problem)
	}
	return t.ValidateOptions()
}

// ValidateOptions checks all but the endpoint, which a policy can leave to the
// site's default.
func (t *Telemetry) ValidateOptions() error {
	if t.IntervalSeconds < MinIntervalSeconds || t.IntervalSeconds > MaxIntervalSeconds {
		return invalid(UnitTelemetry, "intervalSeconds", "%d is not %d to %d", t.IntervalSeconds, MinIntervalSeconds, MaxIntervalSeconds)
	}
	if t.HeadersRef != "" && !reference.MatchString(t.HeadersRef) {
		return invalid(UnitTelemetry, "headersRef", "is not 1 to 256 printable characters without blanks")
	}
	if len(t.ResourceAttributes) > 32 {
		return invalid(UnitTelemetry, "resourceAttributes", "%d attributes are more than 32", len(t.ResourceAttributes))
	}
	for _, key := range slices.Sorted(maps.Keys(t.ResourceAttributes)) {
		if key == "" || len(key) > 128 || !printable(key) {
			return invalid(UnitTelemetry, "resourceAttributes", "%q is not a name of 1 to 128 printable characters", clip(key, 80))
		}
		if v := t.ResourceAttributes[key]; len(v) > 256 || !printable(v) {
			return invalid(UnitTelemetry, "resourceAttributes."+key, "is not at most 256 printable characters")
		}
	}
	return nil
}

// checkURL says what is wrong with an absolute URL of one of the schemes. A
// password in it would be a secret in the open.
func checkURL(s string, schemes ...string) string {
	u, err := url.Parse(s)
	kind := strings.Join(schemes, " or ")
	switch {
	case err != nil || len(s) > 2048 || !hostName.MatchString(u.Hostname()) || !slices.Contains(schemes, u.Scheme):
		return fmt.Sprintf("%q is not an %s URL", clip(s, 80), kind)
	case u.User != nil:
		return "holds a user name or password; use a reference instead"
	case u.Fragment != "":
		return fmt.Sprintf("%q has a fragment", clip(s, 80))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Sprintf("%q has no port between 1 and 65535", clip(s, 80))
		}
	}
	return ""
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\uFFFD' })
}

// either joins words for people: a, b or c.
func either(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// CheckNVML is the kind of the acceptance check that asks NVML about each GPU.
const CheckNVML = "diag.nvml"

// CheckKinds lists the acceptance checks that an agent can run.
var CheckKinds = []string{CheckNVML}

// NVMLCheck is what a diag.nvml check may ask for beyond its own: absent
// fields ask for nothing.
type NVMLCheck struct {
	MinDriver       string `json:"minDriver,omitempty"` // a dotted version: 535.161.08
	MinDevices      *int   `json:"minDevices,omitempty"`
	MaxTemperatureC *int   `json:"maxTemperatureC,omitempty"`
}

// Validate refuses versions that are no dotted numbers, counts outside 0 to
// 1024, and temperatures outside 1 to 150 degrees. The text it gives starts
// with the field.
func (c NVMLCheck) Validate() error {
	if c.MinDriver != "" {
		if _, err := ParseDriverVersion(c.MinDriver); err != nil {
			return fmt.Errorf("minDriver: %w", err)
		}
	}
	if n := c.MinDevices; n != nil && (*n < 0 || *n > 1024) {
		return fmt.Errorf("minDevices: %d is not 0 to 1024", *n)
	}
	if n := c.MaxTemperatureC; n != nil && (*n < 1 || *n > 150) {
		return fmt.Errorf("maxTemperatureC: %d is not 1 to 150", *n)
	}
	return nil
}

// NVML reads what a diag.nvml check asks for. It refuses a field that it does
// not know: a limit that this binary is too old for must not pass unseen.
func (c Check) NVML() (NVMLCheck, error) {
	var n NVMLCheck
	if c.Kind != CheckNVML {
		return n, fmt.Errorf("the check %s is not %s", c.Kind, CheckNVML)
	}
	if len(bytes.TrimSpace(c.With)) > 0 {
		d := json.NewDecoder(bytes.NewReader(c.With))
		d.DisallowUnknownFields()
		if err := d.Decode(&n); err != nil {
			return n, fmt.Errorf("with: %w", err)
		}
		if _, err := d.Token(); err != io.EOF {
			return n, errors.New("with: one object is expected")
		}
	}
	if err := n.Validate(); err != nil {
		return n, fmt.Errorf("with: %w", err)
	}
	return n, nil
}

// ParseDriverVersion reads a dotted version of 1 to 4 numbers, such as
// 535.161.08, to be compared with [slices.Compare].
func ParseDriverVersion(s string) ([]int, error) {
	bad := errors.New("is not a driver version such as 535.161.08")
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return nil, fmt.Errorf("%q %w", clip(s, 40), bad)
	}
	version := make([]int, len(parts))
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q %w", clip(s, 40), bad)
		}
		version[i] = int(n)
	}
	return version, nil
}

// pattern is a regular expression with the most bytes that it matches. It is
// compiled when it is first needed, and the length is no part of it: each of
// {1,256} would be a state of the program, which is most of what starting one
// of ours cost.
type pattern struct {
	most int
	re   func() *regexp.Regexp
}

func textLike(most int, expr string) pattern {
	return pattern{most, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// MatchString tells whether s is what the pattern says.
func (p pattern) MatchString(s string) bool { return len(s) <= p.most && p.re().MatchString(s) }
