package wire

// Version is the version of the contract that this binary speaks. Both ends
// keep speaking the version before.
//
//	1  2026-11-29  hello, inventory, heartbeat, long-polled NodeSpec with units and bindings
const Version = 1
