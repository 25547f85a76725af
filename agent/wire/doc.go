// Package wire is the contract between the control plane and the node agent:
// what a node says of itself, what is wanted of it, and what it did. It keeps
// the words of both directions, so the agent needs nothing of the control
// plane. It has no I/O and imports the standard library alone.
//
// Rules of the contract: fields are added, never renamed, retyped or reused;
// a unit or binding that a reader does not know is reported, never passed over
// in silence; every size, power and time has its unit in its name.
//
// Start reading at [NodeSpec] (what is wanted), [Inventory] (what is) and
// [Heartbeat] (what was done).
package wire
