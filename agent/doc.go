// Package agent is the node agent: it joins a machine to a control plane, tells
// what the machine is, takes up the NodeSpec that is wanted of it, and reports
// how far it has come. It keeps to itself how both ends find each other again
// after either was away, and what a node remembers of that on disk.
//
// It knows the control plane by package wire alone. Nothing that it receives is
// run as a command, and the NodeSpec last taken up holds while the control
// plane is away.
//
// Start reading at [Agent.Run], which waits for things to happen, and at node,
// the state that one machine has between them. [Fleet] runs many nodes of the
// same kind over one recorded machine.
package agent
