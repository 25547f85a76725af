package agent

import (
	"encoding/json"
	"strings"

	"github.com/bettercompute/bc/agent/unit"
)

// What a container engine needs of the Container Device Interface
// (github.com/cncf-tags/container-device-interface, SPEC.md 0.6.0): a file of
// JSON in one of its folders names devices, and what each adds to a container.
type (
	cdiSpec struct {
		Version string      `json:"cdiVersion"`
		Kind    string      `json:"kind"`
		Devices []cdiDevice `json:"devices"`
	}
	cdiDevice struct {
		Name  string   `json:"name"`
		Edits cdiEdits `json:"containerEdits"`
	}
	cdiEdits struct {
		Env    []string   `json:"env,omitempty"`
		Nodes  []cdiNode  `json:"deviceNodes,omitempty"`
		Mounts []cdiMount `json:"mounts,omitempty"`
	}
	// cdiNode leaves the numbers out: the engine reads them of the node when a
	// container starts, so that they are not those of an earlier boot.
	cdiNode struct {
		Path        string `json:"path"`
		Permissions string `json:"permissions"`
	}
	cdiMount struct {
		HostPath      string   `json:"hostPath"`
		ContainerPath string   `json:"containerPath"`
		Options       []string `json:"options,omitempty"`
	}
)

// cdiKind and the reservation's id are the name that engines are given:
// podman run --device better-compute.local/reservation=res_….
const cdiKind = "better-compute.local/reservation"

// cdiDir is where specs of the running system are; it is empty after a boot.
const cdiDir = "/var/run/cdi"

func cdiFile(reservation string) string { return cdiDir + "/better-compute-" + reservation + ".json" }

// cdi is the file for container engines. It gives the GPUs' device nodes; the
// driver's libraries come from the image or from the NVIDIA container runtime,
// which heeds the environment.
func (w *wall) cdi() []byte {
	edits := cdiEdits{Env: w.environment()}
	for _, n := range w.Nodes {
		edits.Nodes = append(edits.Nodes, cdiNode{Path: n.Path, Permissions: "rw"})
	}
	if len(w.MPS) > 0 { // a client and its daemon talk through pipes, and share memory
		edits.Mounts = append(edits.Mounts, bindMount("/dev/shm"))
	}
	for _, uuid := range w.MPS {
		edits.Mounts = append(edits.Mounts, bindMount(unit.MPSPipes(uuid)))
	}
	text, err := json.MarshalIndent(cdiSpec{
		Version: "0.6.0", Kind: cdiKind,
		Devices: []cdiDevice{{Name: w.Reservation, Edits: edits}},
	}, "", "  ")
	if err != nil {
		return nil // plain strings: there is no way to refuse them
	}
	return append(text, '\n')
}

// bindMount gives a container a folder of the host at the same place.
func bindMount(dir string) cdiMount {
	return cdiMount{HostPath: dir, ContainerPath: dir, Options: []string{"rw", "nosuid", "nodev", "bind"}}
}

// cdiEnvironment reads the environment back of a file that cdi made.
func cdiEnvironment(text []byte) []string {
	var spec cdiSpec
	if err := json.Unmarshal(text, &spec); err != nil || len(spec.Devices) != 1 || !strings.HasPrefix(spec.Kind, "better-compute.local/") {
		return nil
	}
	return spec.Devices[0].Edits.Env
}
