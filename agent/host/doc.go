// Package host is the ground the agent stands on: the files of the machine, and
// the changes that can be made to it. It keeps to itself how a path is found
// below a root, so that a recorded machine in a folder reads like the real one,
// how a machine is recorded, and all that reaches a machine: files replaced as a
// whole, values written to the kernel, a few programs, systemd over D-Bus. What
// it changes it first notes in a [Ledger]. It knows nothing of what files and
// values mean to a pool or a unit.
//
// Start reading at [Root], then [Capture] and [Archive]; of changes, at [Change],
// then [Machine] and [Ledger].
package host
