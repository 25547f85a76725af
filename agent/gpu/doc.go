// Package gpu answers what the NVIDIA management library (NVML) says of this
// machine: its GPUs, their readings, their Xid errors. It keeps to itself
// go-nvml, the life of the one library that a process can load, and what each
// return code means for a person. It knows nothing of pools, files under a
// host root or config units: a setter makes the one change that it names, or
// refuses, and whether the GPU may be touched now is for its caller to know.
//
// NVML has traps, and they end here. A function that the loaded library lacks
// kills the process when it is called, so every optional function is looked up
// first. A driver may be missing, appear later, die, or be replaced while the
// process runs, and a call may hang in the kernel: each of these is an answer
// with a [wire.GPULibraryState], never an empty list of GPUs.
//
// The binary must be linked with lazy binding: hardening flags that add
// "-z now" make it die at its start; append -Wl,-z,lazy to them.
//
// Start reading at [Library] and [Library.Snapshot], for changes at
// [Library.States]. Without cgo every answer
// is [wire.GPULibraryNoCGO].
package gpu
