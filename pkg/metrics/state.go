// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// State is what there is at the moment of a scrape.
type State struct {
	Services  int            // published
	Frontends int            // published
	Backends  map[string]int // by state: active, draining, quiet
	Dirty     int            // Services that wait to be published
	Failing   int            // Services whose last publication failed
	Devices   map[string]int // attached programs, by method
	Detached  int            // programs that could not be attached
	Problems  int            // of objects
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
	one("nearlb_programs_detached", "Programs that could not be attached to a device.", s.Detached)
	one("nearlb_object_problems", "Things in objects that cannot be served as written.", s.Problems)
	by := func(name, help, label string, values map[string]int) {
		for key, value := range values {
			out <- prometheus.MustNewConstMetric(describe(name, help, label), prometheus.GaugeValue, float64(value), key)
		}
	}
	by("nearlb_backends", "Backends published, by state.", "state", s.Backends)
	by("nearlb_programs_attached", "Programs attached to devices, by method.", "method", s.Devices)
}
