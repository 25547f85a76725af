// Package inventory says what a machine is, from the files of its host and
// what its GPU library answered. It keeps to itself where the kernel writes
// each fact and what odd machines leave out; it changes nothing on the host,
// starts nothing, and does not know pools, policies or NVML.
//
// Start reading at [Collect], which fills in a [wire.Inventory]. [Recorded]
// does the same for a recorded machine, [Personalise] makes many of one, and
// [Text] writes one for people.
package inventory
