// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// zoneLimit bounds the labels: traffic with more zones than these counts for the zone other.
const (
	zoneLimit   = 100
	zoneUnknown = "unknown"
)

// Values of the label direction.
const (
	toBackend   = "to_backend"
	fromBackend = "from_backend"
)

// zones adds up what this node's clients exchanged with backends, by the zones of both.
type zones struct {
	sums  map[zonePair]*traffic
	names map[string]bool // zones that have a label
}

type zonePair struct{ client, backend string }

func newZones() zones { return zones{sums: map[zonePair]*traffic{}, names: map[string]bool{}} }

// add also makes a row of what gained nothing: that two zones have no traffic is worth knowing.
func (z *zones) add(pair zonePair, gain traffic) {
	if z.sums[pair] == nil {
		z.sums[pair] = &traffic{}
	}
	z.sums[pair].add(gain)
}

func (z *zones) label(zone string) string {
	switch {
	case zone == "":
		return zoneUnknown
	case z.names[zone]:
		return zone
	case len(z.names) >= zoneLimit:
		return other
	}
	z.names[zone] = true
	return zone
}

func zoneBytes() *prometheus.Desc {
	return describe("nearlb_zone_bytes_total",
		"Bytes between clients of this node and backends, by the zones of both, since the agent's start. Sockets of the node itself are not counted: nothing sees their packets.",
		"client_zone", "backend_zone", "direction")
}

func zoneConnections() *prometheus.Desc {
	return describe("nearlb_zone_connections_total", "Connections to backends, by the zones of client and backend, since the agent's start.",
		"client_zone", "backend_zone")
}

func collectZones(z *zones, out chan<- prometheus.Metric) {
	for pair, sum := range z.sums {
		number := func(d *prometheus.Desc, value uint64, more ...string) {
			labels := append([]string{pair.client, pair.backend}, more...)
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
		}
		number(zoneBytes(), sum.bytesTo, toBackend)
		number(zoneBytes(), sum.bytesFrom, fromBackend)
		number(zoneConnections(), sum.connections)
	}
}
