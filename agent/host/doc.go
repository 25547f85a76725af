// Package host is the ground the agent stands on: the files of the machine. It
// keeps to itself how a path is found below a root, so that a recorded
// machine in a folder reads like the real one, and how a machine is recorded.
// It knows nothing of what the files mean to a pool or a unit.
//
// Start reading at [Root], then [Capture] and [Archive].
package host
