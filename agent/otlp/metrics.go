package otlp

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// Batch is what was measured at one time.
type Batch struct {
	Resource map[string]string // what was measured
	Scope    string            // the name of what measured it
	At       time.Time
	Metrics  []Metric
}

// Metric is one thing that is measured, at any number of points. Its unit
// stands in the description: a unit of its own would be appended to the name by
// those who pass metrics on to Prometheus, and the name would no longer be the
// one that dashboards ask for.
type Metric struct {
	Name        string
	Description string // ends with the unit, if there is one
	// Sum says that the values are whole numbers that only rise, counted since
	// Since. Otherwise each value stands for itself.
	Sum    bool
	Since  time.Time // zero: not known
	Points []Point
}

// Point is one value and what it is of.
type Point struct {
	Labels map[string]string
	Value  float64
}

// Len is how many points there are in all.
func (b Batch) Len() int {
	n := 0
	for _, m := range b.Metrics {
		n += len(m.Points)
	}
	return n
}

// Marshal writes the batch as an ExportMetricsServiceRequest. Metrics without
// points are left out. The same batch gives the same bytes.
func (b Batch) Marshal() ([]byte, error) {
	var list []*metrics.Metric
	for _, m := range b.Metrics {
		if len(m.Points) > 0 {
			list = append(list, m.proto(b.At))
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(&collector.ExportMetricsServiceRequest{
		ResourceMetrics: []*metrics.ResourceMetrics{{
			Resource: &resource.Resource{Attributes: attributes(b.Resource)},
			ScopeMetrics: []*metrics.ScopeMetrics{{
				Scope:   &common.InstrumentationScope{Name: b.Scope},
				Metrics: list,
			}},
		}},
	})
}

func (m Metric) proto(at time.Time) *metrics.Metric {
	points := make([]*metrics.NumberDataPoint, 0, len(m.Points))
	for _, p := range m.Points {
		point := &metrics.NumberDataPoint{Attributes: attributes(p.Labels), TimeUnixNano: nanoseconds(at)}
		if m.Sum {
			point.StartTimeUnixNano = nanoseconds(m.Since)
			point.Value = &metrics.NumberDataPoint_AsInt{AsInt: int64(p.Value)}
		} else {
			point.Value = &metrics.NumberDataPoint_AsDouble{AsDouble: p.Value}
		}
		points = append(points, point)
	}
	out := &metrics.Metric{Name: m.Name, Description: m.Description}
	if m.Sum {
		out.Data = &metrics.Metric_Sum{Sum: &metrics.Sum{
			DataPoints: points, IsMonotonic: true,
			AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
		}}
	} else {
		out.Data = &metrics.Metric_Gauge{Gauge: &metrics.Gauge{DataPoints: points}}
	}
	return out
}

func nanoseconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

// attributes replaces what is not UTF-8, of which the protocol has none.
func attributes(of map[string]string) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(of))
	for key, value := range maps.All(of) {
		out = append(out, &common.KeyValue{
			Key:   strings.ToValidUTF8(key, "?"),
			Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(value, "?")}},
		})
	}
	slices.SortFunc(out, func(a, b *common.KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
