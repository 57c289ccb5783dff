// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// State is what there is at the moment of a scrape.
type State struct {
	Services  int            // published
	Frontends int            // published
	Backends  map[string]int // by state: active, draining, quiet, responder
	Dirty     int            // Services that wait to be published
	Failing   int            // Services whose last publication failed
	Devices   map[string]int // attached programs, by method
	Detached  int            // programs that could not be attached
	Problems  int            // of objects
	External  int            // of those, external IPs that are refused, or served although they are somebody else's
	Draining  bool           // new connections are left to kube-proxy
	Growths   int            // times that larger tables took the place of others
	Outdated  bool           // the configuration changed since the start
	Cramped   bool           // tables could not grow, and are tried again
	Eligible  bool           // load balancers off the cluster may send traffic here
	Checks    map[string]int // health check node ports: answered, failed

	Unreadable bool           // the API server does not answer
	Held       map[string]int // what stays in force although the API server suddenly lists it no more, by kind

	WithoutLocal map[string]int // service ports that drop, by traffic policy
	Reasons      map[Why]int    // answers of service ports
	Topology     []Answer       // those of them that are shown one by one
	Omitted      int            // those that should be, and are too many
}

// Follow adds gauges of the state that the function returns.
func (m *Metrics) Follow(state func() State) { m.registry.MustRegister(stateCollector{state}) }

type stateCollector struct{ state func() State }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe says nothing: which labels come depends on the state.
func (c stateCollector) Describe(chan<- *prometheus.Desc) {}

func (c stateCollector) Collect(out chan<- prometheus.Metric) {
	s := c.state()
	one := func(name, help string, value int) {
		out <- prometheus.MustNewConstMetric(describe(name, help), prometheus.GaugeValue, float64(value))
	}
	one("nearlb_services", "Services published.", s.Services)
	one("nearlb_frontends", "Frontends published.", s.Frontends)
	one("nearlb_services_dirty", "Services that wait to be published.", s.Dirty)
	one("nearlb_services_failing", "Services whose last publication failed; their old answer is served.", s.Failing)
	one("nearlb_programs_detached", "Programs that could not be attached to a device or to the cgroup.", s.Detached)
	one("nearlb_object_problems", "Things in objects that cannot be served as written.", s.Problems)
	one("nearlb_external_ip_problems", "External IPs of Services that are refused, or served although they are somebody else's too (CVE-2020-8554).", s.External)
	by := func(name, help, label string, values map[string]int) {
		for key, value := range values {
			out <- prometheus.MustNewConstMetric(describe(name, help, label), prometheus.GaugeValue, float64(value), key)
		}
	}
	out <- prometheus.MustNewConstMetric(describe("nearlb_table_growths_total", "Times that larger tables took the place of others."), prometheus.CounterValue, float64(s.Growths))
	one("nearlb_table_growth_failing", "1 if tables could not grow; it is tried again.", truth(s.Cramped))
	one("nearlb_restart_needed", "1 if what --config-dir has changed since the agent started.", truth(s.Outdated))
	one("nearlb_draining", "1 if new connections are left to kube-proxy (nearlb handover).", truth(s.Draining))
	one("nearlb_node_eligible", "1 if load balancers off the cluster may send traffic to this node.", truth(s.Eligible))
	by("nearlb_health_check_node_ports", "Services with a health check node port, by whether it is answered.", "state", s.Checks)
	one("nearlb_api_server_readable", "1 if objects can be read from the API server; 0: those known stay in force.", truth(!s.Unreadable))
	by("nearlb_deletions_held", "What stays in force although the API server suddenly lists it no more, by kind; of EndpointSlices the Services.", "kind", s.Held)
	collectTopology(s, out)
	by("nearlb_backends", "Backends published, by state.", "state", s.Backends)
	by("nearlb_programs_attached", "Programs attached to devices and to the cgroup of sockets, by method.", "method", s.Devices)
}
