// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearlb/nearlb/pkg/lb"
)

// other is the label of what has no series of its own. No protocol is called so: the row cannot be mistaken for a Service's.
const other = "other"

// family describes the metrics of one noun, service or backend.
type family struct {
	connections, failed, packets, bytes, refused, omitted *prometheus.Desc
}

var portLabels = []string{"namespace", "service", "port", "protocol"}

func familyOf(noun, of string, labels ...string) family {
	metric := func(name, help string, more ...string) *prometheus.Desc {
		return describe("nearlb_"+noun+"_"+name, help+of, append(append([]string{}, labels...), more...)...)
	}
	return family{
		connections: metric("connections_total", "New connections, and UDP flows, that were given a backend, "),
		failed: metric("failed_connections_total", "TCP connections that a backend refused, or that had no answer for ten seconds (cause), "+
			"but for those of the node's own sockets, whose packets no program sees, ", "cause"),
		packets: metric("packets_total", "Packets between clients of this node and backends, but for those of the node's own sockets, ", "direction"),
		bytes:   metric("bytes_total", "Bytes of those packets, with the Ethernet header, ", "direction"),
		refused: metric("refused_packets_total", "Packets that got no backend: answered with a refusal, or dropped, ", "verdict"),
		omitted: describe("nearlb_"+noun+"_series_omitted", "Those with traffic that have no series of their own but count in the one labelled other."),
	}
}

func serviceFamily() family { return familyOf("service", "by service port.", portLabels...) }

func backendFamily() family {
	return familyOf("backend", "by service port and node of the backend.", append(append([]string{}, portLabels...), "backend_node", "backend_zone")...)
}

func portValues(p lb.PortName) []string {
	return []string{p.Service.Namespace, p.Service.Name, p.Port, p.Protocol.String()}
}

func (k server) values() []string { return append(portValues(k.port), k.node, k.zone) }

func others(n int) []string {
	values := make([]string, n)
	for i := range values {
		values[i] = other
	}
	return values
}

// collect shows the sums of each service port.
func collectServices(l *ledger, out chan<- prometheus.Metric) {
	f := serviceFamily()
	show := func(t *traffic, values []string) {
		f.collect(out, t, values)
		f.count(out, f.refused, t.rejected, values, "reject")
		f.count(out, f.refused, t.dropped, values, "drop")
	}
	for port, sum := range l.services.own {
		show(sum, portValues(port))
	}
	if l.services.rest != (traffic{}) {
		show(&l.services.rest, others(len(portLabels)))
	}
	out <- prometheus.MustNewConstMetric(f.omitted, prometheus.GaugeValue, float64(len(l.services.others)))
}

// collectBackends shows the sums of the backends of each service port on each node.
func collectBackends(l *ledger, out chan<- prometheus.Metric) {
	f := backendFamily()
	for key, sum := range l.servers.own {
		f.collect(out, sum, key.values())
	}
	if l.servers.rest != (traffic{}) {
		f.collect(out, &l.servers.rest, others(len(portLabels)+2))
	}
	out <- prometheus.MustNewConstMetric(f.omitted, prometheus.GaugeValue, float64(len(l.servers.others)))
}

// collect shows what services and backends have in common.
func (f family) collect(out chan<- prometheus.Metric, t *traffic, values []string) {
	f.count(out, f.connections, t.connections, values)
	f.count(out, f.failed, t.refused, values, "refused")
	f.count(out, f.failed, t.unanswered, values, "unanswered")
	f.count(out, f.packets, t.packetsTo, values, toBackend)
	f.count(out, f.packets, t.packetsFrom, values, fromBackend)
	f.count(out, f.bytes, t.bytesTo, values, toBackend)
	f.count(out, f.bytes, t.bytesFrom, values, fromBackend)
}

func (family) count(out chan<- prometheus.Metric, d *prometheus.Desc, value uint64, values []string, more ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), append(append([]string{}, values...), more...)...)
}
