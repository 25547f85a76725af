// Package otlp sends metrics to an OpenTelemetry collector: OTLP over HTTP,
// protobuf in its binary form, which every receiver takes. It keeps to itself
// the protocol: how metrics are written, where they are posted, and what the
// answers mean. It knows no GPUs, keeps nothing, and sends once for each call:
// whether and when to send again is the caller's.
//
// Start reading at [Client.Send].
package otlp
