// Package unit decides what a machine still lacks of what its NodeSpec wants:
// one Go type for each config unit, which compares and answers the changes left
// to be made. It keeps to itself what belongs to a unit, how one is undone, and
// when a unit is applied again. It changes nothing itself: a plan is changes,
// of agent/host or of a GPU, made by host.Apply. It knows no control plane, and asks neither
// the clock nor for randomness.
//
// Start reading at [Unit], then [Runner], then hugepages.go as the simplest unit.
package unit
