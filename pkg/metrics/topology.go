// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The two sides and, of WithoutLocal, the two traffic policies.
const (
	Internal = "internal"
	External = "external"
)

// Why is the reason of an answer for one side's clients.
type Why struct {
	Side   string
	Reason lb.Reason
	Note   lb.Note // why a preference is not in force; "" where none was asked for, or it is
}

// Answer is what clients of one side get of a service port in one family.
type Answer struct {
	Port lb.PortName
	V4   bool
	Why
}

func (a Answer) family() string {
	if a.V4 {
		return "IPv4"
	}
	return "IPv6"
}

func reasons() *prometheus.Desc {
	return describe("nearlb_service_ports", "Service ports by side and why they have their backends, each family counted.", "side", "reason", "note")
}

func topology() *prometheus.Desc {
	return describe("nearlb_service_topology_info",
		"Why clients of a side have the backends of a service port that prefers or demands near ones; note: why that is not in force.",
		"namespace", "service", "port", "protocol", "family", "side", "reason", "note")
}

// collectTopology shows the reasons in force: their numbers, and one by one those of Services that ask for nearness, which are
// the only labels that name Services. Their number is bounded by whoever made the state.
func collectTopology(s State, out chan<- prometheus.Metric) {
	for why, count := range s.Reasons {
		out <- prometheus.MustNewConstMetric(reasons(), prometheus.GaugeValue, float64(count), why.Side, string(why.Reason), string(why.Note))
	}
	for _, a := range s.Topology {
		name := a.Port.Service
		out <- prometheus.MustNewConstMetric(topology(), prometheus.GaugeValue, 1, name.Namespace, name.Name, a.Port.Port,
			a.Port.Protocol.String(), a.family(), a.Side, string(a.Reason), string(a.Note))
	}
	for policy, count := range s.WithoutLocal {
		out <- prometheus.MustNewConstMetric(describe("nearlb_services_without_local_endpoints",
			"Service ports whose traffic policy Local drops traffic here: endpoints are on other nodes only.", "traffic_policy"),
			prometheus.GaugeValue, float64(count), policy)
	}
	out <- prometheus.MustNewConstMetric(describe("nearlb_service_topology_omitted", "Answers too many for nearlb_service_topology_info."),
		prometheus.GaugeValue, float64(s.Omitted))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
