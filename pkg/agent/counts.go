// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// count is what the metrics show of the loop's work.
func (p *progress) count() metrics.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := metrics.State{
		Services: len(p.services), Dirty: len(p.dirty), Failing: len(p.failing),
		Backends: map[string]int{}, Devices: map[string]int{},
	}
	for _, service := range p.services {
		s.Frontends += len(service.decision.Frontends)
		for _, b := range service.decision.Backends {
			s.Backends[string(b.State)]++
		}
	}
	return s
}

// countDevices adds what is attached.
func countDevices(s *metrics.State, rows []attach.DeviceRow) {
	for _, row := range rows {
		if row.Error != "" {
			s.Detached++
		} else {
			s.Devices[string(row.Method)]++
		}
	}
}
